"""Stored keys over HTTP: several for a client, replaced and revoked while the gateway serves."""

from __future__ import annotations

import json
import logging
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest

from pml_gateway.policy.keys import KeyStore
from pml_gateway.serve.http import keys as served_keys
from tests.support.memory import paths_in, settings_for
from tests.support.raw import HandshakeSession, decoded, post_modern
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import Serving, serving
from tests.support.waiting import eventually, until

pytestmark = pytest.mark.anyio

IN_FILE = "key-of-ada-0123456789"
CLIENTS: dict[str, Any] = {"ada": {"key": "${env:ADA}"}, "bob": {"deny": ["up:secret"]}}


@pytest.fixture(autouse=True)
def _key_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADA", IN_FILE)


def store_in(folder: Path) -> KeyStore:
    return KeyStore(paths_in(folder), "test")


def upstream(**options: Any) -> ScriptedServer:
    return ScriptedServer([tool("look"), tool("secret")], **options)


async def status(served: Serving, key: str) -> int:
    response = await anyio.to_thread.run_sync(lambda: post_modern(served.url, "tools/list", key=key))
    return response.status_code


async def status_in(session: HandshakeSession, key: str | None = None) -> int:
    if key is not None:
        session.headers["authorization"] = f"Bearer {key}"
    return (await anyio.to_thread.run_sync(lambda: session.send("tools/list"))).status_code


