"""Sessions for single clients: which one a call takes, what is told there, when it closes, and that nothing crosses."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters

from pml_gateway.config.settings import Settings
from pml_gateway.mcp.sdk import connection_of
from tests.support.asking import Asked, Person, act, asking
from tests.support.memory import settings_for
from tests.support.process import environment, serve_alone, write_settings
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import Serving, serving
from tests.support.waiting import LIMIT, until
from tests.upstreams.dialogue.test_question_transports import definition_of, gateway_to

pytestmark = pytest.mark.anyio

ERAS = pytest.mark.parametrize("modern", [False, True], ids=["handshake", "2026"])


def counting() -> ScriptedServer:
    """A stateful upstream: every session counts its own calls."""
    counts: dict[Any, int] = {}

    async def act(ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        session = connection_of(ctx)
        counts[session] = counts.get(session, 0) + 1
        return text_result(str(counts[session]))

    return ScriptedServer([tool("count")], act)


def per_client(folder: Path, fake: ScriptedServer, **limits: Any) -> AbstractAsyncContextManager[Serving]:
    settings = settings_for({"up": fake})
    definition = settings.servers["up"].model_copy(update={"sessions": "per_client", **limits})
    return serving(folder, {"up": fake}, settings.model_copy(update={"servers": {"up": definition}}))


async def count(client: Client) -> str:
    result = await client.call_tool("up__count", {})
    return str(result.content[0].text)  # type: ignore[union-attr]


async def test_each_client_has_a_session_of_its_own_until_it_leaves(tmp_path: Path) -> None:
    fake = counting()
    async with per_client(tmp_path, fake) as served:
        sessions: Any = served.gateway.pool.upstreams["up"].sessions.own
        async with Client(served.url, mode="legacy") as ada, Client(served.url, mode="legacy") as bob:
            assert [await count(client) for client in (ada, ada, bob, ada, bob)] == ["1", "2", "1", "3", "2"]
            # Those of the two, and the one that lists.
            assert (fake.opened, len(sessions)) == (3, 2)
        await until(lambda: len(sessions) == 0)
        async with Client(served.url, mode="legacy") as ada:
            assert await count(ada) == "1"


async def test_more_clients_than_sessions_are_refused_with_the_setting_to_raise(tmp_path: Path) -> None:
    fake = counting()
    async with per_client(tmp_path, fake, max_sessions=1) as served:
        started, go_on = anyio.Event(), anyio.Event()

        async def act(_ctx: Any, _call: dict[str, Any]) -> dict[str, Any]:
            started.set()
            await go_on.wait()
            return text_result("done")

        fake.handler = act
        async with Client(served.url, mode="legacy") as ada, Client(served.url, mode="legacy") as bob:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ada.call_tool, "up__count", {})
                await started.wait()
                refused = await bob.call_tool("up__count", {})
                go_on.set()
            error = refused.structured_content["error"] if refused.structured_content else {}
            assert error["code"] == "BUSY"
            assert "servers.up.max_sessions" in error["hint"]


async def test_the_state_of_a_client_is_not_ended_to_make_room_for_another(tmp_path: Path) -> None:
    async with per_client(tmp_path, counting(), max_sessions=1) as served:
        sessions: Any = served.gateway.pool.upstreams["up"].sessions.own
        async with Client(served.url, mode="legacy") as bob:
            async with Client(served.url, mode="legacy") as ada:
                assert await count(ada) == "1"
                refused = await bob.call_tool("up__count", {})
                error: Any = refused.structured_content
                assert error["error"]["code"] == "BUSY"
                assert "all together 1" in error["error"]["message"]
                assert await count(ada) == "2"
            await until(lambda: len(sessions) == 0)
            assert await count(bob) == "1"


async def test_a_client_with_all_sessions_in_use_gives_one_to_another(tmp_path: Path) -> None:
    go_on = anyio.Semaphore(0)

    async def act(_ctx: Any, _call: dict[str, Any]) -> dict[str, Any]:
        await go_on.acquire()
        return text_result("done")

    fake = ScriptedServer([tool("wait")], act)
    answered: list[str] = []
    settings = settings_for({"up": fake}, upstreams={"max_sessions": 4})
    async with serving(tmp_path, {"up": fake}, settings) as served, anyio.create_task_group() as tasks:
        upstream = served.gateway.pool.upstreams["up"]

        async def call(client: Asked) -> None:
            await upstream.request("tools/call", {"name": "wait", "arguments": {}}, audience=client)
            answered.append(client.quota_key)

        # What clients can be asked tells their sessions apart, so that one of them has all four in use.
        for able in ("elicitation", "sampling", "roots", "elicitation sampling"):
            for _ in range(3):
                tasks.start_soon(call, Asked("client:a", able))
        await until(lambda: len(fake.calls) == 4)
        tasks.start_soon(call, Asked("client:b", "roots"))
        await anyio.wait_all_tasks_blocked()
        for done in range(13):
            go_on.release()
            # The server answers in the order of arrival, so the next call is to arrive before another one ends.
            await until(lambda done=done: len(answered) == done + 1 and len(fake.calls) == min(done + 5, 13))
    assert "client:b" in answered[:5]


@pytest.mark.slow
@ERAS
async def test_a_stdio_server_with_a_process_per_client_can_ask(tmp_path: Path, modern: bool) -> None:
    ada = Person("ada")
    async with (
        definition_of("stdio-2026" if modern else "stdio-handshake") as definition,
        gateway_to(tmp_path, {**definition, "sessions": "per_client"}) as served,
    ):
        for client_is_modern in (False, True):
            async with ada.client(served.url, modern=client_is_modern) as client:
                with anyio.fail_after(LIMIT):
                    result = await client.call_tool("up__ask", {"text": "who"})
                assert result.content[0].text == "ada: who"  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The logging capability is deprecated")
@pytest.mark.parametrize("kind", ["stdio-handshake", "stdio-2026", "http-handshake", "http-2026", "sse-handshake"])
async def test_logs_reach_the_caller_at_the_level_it_wants_and_nobody_else(tmp_path: Path, kind: str) -> None:
    ada, bob, eve = Person("ada"), Person("bob"), Person("eve")
    async with (
        definition_of(kind) as definition,
        gateway_to(tmp_path, definition) as served,
        ada.client(served.url, modern=False) as old,
        bob.client(served.url, modern=True, log_level="error") as new,
        eve.client(served.url, modern=True) as silent,
    ):
        with anyio.fail_after(LIMIT):
            await old.set_logging_level("error")
            await old.call_tool("up__log", {"text": "ada"})
            await new.call_tool("up__log", {"text": "bob"})
            await silent.call_tool("up__log", {"text": "eve"})
            await until(lambda: ada.logs and bob.logs)
            await old.set_logging_level("debug")
            await old.call_tool("up__log", {"text": "ada"})
            await until(lambda: len(ada.logs) == 3)
    assert ada.logs[0] == "error ada"
    assert sorted(ada.logs[1:]) == ["debug ada", "error ada"]
    assert (bob.logs, eve.logs) == (["error bob"], [])


@pytest.mark.filterwarnings("ignore:The logging capability is deprecated")
async def test_the_level_of_a_client_reaches_the_sessions_that_are_its_own(tmp_path: Path) -> None:
    ada, eve, fake = Person("ada"), Person("eve"), asking()
    async with (
        serving(tmp_path, {"up": fake}) as served,
        ada.client(served.url, modern=False) as client,
        eve.client(served.url, modern=False) as other,
    ):
        await client.call_tool("up__plain", {})
        await other.call_tool("up__plain", {})
        await client.set_logging_level("warning")
        assert [level for _, level in fake.levels] == ["warning"]
        await client.call_tool("up__plain", {})
        await other.call_tool("up__plain", {})
        assert len(fake.levels) == 1


@pytest.mark.slow
@ERAS
async def test_a_gateway_over_stdio_asks_its_client(tmp_path: Path, modern: bool) -> None:
    ada = Person("ada")
    async with definition_of("stdio-handshake") as definition:
        config = write_settings(tmp_path, {"servers": {"up": definition}})
        command, *options = serve_alone("--config", str(config))
        parameters = StdioServerParameters(command=command, args=options, env=environment(tmp_path))
        with anyio.fail_after(LIMIT):
            async with ada.client(parameters, modern=modern) as client:
                # The very first start waits for its servers, but not for long.
                while (await client.call_tool("up__plain", {})).is_error:  # noqa: ASYNC110  # as above
                    await anyio.sleep(0.05)
                through: dict[str, Any] = {"name": "up__sample", "arguments": {"text": "who"}}
                for name, arguments in [("up__ask", {"text": "who"}), ("call_tool", through)]:
                    result = await client.call_tool(name, arguments)
                    assert result.content[0].text == "ada: who"  # type: ignore[union-attr]


async def test_an_http_server_withdraws_when_the_client_cancels(tmp_path: Path) -> None:
    ada = Person("ada")
    ada.answers = anyio.Event()
    async with definition_of("http-handshake") as definition, gateway_to(tmp_path, definition) as served:
        sessions: Any = served.gateway.pool.upstreams["up"].sessions.own
        async with ada.client(served.url, modern=False) as client:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.call_tool, "up__ask", {"text": "who"})
                await until(lambda: ada.asked)
                tasks.cancel_scope.cancel()
            await until(lambda: all(not session.users for session in sessions))
            ada.answers.set()
            result = await client.call_tool("up__ask", {"text": "again"})
            assert result.content[0].text == "ada: again"  # type: ignore[union-attr]


@pytest.mark.slow
async def test_sessions_of_a_client_that_is_idle_are_closed(tmp_path: Path) -> None:
    ada, fake = Person("ada"), asking()
    settings = Settings.model_validate({"servers": {"up": {"command": "x"}}, "upstreams": {"idle_timeout": 0.2}})
    async with serving(tmp_path, {"up": fake}, settings) as served, ada.client(served.url, modern=False) as client:
        sessions: Any = served.gateway.pool.upstreams["up"].sessions.own
        await client.call_tool("up__ask", {"text": "who"})
        assert len(sessions) == 1
        await until(lambda: len(sessions) == 0)
        assert (await client.call_tool("up__ask", {"text": "who"})).content[0].text == "ada: who"  # type: ignore[union-attr]


async def test_the_end_of_an_elicitation_in_a_browser_is_told_after_the_call(tmp_path: Path) -> None:
    ada, bob, fake = Person("ada"), Person("bob"), asking()
    told: list[tuple[str, str]] = []

    def hearing(name: str) -> Any:
        async def hear(message: Any) -> None:
            if getattr(message, "method", "") == "notifications/elicitation/complete":
                told.append((name, message.params.elicitation_id))

        return hear

    async with (
        serving(tmp_path, {"up": fake}) as served,
        ada.client(served.url, modern=False, message_handler=hearing("ada")) as client,
        bob.client(served.url, modern=False, message_handler=hearing("bob")) as other,
    ):
        await client.call_tool("up__visit", {"text": "go"})
        await other.call_tool("up__ask", {"text": "go"})
        for connection in fake.connections:
            await connection.notify("notifications/elicitation/complete", {"elicitationId": "e1"})
        await until(lambda: told)
    assert told == [("ada", "e1")]


class Meeting:
    """An upstream whose calls all begin before the first of them asks."""

    def __init__(self, fake: ScriptedServer, calls: int) -> None:
        self.begun, self.all_here, self._calls = 0, anyio.Event(), calls
        fake.handler = self.act

    async def act(self, ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        self.begun += 1
        if self.begun == self._calls:
            self.all_here.set()
        with anyio.move_on_after(1):
            await self.all_here.wait()
        return await act(ctx, call)


async def ask(client: Client, text: str, answers: dict[str, str]) -> None:
    with anyio.fail_after(LIMIT):
        result = await client.call_tool("up__ask", {"text": text})
    answers[text] = result.content[0].text  # type: ignore[union-attr]


async def test_clients_without_a_key_are_asked_their_own_questions_by_a_server_per_client(tmp_path: Path) -> None:
    fake, ada, bob = asking(), Person("ada"), Person("bob")
    Meeting(fake, 2)
    answers: dict[str, str] = {}
    async with (
        per_client(tmp_path, fake) as served,
        ada.client(served.url, modern=True) as first,
        bob.client(served.url, modern=True) as second,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(ask, first, "of ada", answers)
        tasks.start_soon(ask, second, "of bob", answers)
    assert (ada.asked, bob.asked) == (["of ada"], ["of bob"])
    assert answers == {"of ada": "ada: of ada", "of bob": "bob: of bob"}


@pytest.mark.parametrize("modern", [False, True], ids=["handshake", "2026"])
async def test_the_questions_of_two_calls_of_one_client_end_with_their_own_calls(tmp_path: Path, modern: bool) -> None:
    fake, ada = asking(), Person("ada")
    began = anyio.Event()

    async def act_late(ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        if call["name"] == "plain":
            began.set()
            # Ends while the question of the other call, which began before it, is open.
            with anyio.move_on_after(1):
                await until(lambda: ada.asked)
            return text_result("plain")
        with anyio.move_on_after(1):
            await began.wait()
        return await act(ctx, call)

    fake.handler = act_late
    answers: dict[str, str] = {}
    async with per_client(tmp_path, fake) as served, ada.client(served.url, modern=modern) as client:
        ada.answers = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, client, "who", answers)
            await until(lambda: fake.calls)
            tasks.start_soon(client.call_tool, "up__plain", {})
            await until(lambda: ada.asked)
            # The other call goes on to its end, if it has not ended; tasks of the servers may never all be idle.
            with anyio.move_on_after(1):
                await anyio.wait_all_tasks_blocked()
            ada.answers.set()
    assert answers == {"who": "ada: who"}


async def test_a_session_that_is_opened_while_the_configuration_changes_ends_in_a_named_error(tmp_path: Path) -> None:
    fake, ada = asking(), Person("ada")
    async with per_client(tmp_path, fake) as served, ada.client(served.url, modern=False) as client:
        assert await served.gateway.refresh(LIMIT)
        fake.hang = True
        opened = fake.opened
        results: list[Any] = []

        async def call() -> None:
            results.append(await client.call_tool("up__plain", {}))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await until(lambda: fake.opened > opened)
            settings = served.gateway.state.settings
            changed = settings.servers["up"].model_copy(update={"args": ("--changed",)})
            await served.gateway.updates.apply_settings(settings.model_copy(update={"servers": {"up": changed}}))
    error = results[0].structured_content["error"]
    assert (error["code"], error["details"]["executed"]) == ("UPSTREAM_UNAVAILABLE", "no")


async def test_a_call_goes_on_when_another_connection_with_the_same_key_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "key-of-two-connections"
    monkeypatch.setenv("PML_TEST_KEY", key)
    monkeypatch.setattr("pml_gateway.upstreams.dialogue.client_sessions.CLOSING_SECONDS", 0.05)
    fake = asking()
    began, go_on = anyio.Event(), anyio.Event()

    async def act(_ctx: Any, _call: dict[str, Any]) -> dict[str, Any]:
        began.set()
        await go_on.wait()
        return text_result("done")

    fake.handler = act
    settings = settings_for({"up": fake}, clients={"one": {"key": "${env:PML_TEST_KEY}"}})
    definition = settings.servers["up"].model_copy(update={"sessions": "per_client"})
    results: list[Any] = []
    async with serving(tmp_path, {"up": fake}, settings.model_copy(update={"servers": {"up": definition}})) as served:
        sessions: Any = served.gateway.pool.upstreams["up"].sessions.own

        async def call() -> None:
            results.append(await served.call("up__plain", key=key))

        async with anyio.create_task_group() as tasks:
            async with served.handshake(key=key):
                tasks.start_soon(call)
                await began.wait()
            await until(lambda: next(iter(sessions)).closing.is_set())
            with anyio.move_on_after(0.5):
                await until(lambda: bool(results))
            go_on.set()
        assert results[0]["content"][0]["text"] == "done"
        await until(lambda: len(sessions) == 0)
