"""Stores: one contract of values by key for all of them."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.storage.memory import KeyValues, MemoryStore
from tests.results.stores import open_values

pytestmark = pytest.mark.anyio

MAX_BYTES = 32 * 1024 * 1024

ANY_JSON: dict[str, Any] = {"z": [1, 2.5, None, True], "a": 'ünïcode "\ud83d', "": {"nested": {"$ref": "#/x"}}}


@dataclass
class Clock:
    """Seconds that only a test moves."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["memory", "disk", "redis"])
async def values(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[KeyValues]:
    setting = request.getfixturevalue("redis_url") if request.param == "redis" else request.param
    async with open_values(setting, tmp_path, MAX_BYTES) as backend:
        yield backend.values


async def test_a_value_comes_back_as_it_was_and_the_last_one_counts(values: KeyValues) -> None:
    assert await values.get("last", collection="one") is None
    for value in ({"first": 1}, ANY_JSON):
        await values.put("last", value, collection="one", ttl=60)
    assert await values.get("last", collection="one") == ANY_JSON


async def test_several_values_are_kept_and_read_at_once(values: KeyValues) -> None:
    await values.put_many(["a", "b"], [ANY_JSON, {"b": 1}], collection="one", ttl=60)
    assert await values.get_many(["b", "none", "a"], collection="one") == [{"b": 1}, None, ANY_JSON]
    assert await values.get("b", collection="one") == {"b": 1}


async def test_collections_know_nothing_of_each_other(values: KeyValues) -> None:
    await values.put("same", {"of": "one"}, collection="one")
    await values.put("same", {"of": "two"}, collection="two")
    assert await values.delete("same", collection="one")
    assert await values.get("same", collection="one") is None
    assert await values.get("same", collection="two") == {"of": "two"}


async def test_deleting_says_whether_there_was_something(values: KeyValues) -> None:
    await values.put("key", {}, collection="deleted")
    assert [await values.delete("key", collection="deleted") for _ in range(2)] == [True, False]


async def test_nobody_changes_a_kept_value_from_outside(values: KeyValues) -> None:
    put = {"list": [1]}
    await values.put("key", put, collection="outside")
    put["list"].append(2)
    got = await values.get("key", collection="outside")
    assert got is not None
    got["list"].append(3)
    assert await values.get("key", collection="outside") == {"list": [1]}


VALUE = st.sampled_from([{}, {"a": 1}, {"a": [None, "é"]}, {"a": 1, "b": 2}, {"b": 2, "a": 1}])
KEY = st.tuples(st.sampled_from("xy"), st.sampled_from(["one", "two"]))
TTL = st.none() | st.integers(1, 4)
STEP = st.one_of(
    st.tuples(st.just("get"), KEY),
    st.tuples(st.just("put"), KEY, VALUE, TTL),
    st.tuples(st.just("delete"), KEY),
    st.tuples(st.just("wait"), st.integers(1, 4)),
)


class Model:
    """What a store promises, as plainly as it can be said."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[tuple[str, str], tuple[dict[str, Any], float]] = {}

    def get(self, at: tuple[str, str]) -> dict[str, Any] | None:
        value, until = self._kept.get(at, (None, 0.0))
        return value if until > self._clock.now else None

    def put(self, at: tuple[str, str], value: dict[str, Any], ttl: float | None) -> None:
        self._kept[at] = (value, math.inf if ttl is None else self._clock.now + ttl)

    def delete(self, at: tuple[str, str]) -> bool:
        was_there = self.get(at) is not None
        self._kept.pop(at, None)
        return was_there


async def follows_the_model(steps: Sequence[tuple[Any, ...]]) -> None:
    clock = Clock()
    store, model = MemoryStore(clock=clock), Model(clock)
    for name, at, *rest in steps:
        if name == "wait":
            clock.now += at
            continue
        key, collection = at
        ttl = {"ttl": rest.pop()} if name == "put" else {}
        answer = await getattr(store, name)(key, *rest, collection=collection, **ttl)
        assert answer == getattr(model, name)(at, *rest, *ttl.values()), (name, at, rest, ttl)


def test_values_live_and_expire_as_the_model_says() -> None:
    with start_blocking_portal() as portal:

        @settings(max_examples=300)
        @given(steps=st.lists(STEP, max_size=30))
        def check(steps: list[tuple[Any, ...]]) -> None:
            portal.call(follows_the_model, steps)

        check()
