"""`pml tools` shows what a client gets, whatever the style of the list."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.support.process import run_pml, running_gateway
from tests.support.raw import result_modern

UPSTREAM = Path(__file__).parents[1] / "support" / "upstream_server.py"


def test_namespaces_and_legacy_tools_are_shown_as_clients_get_them(tmp_path: Path) -> None:
    servers = {"up": {"command": sys.executable, "args": [str(UPSTREAM)]}}
    settings = {"servers": servers, "gateway": {"style": "namespaces", "legacy_tools": True}}
    with running_gateway(tmp_path, settings) as gateway:
        listed = result_modern(gateway.url, "tools/list")["tools"]
    shown: list[dict[str, Any]] = json.loads(run_pml(tmp_path, "tools", "--mode", "meta_only", "--json").stdout)[
        "tools"
    ]
    assert [row["name"] for row in shown] == [tool["name"] for tool in listed]
    reasons = {row["name"]: row["reason"] for row in shown}
    assert (reasons["search_tools"], reasons["up"]) == ("meta-tool", "namespace")
    assert {reason for name, reason in reasons.items() if name.startswith("up__")} == {"legacy"}
    [description] = [row["description"] for row in shown if row["name"] == "up__echo"]
    assert description.startswith("[Legacy — prefer up]")
