"""`pml migrate` and `pml stats` with real processes: four stages and back, a running gateway follows, exit codes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pml_gateway.cli.app import app
from tests.support.command_line import run_here
from tests.support.process import running_gateway, write_settings
from tests.support.raw import result_modern

UPSTREAM = Path(__file__).parents[1] / "support" / "scripted_server.py"
SERVERS = {"up": {"command": sys.executable, "args": [str(UPSTREAM)]}}
TEXT = f"""\
# my gateway: keep this

gateway:
  tools_exposure: full_proxy    # everything, for now
  blacklisted_tools: ["up:crash"]
servers:
  up: {{command: {json.dumps(sys.executable)}, args: [{json.dumps(str(UPSTREAM))}]}}   # the only one
"""


def answer(home: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    run = run_here(home, *arguments, "--json")
    assert run.returncode == code, run.stdout + run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


@pytest.mark.slow
def test_four_stages_and_back_to_the_same_bytes(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(TEXT)
    for stage in ("hybrid_permissive", "hybrid_balanced", "meta_only"):
        moved = answer(tmp_path, "migrate", "next", "--yes")
        assert (moved["moved"], moved["stage"]) == (True, stage)
        assert "# the only one" in config.read_text()
        assert answer(tmp_path, "migrate", "status")["stage"] == stage
    last = answer(tmp_path, "migrate", "next", code=1)
    assert "meta_only is the last stage" in last["error"]["message"]
    for stage in ("hybrid_balanced", "hybrid_permissive", "full_proxy"):
        undone = answer(tmp_path, "migrate", "back", "--yes")
        assert (undone["stage"], undone["exact"]) == (stage, True)
    assert config.read_text() == TEXT
    assert "no step to go back from" in run_here(tmp_path, "migrate", "back").stderr


@pytest.mark.slow
def test_a_running_gateway_follows_and_its_calls_are_judged(tmp_path: Path) -> None:
    with running_gateway(tmp_path, {"servers": SERVERS, "gateway": {"tools_exposure": "full_proxy"}}) as gateway:
        answer(tmp_path, "refresh")
        result_modern(gateway.url, "tools/list")
        for _ in range(3):
            result_modern(gateway.url, "tools/call", {"name": "up__echo", "arguments": {"text": "x"}})
        moved = answer(tmp_path, "migrate", "--to", "meta_only", "--max-missed", "3", "--yes")
        assert moved["gateways"] == [{"pid": gateway.process.pid, "mode": "meta_only"}]
        names = [tool["name"] for tool in result_modern(gateway.url, "tools/list")["tools"]]
        assert "search_tools" in names
        assert "up__echo" not in names
        assert answer(tmp_path, "migrate", "back", "--yes")["gateways"][0]["mode"] == "full_proxy"
    report = answer(tmp_path, "stats", "--since", "1d")
    assert (report["calls"], report["success_rate"]) == (3, 1.0)
    assert [(row["tool"], row["calls"]) for row in report["tools"]] == [("up:echo", 3)]
    assert "up__echo" not in report["never_used"]
    assert report["lists"] == 2
    refused = run_here(tmp_path, "stats", "--client", "anonymos")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "no client 'anonymos' is configured or recorded; did you mean anonymous?" in refused.stderr
    assert answer(tmp_path, "stats", "--client", "anonymous")["calls"] == 3
    assert answer(tmp_path, "stats", "--client", "anonymous", "--since", "1h", "--upstream", "up")["calls"] == 3
    of_one = answer(tmp_path, "stats", "--upstream", "up")
    assert (of_one["calls"], of_one["calls_led_by_search"]) == (3, 0)
    assert (of_one["searches"], of_one["lists"], of_one["saved_tokens"]) == (None, None, None)
    assert "lists" not in run_here(tmp_path, "stats", "--upstream", "up").stdout
    shown = run_here(tmp_path, "stats", extra={"COLUMNS": "80"})
    assert "up__echo" in shown.stdout
    reasons = answer(tmp_path, "migrate", "status")["reasons_to_wait"]
    assert reasons[0] == "3 calls in this stage, at least 100 are advised"
    assert answer(tmp_path, "activity", "clear")["cleared_calls"] == 3
    assert answer(tmp_path, "stats")["calls"] == 0


@pytest.mark.slow
def test_the_proposed_whitelist_is_written_only_when_asked_for(tmp_path: Path) -> None:
    with running_gateway(tmp_path, {"servers": SERVERS, "gateway": {"tools_exposure": "full_proxy"}}) as gateway:
        answer(tmp_path, "refresh")
        result_modern(gateway.url, "tools/call", {"name": "up__echo", "arguments": {"text": "x"}})
    planned = answer(tmp_path, "migrate", "plan", "--to", "hybrid_balanced")
    assert planned["whitelist"]["tools"] == ["up__echo"]
    dry = answer(tmp_path, "migrate", "next", "--apply-whitelist", "--dry-run")
    assert "up__echo" in dry["diff"]
    assert "up__echo" not in (tmp_path / "config.yaml").read_text()
    answer(tmp_path, "migrate", "next", "--apply-whitelist", "--yes")
    assert "up__echo" in (tmp_path / "config.yaml").read_text()


def test_exit_codes_and_remedies(tmp_path: Path) -> None:
    assert run_here(tmp_path, "migrate", "--to", "nowhere").returncode == 2
    assert run_here(tmp_path, "stats", "--since", "yesterday").returncode == 2
    assert run_here(tmp_path, "migrate", "status").returncode == 78
    write_settings(tmp_path, {"servers": SERVERS, "gateway": {"tools_exposure": "semantic"}})
    custom = run_here(tmp_path, "migrate", "next")
    assert custom.returncode == 1
    assert "none of the stages" in custom.stderr
    unknown = run_here(tmp_path, "migrate", "next", "--client", "nobody")
    assert unknown.returncode == 2
    variable = {"PML_GATEWAY__TOOLS_EXPOSURE": "full_proxy"}
    overruled = run_here(tmp_path, "migrate", "--to", "hybrid_balanced", extra=variable)
    assert (overruled.returncode, "wins over the configuration file" in overruled.stderr) == (78, True)


@pytest.mark.slow
@pytest.mark.parametrize("words", [("next",), ("--to", "hybrid_balanced"), ("back",)], ids=" ".join)
def test_nothing_is_written_unasked(tmp_path: Path, words: tuple[str, ...]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(TEXT)
    if words == ("back",):
        answer(tmp_path, "migrate", "next", "--yes")
    before = config.read_text()
    unasked = run_here(tmp_path, "migrate", *words)
    assert unasked.returncode == 2
    assert "--yes" in unasked.stderr
    assert "hybrid" in unasked.stdout + unasked.stderr
    assert answer(tmp_path, "migrate", *words, code=2)["moved"] is False
    assert answer(tmp_path, "migrate", *words, "--dry-run")["moved"] is False
    assert config.read_text() == before
    assert answer(tmp_path, "migrate", *words, "--yes")["moved"] is True
    assert config.read_text() != before


def test_the_last_stage_says_what_there_is_to_do(tmp_path: Path) -> None:
    write_settings(tmp_path, {"servers": SERVERS, "gateway": {"tools_exposure": "meta_only"}})
    planned = run_here(tmp_path, "migrate", "plan")
    assert planned.returncode == 1
    assert "pml migrate plan --to hybrid_balanced" in planned.stderr
    assert "migrate back" not in planned.stderr
    assert "pml migrate plan --to hybrid_balanced" in run_here(tmp_path, "migrate", "status").stdout


WORDS = [("migrate", word) for word in ("status", "plan", "next", "back")] + [("activity", "clear")]


@pytest.mark.parametrize("words", [("migrate",), ("stats",), *WORDS], ids=" ".join)
def test_help_has_an_example(words: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*words, "--help"])
    assert shown.exit_code == 0
    assert f"Example: pml {words[0]}" in shown.stdout
