"""Attempts of somebody who can write to Redis, and has no key, at calls that were not approved; and Redis of before."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from pml_gateway.config.settings import ApprovalSettings
from pml_gateway.errors import SharedStateError, UsageError
from pml_gateway.gateway.approval_requests import ApprovalScope, ApprovalState
from pml_gateway.gateway.approval_stores import (
    ALL,
    ARGUMENTS,
    CONTINUED,
    INDEX,
    MAX_KNOWN,
    REQUESTS,
    TOPIC,
    RedisApprovalStore,
)
from pml_gateway.gateway.approvals import Approvals
from pml_gateway.storage.change_feed import STREAM
from pml_gateway.storage.redis import MAX_PAUSE_SECONDS, PREFIX, RedisValues
from tests.storage.test_change_feed import fail
from tests.support.approval_stores import Sharing, a_call, ask, sharing
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

HELD = ApprovalSettings(hold_seconds=45, notify=False)


@pytest.fixture
def raw(empty_redis: Any) -> Any:
    """The Redis server as an attacker has it."""
    return empty_redis


def key(collection: str, id_: str) -> str:
    return f"{PREFIX}:{collection}:{id_}"


async def approved(approvals: Approvals, number: int = 0, scope: ApprovalScope = ApprovalScope.CALL) -> str:
    """Have a call asked about and approved; the id."""
    request = await ask(approvals, a_call(number))
    await approvals.answer(request.id, is_approved=True, scope=scope)
    return request.id


async def passes(opened: list[Sharing], number: int = 0) -> int:
    """How often a call passes at all gateways."""
    return sum([await each.approvals.approved(a_call(number)) is not None for each in opened])


async def test_what_lies_in_redis_is_encrypted_and_expires(redis_url: str, raw: Any) -> None:
    async with sharing(redis_url, 1) as [one]:
        id_ = await approved(one.approvals)
        await one.approvals.continue_later(a_call(), "state", id_)
        names = [each.decode() for each in raw.scan_iter() if each != f"{PREFIX}:format".encode()]
        values = b"".join(raw.get(each) for each in names if each != STREAM)
    assert {each.split(":")[1] for each in names} == {"changes", REQUESTS, ARGUMENTS, INDEX, CONTINUED}
    assert all(raw.pttl(each) > 0 for each in names)
    for secret in (b"of-ada", b"up__wipe", b"ada", b"rules[0]"):
        assert secret not in values


@pytest.mark.parametrize("collection", [REQUESTS, ARGUMENTS])
async def test_a_value_that_is_moved_to_another_key_approves_nothing(collection: str, redis_url: str, raw: Any) -> None:
    async with sharing(redis_url) as opened:
        yes = await approved(opened[0].approvals, 1, ApprovalScope.TOOL)
        waiting = (await ask(opened[0].approvals, a_call(2), within="another")).id
        raw.rename(key(collection, yes), key(collection, waiting))
        for each in opened:
            assert await each.approvals.shown_whole(waiting) is None
            with pytest.raises(UsageError, match="no approval"):
                await each.approvals.answer(waiting, is_approved=True, scope=ApprovalScope.CALL)
        assert (await opened[1].approvals.find(yes) is None) == (collection == REQUESTS)


@pytest.mark.parametrize("forged", [b"", b"{}", b"gAAAAAB" + b"A" * 100, b'{"state": "approved"}'])
async def test_a_forged_value_approves_nothing(forged: bytes, redis_url: str, raw: Any) -> None:
    async with sharing(redis_url) as opened:
        id_ = (await ask(opened[0].approvals)).id
        for name in (key(REQUESTS, id_), key(INDEX, ALL)):
            raw.set(name, forged, px=60_000)
        assert await passes(opened) == 0
        assert await opened[1].approvals.shown() == []
        # The same call is asked about anew.
        again = await ask(opened[1].approvals)
        assert [row["id"] for row in await opened[0].approvals.shown()] == [again.id]


async def test_a_value_of_gateways_with_another_key_approves_nothing(redis_url: str, raw: Any) -> None:
    async with sharing(redis_url, key="a random text of somebody else, long enough") as others:
        id_ = await approved(others[0].approvals, scope=ApprovalScope.TOOL)
        async with sharing(redis_url) as opened:
            assert await passes(opened) == 0
            assert await opened[0].approvals.find(id_) is None


def older(raw: Any, id_: str) -> Callable[[], None]:
    """Restore the value that a request has now."""
    value = raw.get(key(REQUESTS, id_))
    return lambda: raw.set(key(REQUESTS, id_), value, px=3_600_000)


async def test_a_used_approval_that_redis_has_again_is_not_used_by_those_who_knew(redis_url: str, raw: Any) -> None:
    async with sharing(redis_url) as opened:
        id_ = await approved(opened[0].approvals)
        restore = older(raw, id_)
        assert await opened[0].approvals.approved(a_call()) is not None

        async def knows() -> bool:
            # The other one hears of the use.
            restore()
            return await passes(opened[:1]) == 0 and await opened[1].approvals.find(id_) is None

        await eventually(knows)
        assert await passes(opened) == 0
        # Its client is asked for again, and gets it once.
        await approved(opened[1].approvals)
        assert await passes(opened) == 1


async def test_a_denied_call_that_redis_has_as_approved_again_is_not_made(redis_url: str, raw: Any) -> None:
    async with sharing(redis_url, 1) as opened:
        id_ = await approved(opened[0].approvals, scope=ApprovalScope.TOOL)
        restore = older(raw, id_)
        await opened[0].approvals.answer(id_, is_approved=False, scope=ApprovalScope.CALL)
        restore()
        assert await passes(opened) == 0


async def test_a_restored_value_is_of_no_use_after_its_time(redis_url: str, raw: Any) -> None:
    async with sharing(redis_url, 1) as [one]:
        id_ = await approved(one.approvals)
        restore = older(raw, id_)
        raw.delete(key(REQUESTS, id_))
        assert await passes([one]) == 0
        restore()
        later = Approvals(store=RedisApprovalStore(RedisValues(one.server), one.feed, lambda: time.time() + 3601))
        assert await later.approved(a_call()) is None
        assert await passes([one]) == 1


async def test_a_call_that_goes_on_does_so_once_more_only_within_its_time(redis_url: str, raw: Any) -> None:
    async with sharing(redis_url, 1) as [one]:
        await one.approvals.continue_later(a_call(), "state", "id")
        [name] = raw.scan_iter(key(CONTINUED, "*"))
        value = raw.get(name)
        assert await one.approvals.continued(a_call(), "state") == "id"
        raw.set(name, value)
        later = Approvals(store=RedisApprovalStore(RedisValues(one.server), one.feed, lambda: time.time() + 3601))
        assert await later.continued(a_call(), "state") is None


async def test_a_clock_that_is_moved_back_lengthens_no_approval(redis_url: str, raw: Any) -> None:
    async with sharing(redis_url, 1) as [one]:
        slow = Approvals(store=RedisApprovalStore(RedisValues(one.server), one.feed, lambda: time.time() - 86_400))
        id_ = await approved(one.approvals, scope=ApprovalScope.TOOL)
        before = raw.pttl(key(REQUESTS, id_))
        assert await slow.approved(a_call()) is not None
        assert raw.pttl(key(REQUESTS, id_)) <= before


@pytest.mark.parametrize("id_", ["", "ffffffff", "ffffffff:1", "{}", "x" * 1000, "\x00", ":", "ffffffff:-1"])
async def test_forged_news_approve_nothing(id_: str, redis_url: str, raw: Any) -> None:
    async with sharing(redis_url) as opened:
        request = await ask(opened[0].approvals, settings=HELD)
        found: list[Any] = []

        async def hold() -> None:
            found.append(await opened[0].approvals.wait(request, 1, None))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hold)
            for text in (id_, request.id, f"{request.id}:0"):
                for _ in range(3):
                    raw.xadd(STREAM, {"topic": TOPIC, "id": text})
        assert [each.state for each in found] == [ApprovalState.PENDING]
        assert await passes(opened) == 0


async def test_replayed_news_bring_no_use_back(redis_url: str, raw: Any) -> None:
    async with sharing(redis_url) as opened:
        await approved(opened[0].approvals)
        assert await passes(opened) == 1
        for _, fields in raw.xrange(STREAM):
            raw.xadd(STREAM, fields)
        heard: list[Any] = []
        with opened[1].feed.subscribed("end", heard.append):
            raw.xadd(STREAM, {"topic": "end", "id": "x"})

            async def has_heard() -> bool:
                return "x" in heard

            await eventually(has_heard)
        assert await passes(opened) == 0


async def test_forged_news_have_no_replica_forget_what_it_has_seen(redis_url: str, raw: Any) -> None:
    async with sharing(redis_url, 1) as opened:
        restore = older(raw, await approved(opened[0].approvals))
        assert await passes(opened) == 1
        heard: list[Any] = []
        with opened[0].feed.subscribed("end", heard.append), raw.pipeline() as commands:
            for number in range(MAX_KNOWN):
                commands.xadd(STREAM, {"topic": TOPIC, "id": f"{number:08x}:1"})
            commands.xadd(STREAM, {"topic": "end", "id": "x"})
            commands.execute()

            async def has_heard() -> bool:
                return "x" in heard

            await eventually(has_heard)
        restore()
        assert await passes(opened) == 0


async def test_an_index_of_before_shows_only_what_still_lasts(redis_url: str, raw: Any) -> None:
    async with sharing(redis_url) as opened:
        id_ = await approved(opened[0].approvals, 1)
        index = raw.get(key(INDEX, ALL))
        assert await passes(opened, 1) == 1
        later = (await ask(opened[0].approvals, a_call(2))).id
        raw.set(key(INDEX, ALL), index, px=60_000)
        assert [row["id"] for row in await opened[1].approvals.shown()] == [id_]
        assert await passes(opened, 1) == 0
        # The later one cannot be found by its call, which is asked about anew.
        assert (await ask(opened[1].approvals, a_call(2))).id != later


@pytest.fixture
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave Redis alone after a failure for longer than a test needs."""
    monkeypatch.setattr("pml_gateway.storage.redis.PAUSE_SECONDS", MAX_PAUSE_SECONDS)


