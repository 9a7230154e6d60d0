"""Gateways that share a Redis server: who knows of whom, and what is said of those that are set otherwise."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace

import anyio
import pytest

from pml_gateway.errors import ConfigurationError, SharedStateError
from pml_gateway.storage.change_feed import ChangeFeed
from pml_gateway.storage.redis import PREFIX, REPLICAS, RedisServer, replica_name
from pml_gateway.storage.replicas import MAX_AGE_SECONDS, Replicas
from tests.storage.test_change_feed import fail
from tests.storage.test_redis import KEY, opened, raw
from tests.support.waiting import eventually, until

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def running(
    redis_url: str, *, key: str = KEY, configuration: str = "same", version: str = "1"
) -> AsyncIterator[Replicas]:
    async with opened(redis_url, key) as server, anyio.create_task_group() as tasks:
        feed = ChangeFeed(server)
        replicas = Replicas(server, feed, version, lambda: (configuration, 2))
        tasks.start_soon(feed.run)
        tasks.start_soon(replicas.run)
        yield replicas
        tasks.cancel_scope.cancel()


async def test_replicas_know_of_each_other_and_of_the_end_of_one(redis_url: str) -> None:
    async with running(redis_url) as one:
        async with running(redis_url) as two:
            await two.serve_at("http://10.0.0.2:8765")
            await until(lambda: any(each.url for each in one.known))
            assert await one.find(two.own.id) == two.own
            assert [each.id for each in await one.all()] == [one.own.id, two.own.id]
            two.drain()
            await until(lambda: any(each.is_draining for each in one.known))
        await until(lambda: one.known == (one.own,))
        assert await one.find(two.own.id) is None
        assert await one.find(one.own.id) == one.own


async def test_a_replica_that_began_a_moment_ago_is_found(redis_url: str) -> None:
    async with opened(redis_url) as server, running(redis_url) as two:
        one = Replicas(server, ChangeFeed(server), "1", lambda: ("same", 0))
        await until_registered(server, two)
        assert await one.find(two.own.id) == two.own
        assert one.known == (one.own, two.own)


async def test_a_gateway_with_another_key_than_the_running_ones_is_refused(redis_url: str) -> None:
    async with running(redis_url) as one, opened(redis_url) as server:
        await until_registered(server, one)
        with pytest.raises(ConfigurationError, match=r"1 gateway .* another storage\.key .give all the same"):
            async with opened(redis_url, KEY + "!"):
                pass
    async with opened(redis_url, KEY + "!"):
        pass


async def test_a_replica_of_another_key_that_came_in_an_outage_is_said_once(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(redis_url, KEY + "!") as server, running(redis_url) as one:
        stranger = Replicas(server, ChangeFeed(server), "1", lambda: ("same", 0))
        await stranger.serve_at("http://10.0.0.3:8765")
        assert await one.find(stranger.own.id) is None
        assert await one.all() == (one.own,)
        assert await one.all() == (one.own,)
        await server.run(lambda redis: redis.delete(replica_name(stranger.own.id)))
    assert caplog.text.count(f"replica {stranger.own.id} has another storage.key") == 1
    assert "a value at storage.url" not in caplog.text


async def test_a_replica_that_was_found_is_not_gone_while_it_gives_signs_of_life(redis_url: str) -> None:
    async with opened(redis_url) as server:
        one = Replicas(server, ChangeFeed(server), "1", lambda: ("same", 0))
        async with running(redis_url) as two:
            await until_registered(server, two)
            assert await one.find(two.own.id) == two.own
            # As of one that was silent for too long a moment ago: another replica has taken it out.
            await server.run(lambda redis: redis.srem(REPLICAS, two.own.id))
            assert await one.all() == (one.own, two.own)
        assert await one.all() == (one.own,)


async def test_what_others_write_among_the_names_is_passed_over(redis_url: str) -> None:
    async with opened(redis_url) as server, running(redis_url) as one:
        await server.run(lambda redis: redis.sadd(REPLICAS, b"\xff\xfe", "0123456789ab"))
        await server.run(lambda redis: redis.set(f"{PREFIX}:replica:0123456789ab", b"forged"))
        async with running(redis_url) as two:
            await until(lambda: two.own.id in {each.id for each in one.known})
            assert await one.all() == (one.own, two.own)


@pytest.mark.parametrize("written", ["forged", "x" * 500, ["a list"]])
async def test_what_others_left_under_the_name_of_a_replica_keeps_no_gateway_from_starting(
    redis_url: str, written: str | list[str]
) -> None:
    async with opened(redis_url) as server:
        name = replica_name("0123456789ab")
        await server.run(lambda redis: redis.sadd(REPLICAS, b"\xff\xfe", "0123456789ab"))
        await server.run(
            lambda redis: redis.set(name, written) if isinstance(written, str) else redis.rpush(name, *written)
        )
        async with running(redis_url) as one:
            await until_registered(server, one)
            assert await one.all() == (one.own,)


async def test_a_replica_of_another_version_is_known_though_it_says_more(redis_url: str) -> None:
    async with opened(redis_url) as server, running(redis_url) as one, running(redis_url) as two:
        await until_registered(server, two)
        name = f"{PREFIX}:replica:fedcba987654"
        newer = {**asdict(two.own), "id": "fedcba987654", "later": 1}
        sealed = server.seal(name, {"replica": newer, "at": time.time(), "later": 1})
        await server.run(lambda redis: redis.set(name, sealed, px=8000))
        assert await one.find("fedcba987654") == replace(two.own, id="fedcba987654")


async def until_registered(server: RedisServer, replicas: Replicas) -> None:
    async def is_registered() -> bool:
        return bool(await server.run(lambda redis: redis.sismember(REPLICAS, replicas.own.id)))

    await eventually(is_registered)


async def test_what_lies_in_redis_is_sealed_and_expires(redis_url: str) -> None:
    async with running(redis_url) as one, opened(redis_url) as server:
        await one.serve_at("http://10.0.0.1:8765")
        await until_registered(server, one)
        name = f"{PREFIX}:replica:{one.own.id}"
        assert b"10.0.0.1" not in await raw(server, name)
        assert 0 < int(await server.run(lambda redis: redis.pttl(name))) <= 8000
        assert 0 < int(await server.run(lambda redis: redis.pttl(REPLICAS))) <= 60_000


async def test_in_an_outage_the_last_known_replicas_are_found_and_others_are_not_said_to_be_gone(
    redis_url: str,
) -> None:
    async with running(redis_url) as two, opened(redis_url) as server:
        one = Replicas(server, ChangeFeed(server), "1", lambda: ("same", 0))
        await two.serve_at("http://10.0.0.2:8765")
        assert len(await one.all()) == 2

        await fail(server)
        assert await one.find(two.own.id) == two.own
        assert len(await one.all()) == 2
        with pytest.raises(SharedStateError):
            await one.find("000000000000")


async def test_after_an_outage_a_replica_that_is_slow_to_come_back_is_not_gone(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(redis_url) as server, anyio.create_task_group() as tasks:
        feed = ChangeFeed(server)
        one = Replicas(server, feed, "1", lambda: ("same", 0))
        two = Replicas(server, feed, "1", lambda: ("same", 0))
        await two.serve_at("http://10.0.0.2:8765")
        assert await one.all() == (one.own, two.own)
        await fail(server)
        tasks.start_soon(one.run)
        # Its first beat fails; Redis comes back without what it had.
        monkeypatch.setattr("pml_gateway.storage.replicas.HEARTBEAT_SECONDS", 0.05)
        async with opened(redis_url) as other:
            await other.run(lambda redis: redis.delete(f"{PREFIX}:replica:{two.own.id}", REPLICAS))
            await until_registered(other, one)
        assert await one.all() == (one.own, two.own)
        assert await one.find(two.own.id) == two.own
        monkeypatch.setattr("pml_gateway.storage.replicas.RETURN_SECONDS", 0.1)
        await fail(server)
        await until(lambda: one.known == (one.own,))
        tasks.cancel_scope.cancel()


async def test_entries_that_redis_loses_between_two_commands_are_not_those_of_replicas_that_are_gone(
    redis_url: str,
) -> None:
    async with opened(redis_url) as server:
        one, two = (Replicas(server, ChangeFeed(server), "1", lambda: ("same", 0)) for _ in range(2))
        await one.serve_at("http://10.0.0.1:8765")
        await two.serve_at("http://10.0.0.2:8765")
        assert two.own in await one.all()
        # The ids were read before that.
        await server.run(lambda redis: redis.delete(replica_name(one.own.id), replica_name(two.own.id)))
        assert two.own in await one.all()
        assert await one.find(two.own.id) == two.own


async def test_what_is_no_entry_under_the_name_of_a_replica_is_no_replica(redis_url: str) -> None:
    async with opened(redis_url) as server:
        one = Replicas(server, ChangeFeed(server), "1", lambda: ("same", 0))
        await server.run(lambda redis: redis.hset(replica_name("abcdefabcdef"), "a", "b"))
        assert await one.find("abcdefabcdef") is None


async def test_replicas_that_have_no_entry_after_redis_lost_everything_are_not_said_to_be_gone(redis_url: str) -> None:
    async with running(redis_url) as one, opened(redis_url) as server:
        two = Replicas(server, ChangeFeed(server), "1", lambda: ("same", 0))
        await two.serve_at("http://10.0.0.2:8765")
        await until(lambda: two.own in one.known)
        await server.run(lambda redis: redis.flushall())
        assert two.own in await one.all()
        assert await one.find(two.own.id) == two.own
        with pytest.raises(SharedStateError):
            await one.find("000000000000")


@pytest.mark.parametrize(
    ("other", "said"),
    [({"version": "2"}, "it has version 2, and this one 1"), ({"configuration": "x"}, "configuration is not the same")],
)
async def test_a_replica_that_is_set_otherwise_is_said_once(
    redis_url: str, other: dict[str, str], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(redis_url) as one, running(redis_url, **other) as two:
        # Each new address takes a look: the second says the difference, and no later one says it again.
        for port in range(1, 5):
            await two.serve_at(f"http://10.0.0.2:{port}")
            await until(lambda: two.own in one.known)
    lines = [line for line in caplog.messages if said in line and f"replica {two.own.id}" in line]
    assert len(lines) == 1


async def test_an_entry_of_another_time_gives_no_address_and_is_said_once(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(redis_url) as server:
        async with running(redis_url) as gone:
            await gone.serve_at("http://10.0.0.2:8765")
            name = f"{PREFIX}:replica:{gone.own.id}"
            old = await raw(server, name)
        await server.run(lambda redis: redis.set(name, old, px=3_600_000))
        now = time.time()
        for seconds, url, said in (
            (0.0, "http://10.0.0.2:8765", []),
            (MAX_AGE_SECONDS + 1, None, ["differ by 69 s"]),
            (-2 * MAX_AGE_SECONDS, None, ["differ by 2 min"]),
        ):
            one = Replicas(server, ChangeFeed(server), "1", lambda: ("same", 0))
            monkeypatch.setattr(time, "time", lambda seconds=seconds: now + seconds)
            caplog.clear()
            for _ in range(2):
                found = await one.find(gone.own.id)
                assert found is not None
                assert found.url == url
                assert one.has_other_clock(found) == (url is None)
            lines = [each.message for each in caplog.records if each.levelname == "ERROR"]
            assert len(lines) == len(said)
            assert all(words in line for words, line in zip(said, lines, strict=True))
