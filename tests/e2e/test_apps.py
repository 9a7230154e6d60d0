"""MCP Apps: the reference host shows the pages of reference servers, and their apps call tools, through the gateway."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import OverStdio, over_stdio, run_pml, write_settings
from tests.support.skipping import unavailable

from .install import Installation, InstallationError, install_apps
from .typescript import printed_by

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

HOST = Path(__file__).with_name("apps_host.mjs")
CALLS = ["poll-system-stats", "debug-refresh", "get-system-info", "no-such-tool"]


@pytest.fixture(scope="module")
def packages() -> Path:
    """The folder with the reference host and servers."""
    try:
        return install_apps()
    except InstallationError as exc:
        unavailable(exc)


def entries(installation: Installation, packages: Path) -> dict[str, dict[str, Any]]:
    """The two servers as `servers:` entries."""
    scope, options = packages / "@modelcontextprotocol", ["--stdio", f"--log-file={os.devnull}"]
    return {
        name: {
            "command": str(installation.node),
            "args": [str(scope / f"server-{name}" / "dist" / "index.js"), *options],
        }
        for name in ("debug", "system-monitor")
    }


def seen(installation: Installation, packages: Path, target: dict[str, Any]) -> dict[str, Any]:
    """What the host saw of one server, directly or through the gateway."""
    return printed_by(installation, HOST, packages, {"env": {}, **target, "calls": CALLS})


@pytest.mark.parametrize("over", ["stdio", "bridge"])
def test_a_host_shows_and_an_app_calls_what_they_do_without_a_gateway(
    tmp_path: Path, installation: Installation, packages: Path, over: OverStdio
) -> None:
    servers = entries(installation, packages)
    direct = {name: seen(installation, packages, entry) for name, entry in servers.items()}
    write_settings(tmp_path, {"servers": servers, "gateway": {"tools_exposure": "full_proxy"}})
    # The host lists once, and a first start does not wait for a server that takes long.
    assert run_pml(tmp_path, "tools", "--json").returncode == 0
    with over_stdio(over, tmp_path) as target:
        through = seen(installation, packages, target)

    tools = {f"{name}__{tool}": facts for name, each in direct.items() for tool, facts in each["tools"].items()}
    assert through["tools"] == tools
    assert {facts["appOnly"] for facts in tools.values()} == {True, False}
    assert through["pages"] == direct["debug"]["pages"] | direct["system-monitor"]["pages"]
    for name in CALLS[:-1]:
        assert through["calls"][name]["content"]
        assert not through["calls"][name].get("isError")
    missing = through["calls"]["no-such-tool"]
    assert missing.get("isError") or "error" in missing
