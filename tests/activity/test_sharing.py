"""Activity of several gateways: each file has the calls of all, once, also after restarts and outages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from pml_gateway.activity import sharing
from pml_gateway.activity.accesses import AccessFilter, RecordedAccess, read_accesses, read_gaps
from pml_gateway.activity.history import History, RecordFilter, most_used, read_history
from pml_gateway.activity.recorder import AccessRow, Recorder
from pml_gateway.activity.sharing import STREAM, ActivitySharing, ReceivedBatch
from pml_gateway.config.settings import ActivitySettings, Settings
from pml_gateway.policy.refusals import refusals
from pml_gateway.storage.redis import RedisServer, open_redis
from tests.support.memory import paths_in
from tests.support.replicas import replicas_of
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import Serving, serving
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

KEY = "a random text that all gateways have"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PML_TEST_STORAGE", KEY)
    monkeypatch.setattr(sharing, "BATCH_SECONDS", 0.05)


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[RedisServer]:
    async with open_redis(redis_url, "${env:KEY}", {"KEY": KEY}) as server:
        assert server is not None
        await server.run(lambda client: client.delete(STREAM))
        yield server


@asynccontextmanager
async def gateway(folder: Path, redis_url: str) -> AsyncIterator[Serving]:
    async def handler(_: Any, params: dict[str, Any]) -> dict[str, Any]:
        return text_result("done")

    storage = {"url": redis_url, "key": "${env:PML_TEST_STORAGE}"}
    upstreams = {"git": ScriptedServer([tool("push", "Push commits to a repository.")], handler)}
    await anyio.Path(folder).mkdir(exist_ok=True)
    async with serving(folder, upstreams, storage=storage, activity={"sink": "redis"}) as served:
        yield served


def accesses(folder: Path) -> list[RecordedAccess]:
    return read_accesses(paths_in(folder).activity_file, AccessFilter("test", tool="git__push"), 1000)


def history(folder: Path) -> History:
    return read_history(paths_in(folder).activity_file, RecordFilter("test"), lists=True)


async def sent(redis: RedisServer) -> list[Any]:
    found: Any = await redis.run(lambda client: client.xrange(STREAM))
    return list(found)


async def has(folder: Path, calls: int) -> None:
    async def is_there() -> bool:
        return len(await anyio.to_thread.run_sync(accesses, folder)) >= calls

    await eventually(is_there)


async def test_each_file_has_the_activity_of_all_gateways_once(
    tmp_path: Path, redis_url: str, redis: RedisServer
) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    async with gateway(folders[0], redis_url) as one, gateway(folders[1], redis_url) as two:
        for served in (one, two):
            await served.names()
            await served.call("search_tools", {"query": "push commits"})
            await served.call("git__push", {"branch": "main"})
        for folder in folders:
            await has(folder, 2)
        ids = [replicas_of(each).own.id for each in (one, two)]
        [entry] = (await sent(redis))[:1]
        assert b"push" not in entry[1][b"batch"]
        assert await redis.run(lambda client: client.pttl(STREAM)) > 0
    for folder in folders:
        found = accesses(folder)
        assert sorted(each.replica for each in found) == sorted(ids)
        assert {(each.program, each.code, tuple(each.arguments or ())) for each in found} == {
            ("raw", "OK", ("branch",))
        }
        kept = history(folder)
        assert [call.query for call in kept.calls] == ["push commits"] * 2
        assert (len(kept.searches), kept.lists.count) == (2, 2)
        assert kept.lists.tokens == history(folders[0]).lists.tokens > 0
        assert most_used(paths_in(folder).activity_file, "test") == (("git", "push"),)
        assert read_gaps(paths_in(folder).activity_file) == []


async def test_what_others_write_into_the_stream_is_passed_over(
    tmp_path: Path, redis_url: str, redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    async with gateway(folders[0], redis_url) as one, gateway(folders[1], redis_url):
        for fields in ({b"of": b"others"}, {b"sender": b"\xff", b"batch": b"forged"}):
            await redis.run(lambda client, fields=fields: client.xadd(STREAM, fields))  # type: ignore[misc]
        await one.call("git__push", {"branch": "main"})
        await has(folders[1], 1)
    assert "can be made" not in caplog.text
    assert "dropped" not in caplog.text


async def test_gateways_with_one_file_write_each_record_once(
    tmp_path: Path, redis_url: str, redis: RedisServer
) -> None:
    folder, elsewhere = tmp_path / "one", tmp_path / "two"
    async with (
        gateway(folder, redis_url) as one,
        gateway(folder, redis_url) as same,
        gateway(elsewhere, redis_url) as two,
    ):
        for served in (one, same, two):
            await served.call("git__push")
        await has(elsewhere, 3)
        await has(folder, 3)
    assert len(accesses(folder)) == len(accesses(elsewhere)) == 3


async def test_who_comes_again_gets_what_it_missed_and_nothing_twice(
    tmp_path: Path, redis_url: str, redis: RedisServer
) -> None:
    folder, elsewhere = tmp_path / "one", tmp_path / "two"
    async with gateway(folder, redis_url) as one, gateway(elsewhere, redis_url) as two:
        await one.call("git__push")
        await two.call("git__push")
        await has(folder, 2)
        await has(elsewhere, 2)
    async with gateway(elsewhere, redis_url) as two:
        await two.call("git__push")
    assert len(accesses(folder)) == 2
    async with gateway(folder, redis_url):
        await has(folder, 3)
    assert len(accesses(folder)) == len(accesses(elsewhere)) == 3
    async with gateway(tmp_path / "new", redis_url):
        await has(tmp_path / "new", 3)
    assert read_gaps(paths_in(folder).activity_file) == []


def row(number: int) -> AccessRow:
    name = f"push{number}"
    target = ("git", name, "git__push", "write", "OK")
    return AccessRow(1e9 + number, "test", "local", "tools/call", *target, refused=False, counts=True)


@asynccontextmanager
async def shared(folder: Path, server: RedisServer, name: str) -> AsyncIterator[tuple[Recorder, ActivitySharing]]:
    await anyio.Path(folder).mkdir()
    with closing(Recorder(paths_in(folder).activity_file, lambda: ActivitySettings(max_days=20_000))) as recorder:
        each = ActivitySharing(server, recorder, name, "test", lambda: True)
        async with anyio.create_task_group() as tasks:
            yield recorder, each
            tasks.cancel_scope.cancel()


async def test_what_waits_too_long_for_redis_goes_the_oldest_first_and_is_counted(
    tmp_path: Path, redis: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sharing, "MAX_WAITING", 5)
    async with (
        shared(tmp_path / "one", redis, "first") as (_, one),
        shared(tmp_path / "two", redis, "second") as (_, two),
    ):
        for number in range(8):
            one.take(row(number))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.run)
            tasks.start_soon(two.run)
            await has(tmp_path / "two", 5)
            tasks.cancel_scope.cancel()
    assert [each.tool for each in accesses(tmp_path / "two")] == [f"push{number}" for number in range(3, 8)]
    [(_, reason)] = read_gaps(paths_in(tmp_path / "two").activity_file)
    assert reason == "3 records of replica first dropped: Redis did not answer for too long"
    assert caplog.text.count("the oldest records of activity are not passed on") == 1


async def test_a_batch_that_came_twice_is_written_once_and_a_missing_one_is_noted(
    tmp_path: Path, redis: RedisServer
) -> None:
    async with shared(tmp_path / "one", redis, "first") as (_, one), anyio.create_task_group() as tasks:
        tasks.start_soon(one.run)
        for number in range(3):
            one.take(row(number))
            length = number + 1

            async def is_sent(length: int = length) -> bool:
                return bool(await redis.run(lambda client: client.xlen(STREAM)) == length)

            await eventually(is_sent)
        tasks.cancel_scope.cancel()
    batches = await sent(redis)
    await redis.run(lambda client: client.delete(STREAM))
    for at in (0, 0, 2, 2):
        await redis.run(lambda client, at=at: client.xadd(STREAM, batches[at][1]))  # type: ignore[misc]
    async with shared(tmp_path / "two", redis, "second") as (_, two), anyio.create_task_group() as tasks:
        tasks.start_soon(two.run)
        await has(tmp_path / "two", 2)
        tasks.cancel_scope.cancel()
    assert [each.tool for each in accesses(tmp_path / "two")] == ["push0", "push2"]
    [(_, reason)] = read_gaps(paths_in(tmp_path / "two").activity_file)
    assert reason == "1 batch of replica first did not arrive"


def test_fields_of_another_version_are_left_out() -> None:
    about = {"sender": "a.b", "number": 1, "replica": "first", "dropped": 0, "weight": 9, "searches": [], "lists": []}
    names = ["at", "later", "client", "method", "server", "tool", "target", "effect", "code", "refused"]
    values = [1.5, "new", "local", "tools/call", "git", "push", "git__push", "write", "OK", False]
    batch = ReceivedBatch.read({**about, "accesses": {"fields": names, "rows": [values]}}, "1-0", "here")
    assert batch.columns == ("config", "replica", *(name for name in names if name != "later"))
    assert batch.accesses == [["here", "first", *(value for value in values if value != "new")]]


def test_what_lacks_a_field_is_refused_before_it_reaches_the_file() -> None:
    about = {"sender": "a.b", "number": 1, "replica": "first", "dropped": 0, "weight": 9, "searches": []}
    row = {"at": 1.5, "client": "local", "mode": "hybrid", "stage": "", "bodies": [["a", 1, 2], ["b", 1, 2]]}
    with pytest.raises(KeyError):
        ReceivedBatch.read({**about, "accesses": {"fields": [], "rows": []}, "lists": [row]}, "1-0", "here")


def test_a_sink_needs_a_storage() -> None:
    found = dict(refusals(Settings.model_validate({"activity": {"sink": "redis"}}), {}))
    assert "no Redis server is configured" in str(found["activity.sink"])
