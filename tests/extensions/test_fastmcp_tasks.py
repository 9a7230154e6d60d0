"""Tasks of FastMCP's servers as FastMCP's client sees them: the same through the gateway, whatever they end in."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.conftest import ROOT, settings
from tests.e2e.install import InstallationError, install_tasks
from tests.support.process import listening, running_gateway
from tests.support.skipping import unavailable

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SECONDS = 100


def test_tasks_of_fastmcp_are_awaited_followed_asked_and_cancelled_as_without_a_gateway(tmp_path: Path) -> None:
    try:
        python = str(install_tasks())
    except InstallationError as exc:
        unavailable(exc)

    def seen_at(url: str) -> dict[str, Any]:
        program = [python, str(ROOT / "tests" / "extensions" / "fastmcp_tasks_client.py"), url]
        done = subprocess.run(program, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        seen: dict[str, Any] = json.loads(done.stdout)
        return seen

    with (
        listening([python, str(ROOT / "tests" / "conformance" / "tasks_server.py")], env=dict(os.environ)) as (
            _,
            url,
            _,
        ),
        running_gateway(tmp_path, settings({"url": url})) as gateway,
    ):
        direct, through = seen_at(url), seen_at(gateway.url)
    assert direct["awaited multi_input"] == "both answered"
    assert (direct["ended"], direct["cancelled"], direct["answered"]) == ("completed", "cancelled", "deleted f")
    assert through == direct
