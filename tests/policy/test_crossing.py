"""Twenty principals of five roles call at once, and nothing of one reaches another."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from tests.support.raw import HandshakeSession, decoded
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import Serving, serving

SERVERS = [f"s{number}" for number in range(5)]
PRINCIPALS = [f"p{number}" for number in range(20)]
CALLS = int(os.environ.get("PML_CROSSING_CALLS", "2000"))
"""Ten thousand take two to eight minutes."""
READ = {"readOnlyHint": True}


def roles_of(name: str) -> list[str]:
    """The roles of a principal: one, and of every fourth one two."""
    number = int(name[1:])
    return [f"r{number % 5}", *([f"r{(number + 1) % 5}"] if number % 4 == 0 else [])]


def may_call(name: str, server: str, own_name: str) -> bool:
    """State the rights in another way than the gateway computes them."""
    given = {f"s{role[1:]}" for role in roles_of(name)}
    return server in given and (own_name == "look" or may_change(name))


def upstream(server: str) -> ScriptedServer:
    async def handler(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        return text_result(f"{server} {call['name']} for {call['arguments'].get('who')}")

    return ScriptedServer([tool("look", annotations=READ), tool("change")], handler, id=server)


class Asking:
    """One principal, half of its requests stateless and half in a session."""

    def __init__(self, served: Serving, name: str, session: HandshakeSession) -> None:
        self.name = name
        self._served = served
        self.session = session
        self._random = random.Random(name)
        self.outcomes: Counter[str] = Counter()

    async def ask(self, name: str, arguments: dict[str, Any]) -> str:
        if self._random.random() < 0.5:
            key = f"key-of-{self.name}-0123456789"
            return json.dumps(await self._served.message("tools/call", {"name": name, "arguments": arguments}, key=key))
        params = {"name": name, "arguments": arguments}
        session = self.session
        return json.dumps(await anyio.to_thread.run_sync(lambda: decoded(session.send("tools/call", params))))

    async def run(self, calls: int) -> None:
        for number in range(calls):
            server, own_name = self._random.choice(SERVERS), self._random.choice(["look", "change"])
            who, name = f"{self.name}-{number}", f"{server}__{own_name}"
            call = {"name": name, "arguments": {"who": who}}
            match self._random.randrange(5):
                case 0:
                    answer = await self.ask(name, {"who": who})
                case 1:
                    answer = await self.ask("call_tool", call)
                case 2:
                    answer = await self.ask("call_batch", {"calls": [call]})
                case 3:
                    answer = await self.ask("execute_workflow", {"steps": [{"id": "a", **call_step(call)}]})
                case _:
                    found = json.loads(await self.ask("search_tools", {"query": f"{server} {own_name}"}))
                    tools = found["result"]["structuredContent"]["hits"]
                    wrong = [each["name"] for each in tools if not may_call(self.name, *each["name"].split("__"))]
                    assert not wrong, f"{self.name} finds {wrong}"
                    self.outcomes["searched"] += 1
                    continue
            is_answered = f"{server} {own_name} for {who}" in answer
            assert is_answered is may_call(self.name, server, own_name), f"{self.name}: {name}: {answer}"
            self.outcomes["answered" if is_answered else "hidden"] += 1
            if not is_answered:
                assert "no tool named" in answer, answer
            # Whoever else is answered meanwhile, this answer is about this call.
            assert answer.count(" for p") == answer.count(f" for {who}")


def call_step(call: dict[str, Any]) -> dict[str, Any]:
    return {"tool": call["name"], "arguments": call["arguments"]}


@pytest.mark.heavy
@pytest.mark.timeout(1800)  # For ten thousand requests, on a machine that does other things too.
@pytest.mark.anyio
@pytest.mark.usefixtures("gateways")
async def test_nothing_crosses_between_twenty_principals_of_five_roles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = {f"of {server}": {"include": [server], "effects": ["read"]} for server in SERVERS}
    sets |= {f"all of {server}": {"include": [server]} for server in SERVERS}
    # The first two roles may also change something, of whatever servers their clients have.
    roles = {f"r{number}": {"sets": [f"of s{number}"]} for number in range(5)}
    clients = {}
    for name in PRINCIPALS:
        monkeypatch.setenv(name.upper(), f"key-of-{name}-0123456789")
        changing = [f"all of s{role[1:]}" for role in roles_of(name)] if may_change(name) else []
        clients[name] = {"key": f"${{env:{name.upper()}}}", "roles": roles_of(name), "sets": changing}
    upstreams = {server: upstream(server) for server in SERVERS}
    given: dict[str, Any] = {"sets": sets, "roles": roles, "clients": clients, "references": {"mode": "off"}}
    async with serving(tmp_path, upstreams, **given) as served:
        await served.refresh(30)
        await served.gateway.wait_for_search(60)
        asking = []
        for name in PRINCIPALS:
            key = f"key-of-{name}-0123456789"
            session = await anyio.to_thread.run_sync(partial(HandshakeSession, served.url, key=key))
            asking.append(Asking(served, name, session))
        async with anyio.create_task_group() as tasks:
            for each in asking:
                tasks.start_soon(each.run, CALLS // len(PRINCIPALS))
        for each in asking:
            await anyio.to_thread.run_sync(each.session.__exit__)
    outcomes = sum((each.outcomes for each in asking), Counter[str]())
    assert outcomes.total() == CALLS
    assert min(outcomes[kind] for kind in ("answered", "hidden", "searched")) > CALLS // 20
    # What was not answered did not run either.
    ran = sum(len(server.calls) for server in upstreams.values())
    assert ran == outcomes["answered"]


def may_change(name: str) -> bool:
    return not {"r0", "r1"}.isdisjoint(roles_of(name))
