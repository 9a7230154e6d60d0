"""`hybrid.fallback: usage`: with no intent the most used tools fill the list, which changes at refreshes alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from pml_gateway.activity.history import HALF_LIFE_DAYS, ranked
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import serving

pytestmark = pytest.mark.anyio

HYBRID = {"fallback": "usage", "max_underlying_tools": 2, "expose_meta_tools": False}


async def test_the_most_used_tools_fill_the_list_and_stay_until_a_refresh(tmp_path: Path) -> None:
    fakes = {"up": ScriptedServer([tool(name) for name in ("a", "b", "c", "d")])}
    gateway = {"tools_exposure": "hybrid", "hybrid": {**HYBRID, "whitelisted_tools": ["up:a"]}}
    async with serving(tmp_path, fakes, gateway=gateway) as first:
        assert await first.names() == ["up__a"]
        for name in ("up__c", "up__d", "up__c"):
            await first.call(name)
        assert await first.names() == ["up__a"]
    async with serving(tmp_path, fakes, gateway=gateway) as second:
        assert await second.names() == ["up__a", "up__c"]
        for _ in range(3):
            await second.call("up__b")
        assert await second.names() == ["up__a", "up__c"]
        # An intent selects by itself.
        assert await second.names(params={"query": "the d tool"}) != ["up__a", "up__c"]
    async with serving(tmp_path, fakes, gateway=gateway) as third:
        assert await third.names() == ["up__a", "up__b"]
        await third.gateway.refresh(20)
        assert await third.names() == ["up__a", "up__b"]


async def test_a_client_gets_the_most_used_of_what_it_may_see(tmp_path: Path) -> None:
    fakes = {"up": ScriptedServer([tool(name) for name in ("a", "b", "c")])}
    gateway = {"tools_exposure": "hybrid", "blacklisted_tools": ["up:a"], "hybrid": HYBRID}
    async with serving(tmp_path, fakes) as first:
        for name in ("up__a", "up__a", "up__b"):
            await first.call(name)
    async with serving(tmp_path, fakes, gateway=gateway) as second:
        assert await second.names() == ["up__b"]


def test_recent_calls_count_more_and_equal_ones_go_by_name() -> None:
    old, new = ("up", "old"), ("up", "new")
    assert ranked([(old, 0, 3), (new, int(2 * HALF_LIFE_DAYS), 1)]) == (new, old)
    assert ranked([(old, 0, 1), (new, 0, 1)]) == (new, old)
    # When it is computed does not matter, only which calls there are.
    assert ranked([(old, 0, 5), (new, int(2 * HALF_LIFE_DAYS), 1)]) == (old, new)
    assert ranked([]) == ()
