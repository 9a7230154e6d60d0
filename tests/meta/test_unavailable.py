"""Searches say which servers have no tools now, so that what is down does not look as if it did not exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.memory import settings_for
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import Serving, serving
from tests.support.waiting import swapped

pytestmark = pytest.mark.anyio

STARTING = r"starting for \d+ s, 15 s at most: ask again in a few seconds"
KEY = "key-of-a-narrow-client-1"
FILES = [tool(f"read_file_{number}", "Read the contents of a file from disk.") for number in range(3)]


async def searched(served: Serving, query: str, key: str = "", **arguments: Any) -> Any:
    """What a search answers."""
    options = {"key": key} if key else {}
    result = await served.call("search_tools", {"query": query, **arguments}, **options)
    return result["structuredContent"]


def up_and_down(**sections: Any) -> tuple[dict[str, ScriptedServer], Any]:
    upstreams = {"fs": ScriptedServer(list(FILES)), "weather": ScriptedServer([tool("forecast")], refuse=True)}
    return upstreams, settings_for(upstreams, **sections)


async def test_a_search_names_what_is_down_where_it_finds_too_little_or_is_meant_for_it(tmp_path: Path) -> None:
    upstreams, settings = up_and_down()
    async with serving(tmp_path, upstreams, settings) as served:
        await served.gateway.refresh(30)
        nothing = await searched(served, "zzzz qqqq", limit=3)
        assert nothing["hits"] == []
        (down,) = nothing["unavailable"]
        assert down["server"] == "weather"
        assert 0 < len(down["reason"]) <= 120
        assert "unavailable" in await searched(served, "read the contents of a file", limit=5)
        assert "unavailable" not in await searched(served, "read the contents of a file", limit=2)
        assert "unavailable" in await searched(served, "read the weather from a file", limit=1)
        assert (await searched(served, "*"))["unavailable"] == [down]
        error = (await searched(served, "forecast", server="weather"))["error"]
        assert error["code"] == "UPSTREAM_UNAVAILABLE"
        assert error["message"] == f"weather: its tools are not known yet ({down['reason']})"
        upstreams["weather"].refuse = False
        await served.gateway.refresh(30)
        await swapped(served.gateway, lambda: served.gateway.state.catalog.by_name("weather__forecast"))
        assert "unavailable" not in await searched(served, "zzzz qqqq")


async def test_a_server_that_has_not_answered_yet_is_starting(tmp_path: Path) -> None:
    upstreams, settings = up_and_down()
    upstreams["weather"] = ScriptedServer([tool("forecast")], hang=True)
    async with serving(tmp_path, upstreams, settings) as served:
        [starting] = (await searched(served, "*"))["unavailable"]
        assert starting["server"] == "weather"
        assert re.fullmatch(STARTING, starting["reason"])


@pytest.mark.parametrize(
    ("rules", "knows"),
    [
        ({"allow": ["*"]}, True),
        ({"allow": ["weather:*"]}, True),
        ({"allow": ["fs:*", "weather__*"]}, True),
        ({"deny": ["search_files", "fs:*"]}, False),
        ({"deny": ["fs:*", "tool_schema"]}, True),
        ({"allow": ["fs:*"]}, False),
        ({"allow": ["weather:fore*"]}, False),
        ({"deny": ["weather:*"]}, False),
        ({"deny": ["weather__forecast"]}, False),
        ({"deny": ["*:forecast"]}, False),
    ],
)
async def test_only_who_may_see_every_tool_of_a_server_learns_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rules: dict[str, Any], knows: bool
) -> None:
    monkeypatch.setenv("PML_TEST_NARROW", KEY)
    upstreams, settings = up_and_down(clients={"narrow": {"key": "${env:PML_TEST_NARROW}", **rules}})
    async with serving(tmp_path, upstreams, settings) as served:
        for query in ("zzzz qqqq", "*", "weather"):
            assert ("'server': 'weather'" in str(await searched(served, query, KEY))) == knows
        message = str(await served.message("tools/call", {"name": "weather__forecast"}, key=KEY))
        assert ("its tools are not known yet" in message) == knows


async def test_a_blacklist_that_may_mean_it_hides_it(tmp_path: Path) -> None:
    upstreams, settings = up_and_down(gateway={"blacklisted_tools": ["weather:*"]})
    async with serving(tmp_path, upstreams, settings) as served:
        assert "weather" not in str(await searched(served, "*"))


async def test_a_server_that_is_held_back_is_named_and_one_that_is_disabled_is_not(tmp_path: Path) -> None:
    upstreams, settings = up_and_down(trust={"new_servers": "review"})
    upstreams["weather"].refuse = False
    async with serving(tmp_path, upstreams, settings) as served:
        await served.gateway.refresh(30)
        told = (await searched(served, "*"))["unavailable"]
        assert told[0] == {"server": "fs", "reason": "held back; the owner sees why with: pml trust"}
    off = settings.servers["weather"].model_copy(update={"enabled": False})
    disabled = settings_for(upstreams).model_copy(update={"servers": {**settings.servers, "weather": off}})
    async with serving(tmp_path / "off", upstreams, disabled) as served:
        assert "weather" not in str(await searched(served, "*"))


async def test_a_reason_holds_no_secret_and_many_servers_are_counted(tmp_path: Path) -> None:
    upstreams, _ = up_and_down()
    many = {f"down{number:02}": ScriptedServer([], refuse=True) for number in range(20)}
    async with serving(tmp_path, {**upstreams, **many}) as served:
        upstream = served.gateway.pool.upstreams["weather"]
        assert upstream.connector.last_error is not None
        upstream.connector.last_error.message = (
            "weather: refused https://x/?api_key=sk-abcdefghijklmnop1234567890 " + "x" * 900
        )
        answer = await searched(served, "*")
        assert "abcdefghijklmnop" not in str(answer)
        assert len(answer["unavailable"]) == 12
        assert answer["more_unavailable"] == 9
        assert all(len(each["reason"]) <= 120 for each in answer["unavailable"])


async def test_a_glob_says_nothing_of_a_ranking(tmp_path: Path) -> None:
    upstreams, settings = up_and_down()
    async with serving(tmp_path, upstreams, settings) as served:
        answer = await searched(served, "fs:read_*")
        assert len(answer["hits"]) == 3
        assert "ranking" not in answer
