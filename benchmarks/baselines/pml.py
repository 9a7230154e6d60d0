"""This gateway, as a user starts it: a configuration file and `pml serve --http`."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.peers import UPSTREAM, Endpoint, Upstream
from benchmarks.processes import running


def _name(tool: str) -> str:
    return f"{UPSTREAM}__{tool}"


def _write_settings(home: Path, upstream: Upstream) -> Path:
    settings = {
        "gateway": {"tools_exposure": "full_proxy"},
        "servers": {UPSTREAM: {"url": upstream.url}},
    }
    path = home / "config.yaml"
    path.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
    return path


@asynccontextmanager
async def start(upstream: Upstream) -> AsyncIterator[Endpoint]:
    """The gateway in front of the upstream, listing everything."""
    with tempfile.TemporaryDirectory(prefix="pml-") as home:
        config = _write_settings(Path(home), upstream)
        command = [sys.executable, "-m", "pml_gateway", "serve", "--http", "--port", "0", "--config", str(config)]
        async with running(command, env={"PML_HOME": home}) as process:
            yield Endpoint(f"{process.origin}/mcp", process.pid, called_name=_name, listed_name=_name)
