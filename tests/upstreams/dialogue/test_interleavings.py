"""Whatever local clients do at once, each question, log and answer reaches its own client, and nothing hangs."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import mcp_types
import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError

from pml_gateway.mcp.sdk import connection_of
from pml_gateway.serve.clients import end_local_client
from pml_gateway.upstreams.dialogue import question_probe, shared_questions
from tests.support.asking import Person, act, asking, question_of
from tests.support.local import Machine, machine
from tests.support.scripted_server import text_result, tool
from tests.support.waiting import LIMIT, until

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:.*deprecated")]

NAMES = ("ada", "bob", "eve", "joe")
KINDS = ("never", "never", "never", "slow", "ask", "sample", "sometimes", "log", "cancelled", "late", "afterwards")
MOMENT = 0.01


class Server:
    """Its calls take a while each, in an order of chance; some ask."""

    def __init__(self, chance: random.Random, works: anyio.abc.TaskGroup) -> None:
        self._chance, self.works = chance, works
        self.fake = asking()
        self.fake.tools += [
            tool(name, properties={"text": {"type": "string"}}, annotations={"readOnlyHint": name == "sometimes"})
            for name in ("never", "slow", "sometimes", "cancelled", "late", "afterwards")
        ]
        self.fake.handler = self.act

    async def act(self, ctx: Any, given: dict[str, Any]) -> dict[str, Any]:
        name, text = given["name"], given["arguments"]["text"]
        await anyio.sleep(self._chance.random() * MOMENT * (10 if name == "slow" else 1))
        if name == "cancelled":
            try:
                await anyio.sleep_forever()
            finally:
                if self._chance.random() < 0.5:
                    # Asks although nobody waits for it any more.
                    with anyio.CancelScope(shield=True), anyio.move_on_after(1):
                        await act(ctx, {**given, "name": "ask"})
        if name in ("ask", "sample") or (name == "sometimes" and self._chance.random() < 0.4):
            return await act(ctx, {**given, "name": "sample" if name == "sample" else "ask"})
        if name == "log":
            await connection_of(ctx).notify("notifications/message", {"level": "error", "data": text})
        if name == "late":
            with anyio.move_on_after(MOMENT):
                await act(ctx, {**given, "name": "ask"})
        if name == "afterwards":
            self.works.start_soon(self._ask_afterwards, connection_of(ctx), text)
        await anyio.sleep(self._chance.random() * MOMENT)
        return text_result(f"{name}: {text}")

    async def _ask_afterwards(self, connection: Any, text: str) -> None:
        question = question_of("ask", text)
        await anyio.sleep(self._chance.random() * MOMENT * 10)
        # Nobody need be there any more.
        with suppress(MCPError, anyio.ClosedResourceError, anyio.BrokenResourceError):
            await connection.send_raw_request(question["method"], question["params"])


class Caller:
    """One client that makes a number of calls, several of them at once."""

    def __init__(self, person: Person, chance: random.Random) -> None:
        self.person = person
        self.wrong: list[str] = []
        self.answered = 0
        self._chance = chance

    async def run(self, served: Machine) -> None:
        name, chance = self.person.name, self._chance
        modern = chance.random() < 0.3
        opened = served.client(self.person, modern=modern) if chance.random() < 0.8 else served.unable(name)
        async with opened as client:
            if not modern and chance.random() < 0.2:
                await client.set_logging_level("debug")
            for turn in range(4):
                async with anyio.create_task_group() as tasks:
                    for number in range(chance.randint(1, 3)):
                        tasks.start_soon(self._call, client, chance.choice(KINDS), f"{name} {turn} {number}")
        if modern:
            # Its process says so: it has no session that could end.
            end_local_client(served.gateway, f"local:{name}")

    async def _call(self, client: Client, kind: str, text: str) -> None:
        with anyio.move_on_after(MOMENT * 2 if kind == "cancelled" else LIMIT) as limit:
            result = await client.call_tool(f"up__{kind}", {"text": text})
            said = self._read(result)
            error: Any = (result.structured_content or {}).get("error") if result.is_error else None
            is_typed = error is not None and error["details"].get("executed") == "unknown"
            is_own = said in (f"{kind}: {text}", f"{self.person.name}: {text}") or "refused" in said
            if not (is_own or is_typed):
                self.wrong.append(f"{kind} {text!r} was answered {said!r}")
        self.answered += 1
        if limit.cancelled_caught and kind != "cancelled":
            self.wrong.append(f"{kind} {text!r} was not answered")

    @staticmethod
    def _read(result: mcp_types.CallToolResult) -> str:
        return str(getattr(result.content[0], "text", ""))


@pytest.mark.parametrize(
    "seed",
    [
        1,
        *(pytest.param(seed, marks=pytest.mark.slow) for seed in (4, 12)),
        *(pytest.param(seed, marks=pytest.mark.heavy) for seed in range(100, 200)),
    ],
)
async def test_everything_reaches_its_own_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(question_probe, "TURN_SECONDS", MOMENT * 3)
    monkeypatch.setattr(shared_questions, "HELD_SECONDS", MOMENT * 5)
    chance = random.Random(seed)
    people = [Person(name) for name in NAMES[: chance.randint(2, 4)]]
    callers = [Caller(person, chance) for person in people]
    async with anyio.create_task_group() as works, machine(tmp_path, {"up": Server(chance, works).fake}) as served:
        with anyio.fail_after(LIMIT):
            # Somebody who is there first, so that there is always another.
            async with served.client(Person("zoe")) as first:
                await until(lambda: served.up.last_listed is not None)
                assert (await first.call_tool("up__never", {"text": "zoe"})).content
                async with anyio.create_task_group() as tasks:
                    for caller in callers:
                        tasks.start_soon(caller.run, served)
        await until(lambda: len(served.up.sessions.own) == 0)
        works.cancel_scope.cancel()
    for person, caller in zip(people, callers, strict=True):
        assert caller.wrong == []
        assert [text for text in (*person.asked, *person.logs) if not text.startswith(person.name)] == []
