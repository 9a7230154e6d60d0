"""Who sees the tools of a server, and what the configuration says about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pml_gateway.owner.answers.reach import MACHINE, reach
from pml_gateway.owner.context import OperationContext
from tests.support.approving import CLIENTS, KEYS, wiping
from tests.support.memory import paths_in
from tests.support.serving import serving

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_clients_rules_and_entries_about_a_server_and_about_one_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, key in KEYS.items():
        monkeypatch.setenv(name, key)
    sections: dict[str, Any] = {
        "clients": {**CLIENTS, "bob": {**CLIENTS["bob"], "deny": ["up:wipe"], "mode": "full_proxy"}},
        "rules": [{"match": {"tool": "other:*"}, "do": "deny"}, {"match": {"effect": "read"}, "do": "ask"}],
        "sets": {"safe": {"include": ["up:look"]}, "none": {"include": ["other:*"]}},
    }
    async with serving(tmp_path, {"up": wiping()}, **sections) as served:
        context = OperationContext(served.gateway, paths_in(tmp_path), "test")
        server, tool = await reach(context, "up", None), await reach(context, "up", "up__wipe")
        unknown = await reach(context, "nope", None)
    sees = {row["client"]: (row["mode"], row["sees"]) for row in server["clients"]}
    assert sees == {MACHINE: ("meta_only", 3), "ada": ("meta_only", 3), "bob": ("full_proxy", 2)}
    assert {row["client"]: row["sees"] for row in tool["clients"]} == {MACHINE: 1, "ada": 1, "bob": 0}
    assert [(row["rule"], row["action"]) for row in server["rules"]] == [("rules[1]", "ask")]
    assert tool["rules"] == []
    assert server["entries"] == [("sets.safe.include", "up:look"), ("clients.bob.deny", "up:wipe")]
    assert tool["tools"] == {"up__wipe": "wipe"}
    assert unknown["tools"] == {}
