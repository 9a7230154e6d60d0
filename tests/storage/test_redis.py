"""State in Redis: what gateways share of it, what lies there, and what happens without it."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute
from redis.exceptions import OutOfMemoryError, ResponseError

from pml_gateway.errors import ConfigurationError, SharedStateError
from pml_gateway.storage.counters import Allowance, RedisCounters
from pml_gateway.storage.documents import readable
from pml_gateway.storage.redis import (
    MAX_PAUSE_SECONDS,
    NOT_SAVED,
    OTHER_TYPE,
    PREFIX,
    RedisHealth,
    RedisServer,
    RedisValues,
    open_redis,
)
from pml_gateway.storage.redis_owned import OwnedValues
from pml_gateway.storage.redis_url import connection_pool
from pml_gateway.storage.sealing import NONCE_BYTES, SALT_BYTES, Sealing
from pml_gateway.types import JsonObject
from tests.support.redis_server import losing_answers

pytestmark = pytest.mark.anyio

KEY = "a random text that all gateways have"
NUMBERS = count()


@asynccontextmanager
async def opened(url: str, key: str = KEY) -> AsyncIterator[RedisServer]:
    async with open_redis("${env:URL}", "${env:KEY}", {"URL": url, "KEY": key}) as server:
        assert server is not None
        yield server


async def pttl(name: bytes | str, redis: Any) -> int:
    return int(await redis.pttl(name))


async def raw(server: RedisServer, name: str) -> Any:
    return await server.run(lambda redis: redis.get(name))


def calls_a_minute(most: int, amount: int = 1) -> Allowance:
    return Allowance(("client", "anna", "calls_per_minute", str(next(NUMBERS))), most, 60, "anna", amount)


async def test_gateways_with_the_same_key_read_each_others_values_and_others_do_not(redis_url: str) -> None:
    async with opened(redis_url) as one, opened(redis_url) as two, opened(redis_url, KEY + "!") as stranger:
        await RedisValues(one).put("k", {"secret": "häagen"}, collection="c", ttl=60)
        assert await RedisValues(two).get("k", collection="c") == {"secret": "häagen"}
        assert await RedisValues(stranger).get("k", collection="c") is None
        assert b"secret" not in await raw(one, f"{PREFIX}:c:k")


async def test_a_value_that_was_moved_under_another_key_is_not_accepted(redis_url: str) -> None:
    async with opened(redis_url) as server:
        values = RedisValues(server)
        await values.put("mine", {"a": 1}, collection="moved")
        await server.run(lambda redis: redis.rename(f"{PREFIX}:moved:mine", f"{PREFIX}:moved:yours"))
        assert await values.get("yours", collection="moved") is None


async def test_every_key_expires(redis_url: str) -> None:
    async with opened(redis_url) as server:
        await RedisValues(server).put("k", {}, collection="expiring")
        counters = RedisCounters(server, lambda: True)
        await counters.take([calls_a_minute(3)])
        names = await server.run(lambda redis: redis.keys("*"))
        lasting = [name for name in names if await server.run(partial(pttl, name)) < 0]
    assert lasting == [f"{PREFIX}:format".encode()]


async def test_gateways_count_together(redis_url: str) -> None:
    allowance, other = calls_a_minute(3), calls_a_minute(100)
    async with opened(redis_url) as one, opened(redis_url) as two:
        counters = [RedisCounters(each, lambda: True) for each in (one, two)]
        for number in range(3):
            assert await counters[number % 2].take([other, allowance]) is None
        refused = await counters[1].take([other, allowance])
        assert refused is not None
        assert refused.allowance is allowance
        assert 55 < refused.retry_after <= 61
        # Nothing was counted for the other one, as the call is not made.
        assert await counters[0].take([Allowance(other.key, 4, 60, "anna")]) is None


async def test_calls_at_the_same_moment_do_not_get_past_a_limit(redis_url: str) -> None:
    allowance, passed = calls_a_minute(7), []
    async with opened(redis_url) as one, opened(redis_url) as two, anyio.create_task_group() as tasks:

        async def call(server: RedisServer) -> None:
            if await RedisCounters(server, lambda: True).take([allowance]) is None:
                passed.append(server)

        for number in range(20):
            tasks.start_soon(call, (one, two)[number % 2])
    assert len(passed) == 7


async def test_an_amount_that_is_known_afterwards_counts_for_the_next_call(redis_url: str) -> None:
    allowance = calls_a_minute(1000, amount=0)
    async with opened(redis_url) as server:
        counters = RedisCounters(server, lambda: True)
        assert await counters.take([allowance]) is None
        await counters.add(allowance, 5000)
        assert await counters.take([allowance]) is not None


async def test_without_redis_each_gateway_counts_for_itself_or_refuses() -> None:
    allowance = calls_a_minute(1)
    async with opened("redis://:hunter2@127.0.0.1:1") as server:
        by_itself, closed = RedisCounters(server, lambda: True), RedisCounters(server, lambda: False)
        assert await by_itself.take([allowance]) is None
        assert await by_itself.take([allowance]) is not None
        with pytest.raises(SharedStateError) as caught:
            await closed.take([allowance])
    assert "hunter2" not in str(caught.value)


async def test_a_server_that_failed_is_left_alone_for_a_while(redis_url: str) -> None:
    attempts = 0

    async def fail(_: Any) -> None:
        nonlocal attempts
        attempts += 1
        raise ConnectionError

    async with opened(redis_url) as server:
        for _ in range(5):
            with pytest.raises(SharedStateError):
                await server.run(fail)
    assert attempts == 1


@pytest.mark.parametrize(
    ("other", "words"), [("/99", "it has no database of this number"), ("not Redis", "what answers there is not Redis")]
)
async def test_a_failure_is_logged_with_address_and_reason_in_words(
    redis_url: str, other: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0) as listener:
        port = listener.extra(SocketAttribute.local_port)

        async def answer(stream: ByteStream) -> None:
            async with stream:
                await stream.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                await stream.receive()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, answer)
            url = (
                redis_url.rpartition("/")[0] + other if other.startswith("/") else f"redis://:hunter2@127.0.0.1:{port}"
            )
            async with opened(url) as server:
                with pytest.raises(SharedStateError, match=words):
                    await server.run(lambda redis: redis.ping())
                assert server.health.failure == words
                assert f"Redis at {server.address} (storage.url)" in caplog.text
            tasks.cancel_scope.cancel()
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ("WRONGTYPE Operation against a key holding the wrong kind of value", OTHER_TYPE),
        (
            "WRONGTYPE Operation against a key holding the wrong kind of value script: f1, on @user_script:3.",
            OTHER_TYPE,
        ),
        ("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.", NOT_SAVED),
        ("NOREPLICAS Not enough good replicas to write.", "too few replicas of it are connected"),
        ("ERR hunter2", "ResponseError"),
    ],
)
async def test_a_refusal_is_said_in_words(redis_url: str, refusal: str, words: str) -> None:
    async def refuse(_: object) -> None:
        raise ResponseError(refusal)

    async with opened(redis_url) as server:
        with pytest.raises(SharedStateError, match=words):
            await server.run(refuse)


async def test_a_value_of_another_type_is_said(redis_url: str) -> None:
    async with opened(redis_url) as server:
        await server.run(lambda redis: redis.lpush(f"{PREFIX}:c:k", "a list"))
        with pytest.raises(SharedStateError, match=OTHER_TYPE):
            await RedisValues(server).take("k", collection="c")


async def test_commands_that_fail_at_once_count_as_one_failure(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pml_gateway.storage.redis.MAX_PAUSE_SECONDS", 3600.0)
    begun = anyio.Event()

    async def fail(_: Any) -> None:
        await begun.wait()
        raise ConnectionError

    async def attempt() -> None:
        with pytest.raises(SharedStateError):
            await server.run(fail)

    async with opened(redis_url) as server:
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(attempt)
            await anyio.wait_all_tasks_blocked()
            begun.set()
        with anyio.fail_after(60):
            while True:
                try:
                    await server.run(lambda redis: redis.ping())
                    break
                except SharedStateError:
                    await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize(("number", "pause"), [(1, 0.5), (2, 3.0)])
def test_who_stood_still_asks_again_soon_and_a_silent_server_is_asked_for_half_of_the_time(
    monkeypatch: pytest.MonkeyPatch, number: int, pause: float
) -> None:
    clock, health = [100.0], RedisHealth()
    monkeypatch.setattr("pml_gateway.storage.redis.time.monotonic", lambda: clock[0])
    for _ in range(number):
        clock[0] += 100
        with pytest.raises(SharedStateError), health.command():
            clock[0] += 3
            raise TimeoutError
    clock[0] += pause - 0.3
    with pytest.raises(SharedStateError), health.command():
        pass
    clock[0] += 0.31
    with health.command():
        pass


def test_after_an_outage_of_hours_the_server_is_asked_again_after_eight_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, health, attempts = [0.0], RedisHealth(), list[float]()
    monkeypatch.setattr("pml_gateway.storage.redis.time.monotonic", lambda: clock[0])
    while clock[0] < 4 * 3600:
        with suppress(SharedStateError), health.command():
            attempts.append(clock[0])
            raise ConnectionError
        clock[0] += 0.25
    pauses = [after - before for before, after in pairwise(attempts)]
    assert pauses[0] <= 0.5
    assert max(pauses) <= MAX_PAUSE_SECONDS
    assert min(pauses[5:]) >= MAX_PAUSE_SECONDS / 2
    clock[0] += MAX_PAUSE_SECONDS
    with pytest.raises(SharedStateError), health.command():
        clock[0] += 30
        raise TimeoutError
    clock[0] += 29
    with pytest.raises(SharedStateError, match="a moment ago"), health.command():
        pass


async def test_a_server_that_refuses_a_command_does_all_others(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_: Any) -> None:
        raise OutOfMemoryError("OOM command not allowed when used memory > 'maxmemory'")

    async with opened(redis_url) as server:
        assert (server.health.failure, server.health.failing_seconds) == ("", None)
        for _ in range(3):
            with pytest.raises(SharedStateError, match="it has no memory left"):
                await server.run(fail)
            assert await RedisValues(server).get("none", collection="refused") is None
        assert server.health.failure == "it has no memory left"
        assert server.health.failing_seconds is not None
    assert caplog.text.count("refuses commands") == 1
    assert "answers again" not in caplog.text


async def test_a_connection_that_closes_while_it_is_written_to_is_a_failure_of_the_server(redis_url: str) -> None:
    async def write(_: Any) -> None:
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")

    async with opened(redis_url) as server:
        with pytest.raises(SharedStateError):
            await server.run(write)


@pytest.mark.parametrize(
    "refusal", ["READONLY You can't write against a read only replica.", "MASTERDOWN Link is down"]
)
async def test_after_a_failover_a_command_reaches_the_new_primary_though_the_old_one_still_answers(
    redis_url: str, refusal: str
) -> None:
    port, accepted, demoted = int(redis_url.rpartition(":")[2].partition("/")[0]), 0, 0

    async def forward(client: ByteStream) -> None:
        nonlocal accepted
        accepted, number = accepted + 1, accepted
        async with client, await anyio.connect_tcp("127.0.0.1", port) as server, anyio.create_task_group() as both:

            async def answer() -> None:
                async for answered in server:
                    await client.send(answered)

            both.start_soon(answer)
            with suppress(anyio.BrokenResourceError):
                async for asked in client:
                    if number < demoted:
                        await client.send(f"-{refusal}\r\n".encode())
                    else:
                        await server.send(asked)
            both.cancel_scope.cancel()

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, forward)
        async with opened(f"redis://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/0") as server:
            values = RedisValues(server)
            await values.put("k", {"at": "the old one"}, collection="failover")
            demoted = accepted
            await values.put("k", {"at": "the new one"}, collection="failover")
            assert await values.get("k", collection="failover") == {"at": "the new one"}
            assert server.health.failure == ""
        tasks.cancel_scope.cancel()


async def test_state_of_another_version_is_refused(redis_url: str) -> None:
    async with opened(redis_url) as server:
        await server.run(lambda redis: redis.set(f"{PREFIX}:format", "other"))
        try:
            with pytest.raises(ConfigurationError, match="format 'other', and this pml writes "):
                async with opened(redis_url):
                    pass
        finally:
            await server.run(lambda redis: redis.delete(f"{PREFIX}:format"))


@pytest.mark.parametrize(
    ("url", "key", "message"),
    [
        ("postgres://:hunter2@host", KEY, "names no Redis server"),
        ("redis://:hunter2@[host/0", KEY, "names no Redis server"),
        ("redis://:x@host:hunter2/0", KEY, "names no Redis server"),
        ("redis://:hunter2@host/hunter2", KEY, "names no Redis server"),
        ("redis://:hunter2/x@host", KEY, "names no Redis server"),
        ("redis:hunter2", KEY, "names no Redis server"),
        ("redis://host?pass=hunter2", KEY, "names no Redis server"),
        ("redis://host?retry=hunter2", KEY, "names no Redis server"),
        ("redis://host?protocol=3", KEY, "sets protocol, which cannot be changed"),
        ("unix://:hunter2@", KEY, "names no Redis server"),
        ("rediss://:hunter2@host?ssl_ca_certs=/none.pem", KEY, "names a certificate or key that cannot be read"),
        ("rediss://:hunter2@host?ssl_ca_certs=/dev/null", KEY, "names a certificate or key that cannot be read"),
        ("rediss://host?ssl_certfile=/none.pem&ssl_password=hunter2", KEY, "certificate or key that cannot be read"),
        ("redis://host", "hunter2", "needs a storage.key of 32 characters"),
        ("redis://host", None, "KEY is not set .make one with `openssl rand -hex 32`"),
    ],
)
async def test_settings_that_share_nothing_are_refused(url: str, key: str | None, message: str) -> None:
    environ = {"URL": url} | ({} if key is None else {"KEY": key})
    with pytest.raises(ConfigurationError, match=message) as caught:
        async with open_redis("${env:URL}", "${env:KEY}", environ):
            pass
    assert "hunter2" not in str(caught.value)
    assert os.environ.get("KEY") is None


@pytest.mark.parametrize(
    "url", ["unix://:${env:PW}@{socket}?db=2", "redis://me:${env:PW}@${env:PLACE}", "valkey://:${env:PW}@${env:PLACE}"]
)
async def test_a_password_by_reference_has_any_characters(url: str, tmp_path: Path) -> None:
    sent: list[bytes] = []

    async def refuse(stream: ByteStream) -> None:
        async with stream:
            sent.append(await stream.receive())

    over_tcp = await anyio.create_tcp_listener(local_host="127.0.0.1")
    socket = tmp_path / "redis.sock"
    async with over_tcp, await anyio.create_unix_listener(socket) as over_socket, anyio.create_task_group() as tasks:
        for listener in (over_tcp, over_socket):
            tasks.start_soon(listener.serve, refuse)
        port = over_tcp.extra(SocketAttribute.local_port)
        environ = {"PW": "p:a@s/s#%41", "KEY": KEY, "PLACE": f"127.0.0.1:{port}/2"}
        async with open_redis(url.replace("{socket}", str(socket)), "${env:KEY}", environ):
            pass
        tasks.cancel_scope.cancel()
    assert b"p:a@s/s#%41" in sent[0]


async def test_of_several_that_take_a_value_one_gets_it(redis_url: str) -> None:
    async with opened(redis_url) as one, opened(redis_url) as two:
        await RedisValues(one).put("k", {"a": 1}, collection="taken")
        taken: list[Any] = []

        async def take(server: RedisServer) -> None:
            taken.append(await RedisValues(server).take("k", collection="taken"))

        async with anyio.create_task_group() as tasks:
            for server in (one, two, one, two):
                tasks.start_soon(take, server)
    assert taken.count({"a": 1}) == 1
    assert taken.count(None) == 3


async def test_changes_of_several_gateways_are_all_kept(redis_url: str) -> None:
    async with opened(redis_url) as one, opened(redis_url) as two:

        async def count(server: RedisServer) -> None:
            for _ in range(10):
                await RedisValues(server).change(
                    "k", lambda value: {"n": (value or {"n": 0})["n"] + 1}, collection="changed", ttl=60
                )

        async with anyio.create_task_group() as tasks:
            for server in (one, two, one):
                tasks.start_soon(count, server)
        assert await RedisValues(two).get("k", collection="changed") == {"n": 30}
        assert await RedisValues(one).change("k", lambda _: None, collection="changed") is None
        assert await raw(two, f"{PREFIX}:changed:k") is None


class Watched(RedisServer):
    """A server that notes in which threads large values are encrypted and decrypted."""

    def __init__(self, url: str) -> None:
        super().__init__(connection_pool(url), "", KEY)
        self.threads: list[tuple[str, threading.Thread]] = []

    def seal(self, name: str, value: dict[str, Any], *, compressed: bool = False) -> bytes:
        self.threads.append(("seal", threading.current_thread()))
        return super().seal(name, value, compressed=compressed)

    def unseal(self, name: str, sealed: bytes | str) -> dict[str, Any] | None:
        self.threads.append(("unseal", threading.current_thread()))
        return super().unseal(name, sealed)


@pytest.mark.parametrize("is_large", [False, True], ids=["small", "large"])
async def test_large_values_are_encrypted_and_decrypted_off_the_event_loop(redis_url: str, is_large: bool) -> None:
    watched, text = Watched(redis_url), os.urandom(200_000 if is_large else 200).hex()
    values, owned = RedisValues(watched), OwnedValues(watched, "owned", 9, 1_000_000)
    await values.put("k", {"a": text}, collection="apart")
    assert await values.get("k", collection="apart") == {"a": text}
    assert await values.get_many(["k", "none"], collection="apart") == [{"a": text}, None]
    assert await values.change("k", lambda _: {"b": text}, collection="apart") == {"b": text}
    assert await values.take("k", collection="apart") == {"b": text}
    await owned.put("anna", "1", {"a": text}, 60)
    assert await owned.of("anna") == [{"a": text}]
    await watched.aclose()
    assert {done for done, _ in watched.threads} == {"seal", "unseal"}
    assert {thread is threading.main_thread() for _, thread in watched.threads} == {not is_large}


async def test_each_use_takes_one_command_and_what_another_gateway_changed_counts(redis_url: str) -> None:
    async with opened(redis_url) as one, opened(redis_url) as two:
        asked: list[str] = []
        one.observe = lambda outcome, _: asked.append(outcome)
        mine, others = RedisValues(one), RedisValues(two)

        async def commands(use: Awaitable[Any]) -> tuple[Any, int]:
            asked.clear()
            return await use, len(asked)

        def more(value: dict[str, Any] | None) -> dict[str, Any]:
            return {"n": (value or {"n": 0})["n"] + 1}

        def unless_three(value: dict[str, Any] | None) -> dict[str, Any] | None:
            return value if value == {"n": 3} else more(value)

        assert await commands(RedisCounters(one, lambda: True).take([calls_a_minute(9)])) == (None, 1)
        assert await commands(mine.put_many(["a", "b"], [{}, {"n": 0}], collection="c")) == (None, 1)
        assert await commands(mine.get_many(["a", "b"], collection="c")) == ([{}, {"n": 0}], 1)
        assert await commands(mine.change("b", more, collection="c")) == ({"n": 1}, 1)
        await others.change("b", more, collection="c")
        assert await commands(mine.change("b", unless_three, collection="c")) == ({"n": 3}, 3)
        await others.put("b", {"n": 2}, collection="c")
        # Left as it was last seen, it is read before that is believed.
        assert await commands(mine.change("b", unless_three, collection="c")) == ({"n": 3}, 2)
        await others.delete("b", collection="c")
        assert (await mine.change("b", more, collection="c")) == {"n": 1}


async def test_a_change_whose_answer_is_lost_is_made_once(redis_url: str) -> None:
    async with losing_answers(redis_url, b"answerless") as url, opened(url) as server:
        values = RedisValues(server)

        def one_more(found: JsonObject | None) -> JsonObject:
            return {"number": (found or {"number": 0})["number"] + 1}

        for _ in range(3):
            await values.change("k", one_more, collection="answerless")
        assert await values.get("k", collection="answerless") == {"number": 3}


def test_of_records_of_another_version_one_is_said(caplog: pytest.LogCaptureFixture) -> None:
    records: list[dict[str, Any]] = [{"at": 1}, {"later": 1}, {"at": 2}, {}]
    read = [readable("a record of this test", partial(dict.__getitem__, each, "at")) for each in records]
    assert read == [1, None, 2, None]
    said = "a record of this test cannot be read (KeyError); was it written by another version?"
    assert [each.getMessage() for each in caplog.records] == [said]


def test_no_two_values_are_encrypted_with_one_nonce_and_key() -> None:
    sealings = [Sealing(KEY), Sealing(KEY)]
    starts = {each.seal("name", {"a": 1})[: SALT_BYTES + NONCE_BYTES] for each in sealings * 100}
    assert len(starts) == 200
    assert all(each.unseal("name", sealings[0].seal("name", {"a": 1})) == {"a": 1} for each in sealings)


@pytest.mark.parametrize("damage", [lambda _: b"", lambda it: it[:20], lambda it: it[:-1], lambda it: it + b"x"])
def test_what_was_cut_or_changed_is_not_accepted(damage: Callable[[bytes], bytes]) -> None:
    sealing = Sealing(KEY)
    assert sealing.unseal("name", damage(sealing.seal("name", {"a": 1}))) is None


async def test_an_owner_has_so_many_values_and_those_that_end_first_make_room(redis_url: str) -> None:
    async with opened(redis_url) as server:
        values = OwnedValues(server, "few", 3, 10_000)
        for at, seconds in enumerate((60, 20, 30, 40, 10)):
            await values.put("a", str(at), {"at": at}, seconds)
        await values.put("b", "other", {}, 10)
        assert [each["at"] for each in await values.of("a")] == [4, 3, 0]
        assert await RedisValues(server).get(values.digest("1"), collection="few") is None
        assert await RedisValues(server).get(values.digest("3"), collection="few") == {"at": 3}
        assert await RedisValues(server).delete(values.digest("4"), collection="few")
        assert [each["at"] for each in await values.of("a")] == [3, 0]
        await values.put("a", "3", {"at": "new"}, 70)
        assert [each["at"] for each in await values.of("a")] == [0, "new"]
        await values.put("a", "large", {"text": "x" * 6000}, 50)
        assert [each.get("at") for each in await values.of("a")] == [None, 0, "new"]
        await values.put("a", "larger", {"text": "x" * 6500}, 5)
        assert [each.get("at", len(each.get("text", ""))) for each in await values.of("a")] == [6500, 0, "new"]
        assert await values.of("b") == [{}]
