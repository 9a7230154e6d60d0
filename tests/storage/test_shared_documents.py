"""Documents that replicas share: what each of them reads, and what is left after a flush, an outage or a fork."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from pydantic import BaseModel
from redis import Redis

from pml_gateway.errors import ConfigurationError, SharedStateError
from pml_gateway.storage import kinds
from pml_gateway.storage.change_feed import STREAM, ChangeFeed
from pml_gateway.storage.documents import Document, model_document
from pml_gateway.storage.redis import PREFIX, RedisHealth
from pml_gateway.storage.sealing import Sealing
from pml_gateway.storage.shared_documents import KEPT_MILLISECONDS, SharedDocuments
from tests.storage.test_redis import KEY, opened
from tests.support.waiting import until


class Numbers(BaseModel):
    """A content of which two are merged by taking all of both."""

    numbers: tuple[int, ...] = ()


def merged(one: Numbers, other: Numbers) -> Numbers:
    return Numbers(numbers=tuple(sorted({*one.numbers, *other.numbers})))


def having(number: int, content: Numbers) -> Numbers:
    return Numbers(numbers=(*content.numbers, number))


def local(folder: Path) -> Document[Numbers]:
    return model_document(kinds.REMOVED, folder / "numbers.json", Numbers)


class Replica:
    """One folder, and its documents in Redis."""

    def __init__(self, url: str, folder: Path, key: str = KEY) -> None:
        self.documents = SharedDocuments(url, Sealing(key))
        self.document = self.documents.shared("numbers", local(folder), merged)

    def add(self, number: int) -> None:
        self.document.change(partial(having, number))

    def drop(self, number: int) -> None:
        self.document.change(lambda before: Numbers(numbers=tuple(each for each in before.numbers if each != number)))

    def pulled(self, *, fills: bool = False) -> tuple[int, ...]:
        self.documents.pull(fills=fills)
        return self.document.load().numbers


MakeReplica = Callable[[str], Replica]


@pytest.fixture
def replica(empty_redis: Redis, redis_url: str, tmp_path: Path) -> MakeReplica:
    return lambda name: Replica(redis_url, tmp_path / name)


@pytest.mark.anyio
async def test_connections_do_not_look_up_the_version_of_their_library(
    replica: MakeReplica, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[threading.Thread] = []
    monkeypatch.setattr("redis.utils.get_lib_version", lambda: asked.append(threading.current_thread()))
    replica("here").add(1)
    async with opened(redis_url) as server:
        await server.run(lambda redis: redis.ping())
    # Connections inside the server, which has threads, do.
    assert threading.main_thread() not in asked


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_document_is_the_same_to_its_users_wherever_it_lies(
    empty_redis: Redis, redis_url: str, tmp_path: Path, is_shared: bool
) -> None:
    document = Replica(redis_url, tmp_path).document if is_shared else local(tmp_path)
    assert document.load() == document.read() == document.require("") == Numbers()
    assert document.signature is None
    assert document.change(lambda _: Numbers(numbers=(1,))) == Numbers(numbers=(1,))
    before = document.signature
    assert document.load() == document.read() == document.require("") == Numbers(numbers=(1,))
    assert document.change(lambda content: content).numbers == (1,)
    assert document.signature == before, "nothing was changed, so nothing was written"
    with ThreadPoolExecutor(8) as threads:
        for number in range(2, 12):
            threads.submit(document.change, partial(having, number))
    assert sorted(document.load().numbers) == list(range(1, 12))
    assert document.signature != before
    document.exclusively(lambda: document.write(Numbers()))
    assert document.load() == Numbers()


def test_what_one_replica_changes_the_others_take_over(replica: MakeReplica) -> None:
    one, two = replica("one"), replica("two")
    one.add(1)
    assert two.document.load().numbers == ()
    assert two.pulled() == (1,)
    signature = two.document.signature
    assert two.pulled() == (1,)
    assert two.document.signature == signature, "the copy is written only if something has changed"
    two.drop(1)
    assert one.pulled() == ()


def test_changes_of_replicas_at_the_same_moment_are_all_kept(replica: MakeReplica) -> None:
    replicas = [replica(str(at)) for at in range(4)]
    with ThreadPoolExecutor(4) as threads:
        done = [threads.submit(replicas[number % 4].add, number) for number in range(20)]
        assert [each.result() for each in done] == [None] * 20
    assert {tuple(sorted(each.pulled())) for each in replicas} == {tuple(range(20))}


def test_content_is_sealed_and_expires(
    empty_redis: Redis, replica: MakeReplica, redis_url: str, tmp_path: Path
) -> None:
    replica("one").add(73217321)
    [name] = [each for each in empty_redis.keys("*") if b"documents" in each]
    stored = empty_redis.hgetall(name)
    assert b"73217321" not in stored[b"value"]
    assert empty_redis.pttl(name) > KEPT_MILLISECONDS - 60_000
    assert Replica(redis_url, tmp_path / "stranger", KEY + "!").pulled() == ()


def test_with_a_new_storage_key_the_copies_go_on(replica: MakeReplica, redis_url: str, tmp_path: Path) -> None:
    one, two = replica("one"), replica("two")
    one.add(1)
    assert two.pulled() == (1,)
    one.add(2)
    after = [Replica(redis_url, tmp_path / name, KEY + "!") for name in ("two", "one")]
    for each in after:
        each.pulled(fills=True)
    assert [each.pulled() for each in after] == [(1, 2), (1, 2)]


def test_a_forged_value_is_replaced_by_those_who_know_better(empty_redis: Redis, replica: MakeReplica) -> None:
    one = replica("one")
    one.add(1)
    empty_redis.hset(one.document.key, mapping={"stamp": "forged", "value": "nothing that was sealed"})
    assert one.pulled() == (1,)
    assert one.pulled(fills=True) == replica("two").pulled() == (1,)


def test_after_a_flush_the_replicas_fill_redis_again_and_an_old_copy_brings_nothing_back(
    empty_redis: Redis, replica: MakeReplica
) -> None:
    one, two, stale = (replica(name) for name in ("one", "two", "stale"))
    one.add(1)
    one.add(2)
    assert two.pulled() == stale.pulled() == (1, 2)
    two.drop(1)
    assert one.pulled() == (2,)
    empty_redis.flushall()
    # The one that was away comes first.
    assert stale.pulled(fills=True) == (1, 2)
    assert one.pulled(fills=True) == (2,)
    assert two.pulled(fills=True) == stale.pulled(fills=True) == replica("new").pulled() == (2,)


def test_a_change_of_an_old_copy_after_a_flush_is_merged_with_newer_ones(
    empty_redis: Redis, replica: MakeReplica
) -> None:
    one, stale = replica("one"), replica("stale")
    one.add(1)
    assert stale.pulled() == (1,)
    one.add(2)
    empty_redis.flushall()
    stale.add(3)
    assert one.pulled(fills=True) == stale.pulled() == (1, 2, 3)


def test_a_server_that_was_restored_from_a_backup_is_brought_up_to_date(
    empty_redis: Redis, replica: MakeReplica
) -> None:
    one, two = replica("one"), replica("two")
    one.add(1)
    [name] = [each for each in empty_redis.keys("*") if b"documents" in each]
    backup = empty_redis.dump(name) or b""
    one.drop(1)
    one.add(2)
    empty_redis.restore(name, 0, backup, replace=True)
    assert two.pulled() == (1,), "it has no copy to know better by"
    assert one.pulled() == (2,), "but who knows better does not go back"
    one.documents.pull(fills=True)
    assert two.pulled() == (2,)


def test_a_file_of_before_is_merged_into_what_the_others_have(replica: MakeReplica, tmp_path: Path) -> None:
    for name, number in (("one", 1), ("two", 2)):
        local(tmp_path / name).change(partial(having, number))
    one, two = replica("one"), replica("two")
    assert one.pulled() == (1,)
    assert one.pulled(fills=True) == (1,)
    assert two.pulled() == (1, 2)
    assert one.pulled() == (1, 2)
    assert local(tmp_path / "one").load().numbers == (1, 2), "also without the storage again"


def test_a_damaged_copy_is_set_aside_and_read_from_redis_again(replica: MakeReplica) -> None:
    one = replica("one")
    one.add(1)
    one.document.path.write_text('{"shared": nothing', encoding="utf-8")
    again = replica("one")
    assert again.pulled() == (1,)
    assert again.document.path.with_suffix(".damaged").exists()


def test_a_document_that_cannot_be_read_keeps_no_other_one_back(redis_url: str, replica: MakeReplica) -> None:
    one, two = replica("one"), replica("two")
    value = {"changes": {"a": 1}, "content": "of another version"}
    key = f"{PREFIX}:documents:{one.documents.space}:others"
    one.documents.replace(key, "others", b"", value)
    for each in (one, two):
        each.documents = SharedDocuments(redis_url, Sealing(KEY))
        each.documents.shared("others", local(each.document.path.parent / "others"), merged)
        each.document = each.documents.shared("numbers", local(each.document.path.parent), merged)
    one.add(1)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        two.documents.pull()
    assert two.document.load().numbers == (1,)


def test_a_change_is_made_though_the_news_cannot_be_told(empty_redis: Redis, replica: MakeReplica) -> None:
    empty_redis.set(STREAM, "no stream")
    replica("one").add(1)
    assert replica("two").pulled() == (1,)


def test_in_an_outage_the_copy_serves_on_and_changes_say_what_to_do(
    replica: MakeReplica, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    replica("one").add(1)
    one = Replica("redis://:hunter2@127.0.0.1:1", tmp_path / "one")
    with pytest.raises(SharedStateError) as caught:
        one.add(2)
    assert "hunter2" not in str(caught.value)
    assert caught.value.message == "Redis at 127.0.0.1:1 (storage.url) failed: no connection"
    with pytest.raises(SharedStateError, match="failed a moment ago: no connection"):
        one.add(2)
    assert "try again later" in (caught.value.hint or "")
    assert one.document.load().numbers == (1,)
    one.documents.pull_or_warn()
    assert "may be out of date: Redis at 127.0.0.1:1" in caplog.text
    assert replica("two").pulled() == (1,)


def test_a_replica_with_an_empty_folder_says_that_it_is_not_ready(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Replica("redis://127.0.0.1:1", tmp_path / "one").documents.pull_or_warn()
    assert "are not known, and /readyz answers 503 until they are: Redis at 127.0.0.1:1 " in caplog.text


def test_a_server_that_refuses_a_command_is_asked_again_at_once(empty_redis: Redis, replica: MakeReplica) -> None:
    one = replica("one")
    empty_redis.set(one.document.key, "a value of another type")
    with pytest.raises(SharedStateError):
        one.add(1)
    empty_redis.delete(one.document.key)
    one.add(2)
    assert one.pulled() == (2,)


def test_content_of_another_version_is_refused(empty_redis: Redis, replica: MakeReplica, redis_url: str) -> None:
    one = replica("one")
    one.add(1)
    sealing = Sealing(KEY)
    empty_redis.hset(one.document.key, "value", sealing.seal(one.document.key, {"changes": {}, "content": "[]"}))
    empty_redis.hset(one.document.key, "stamp", "new")
    with pytest.raises(ConfigurationError, match="same version of pml"):
        one.documents.pull()
    assert one.document.load().numbers == (1,)


def test_a_command_changes_nothing_where_gateways_have_another_format_or_key(
    empty_redis: Redis, replica: MakeReplica, redis_url: str, tmp_path: Path
) -> None:
    empty_redis.set(f"{PREFIX}:format", "other")
    with pytest.raises(ConfigurationError, match="format 'other', and this pml writes "):
        replica("one").add(1)
    empty_redis.delete(f"{PREFIX}:format")
    empty_redis.sadd(f"{PREFIX}:replicas", "b" * 12)
    name = f"{PREFIX}:replica:{'b' * 12}"
    empty_redis.set(name, Sealing(KEY + "!").seal(name, {}), px=60_000)
    with pytest.raises(ConfigurationError, match=r"another storage\.key"):
        replica("one").add(1)
    empty_redis.delete(name)
    one = replica("one")
    one.add(1)
    assert one.pulled() == (1,)


def test_the_copy_is_readable_by_a_gateway_without_redis(replica: MakeReplica, tmp_path: Path) -> None:
    replica("one").add(1)
    raw: dict[str, Any] = json.loads((tmp_path / "one" / "numbers.json").read_bytes())
    assert raw["numbers"] == [1]
    assert list(raw["shared"]["changes"].values()) == [1]


@pytest.mark.anyio
@pytest.mark.parametrize("is_another_refused", [False, True])
async def test_replicas_follow_by_news(
    empty_redis: Redis, redis_url: str, tmp_path: Path, is_another_refused: bool
) -> None:
    one, two = Replica(redis_url, tmp_path / "one"), Replica(redis_url, tmp_path / "two")
    if is_another_refused:
        another = two.documents.shared("others", local(tmp_path / "others"), merged)
        empty_redis.set(another.key, "no document")
    async with opened(redis_url) as server, anyio.create_task_group() as tasks:
        feed = ChangeFeed(server)
        tasks.start_soon(feed.run)
        tasks.start_soon(two.documents.run, server, feed)
        for number in range(3):
            await anyio.to_thread.run_sync(one.add, number)
            await until(partial(lambda n: n in two.document.load().numbers, number))
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_a_look_opens_no_connection_and_keeps_documents_from_expiring(
    empty_redis: Redis, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pml_gateway.storage.shared_documents.LOOK_SECONDS", 0.01)
    one = Replica(redis_url, tmp_path)
    one.add(1)
    [name] = [each for each in empty_redis.keys("*") if b"documents" in each]

    def new_connection() -> int:
        with Redis.from_url(redis_url) as client:
            return int(client.client_id())

    async def until_looked() -> None:
        empty_redis.pexpire(name, 1000)
        await until(lambda: bool(empty_redis.pttl(name) > KEPT_MILLISECONDS - 60_000))

    async with opened(redis_url) as server, anyio.create_task_group() as tasks:
        tasks.start_soon(one.documents.run, server, ChangeFeed(server))
        await until_looked()
        before = new_connection()
        for _ in range(5):
            await until_looked()
        assert new_connection() == before + 1
        tasks.cancel_scope.cancel()


def test_a_server_that_has_just_failed_is_not_asked_for_documents_either(redis_url: str, tmp_path: Path) -> None:
    health = RedisHealth()
    documents = SharedDocuments(redis_url, Sealing(KEY), health)
    documents.shared("numbers", local(tmp_path), merged)
    with pytest.raises(SharedStateError), health.command():
        raise ConnectionError
    with pytest.raises(SharedStateError, match="a moment ago"):
        documents.pull()
