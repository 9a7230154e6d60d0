"""Approvals of several gateways are one: asked at any, answered at any, and used as often as was approved."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from itertools import cycle

import anyio
import pytest

from pml_gateway.config.settings import ApprovalSettings
from pml_gateway.errors import UsageError
from pml_gateway.gateway.approval_requests import MAX_GUESSES, ApprovalRequest, ApprovalScope, ApprovalState
from pml_gateway.gateway.approval_stores import MAX_REQUESTS
from pml_gateway.gateway.approvals import Approvals, hashed_passphrase
from pml_gateway.storage.redis import RedisValues
from pml_gateway.types import JsonObject
from tests.support.approval_stores import NO_HOLD, a_call, approvals_in, ask, emptied, sharing
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

CALL, ARGUMENTS, TOOL = ApprovalScope
HELD = ApprovalSettings(hold_seconds=45, notify=False)


@pytest.fixture(params=["memory", "redis"])
async def both(request: pytest.FixtureRequest, redis_url: str) -> AsyncIterator[Sequence[Approvals]]:
    """The approvals of two gateways."""
    async with approvals_in(request.param, redis_url) as opened:
        yield opened


async def approve(approvals: Approvals, id_: str, scope: ApprovalScope = CALL, passphrase: str = "") -> None:
    await approvals.answer(id_, is_approved=True, scope=scope, passphrase=passphrase)


async def deny(approvals: Approvals, id_: str) -> None:
    await approvals.answer(id_, is_approved=False, scope=CALL)


async def test_what_one_is_asked_the_other_shows_and_answers_and_either_uses(both: Sequence[Approvals]) -> None:
    one, two = both
    request = await ask(one, a_call(1), a_call(2))
    [row] = await two.shown()
    assert (row["id"], row["state"], row["is_held"]) == (request.id, "pending", False)
    assert "arguments" not in row["calls"][0]
    whole = await two.shown_whole(request.id)
    assert whole is not None and [each["arguments"]["number"] for each in whole["calls"]] == [1, 2]
    assert await two.approved(a_call(1)) is None
    await approve(two, request.id)
    for approvals, number in ((one, 1), (two, 2)):
        used = await approvals.approved(a_call(number))
        assert used is not None and used.id == request.id
    assert [await each.approved(a_call(number)) for each in both for number in (1, 2)] == [None] * 4
    assert [(await each.shown())[0]["uses"] for each in both] == [2, 2]


async def test_a_call_like_the_last_one_takes_one_command_and_is_refused_once_its_approval_is_taken_back(
    redis_url: str,
) -> None:
    emptied(redis_url)
    async with sharing(redis_url) as (one, two):
        request = await ask(one.approvals)
        await approve(two.approvals, request.id, TOOL)
        assert await one.approvals.approved(a_call(1)) is not None
        asked: list[str] = []
        one.server.observe = lambda outcome, _: asked.append(outcome)
        assert await one.approvals.approved(a_call(2)) is not None
        assert asked == ["ok"]
        await deny(two.approvals, request.id)
        assert await one.approvals.approved(a_call(3)) is None
        assert [each["uses"] for each in await two.approvals.shown()] == [2]


async def test_requests_of_another_version_keep_nobody_from_the_others(redis_url: str) -> None:
    emptied(redis_url)
    async with sharing(redis_url) as (one, two):
        newer, odd = await ask(one.approvals, a_call(1)), await ask(one.approvals, a_call(2))
        values = RedisValues(one.server)

        def more(value: JsonObject | None) -> JsonObject:
            return {**(value or {}), "later": 1}

        def other(value: JsonObject | None) -> JsonObject:
            entries = (value or {})["requests"]
            return {"requests": {**entries, odd.id: {"later": 1}}, "later": 1}

        await values.change(newer.id, more, collection="approvals")
        await values.change(odd.id, lambda _: {"later": 1}, collection="approvals")
        await values.change("all", other, collection="approval-index")
        assert [row["id"] for row in await two.approvals.shown()] == [newer.id]
        await approve(two.approvals, newer.id)
        assert await two.approvals.approved(a_call(2)) is None
        assert await two.approvals.approved(a_call(1)) is not None
        third = await ask(two.approvals, a_call(3))
        assert [row["id"] for row in await one.approvals.shown()] == [newer.id, third.id]


@pytest.mark.parametrize("scope", list(ApprovalScope))
async def test_a_scope_is_the_same_at_both(scope: ApprovalScope, both: Sequence[Approvals]) -> None:
    one, two = both
    request = await ask(one)
    await approve(one, request.id, scope)
    for approvals in (two, one, two):
        same = await approvals.approved(a_call())
        other = await approvals.approved(a_call(1))
        assert (same is not None, other is not None) == (approvals is two or scope is not CALL, scope is TOOL)
        if scope is CALL:
            break
    assert await two.approved(a_call(client="bob")) is None
    assert await two.approved(a_call(definition="wipes more")) is None


@pytest.mark.parametrize("scope", list(ApprovalScope))
@pytest.mark.parametrize("approved_times", [1, 3])
async def test_calls_at_the_same_moment_use_an_approval_exactly_as_often_as_it_allows(
    approved_times: int, scope: ApprovalScope, both: Sequence[Approvals]
) -> None:
    request = await ask(both[0], *[a_call()] * approved_times)
    await approve(both[1], request.id, scope)
    passed: list[ApprovalRequest] = []
    # More than the changes of one value that may fail before one succeeds.
    attempts = 12 if scope is CALL else 120

    async def attempt(approvals: Approvals) -> None:
        if (found := await approvals.approved(a_call())) is not None:
            passed.append(found)

    async with anyio.create_task_group() as tasks:
        for approvals, _ in zip(cycle(both), range(attempts), strict=False):
            tasks.start_soon(attempt, approvals)
    assert len(passed) == (approved_times if scope is CALL else attempts)
    assert (await both[0].shown())[0]["uses"] == len(passed)


async def test_a_use_that_is_given_back_is_there_for_the_other(both: Sequence[Approvals]) -> None:
    one, two = both
    request = await ask(one)
    await approve(one, request.id)
    used = await one.approved(a_call())
    assert used is not None and await two.approved(a_call()) is None
    await one.give_back(used, a_call())
    assert await two.approved(a_call()) is not None
    assert await one.approved(a_call()) is None


async def test_a_use_that_is_given_back_after_another_answer_allows_no_call_more(both: Sequence[Approvals]) -> None:
    one, two = both
    request = await ask(one)
    await approve(one, request.id)
    used = await one.approved(a_call())
    assert used is not None
    await deny(two, request.id)
    await one.give_back(used, a_call())
    assert await one.approved(a_call()) is None
    await approve(two, request.id)
    await one.give_back(used, a_call())
    assert [await one.approved(a_call()) is not None for _ in range(2)] == [True, False]


async def test_a_call_that_is_held_at_one_goes_on_as_soon_as_the_other_is_answered(
    both: Sequence[Approvals], monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that only the change feed can wake it.
    monkeypatch.setattr("pml_gateway.gateway.approvals.PROGRESS_SECONDS", 300.0)
    one, two = both
    request = await ask(one, settings=HELD)
    found: list[ApprovalRequest | None] = []

    async def hold() -> None:
        found.append(await one.wait(request, 45, None))

    async def is_held() -> bool:
        return bool((await two.shown())[0]["is_held"])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hold)
        await eventually(is_held)
        await approve(two, request.id)
    assert [each.state for each in found if each is not None] == [ApprovalState.APPROVED]
    assert not await is_held()
    assert await one.approved(a_call()) is not None


async def test_a_call_whose_client_leaves_is_no_longer_held(both: Sequence[Approvals]) -> None:
    one, two = both
    request = await ask(one, settings=HELD)

    async def is_held() -> bool:
        return bool((await two.shown())[0]["is_held"])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.wait, request, 45, None)
        await eventually(is_held)
        tasks.cancel_scope.cancel()
    assert not await is_held()
    waited = await one.wait(request, 0.01, None)
    assert waited is not None and waited.state is ApprovalState.PENDING


async def test_the_same_calls_that_are_asked_about_at_once_are_one_request(both: Sequence[Approvals]) -> None:
    ids: list[str] = []

    async def attempt(approvals: Approvals) -> None:
        ids.append((await ask(approvals, a_call(1), a_call(2))).id)

    async with anyio.create_task_group() as tasks:
        for approvals, _ in zip(cycle(both), range(8), strict=False):
            tasks.start_soon(attempt, approvals)
    assert len(set(ids)) == 1
    assert [row["id"] for row in await both[1].shown()] == ids[:1]
    await deny(both[0], ids[0])
    # What was answered is asked about anew.
    assert (await ask(both[1], a_call(1), a_call(2))).id != ids[0]


async def test_different_answers_at_the_same_moment_leave_one_that_both_know(both: Sequence[Approvals]) -> None:
    for _ in range(5):
        request = await ask(both[0])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(approve, both[0], request.id)
            tasks.start_soon(deny, both[1], request.id)
            tasks.start_soon(approve, both[1], request.id)
        states = {row["state"] for each in both for row in await each.shown() if row["id"] == request.id}
        assert len(states) == 1
        used = [await each.approved(a_call()) is not None for each in (*both, *both)]
        assert used.count(True) == (1 if states == {"approved"} else 0)
        await deny(both[0], request.id)


async def test_equal_answers_at_the_same_moment_approve_once(both: Sequence[Approvals]) -> None:
    request = await ask(both[0])
    async with anyio.create_task_group() as tasks:
        for approvals in (*both, *both):
            tasks.start_soon(approve, approvals, request.id)
    assert [await each.approved(a_call()) is not None for each in (*both, *both)].count(True) == 1
    await approve(both[1], request.id)
    assert await both[0].approved(a_call()) is None


async def test_a_denial_and_the_end_of_an_approval_hold_at_both(both: Sequence[Approvals]) -> None:
    one, two = both
    request = await ask(one)
    await approve(one, request.id, TOOL)
    await deny(two, request.id)
    assert await one.approved(a_call()) is None
    assert await one.are_denied([a_call(9), a_call()])
    assert not await two.are_denied([a_call(9)])


@pytest.mark.slow
async def test_wrong_passphrases_count_for_both_together(both: Sequence[Approvals]) -> None:
    settings = NO_HOLD.model_copy(update={"secret": hashed_passphrase("correct horse battery")})
    request = await ask(both[0], settings=settings)
    for approvals, _ in zip(cycle(both), range(MAX_GUESSES), strict=False):
        with pytest.raises(UsageError, match="not the passphrase"):
            await approve(approvals, request.id, passphrase="guess")
    for approvals in both:
        with pytest.raises(UsageError, match="too many"):
            await approve(approvals, request.id, passphrase="correct horse battery")
        assert await approvals.are_denied([a_call()])


@pytest.mark.slow
async def test_a_right_passphrase_forgets_wrong_ones_and_a_denial_does_not(both: Sequence[Approvals]) -> None:
    settings = NO_HOLD.model_copy(update={"secret": hashed_passphrase("correct horse battery")})
    request = await ask(both[0], settings=settings)
    for _ in range(2):
        for _ in range(MAX_GUESSES - 1):
            with pytest.raises(UsageError, match="not the passphrase"):
                await approve(both[1], request.id, passphrase="guess")
        await approve(both[0], request.id, passphrase="correct horse battery")
    for _ in range(MAX_GUESSES):
        with pytest.raises(UsageError, match="not the passphrase"):
            await approve(both[1], request.id, passphrase="guess")
        await deny(both[0], request.id)
    with pytest.raises(UsageError, match="too many"):
        await approve(both[0], request.id, passphrase="correct horse battery")


async def test_a_call_that_its_server_asked_about_goes_on_at_the_other_once(both: Sequence[Approvals]) -> None:
    one, two = both
    request = await ask(one)
    await approve(one, request.id)
    await one.continue_later(a_call(), "state", request.id)
    assert await two.continued(a_call(), None) is None
    assert await two.continued(a_call(), "other") is None
    assert await two.continued(a_call(client="bob"), "state") is None
    assert await two.continued(a_call(1), "state") is None
    assert await two.continued(a_call(), "state") == request.id
    assert await one.continued(a_call(), "state") is None
    await one.continue_later(a_call(), "state", request.id)
    await deny(one, request.id)
    assert await two.continued(a_call(), "state") is None


async def test_a_flood_at_both_makes_room_from_whoever_holds_most(both: Sequence[Approvals]) -> None:
    of_bob = await ask(both[0], a_call(client="bob"))
    first = await ask(both[0], a_call(0))
    for number, approvals in zip(range(1, MAX_REQUESTS + 8), cycle(both), strict=False):
        await ask(approvals, a_call(number))
    rows = await both[1].shown()
    assert len(rows) == MAX_REQUESTS
    assert [row["client"] for row in rows].count("bob") == 1
    assert await both[0].find(of_bob.id) is not None
    assert await both[0].find(first.id) is None
    with pytest.raises(UsageError, match="no approval"):
        await approve(both[1], first.id)


async def test_what_a_request_of_several_calls_misses_is_the_same_at_both(both: Sequence[Approvals]) -> None:
    one, two = both
    calls = [a_call(1, within="batch"), a_call(1, within="batch"), a_call(2, within="batch")]
    assert await two.missing(calls) == calls
    request = await ask(one, *calls[:1], within="batch")
    await approve(one, request.id)
    assert await two.missing(calls) == calls[1:]
    assert await two.missing([a_call(1)]) == [a_call(1)]


async def test_a_question_ends_with_its_time(both: Sequence[Approvals]) -> None:
    brief = ApprovalSettings(hold_seconds=0, minutes=0.05, notify=False)
    request = await ask(both[0], settings=brief)
    await approve(both[0], request.id)

    async def is_over() -> bool:
        return not await both[1].shown()

    await eventually(is_over)
    assert await both[1].approved(a_call()) is None
