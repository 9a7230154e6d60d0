"""Counts in moving windows: never more than allowed in any period, and room again soon after it."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pml_gateway.storage.counters import SLOTS, Allowance, MemoryCounters

pytestmark = pytest.mark.anyio


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def allowance(most: int, seconds: float = 60, key: str = "a", amount: int = 1, quota_key: str = "a") -> Allowance:
    return Allowance((key,), most, seconds, quota_key, amount)


@given(
    most=st.integers(1, 6),
    steps=st.lists(st.floats(0, 70), min_size=1, max_size=60),
)
def test_no_period_has_more_than_the_limit_and_what_is_refused_has_room_when_it_says(
    most: int, steps: list[float]
) -> None:
    async def run() -> None:
        clock = Clock()
        counters = MemoryCounters(clock)
        taken: list[float] = []
        for step in steps:
            clock.now += step
            used_up = await counters.take([allowance(most)])
            recent = [at for at in taken if at > clock.now - 60]
            if used_up is None:
                assert len(recent) < most
                taken.append(clock.now)
                continue
            late = 60 * (1 + 1 / SLOTS) + 1e-6
            assert len([at for at in taken if at > clock.now - late]) >= most
            assert 0 < used_up.retry_after <= late
            clock.now += used_up.retry_after
            assert await counters.take([allowance(most)]) is None
            taken.append(clock.now)

    anyio.run(run)


async def test_of_several_limits_all_are_counted_or_none() -> None:
    clock = Clock()
    counters = MemoryCounters(clock)
    wide, narrow = allowance(10, key="wide"), allowance(1, key="narrow")
    assert await counters.take([wide, narrow]) is None
    for _ in range(20):
        used_up = await counters.take([wide, narrow])
        assert used_up is not None and used_up.allowance == narrow
    for _ in range(9):
        assert await counters.take([wide]) is None
    assert await counters.take([wide]) is not None


async def test_of_several_limits_without_room_the_one_that_has_room_last_is_named() -> None:
    counters = MemoryCounters(Clock())
    minute, day = allowance(1, key="minute"), allowance(1, 86_400, key="day")
    assert await counters.take([day, minute]) is None
    used_up = await counters.take([minute, day])
    assert used_up is not None and used_up.allowance == day


async def test_what_is_known_afterwards_is_counted_though_it_is_too_much() -> None:
    clock = Clock()
    counters, tokens = MemoryCounters(clock), allowance(100, 3600, amount=0)
    assert await counters.take([tokens]) is None
    await counters.add(tokens, 250)
    assert await counters.take([tokens]) is not None
    clock.now += 3600 * (1 + 1 / SLOTS)
    assert await counters.take([tokens]) is None


async def test_a_client_that_fills_the_counters_loses_its_own() -> None:
    counters = MemoryCounters(Clock(), max_windows=10)
    quiet = allowance(1, key="quiet", quota_key="quiet")
    assert await counters.take([quiet]) is None
    for number in range(100):
        assert await counters.take([allowance(1, key=str(number), quota_key="flood")]) is None
    assert len(counters) == 10
    assert await counters.take([quiet]) is not None
