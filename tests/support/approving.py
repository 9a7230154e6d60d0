"""A gateway whose rules ask before calls, a server behind it, and its owner, who answers over the real socket."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pml_gateway.owner.operations import ANSWER_APPROVAL, APPROVAL, APPROVALS
from pml_gateway.owner.sockets import ask_gateways
from pml_gateway.paths import Paths
from tests.support.memory import paths_in
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import Serving, serving
from tests.support.waiting import until

LIMIT = 20
REDIS, STORAGE = "APPROVALS_REDIS", "APPROVALS_STORAGE_KEY"
"""Variables of tests whose gateways share their approvals."""

KEYS = {"ADA": "key-of-ada-0123456789", "BOB": "key-of-bob-0123456789"}
CLIENTS = {"ada": {"key": "${env:ADA}"}, "bob": {"key": "${env:BOB}"}}
ASK = {"match": {"effect": "destructive"}, "do": "ask"}
META_TOOLS = ("search_tools", "call_tool", "call_batch", "execute_workflow", "read_result")
MINE = {"repo": "mine"}
WIPE = {"name": "up__wipe", "arguments": MINE}
ANY = {"x": {}, "repo": {"type": "string"}}

WORKFLOWS = {
    "tidy": {"description": "Tidy up.", "steps": [{"id": "w", "tool": "up:wipe", "arguments": {"repo": "mine"}}]},
}


def wiping() -> ScriptedServer:
    """A server with a tool that destroys and one that reads."""
    return ScriptedServer(
        [
            tool("look", properties=ANY, annotations={"readOnlyHint": True}),
            tool("wipe", properties=ANY, annotations={"destructiveHint": True}),
            tool("drop", properties=ANY, annotations={"destructiveHint": True}),
        ]
    )


@dataclass
class Asking:
    """The gateway, its server and its owner."""

    served: Serving
    server: ScriptedServer
    paths: Paths

    @property
    def sent(self) -> list[tuple[str, Any]]:
        """What reached the server."""
        return [(each["name"], each["arguments"]) for each in self.server.calls]

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None, who: str = "ADA", **extra: Any) -> str:
        """The outcome of a call by a client: OK, or the code of the error."""
        params = {"name": name, "arguments": dict(arguments or {}), **extra}
        return outcome(await self.served.message("tools/call", params, key=KEYS[who]))

    async def waiting(self) -> list[str]:
        """The ids of what waits for the owner."""
        return [row["id"] for row in await self.rows() if row["state"] == "pending"]

    async def rows(self) -> list[dict[str, Any]]:
        """What the owner is shown."""
        answers = await ask_gateways(self.paths, APPROVALS, LIMIT)
        return [row for each in answers.results for row in each["approvals"]]

    async def shown(self, id_: str) -> dict[str, Any]:
        """One approval with its arguments."""
        [found] = (await ask_gateways(self.paths, APPROVAL, LIMIT, {"id": id_})).results
        assert found["approval"] is not None
        return found["approval"]

    async def answer(
        self, id_: str | None = None, answer: str = "approve", scope: str = "call", passphrase: str = ""
    ) -> list[str]:
        """Answer what waits, as `pml approvals` does; the errors."""
        [asked] = [id_] if id_ is not None else await self.waiting()
        given = {"id": asked, "answer": answer, "scope": scope, "passphrase": passphrase}
        return (await ask_gateways(self.paths, ANSWER_APPROVAL, LIMIT, given)).errors


@asynccontextmanager
async def asking(
    folder: Path, *rules: Mapping[str, Any], server: ScriptedServer | None = None, **sections: Any
) -> AsyncIterator[Asking]:
    """Serve with rules that ask, by default before everything destructive; calls do not wait unless they are to."""
    behind = server or wiping()
    given: dict[str, Any] = {
        "rules": rules or (ASK,),
        "clients": CLIENTS,
        "workflows": WORKFLOWS,
        "gateway": {"meta_tools": META_TOOLS},
        **_storage(),
        **sections,
        "approvals": {"hold_seconds": 0, "notify": False, **sections.get("approvals", {})},
    }
    async with serving(folder, {"up": behind}, **given) as served:
        for gateway in served.gateways:
            await gateway.refresh(30)
        await until(lambda: all(gateway.approvals.can_be_answered for gateway in served.gateways))
        yield Asking(served, behind, paths_in(folder))


def _storage() -> dict[str, Any]:
    """The section of a gateway that shares its approvals, in tests with a Redis server."""
    return {"storage": {"url": f"${{env:{REDIS}}}", "key": f"${{env:{STORAGE}}}"}} if REDIS in os.environ else {}


def outcome(message: Mapping[str, Any]) -> str:
    """OK, or the code of the error that a message or a result of several calls has."""
    if "error" in message:
        return str((message["error"].get("data") or {}).get("code") or message["error"]["code"])
    result = message["result"]
    data = result.get("structuredContent") or {}
    if result.get("isError") and isinstance(data.get("error"), dict):
        return str(data["error"]["code"])
    slots = data.get("results") or data.get("steps") or ()
    codes = [each["error"]["code"] for each in slots if isinstance(each, dict) and each.get("error")]
    return codes[0] if codes else "OK"


async def approved(asked: Asking, name: str = "up__wipe", given: Any = MINE, scope: str = "call") -> str:
    """Have one call asked about and approved, and not made yet; the id."""
    assert await asked.call(name, given) == "PENDING_APPROVAL"
    [id_] = await asked.waiting()
    assert await asked.answer(id_, scope=scope) == []
    return id_
