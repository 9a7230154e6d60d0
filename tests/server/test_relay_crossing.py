"""Sessions for single clients: nothing crosses between calls that only share a session or a name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.client import Client

from tests.server.test_relay_sessions import LIMIT, per_client, until
from tests.support.asking import Person, act, asking
from tests.support.memory import FakeUpstream, settings_for, text_result
from tests.support.serving import serving

pytestmark = pytest.mark.anyio


class Meeting:
    """An upstream whose calls all begin before the first of them asks."""

    def __init__(self, fake: FakeUpstream, calls: int) -> None:
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
            await served.gateway.apply_settings(settings.model_copy(update={"servers": {"up": changed}}))
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
        sessions: Any = served.gateway.pool.upstreams["up"]._own_sessions

        async def call() -> None:
            results.append(await served.call("up__plain", key=key))

        async with anyio.create_task_group() as tasks:
            async with served.handshake(key=key):
                tasks.start_soon(call)
                await began.wait()
            await until(lambda: sessions._sessions[0].closing.is_set())
            with anyio.move_on_after(0.5):
                await until(lambda: bool(results))
            go_on.set()
        assert results[0]["content"][0]["text"] == "done"
        await until(lambda: len(sessions) == 0)