@pytest.mark.usefixtures("long_pauses")
async def test_in_an_outage_nothing_passes_and_what_was_approved_passes_once_afterwards(
    redis_url: str, raw: Any
) -> None:
    async with sharing(redis_url) as opened:
        one, two = (each.approvals for each in opened)
        await approved(one)
        for each in opened:
            await fail(each.server)
        for attempt in (one.approved(a_call()), two.missing([a_call()]), ask(one, a_call(1)), two.shown()):
            with pytest.raises(SharedStateError):
                await attempt

        async def is_back() -> bool:
            try:
                return len(await one.shown()) == len(await two.shown()) == 1
            except SharedStateError:
                return False

        await eventually(is_back)
        assert await passes([*opened, *opened]) == 1


async def test_a_call_that_is_held_in_an_outage_goes_on_after_it(
    redis_url: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pml_gateway.gateway.approvals.PROGRESS_SECONDS", 0.1)
    async with sharing(redis_url) as [one, two]:
        request = await ask(one.approvals, settings=HELD)
        found: list[Any] = []

        async def hold() -> None:
            found.append(await one.approvals.wait(request, 45, None))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hold)
            await fail(one.server)
            await two.approvals.answer(request.id, is_approved=True, scope=ApprovalScope.CALL)
        assert [each.state for each in found] == [ApprovalState.APPROVED]


@pytest.mark.usefixtures("long_pauses")
async def test_a_call_that_is_held_until_the_end_of_its_time_in_an_outage_says_so(redis_url: str, raw: Any) -> None:
    async with sharing(redis_url, 1) as [one]:
        request = await ask(one.approvals, settings=HELD)
        await fail(one.server)
        with pytest.raises(SharedStateError):
            await one.approvals.wait(request, 0.01, None)


async def test_what_redis_has_lost_is_asked_about_anew(redis_url: str, raw: Any) -> None:
    async with sharing(redis_url) as opened:
        id_ = await approved(opened[0].approvals, scope=ApprovalScope.TOOL)
        raw.flushall()
        assert await passes(opened) == 0
        assert (await ask(opened[1].approvals)).id != id_
        assert json.dumps(await opened[0].approvals.shown())
