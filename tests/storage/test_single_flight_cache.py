"""What several gateways of a process make of the same things is made once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pml_gateway.storage.single_flight_cache import ById, SingleFlightCache

PATIENCE = 30


def test_those_who_want_the_same_at_once_wait_for_the_first() -> None:
    made, begun, go_on = SingleFlightCache[str](2), threading.Event(), threading.Event()
    times = []

    def make() -> str:
        times.append(1)
        begun.set()
        go_on.wait(PATIENCE)
        return "made"

    with ThreadPoolExecutor(5) as threads:
        first = threads.submit(made.get, ["key"], make)
        begun.wait(PATIENCE)
        others = [threads.submit(made.get, ["key"], make) for _ in range(3)]
        assert threads.submit(made.get, ["another"], lambda: "another").result(PATIENCE) == "another"
        go_on.set()
        assert {each.result(PATIENCE) for each in (first, *others)} == {"made"}
    assert len(times) == 1


def test_where_making_fails_the_next_one_tries() -> None:
    made = SingleFlightCache[int](2)

    def fail() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        made.get([1], fail)
    assert made.get([1], lambda: 2) == 2
    assert made.get([1], fail) == 2


def test_what_was_wanted_last_is_kept_and_nothing_where_nobody_shares() -> None:
    made = SingleFlightCache[str](2)
    for key, name in ((1, "a"), (2, "b"), (1, "c"), (3, "d"), (1, "e"), (2, "f")):
        made.get([key], lambda name=name: name)  # type: ignore[misc]
    assert [made.get([key], lambda: "new") for key in (1, 2, 3)] == ["a", "f", "new"]
    alone = SingleFlightCache[str](0)
    assert [alone.get([1], lambda name=name: name) for name in "ab"] == ["a", "b"]  # type: ignore[misc]


def test_equal_objects_are_not_the_same() -> None:
    one, other = (1,), (1.0,)
    assert ById(one) == ById(one)
    assert ById(one) != ById(other)
    made = SingleFlightCache[str](2)
    assert made.get([ById(one)], lambda: "a") == "a"
    assert made.get([ById(other)], lambda: "b") == "b"
    assert made.get([ById(one)], lambda: "c") == "a"