async def test_a_client_has_several_keys_with_the_rights_of_its_entry(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    first, second = store.add("bob"), store.add("bob")
    other = store.add("ada")
    gateway = {"tools_exposure": "full_proxy"}
    async with serving(tmp_path, {"up": upstream()}, clients=CLIENTS, gateway=gateway) as served:
        for key in (first.text, second.text):
            assert await served.names(key=key) == ["up__look"]
        for key in (other.text, IN_FILE):
            assert await served.names(key=key) == ["up__look", "up__secret"]
        wrong = [first.text[:-1], first.key.sha256, first.key_id, "", "pml_" + "A" * 43]
        assert [await status(served, key) for key in wrong] == [401] * 5


async def test_a_key_is_replaced_while_a_session_is_open(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    old = store.add("bob")
    async with (
        serving(tmp_path, {"up": upstream()}, clients=CLIENTS) as served,
        served.handshake(key=old.text) as session,
    ):
        new = store.add("bob")
        assert await status_in(session) == 200
        assert await status_in(session, new.text) == 200
        store.revoke([old.key_id])
        assert await status(served, old.text) == 401
        await until(lambda: old.key_id not in served_ids(served))
        assert await status_in(session) == 200


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def clients_of(served: Serving) -> int:
    """The open sessions, and one for each client without a session."""
    return served.runtime.presence.count_clients()


def served_ids(served: Serving) -> frozenset[str]:
    return frozenset(served.runtime.keys.in_force(datetime.now(UTC)))


async def test_a_revoked_key_is_refused_at_once_and_its_session_ends(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    gone, kept = store.add("bob"), store.add("bob")
    async with (
        serving(tmp_path, {"up": upstream()}, clients=CLIENTS) as served,
        served.handshake(key=gone.text) as ending,
        served.handshake(key=kept.text) as lasting,
    ):
        assert await status_in(ending) == 200
        store.revoke([gone.key_id])
        assert await status_in(ending) == 401
        await until(lambda: clients_of(served) == 1)
        # Nobody goes on with the session by another key.
        assert await status_in(ending, kept.text) == 404
        assert await status_in(lasting) == 200


async def test_streams_and_calls_of_a_revoked_key_end(tmp_path: Path) -> None:
    running, ended = anyio.Event(), anyio.Event()

    async def wait(*_: Any) -> dict[str, Any]:
        running.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        return text_result("done")

    store = store_in(tmp_path)
    gone, streams = store.add("bob"), list[str]()

    async with (
        serving(tmp_path, {"up": upstream(handler=wait)}, clients=CLIENTS) as served,
        served.handshake(key=gone.text) as session,
        anyio.create_task_group() as tasks,
    ):

        def listen() -> None:
            with httpx2.stream("GET", served.url, headers=session.headers, timeout=30) as response:
                streams.append(str(response.status_code))
                try:
                    list(response.iter_bytes())
                finally:
                    streams.append("ended")

        async def give_up(work: Any) -> None:
            with suppress(httpx2.HTTPError):
                await anyio.to_thread.run_sync(work)

        call = {"name": "up__look", "arguments": {}}
        tasks.start_soon(give_up, listen)
        tasks.start_soon(give_up, partial(session.send, "tools/call", call))
        await running.wait()
        await until(lambda: streams == ["200"])
        store.revoke([gone.key_id])
        with anyio.fail_after(60):
            await ended.wait()
        await until(lambda: streams == ["200", "ended"])


async def test_tasks_of_a_revoked_key_end_and_those_of_another_go_on(tmp_path: Path) -> None:
    go, cancelled = anyio.Event(), list[str]()

    async def wait(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        try:
            await go.wait()
        except anyio.get_cancelled_exc_class():
            cancelled.append(call["arguments"]["who"])
            raise
        return text_result("done")

    store, up = store_in(tmp_path), ScriptedServer([tool("look", properties={"who": {}})], wait)
    gone, kept, ada = store.add("bob"), store.add("bob"), store.add("ada")
    async with serving(tmp_path, {"up": up}, clients=CLIENTS) as served, AsyncExitStack() as opened:
        sessions = {
            key.key_id: await opened.enter_async_context(served.handshake(key=key.text)) for key in (gone, kept, ada)
        }
        served_by = {"config": await opened.enter_async_context(served.handshake(key=IN_FILE)), **sessions}

        async def ask(who: str, method: str, **params: Any) -> dict[str, Any]:
            send = partial(served_by[who].send, method, params)
            answer: dict[str, Any] = decoded(await anyio.to_thread.run_sync(send))
            return answer

        begun: dict[str, str] = {}
        for who in served_by:
            steps: list[dict[str, Any]] = [
                {"id": f"s{n}", "tool": "up__look", "arguments": {"who": f"{who} {n}"}} for n in range(2)
            ]
            steps[1]["depends_on"] = ["s0"]
            answer = await ask(who, "tools/call", name="execute_workflow", arguments={"steps": steps}, task={})
            begun[who] = answer["result"]["task"]["taskId"]
        await until(lambda: len(up.calls) == 4)
        store.revoke([gone.key_id])
        await until(lambda: cancelled == [f"{gone.key_id} 0"])
        # Another key of the client is told what became of it.
        told = (await ask(kept.key_id, "tasks/get", taskId=begun[gone.key_id]))["result"]
        assert told["status"] == "cancelled" and "no longer in force" in told["statusMessage"]
        # Without its entry, a client has no key that is in force.
        settings = settings_for({"up": up}, clients={"bob": CLIENTS["bob"]})
        await served.gateway.reload(settings)
        await until(lambda: len(cancelled) == 3)
        go.set()
        await until(lambda: len(up.calls) == 5)
        finished = (await ask(kept.key_id, "tasks/result", taskId=begun[kept.key_id]))["result"]
        assert "done" in json.dumps(finished)
        refused = await ask(kept.key_id, "tasks/result", taskId=begun[gone.key_id])
        assert "cancelled" in refused["error"]["message"]
    assert sorted(cancelled) == sorted([f"{gone.key_id} 0", f"{ada.key_id} 0", "config 0"])


async def test_a_key_ends_when_it_expires_and_so_does_its_session(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    past = store.add("bob", datetime.now(UTC) - timedelta(seconds=1))
    later = store.add("bob", datetime.now(UTC) + timedelta(days=1))
    async with serving(tmp_path, {"up": upstream()}, clients=CLIENTS) as served:
        assert await status(served, past.text) == 401
        soon = store.add("bob", datetime.now(UTC) + timedelta(seconds=5))

        async def has_expired() -> bool:
            return await status(served, soon.text) == 401

        async with served.handshake(key=soon.text) as session:
            await eventually(has_expired)
            await until(lambda: clients_of(served) == 1)
            assert await status_in(session, later.text) == 404
            assert await status(served, later.text) == 200


async def test_keys_of_another_configuration_and_of_no_client_are_refused(tmp_path: Path) -> None:
    foreign = KeyStore(paths_in(tmp_path), "another").add("bob")
    unknown = store_in(tmp_path).add("carol")
    async with serving(tmp_path, {"up": upstream()}, clients=CLIENTS) as served:
        assert [await status(served, key.text) for key in (foreign, unknown)] == [401, 401]
        with_carol = settings_for({"up": upstream()}, clients={**CLIENTS, "carol": {}})
        await served.gateway.reload(with_carol)
        assert [await status(served, key.text) for key in (foreign, unknown)] == [401, 200]
        await served.gateway.reload(settings_for({"up": upstream()}, clients=CLIENTS))
        assert await status(served, unknown.text) == 401


async def test_a_damaged_file_lets_nobody_in_by_a_stored_key_and_leaves_the_others(tmp_path: Path) -> None:
    key = store_in(tmp_path).add("bob")
    async with serving(tmp_path, {"up": upstream()}, clients=CLIENTS) as served:
        assert await status(served, key.text) == 200
        paths_in(tmp_path).keys_file.write_text('{"keys": {"a": {"client": "bob"}}}', encoding="utf-8")
        assert [await status(served, each) for each in (key.text, IN_FILE)] == [401, 200]


async def test_the_last_use_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_keys, "USES_SECONDS", 0.1)
    store = store_in(tmp_path)
    used, unused = store.add("bob"), store.add("bob")
    before = datetime.now(UTC)
    async with serving(tmp_path, {"up": upstream()}, clients=CLIENTS) as served:
        await status(served, used.text)
        await until(lambda: used.key_id in store.uses())
        assert before <= store.uses()[used.key_id] <= datetime.now(UTC)
        assert unused.key_id not in store.uses()
    assert oct(paths_in(tmp_path).key_uses_file.stat().st_mode & 0o777) == "0o600"


async def test_no_key_is_in_logs_answers_or_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    store = store_in(tmp_path)
    key = store.add("bob")
    answers = []
    async with serving(tmp_path, {"up": upstream()}, clients=CLIENTS) as served:
        for name in ("up__look", "up__secret", "nothing"):
            answers.append(await served.call(name, key=key.text))
        async with served.handshake(key=key.text) as session:
            await status_in(session)
        store.revoke([key.key_id])
        refused = await anyio.to_thread.run_sync(lambda: post_modern(served.url, "tools/list", key=key.text))
        answers.append({"refused": refused.text})
        await until(lambda: key.key_id in caplog.text)
    assert key.text not in caplog.text + json.dumps(answers)
    assert not [file for file in files_in(tmp_path) if key.text.encode() in file.read_bytes()]


async def test_a_key_that_was_made_and_revoked_between_two_looks_ends_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_keys, "LOOK_SECONDS", 1.5)
    store = store_in(tmp_path)
    async with serving(tmp_path, {"up": upstream()}, clients=CLIENTS) as served:
        key = store.add("bob")
        async with served.handshake(key=key.text):
            store.revoke([key.key_id])
            await until(lambda: clients_of(served) == 0)
