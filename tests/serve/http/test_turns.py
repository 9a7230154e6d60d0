"""Clients take turns at the event loop, and a request that waits for its server keeps none of its client's back."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from tests.support.raw import decoded
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import serving

pytestmark = pytest.mark.anyio

KEYS = {"ADA": "key-of-ada-0123456789", "BOB": "key-of-bob-0123456789"}


@pytest.mark.parametrize("era", ["handshake", "2026"])
async def test_a_call_that_waits_for_its_server_keeps_no_other_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, era: str
) -> None:
    monkeypatch.setattr("pml_gateway.quotas.TURN_SECONDS", 600)
    for name, key in KEYS.items():
        monkeypatch.setenv(name, key)
    go = anyio.Event()

    async def handler(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        if call["name"] == "wait":
            await go.wait()
        return text_result(call["name"])

    up = ScriptedServer([tool("look"), tool("wait")], handler)
    clients = {name.lower(): {"key": f"${{env:{name}}}"} for name in KEYS}
    async with serving(tmp_path, {"up": up}, clients=clients) as served, served.handshake(key=KEYS["ADA"]) as session:

        async def ask(name: str, meta_tool: bool = False) -> str:
            params: dict[str, Any] = {"name": f"up__{name}", "arguments": {}}
            if meta_tool:
                params = {"name": "call_tool", "arguments": params}
            if era == "2026":
                return str(await served.message("tools/call", params, key=KEYS["ADA"]))
            return str(await anyio.to_thread.run_sync(lambda: decoded(session.send("tools/call", params))))

        with anyio.fail_after(30):
            await served.call("up__look", key=KEYS["BOB"])
            async with anyio.create_task_group() as tasks:
                for meta_tool in (False, True):
                    tasks.start_soon(partial(ask, "wait", meta_tool))
                for meta_tool in (False, True):
                    await served.call("up__look", key=KEYS["BOB"])
                    assert "look" in await ask("look", meta_tool)
                go.set()
