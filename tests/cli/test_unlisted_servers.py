"""Servers that never came up: commands say that their tools are missing, and why a call cannot be made."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import home_of, listing, pml
from tests.support.process import OWN_GATEWAYS, environment

WEATHER = {"weather": {"command": "no-such-command-of-pml"}}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("unlisted")
    servers = listing(folder / "demo", "calc") | WEATHER
    with home_of(folder, {"servers": servers, "gateway": {"intent": "count the days between two dates"}}) as home:
        pml("tools", "--json")
        yield home


@pytest.mark.parametrize("arguments", [("call", "weather__today"), ("call", "weather:today", "--json")])
def test_a_call_says_why_the_server_has_no_tools(home: Path, arguments: tuple[str, ...]) -> None:
    result = pml(*arguments, code=1)
    assert "'no-such-command-of-pml' cannot be started" in result.output
    assert "starting" not in result.output


@pytest.mark.parametrize("arguments", [("tools",), ("search", "dates"), ("tokens",), ("schema", "calc__add_duration")])
@pytest.mark.slow
def test_whose_tools_are_missing_is_said_where_people_read(home: Path, arguments: tuple[str, ...]) -> None:
    said = "nothing is known of the tools of weather; pml upstreams --probe says why"
    assert said in pml(*arguments).stderr
    assert said not in pml(*arguments, "--json").stderr


def test_programs_are_told_whose_tools_are_missing(home: Path) -> None:
    assert json.loads(pml("tools", "--json").stdout)["unlisted"] == ["weather"]


def test_a_search_names_the_server_and_the_reason(home: Path) -> None:
    answer = json.loads(pml("search", "weather of tomorrow", "--json").stdout)
    (down,) = answer["unavailable"]
    assert down["server"] == "weather"
    assert "'no-such-command-of-pml' cannot be started" in down["reason"]
    assert f"unavailable: weather ({down['reason']})" in " ".join(pml("search", "*").stdout.split())


def test_without_any_tool_nothing_is_saved_and_nothing_lost(tmp_path: Path) -> None:
    with home_of(tmp_path, {"servers": WEATHER}):
        modes = json.loads(pml("tokens", "--json").stdout)["modes"]
    assert {mode["saved"] for mode in modes} == {0}


def test_a_configured_intent_selects_what_is_shown(home: Path) -> None:
    shown = json.loads(pml("tools", "--mode", "hybrid", "--json").stdout)["tools"]
    assert "calc__date_difference" in [row["name"] for row in shown]


def test_an_unknown_server_is_an_error_of_usage_that_names_those_there_are(home: Path) -> None:
    error = json.loads(pml("search", "x", "--server", "nope", "--json", code=2).stdout)["error"]
    assert error["code"] == "INVALID_INPUT"
    assert error["hint"].startswith("known are ")


@pytest.mark.slow
def test_a_reader_that_leaves_is_no_error_to_talk_about(home: Path) -> None:
    command = [sys.executable, "-m", "pml_gateway", "tokens"]
    with subprocess.Popen(
        command, env=environment(home, OWN_GATEWAYS), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert "Traceback" not in said


def test_answers_to_the_wizard_need_the_wizard(home: Path) -> None:
    assert "needs it" in pml("config", "--matters", "tokens", code=2).stderr
