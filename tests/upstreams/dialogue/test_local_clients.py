"""Several local clients share a server's session, and whatever it asks or tells reaches the one it is for."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError

from pml_gateway.config.settings import Settings
from pml_gateway.mcp.capabilities import ClientCapabilities, union
from pml_gateway.mcp.sdk import connection_of
from pml_gateway.mcp.transport import open_streams
from pml_gateway.upstreams import connector, lister
from pml_gateway.upstreams.dialogue import question_probe, shared_questions
from pml_gateway.upstreams.dialogue.local_clients import LocalClients
from tests.support.asking import Asked, Person, act, asking, gated, question_of
from tests.support.local import Machine, machine
from tests.support.memory import MemoryStreams, paths_in, settings_for
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.waiting import LIMIT, until

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:.*deprecated")]


async def call(client: Client, name: str, text: str = "") -> str:
    with anyio.fail_after(LIMIT):
        result = await client.call_tool(f"up__{name}", {"text": text})
    return str(result.content[0].text)  # type: ignore[union-attr]


async def known(served: Machine, *clients: Client) -> None:
    """Wait until the server was listed with what these clients can be asked."""
    for client in clients:
        await until(lambda: served.up.last_listed is not None)
        while "up__plain" not in {each.name for each in (await client.list_tools()).tools}:  # noqa: ASYNC110
            await anyio.sleep(0.01)
    await until(lambda: (questions := served.up.connector.shared_questions) is not None and not questions.is_outdated)


@asynccontextmanager
async def ada_and_bob(
    folder: Path, fake: ScriptedServer, ada: Person, bob: Person
) -> AsyncIterator[tuple[Machine, Client, Client]]:
    """A gateway with one server, and the clients of two people, with which that was listed."""
    async with machine(folder, {"up": fake}) as served, served.client(ada) as first, served.client(bob) as second:
        await known(served, first, second)
        yield served, first, second


def own_sessions(served: Machine) -> list[str]:
    return [each.client_id for each in served.up.sessions if not each.is_shared]


class Gate:
    """A server in which calls wait where the test wants them to."""

    def __init__(self) -> None:
        self.fake = asking()
        self.fake.tools.append(tool("hold", properties={"text": {"type": "string"}}))
        self.fake.tools.append(
            tool("read", properties={"text": {"type": "string"}}, annotations={"readOnlyHint": True})
        )
        self.fake.handler = self.act
        self.goes_on: dict[str, anyio.Event] = {}
        self.begun: list[str] = []
        self.asks: set[str] = set()

    def holds(self, *texts: str) -> None:
        self.goes_on |= {text: anyio.Event() for text in texts}

    async def act(self, ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        text = str(call["arguments"].get("text", ""))
        self.begun.append(text)
        if text in self.goes_on:
            await self.goes_on[text].wait()
        if text in self.asks:
            return await act(ctx, {**call, "name": "ask"})
        if call["name"] in ("hold", "read"):
            return text_result(f"{call['name']} {text}")
        return await act(ctx, call)


async def test_clients_that_can_be_asked_share_one_session_of_a_server_that_never_asks(tmp_path: Path) -> None:
    fake, ada, bob = asking(), Person("ada"), Person("bob")
    async with ada_and_bob(tmp_path, fake, ada, bob) as (served, first, second):
        for number in range(3):
            assert await call(first, "plain", f"a{number}") == f"plain a{number}"
            assert await call(second, "plain", f"b{number}") == f"plain b{number}"
        assert own_sessions(served) == []
        # The server was opened once, with what both can be asked.
        assert fake.announced == [("elicitation", "roots", "sampling")]


async def test_the_client_whose_only_call_runs_is_asked_and_has_its_own_session_from_then_on(tmp_path: Path) -> None:
    fake, ada, bob = asking(), Person("ada"), Person("bob")
    async with ada_and_bob(tmp_path, fake, ada, bob) as (served, first, second):
        assert await call(first, "ask", "one") == "ada: one"
        assert own_sessions(served) == []
        assert await call(second, "ask", "two") == "bob: two"
        assert own_sessions(served) == ["local:bob"]
        assert await call(first, "plain", "x") == "plain x"
        assert sorted(own_sessions(served)) == ["local:ada", "local:bob"]
        assert (ada.asked, bob.asked) == (["one"], ["two"])
        whys = {each.why for each in served.up.sessions if not each.is_shared}
        assert whys == {"the server asks clients (elicitation)"}


async def test_that_a_server_asks_is_known_at_the_next_start(tmp_path: Path) -> None:
    fake, ada, bob = asking(), Person("ada"), Person("bob")
    async with ada_and_bob(tmp_path, fake, ada, bob) as (served, first, _second):
        assert await call(first, "ask", "one") == "ada: one"
        manifests = paths_in(tmp_path).manifest_dir
        await until(lambda: any('"asks":["elicitation"]' in each.read_text() for each in manifests.glob("*.json")))
    async with ada_and_bob(tmp_path, fake, ada, bob) as (served, first, _second):
        assert await call(first, "plain") == "plain "
        assert own_sessions(served) == ["local:ada"]


async def test_the_lone_client_keeps_the_shared_session_even_where_the_server_asks(tmp_path: Path) -> None:
    fake, ada = asking(), Person("ada")
    async with machine(tmp_path, {"up": fake}) as served, served.client(ada) as first:
        await known(served, first)
        assert await call(first, "ask", "one") == "ada: one"
        assert await call(first, "roots") == "file:///ada"
        assert own_sessions(served) == []


async def test_a_client_is_asked_in_its_era_though_the_shared_session_was_opening_in_the_other(tmp_path: Path) -> None:
    fake, ada = asking(), Person("ada")
    fake.modern = None
    async with machine(tmp_path, {"up": fake}) as served, served.client(ada, modern=True) as client:
        await known(served, client)
        assert await call(client, "ask", "who") == "ada: who"
        manifests = paths_in(tmp_path).manifest_dir
        await until(lambda: any('"era":"modern"' in each.read_text() for each in manifests.glob("*.json")))
    is_found = anyio.Event()
    streams = MemoryStreams({"up": fake})
    fake.opened = 0

    async def found(_ctx: Any) -> None:
        is_found.set()

    fake.on_initialized = found

    @asynccontextmanager
    async def shared_comes_last(upstream_id: str, *arguments: Any, **options: Any) -> AsyncIterator[tuple[Any, Any]]:
        async with streams(upstream_id, *arguments, **options) as opened:
            if fake.opened == 1:
                await is_found.wait()
                await anyio.wait_all_tasks_blocked()
            yield opened

    async with (
        machine(tmp_path, {"up": fake}, open_streams=shared_comes_last, local=LocalClients(alone=True)) as served,
        served.client(ada) as client,
    ):
        # It is listed as it was remembered, and the shared session is opened meanwhile.
        await client.list_tools()
        await until(lambda: fake.opened == 1)
        assert await call(client, "ask", "who") == "ada: who"


async def test_requests_that_may_ask_run_beside_no_others_and_those_that_wait_move_once_one_asks(
    tmp_path: Path,
) -> None:
    gate, ada, bob = Gate(), Person("ada"), Person("bob")
    ada.answers = anyio.Event()
    async with ada_and_bob(tmp_path, gate.fake, ada, bob) as (served, first, second):
        said: dict[str, str] = {}

        async def ask(client: Client, text: str) -> None:
            said[text] = await call(client, "ask", text)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, first, "one")
            await until(lambda: ada.asked)
            tasks.start_soon(ask, second, "two")
            await until(lambda: "two" in said)
            assert own_sessions(served) == ["local:bob"]
            ada.answers.set()
        assert said == {"one": "ada: one", "two": "bob: two"}
        assert (ada.asked, bob.asked) == (["one"], ["two"])


async def test_a_request_that_is_not_proven_takes_its_own_session_beside_a_slow_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(question_probe, "TURN_SECONDS", 0.05)
    gate, ada, bob = Gate(), Person("ada"), Person("bob")
    gate.holds("slow")
    async with (
        ada_and_bob(tmp_path, gate.fake, ada, bob) as (served, first, second),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(call, first, "hold", "slow")
        await until(lambda: "slow" in gate.begun)
        assert await call(second, "read") == "read "
        assert own_sessions(served) == ["local:bob"]
        gate.goes_on["slow"].set()


async def test_a_tool_that_is_new_is_tried_in_a_session_of_its_client_where_others_use_the_shared_one(
    tmp_path: Path,
) -> None:
    gate, ada, bob = Gate(), Person("ada"), Person("bob")
    gate.holds("later")
    async with ada_and_bob(tmp_path, gate.fake, ada, bob) as (served, first, second):
        await call(second, "hold", "at once")
        assert await call(first, "read") == "read "
        assert await call(first, "hold", "too") == "hold too"
        assert own_sessions(served) == [], "what may be repeated, or has not asked before, is no risk"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, second, "hold", "later")
            await until(lambda: "later" in gate.begun)
            assert await call(first, "plain", "new") == "plain new"
            assert await call(first, "ask", "who") == "ada: who"
            gate.goes_on["later"].set()
        assert [each.why for each in served.up.sessions if not each.is_shared] == ["a tool was new that may ask"]
        assert (ada.asked, bob.asked) == (["who"], [])
        opened, connections = gate.fake.opened, gate.fake.sessions
        assert await call(first, "hold", "again") == "hold again"
        assert gate.fake.opened == opened
        assert connections[-1] is not connections[0], "the server has all calls of a client in one session"


async def test_a_new_tool_runs_on_the_shared_session_where_the_server_runs_once_only(tmp_path: Path) -> None:
    gate, ada, bob = Gate(), Person("ada"), Person("bob")
    async with ada_and_bob(tmp_path, gate.fake, ada, bob) as (_served, first, second):
        await call(second, "hold")
        gate.fake.refuse = True
        assert await call(first, "plain", "new") == "plain new"
        result = await first.call_tool("up__ask", {"text": "who"})
        error: Any = result.structured_content
        assert error["error"]["details"]["executed"] == "unknown"
        assert "several clients" in error["error"]["message"]
        gate.fake.refuse = False
        assert await call(first, "ask", "again") == "ada: again"
        assert (ada.asked, bob.asked) == (["again"], [])


async def test_a_client_joins_the_session_of_another_only_once_what_is_tried_there_is_over(tmp_path: Path) -> None:
    gate, ada, bob = Gate(), Person("ada"), Person("bob")
    gate.holds("slow")
    gate.asks = {"slow"}
    async with ada_and_bob(tmp_path, gate.fake, ada, bob) as (served, first, second):
        await call(first, "plain")
        said: list[str] = []

        async def say(client: Client, name: str, text: str) -> None:
            said.append(await call(client, name, text))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(say, first, "hold", "slow")
            await until(lambda: "slow" in gate.begun)
            tasks.start_soon(say, second, "plain", "bob")
            await anyio.wait_all_tasks_blocked()
            assert "bob" not in gate.begun
            gate.goes_on["slow"].set()
        assert sorted(said) == ["ada: slow", "plain bob"]
        assert own_sessions(served) == ["local:bob"]


async def test_nobody_is_asked_on_a_session_that_several_clients_have_used(tmp_path: Path) -> None:
    gate, ada, bob = Gate(), Person("ada"), Person("bob")
    async with ada_and_bob(tmp_path, gate.fake, ada, bob) as (_served, first, second):
        await call(first, "hold", "calm")
        await call(second, "hold", "calm")
        gate.asks = {"who", "again"}
        said = await call(first, "hold", "who")
        assert said.startswith("refused")
        assert "call again" in said
        assert (ada.asked, bob.asked) == ([], [])
        # The next one has a session of its own.
        assert await call(first, "hold", "again") == "ada: again"
        assert bob.asked == []


async def test_a_question_that_comes_after_the_answer_to_its_call_reaches_nobody_else(tmp_path: Path) -> None:
    ada, bob = Person("ada"), Person("bob")
    asks, outcomes = anyio.Event(), list[str]()
    fake = asking()

    async def work_on(ctx: Any, given: dict[str, Any]) -> dict[str, Any]:
        text = given["arguments"].get("text")
        if given["name"] == "ask":
            connection, question = connection_of(ctx), question_of("ask", text)

            async def ask() -> None:
                await asks.wait()
                try:
                    await connection.send_raw_request(question["method"], question["params"])
                except MCPError as error:
                    outcomes.append(str(error))
                else:
                    outcomes.append("answered")

            fakes.start_soon(ask)
        if text == "wait":
            asks.set()
            await until(lambda: outcomes)
        return text_result("done")

    fake.handler = work_on
    async with (
        anyio.create_task_group() as fakes,
        ada_and_bob(tmp_path, fake, ada, bob) as (served, first, second),
    ):
        await call(first, "ask", "secret of ada")
        for _ in range(2):
            await call(second, "plain", "wait")
        assert [outcome != "answered" for outcome in outcomes] == [True]
        assert (ada.asked, bob.asked) == ([], [])
        # Where the session is its client's own, so is whatever comes late.
        outcomes.clear()
        await call(second, "plain")
        await call(second, "ask", "late")
        await until(lambda: outcomes == ["answered"])
        assert (ada.asked, bob.asked) == ([], ["late"])
        assert own_sessions(served) == ["local:bob"]
        fakes.cancel_scope.cancel()


async def test_a_call_that_may_be_repeated_is_made_again_in_its_own_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_questions, "HELD_SECONDS", 0.05)
    gate, ada, bob = Gate(), Person("ada"), Person("bob")
    gate.holds("long")
    gate.asks = {"who"}
    async with ada_and_bob(tmp_path, gate.fake, ada, bob) as (_served, first, second):
        await call(second, "hold", "at once")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, second, "hold", "long")
            await until(lambda: "long" in gate.begun)
            assert await call(first, "read", "who") == "ada: who"
            gate.goes_on["long"].set()
        assert (ada.asked, bob.asked) == (["who"], [])


async def test_a_question_of_a_call_that_was_cancelled_reaches_nobody_else(tmp_path: Path) -> None:
    ada, bob = Person("ada"), Person("bob")
    late, begun = anyio.Event(), anyio.Event()
    outcomes: list[str] = []
    fake = asking()

    async def deaf(ctx: Any, given: dict[str, Any]) -> dict[str, Any]:
        if given["name"] != "ask":
            if given["arguments"].get("text") == "wait":
                await late.wait()
                await until(lambda: outcomes)
            return text_result("done")
        connection, question = connection_of(ctx), question_of("ask", "secret of ada")

        async def work() -> None:
            begun.set()
            await late.wait()
            try:
                await connection.send_raw_request(question["method"], question["params"])
            except Exception as error:  # noqa: BLE001
                outcomes.append(str(error))

        # What goes on whatever becomes of the call.
        fakes.start_soon(work)
        await anyio.sleep_forever()
        raise AssertionError

    fake.handler = deaf
    async with (
        anyio.create_task_group() as fakes,
        ada_and_bob(tmp_path, fake, ada, bob) as (served, first, second),
    ):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, first, "ask")
            await begun.wait()
            tasks.cancel_scope.cancel()
        await until(lambda: served.up.connector.shared_questions.is_unused)  # type: ignore[union-attr]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, second, "plain", "wait")
            await until(lambda: len(fake.calls) == 2)
            late.set()
        assert len(outcomes) == 1
        assert (ada.asked, bob.asked) == ([], [])
        fakes.cancel_scope.cancel()


async def test_a_question_that_comes_with_the_answer_to_its_call_reaches_nobody_else(tmp_path: Path) -> None:
    ada, bob = Person("ada"), Person("bob")
    both, refused = anyio.Event(), anyio.Event()
    fake = asking()

    async def hasty(ctx: Any, given: dict[str, Any]) -> dict[str, Any]:
        text = given["arguments"].get("text")
        if text == "wait":
            both.set()
            await refused.wait()
        if text == "hasty":
            await both.wait()
            connection, question = connection_of(ctx), question_of("ask", "secret of ada")

            async def ask() -> None:
                try:
                    await connection.send_raw_request(question["method"], question["params"])
                except Exception:  # noqa: BLE001
                    refused.set()

            fakes.start_soon(ask)
            await anyio.lowlevel.checkpoint()
        return text_result("done")

    fake.handler = hasty
    async with (
        anyio.create_task_group() as fakes,
        ada_and_bob(tmp_path, fake, ada, bob) as (_served, first, second),
    ):
        await call(second, "plain")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, second, "plain", "wait")
            tasks.start_soon(call, first, "ask", "hasty")
        assert (ada.asked, bob.asked) == ([], [])
        fakes.cancel_scope.cancel()


async def test_roots_of_one_client_are_never_used_for_another(tmp_path: Path) -> None:
    given: dict[Any, str] = {}
    fake = asking()

    async def note(ctx: Any) -> None:
        connection = connection_of(ctx)
        try:
            answer = await connection.outbound.send_raw_request("roots/list", None, {"timeout": 30})
            given[connection] = str(answer["roots"][0]["uri"])
        except Exception:  # noqa: BLE001
            given[connection] = "refused"

    async def tell(ctx: Any, _call: dict[str, Any]) -> dict[str, Any]:
        await until(lambda: connection_of(ctx) in given)
        return text_result(given[connection_of(ctx)])

    fake.on_initialized, fake.handler = note, tell
    ada, bob = Person("ada"), Person("bob")
    async with machine(tmp_path, {"up": fake}) as served, served.client(ada) as first:
        await known(served, first)
        assert await call(first, "plain") == "file:///ada"
        assert own_sessions(served) == []
        async with served.client(bob) as second, served.unable("eve") as third:
            assert await call(second, "plain") == "file:///bob"
            assert await call(first, "plain") == "file:///ada"
            assert await call(third, "plain") == "refused"


async def test_a_server_that_first_asks_for_roots_is_told_those_of_the_caller_and_serves_no_other_there(
    tmp_path: Path,
) -> None:
    fake, ada, bob = asking(), Person("ada"), Person("bob")
    async with ada_and_bob(tmp_path, fake, ada, bob) as (served, first, second):
        told = fake.sessions[-1]
        assert await call(first, "roots") == "file:///ada"
        assert await call(second, "roots") == "file:///bob"
        assert await call(first, "roots") == "file:///ada"
        async with served.unable("eve") as third:
            assert await call(third, "plain") == "plain "
        assert told not in fake.sessions[-1:], "what knows ada's roots is not what others are served by"


async def test_a_newcomer_that_can_be_asked_more_ends_no_call_of_others(tmp_path: Path) -> None:
    gate, bob = Gate(), Person("bob")
    gate.holds("slow")
    async with machine(tmp_path, {"up": gate.fake}) as served, served.unable("eve") as first:
        await until(lambda: served.up.last_listed is not None)
        said: list[str] = []

        async def hold() -> None:
            said.append(await call(first, "hold", "slow"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hold)
            await until(lambda: "slow" in gate.begun)
            async with served.client(bob) as second:
                # What the shared session announces is not what it can be asked.
                assert await call(second, "ask", "who") == "bob: who"
                assert own_sessions(served) == ["local:bob"]
                gate.goes_on["slow"].set()
                await until(lambda: said)
                # That of its own, and the shared one.
                await until(lambda: gate.fake.announced.count(("elicitation", "roots", "sampling")) == 2)
                await known(served, second)
        assert said == ["hold slow"]
        assert gate.fake.announced[0] == ()


async def test_logs_of_a_shared_session_reach_only_clients_that_asked_for_them(tmp_path: Path) -> None:
    fake, ada, bob = asking(), Person("ada"), Person("bob")
    async with machine(tmp_path, {"up": fake}) as served, served.client(ada) as first:
        await known(served, first)
        # As long as it is the only client, and later, it is told what it asked for.
        await call(first, "log", "unwanted")
        await first.set_logging_level("error")
        await call(first, "log", "ada")
        await until(lambda: ada.logs)
        assert own_sessions(served) == []
        async with served.client(bob) as second:
            await known(served, first, second)
            await call(second, "log", "unwanted")
            await second.set_logging_level("error")
            await call(second, "log", "bob")
            await until(lambda: bob.logs)
            assert own_sessions(served) == ["local:bob"]
            assert [each.why for each in served.up.sessions if not each.is_shared] == ["the client wants its logs"]
            await call(first, "log", "again")
            await until(lambda: len(ada.logs) == 2)
    assert ada.logs == ["error ada", "error again"]
    assert bob.logs == ["error bob"]


async def test_the_client_of_a_gateway_of_its_own_is_told_logs_unasked(tmp_path: Path) -> None:
    fake, ada = asking(), Person("ada")
    async with (
        machine(tmp_path, {"up": fake}, local=LocalClients(alone=True)) as served,
        served.client(ada) as client,
    ):
        await until(lambda: served.up.last_listed is not None)
        await call(client, "log", "ada")
        await until(lambda: len(ada.logs) == 2)


@pytest.mark.slow
async def test_clients_have_sessions_of_their_own_at_a_stateful_server_and_the_one_that_lists_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connector, "LISTING_SECONDS", 0.05)
    fake, ada, bob = asking(), Person("ada"), Person("bob")
    async with (
        machine(tmp_path, {"up": fake}, per_client(fake)) as served,
        served.client(ada) as first,
        served.client(bob) as second,
    ):
        said: dict[str, str] = {}
        ada.answers = anyio.Event()

        async def ask(text: str) -> None:
            said[text] = await call(first, "ask", text)

        await until(lambda: served.up.last_listed is not None)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, "one")
            tasks.start_soon(ask, "two")
            await until(lambda: sorted(ada.asked) == ["one", "two"])
            assert await call(second, "ask", "three") == "bob: three"
            ada.answers.set()
        assert said == {"one": "ada: one", "two": "ada: two"}
        assert sorted(own_sessions(served)) == ["local:ada", "local:bob"]
        await until(lambda: sorted(each.client_id for each in served.up.sessions) == ["local:ada", "local:bob"])


async def test_a_client_that_leaves_frees_its_sessions_at_once(tmp_path: Path) -> None:
    fake, ada, bob = asking(), Person("ada"), Person("bob")
    async with machine(tmp_path, {"up": fake}) as served, served.client(bob) as second:
        async with served.client(ada) as first:
            await known(served, first, second)
            await call(first, "ask", "one")
            await call(first, "ask", "two")
            assert own_sessions(served) == ["local:ada"]
        await until(lambda: own_sessions(served) == [])
        assert await call(second, "ask", "three") == "bob: three"


@pytest.mark.parametrize("modern", [False, True], ids=["up-handshake", "up-2026"])
async def test_a_stateless_client_among_others_is_asked_its_own_questions(tmp_path: Path, modern: bool) -> None:
    fake, ada, bob = asking(modern=modern), Person("ada"), Person("bob")
    async with (
        machine(tmp_path, {"up": fake}) as served,
        served.client(ada) as first,
        served.client(bob, modern=True) as second,
    ):
        await until(lambda: served.up.last_listed is not None)
        said: dict[str, str] = {}

        async def ask(client: Client, text: str) -> None:
            said[text] = await call(client, "ask", text)

        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(ask, first, f"a{number}")
                tasks.start_soon(ask, second, f"b{number}")
        assert said == {
            f"{who[0]}{number}": f"{who}: {who[0]}{number}" for who in ("ada", "bob") for number in range(3)
        }
        assert {text[0] for text in ada.asked} == {"a"}
        assert {text[0] for text in bob.asked} == {"b"}
        if modern:
            assert own_sessions(served) == []


async def test_stateless_clients_share_one_session_of_a_server_that_never_asks(tmp_path: Path) -> None:
    fake, ada, bob, eve = asking(), Person("ada"), Person("bob"), Person("eve")
    async with (
        machine(tmp_path, {"up": fake}) as served,
        served.client(ada) as first,
        served.client(bob, modern=True) as second,
        served.client(eve, modern=True) as third,
    ):
        await known(served, first, second, third)
        for number in range(2):
            for client in (first, second, third):
                assert await call(client, "plain", f"{number}") == f"plain {number}"
        assert own_sessions(served) == []


@pytest.mark.slow
@pytest.mark.parametrize("several", [False, True], ids=["sole", "several"])
async def test_a_stateless_client_is_asked_by_the_only_call_there_is_and_has_its_own_session_from_then_on(
    tmp_path: Path, several: bool
) -> None:
    fake, ada, bob = asking(), Person("ada"), Person("bob")
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(machine(tmp_path, {"up": fake}))
        client = await stack.enter_async_context(served.client(bob, modern=True))
        if several:
            await known(served, client, await stack.enter_async_context(served.client(ada)))
        await known(served, client)
        assert await call(client, "ask", "one") == "bob: one"
        assert own_sessions(served) == []
        assert await call(client, "ask", "two") == "bob: two"
        assert own_sessions(served) == ["local:bob"]
        assert (ada.asked, bob.asked) == ([], ["one", "two"])


@pytest.mark.slow
async def test_a_question_waits_until_another_call_of_the_same_stateless_client_has_ended(tmp_path: Path) -> None:
    gate, bob = Gate(), Person("bob")
    gate.holds("later")
    async with machine(tmp_path, {"up": gate.fake}) as served, served.client(bob, modern=True) as client:
        await known(served, client)
        await call(client, "hold", "at once")
        said: list[str] = []

        async def ask() -> None:
            said.append(await call(client, "ask", "who"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, client, "hold", "later")
            await until(lambda: "later" in gate.begun)
            tasks.start_soon(ask)
            await until(lambda: served.up.lister.asks)
            await anyio.wait_all_tasks_blocked()
            assert bob.asked == []
            gate.goes_on["later"].set()
        assert (said, bob.asked) == (["bob: who"], ["who"])


@pytest.mark.slow
async def test_a_call_of_a_stateless_client_that_was_given_up_leaves_its_questions_to_no_other_one(
    tmp_path: Path,
) -> None:
    gate, bob = Gate(), Person("bob")
    gate.holds("given up")
    async with machine(tmp_path, {"up": gate.fake}) as served, served.client(bob, modern=True) as client:
        await known(served, client)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, client, "hold", "given up")
            await until(lambda: "given up" in gate.begun)
            tasks.cancel_scope.cancel()
        await until(lambda: served.up.connector.shared_questions.is_unused)  # type: ignore[union-attr]
        result = await client.call_tool("up__ask", {"text": "who"})
        error: Any = result.structured_content
        assert "several calls" in error["error"]["message"]
        assert bob.asked == []
        assert await call(client, "ask", "again") == "bob: again"


@pytest.mark.slow
async def test_the_lone_stateless_client_of_a_gateway_has_sessions_of_its_own(tmp_path: Path) -> None:
    fake, bob = asking(), Person("bob")
    async with (
        machine(tmp_path, {"up": fake}, local=LocalClients(alone=True)) as served,
        served.client(bob, modern=True) as client,
    ):
        await until(lambda: served.up.last_listed is not None)
        assert await call(client, "plain") == "plain "
        assert own_sessions(served) == ["local:bob"]


async def test_a_client_beside_the_local_ones_is_not_asked_for_them_nor_given_what_they_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(question_probe, "TURN_SECONDS", 0.05)
    gate, ada, beside = Gate(), Person("ada"), Asked("anonymous")
    gate.holds("long")

    async def hold(served: Machine) -> None:
        params = {"name": "hold", "arguments": {"text": "long"}}
        await served.up.request("tools/call", params, audience=beside)

    async with machine(tmp_path, {"up": gate.fake}) as served, served.client(ada) as first:
        await known(served, first)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hold, served)
            await until(lambda: "long" in gate.begun)
            # It cannot be told on the shared session whose a question would be.
            assert await call(first, "ask", "who") == "ada: who"
            assert own_sessions(served) == ["local:ada"]
            gate.goes_on["long"].set()
        assert await call(first, "roots") == "file:///ada"
    async with machine(tmp_path, {"up": gate.fake}) as served, served.client(ada) as first:
        await known(served, first)
        assert await call(first, "roots") == "file:///ada"
        await hold(served)
        assert own_sessions(served) == ["anonymous"]


async def test_a_client_that_comes_again_is_asked_in_the_sessions_it_has(tmp_path: Path) -> None:
    fake, ada, bob = asking(), Person("ada"), Person("bob")
    async with machine(tmp_path, {"up": fake}) as served, served.client(bob) as second, served.client(ada) as first:
        await known(served, first, second)
        await call(first, "ask", "one")
        await call(first, "ask", "two")
        opened, again = fake.opened, Person("ada")
        async with served.client(again) as third:
            assert await call(third, "ask", "three") == "ada: three"
            assert (fake.opened, again.asked, ada.asked) == (opened, ["three"], ["one", "two"])


def growing() -> ScriptedServer:
    """A server of which each session has a tool more once `plain` was called there, which it announces."""
    fake = asking()

    async def grow(ctx: Any, given: dict[str, Any]) -> dict[str, Any]:
        if given["name"] == "plain":
            fake.grown[connection_of(ctx)] = [tool("grown", properties={"text": {"type": "string"}})]
            await ctx.session.send_tool_list_changed()
        return text_result(given["name"])

    fake.handler = grow
    return fake


async def lists(client: Client, name: str, *, is_there: bool = True) -> None:
    with anyio.fail_after(LIMIT):
        while (f"up__{name}" in {each.name for each in (await client.list_tools()).tools}) != is_there:  # noqa: ASYNC110
            await anyio.sleep(0.01)


async def test_what_a_server_has_in_the_session_of_one_client_is_not_shown_to_another(tmp_path: Path) -> None:
    fake, ada, bob = growing(), Person("ada"), Person("bob")
    async with ada_and_bob(tmp_path, fake, ada, bob) as (served, first, second):
        await second.set_logging_level("error")
        await call(second, "plain")
        assert own_sessions(served) == ["local:bob"]
        await served.gateway.refresh(LIMIT)
        await lists(first, "grown", is_there=False)


async def test_what_the_session_of_a_client_elsewhere_has_is_listed_to_nobody_here(tmp_path: Path) -> None:
    fake, ada, beside = growing(), Person("ada"), Asked("beside", "elicitation")
    async with machine(tmp_path, {"up": fake}) as served, served.client(ada) as first:
        await known(served, first)
        await served.up.request("tools/call", {"name": "plain", "arguments": {}}, audience=beside)
        assert own_sessions(served) == ["beside"]
        await served.gateway.refresh(LIMIT)
        await lists(first, "grown", is_there=False)


def per_client(fake: ScriptedServer) -> Settings:
    settings = settings_for({"up": fake}, gateway={"tools_exposure": "full_proxy"})
    definition = settings.servers["up"].model_copy(update={"sessions": "per_client"})
    return settings.model_copy(update={"servers": {"up": definition}})


async def test_a_stateful_server_whose_lists_are_known_is_started_by_the_first_call_and_listed_in_its_session(
    tmp_path: Path,
) -> None:
    fake, bob = growing(), Person("bob")
    async with machine(tmp_path, {"up": fake}, per_client(fake)) as served, served.client(bob) as client:
        await lists(client, "plain")
        manifests = paths_in(tmp_path).manifest_dir
        await until(lambda: any('"plain"' in each.read_text() for each in manifests.glob("*.json")))
    opened = fake.opened
    async with machine(tmp_path, {"up": fake}, per_client(fake)) as served, served.client(bob) as client:
        await lists(client, "plain")
        await until(lambda: served.up.connector.settled.is_set())
        fake.tools.append(tool("new", properties={"text": {"type": "string"}}))
        assert fake.opened == opened
        assert await call(client, "ask") == "ask"
        await lists(client, "new")
        assert fake.opened == opened + 1
        await call(client, "plain")
        await lists(client, "grown")
        assert fake.opened == opened + 1
        assert await served.gateway.refresh(LIMIT)
        assert fake.opened == opened + 2


@pytest.mark.field("A6")
async def test_a_session_of_one_client_that_changes_all_the_time_is_listed_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lister, "FREE_CHANGES", 2)
    monkeypatch.setattr(lister, "FIRST_PAUSE", 3600.0)
    monkeypatch.setattr(lister, "LONGEST_PAUSE", 3600.0)
    fake, bob = asking(), Person("bob")

    async def grow(ctx: Any, given: dict[str, Any]) -> dict[str, Any]:
        grown = fake.grown.setdefault(connection_of(ctx), [])
        grown.append(tool(f"grown{len(grown)}"))
        await ctx.session.send_tool_list_changed()
        return text_result(given["name"])

    fake.handler = grow
    async with machine(tmp_path, {"up": fake}, per_client(fake)) as served, served.client(bob) as client:
        await lists(client, "plain")
        for number in range(3):
            await call(client, "plain")
            await lists(client, f"grown{number}")
        asked = fake.lists
        await call(client, "plain")
        assert await served.gateway.refresh(LIMIT)
        await until(lambda: fake.lists > asked)
        await lists(client, "grown3", is_there=False)


@pytest.mark.slow
async def test_three_clients_use_one_process_until_it_asks(tmp_path: Path) -> None:
    people = [Person(name) for name in ("ada", "bob", "eve")]
    up = {
        "command": sys.executable,
        "args": [str(Path(asking.__code__.co_filename))],
        "env": {"PYTHONPATH": str(Path(__file__).parents[3])},
    }
    settings = Settings.model_validate({"servers": {"up": up}, "gateway": {"tools_exposure": "full_proxy"}})
    async with machine(tmp_path, {}, settings, open_streams=open_streams) as served, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(served.client(person)) for person in people]
        await known(served, *clients)
        for client, person in zip(clients, people, strict=True):
            assert await call(client, "plain", person.name) == f"plain {person.name}"
        [shared] = served.up.sessions
        assert shared.is_shared
        assert shared.pid is not None
        for client, person in zip(clients, people, strict=True):
            assert await call(client, "ask", "who") == f"{person.name}: who"
        sessions = served.up.sessions
        assert [each.client_id for each in sessions] == ["", "local:ada", "local:bob", "local:eve"]
        assert len({each.pid for each in sessions}) == 4


async def test_a_local_client_is_listed_what_is_for_clients_like_it(tmp_path: Path) -> None:
    fake, ada = gated(), Person("ada")
    async with machine(tmp_path, {"up": fake}) as served, served.client(ada) as first, served.unable("eve") as other:

        async def names(client: Client) -> set[str]:
            return {each.name.removeprefix("up__") for each in (await client.list_tools()).tools}

        with anyio.fail_after(LIMIT):
            while await names(first) != {"ask", "sample", "roots", "both", "plain"}:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            while await names(other) != {"plain", "lonely"}:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            assert await names(first) == {"ask", "sample", "roots", "both", "plain"}


def test_what_several_clients_can_be_asked_is_what_any_of_them_can() -> None:
    one = ClientCapabilities({"elicitation": {}, "roots": {"listChanged": False}})
    other = ClientCapabilities({"elicitation": {"url": {}}, "sampling": {}})
    both = union(one, other)
    assert both.announced == {
        "elicitation": {"form": {}, "url": {}},
        "roots": {"listChanged": False},
        "sampling": {},
    }
    assert union(both, one) == union(one, both) == union(both, both) == both
    assert union(one, ClientCapabilities()) is one
    local = LocalClients()
    local.introduce("a", one, None)
    local.introduce("b", other, None)
    local.leave("b")
    assert (local.client_capabilities, local.has_several, local.sole) == (both, True, None)
