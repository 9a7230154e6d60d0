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
    path = home / "config.yaml"
    path.write_text(json.dumps({"servers": {UPSTREAM: {"url": upstream.url}}}), encoding="utf-8")  # JSON is YAML
    return path


@asynccontextmanager
async def start(upstream: Upstream) -> AsyncIterator[Endpoint]:
    """The gateway in front of the upstream, listing everything."""
    with tempfile.TemporaryDirectory(prefix="pml-") as home:
        async with gateway(upstream, Path(home)) as endpoint:
            yield endpoint


@asynccontextmanager
async def gateway(
    upstream: Upstream, home: Path, *, python: str = sys.executable, mode: str = "full_proxy"
) -> AsyncIterator[Endpoint]:
    """The gateway that is installed beside `python`, with what it keeps in `home`."""
    config = str(_write_settings(home, upstream))
    # -P, or the package in the working directory would come first.
    command = [python, "-P", "-m", "pml_gateway", "serve", "--http", "--port", "0", "--config", config, "--mode", mode]
    async with running(command, env={"PML_HOME": str(home)}) as process:
        yield Endpoint(f"{process.origin}/mcp", process.pid, called_name=_name, listed_name=_name)
