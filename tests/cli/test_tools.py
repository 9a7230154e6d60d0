"""`pml tools` shows what a client gets, whatever the style of the list."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import home_of, listing, pml, run_here
from tests.support.process import running_gateway, write_settings
from tests.support.raw import result_modern

UPSTREAM = Path(__file__).parents[1] / "support" / "scripted_server.py"


@pytest.mark.slow
def test_namespaces_and_legacy_tools_are_shown_as_clients_get_them(tmp_path: Path) -> None:
    servers = {"up": {"command": sys.executable, "args": [str(UPSTREAM)]}}
    settings = {"servers": servers, "gateway": {"style": "namespaces", "legacy_tools": True}}
    write_settings(tmp_path, settings)
    shown: list[dict[str, Any]] = json.loads(run_here(tmp_path, "tools", "--mode", "meta_only", "--json").stdout)[
        "tools"
    ]
    # The gateway knows the tools from the command's listing, however long its own connection takes.
    with running_gateway(tmp_path, settings) as gateway:
        listed = result_modern(gateway.url, "tools/list")["tools"]
    assert [row["name"] for row in shown] == [tool["name"] for tool in listed]
    reasons = {row["name"]: row["reason"] for row in shown}
    assert (reasons["search_tools"], reasons["up"]) == ("meta-tool", "namespace")
    assert {reason for name, reason in reasons.items() if name.startswith("up__")} == {"legacy"}
    [description] = [row["description"] for row in shown if row["name"] == "up__echo"]
    assert description.startswith("[Legacy — prefer up]")


def explained(home: Path, *options: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(run_here(home, "tools", "--explain", "--json", *options).stdout)
    return answer


def test_every_tool_is_explained_for_a_client_by_its_own_rules(tmp_path: Path) -> None:
    servers = {"up": {"command": sys.executable, "args": [str(UPSTREAM)]}}
    bot = {"key": "${env:BOT_KEY}", "deny": ["up:echo"], "mode": "full_proxy"}
    gateway = {"tools_exposure": "hybrid", "blacklisted_tools": ["up:crash"], "hybrid": {"max_underlying_tools": 1}}
    write_settings(tmp_path, {"servers": servers, "gateway": gateway, "clients": {"bot": bot}})
    own = explained(tmp_path, "--query", "echo")
    by_name = {row["name"]: row for row in own["tools"]}
    assert own["mode"] == "hybrid"
    assert by_name["up__echo"]["listed"]
    assert (by_name["up__crash"]["reason"], by_name["up__crash"]["pattern"]) == ("blacklisted", "up:crash")
    others = [row for row in own["tools"] if not row["listed"] and row["score"] is not None]
    assert all(row["callable"] and row["limit"] in (0.6, 1, None) for row in others)
    assert "gateway.follow is off" in run_here(tmp_path, "tools", "--explain", "--searched", "echo").stdout
    bots = explained(tmp_path, "--client", "bot")
    assert bots["mode"] == "full_proxy"
    echo = next(row for row in bots["tools"] if row["name"] == "up__echo")
    assert (echo["reason"], echo["callable"]) == ("denied to this client", False)


def test_the_list_after_a_search_is_explained_where_lists_follow_searches(tmp_path: Path) -> None:
    gateway = {"tools_exposure": "semantic", "follow": "searches"}
    write_settings(tmp_path, {"servers": listing(tmp_path, "calc"), "gateway": gateway})
    before = explained(tmp_path)
    after = explained(tmp_path, "--searched", "days between two dates")
    assert not any(row["listed"] for row in before["tools"])
    reasons = {row["name"]: row["reason"] for row in after["tools"] if row["listed"]}
    assert "calc__date_difference" in reasons
    assert set(reasons.values()) == {"fits what the session searched for"}


@pytest.mark.slow
def test_settings_are_tried_before_they_are_written(tmp_path: Path) -> None:
    gateway = {"tools_exposure": "hybrid", "blacklisted_tools": ["calc:evaluate_*"]}
    write_settings(
        tmp_path,
        {"servers": listing(tmp_path, "calc"), "gateway": gateway, "sets": {"days": {"include": ["calc:date_*"]}}},
    )
    query = ("--query", "days between two dates")
    now = explained(tmp_path, *query)
    listed = {row["name"] for row in now["tools"] if row["listed"]}
    assert "calc__date_difference" in listed
    assert now["change"] is None

    out = explained(tmp_path, *query, "--try", "gateway.blacklisted_tools=calc:evaluate_*,calc:date_*")
    assert out["change"]["goes_out"] == ["calc__date_difference"]
    assert out["change"]["tokens_before"] == now["tokens"] != out["tokens"]
    said = run_here(tmp_path, "tools", "--explain", *query, "--try", "gateway.tools_exposure=full_proxy").stdout
    assert "goes out: nothing" in said
    assert f"before {now['tokens']:,}" in said

    of_set = explained(tmp_path, "--set", "days", "--try", "gateway.tools_exposure=full_proxy")
    assert [row["name"] for row in of_set["tools"] if row["listed"]] == ["calc__date_difference"]
    refused = run_here(tmp_path, "tools", "--explain", "--try", "gateway.hybrid.max_tokens=-1")
    assert (refused.returncode, "max_tokens: -1" in refused.stderr) == (78, True)
    assert "needs --explain" in run_here(tmp_path, "tools", "--try", "gateway.intent=a").stderr


def test_warnings_of_the_configuration_are_counted_and_told_by_the_command_that_checks_it(tmp_path: Path) -> None:
    servers = {"calc": {**listing(tmp_path, "calc")["calc"], "headers": {"A": "b"}}}
    with home_of(tmp_path, {"servers": servers, "gateway": {"legacy_tools": True}}):
        assert pml("tools").stderr.strip() == "warning: the configuration has 2 warnings; see: pml config validate"
        assert "has 2 warnings" in pml("status").stderr
        assert pml("config", "validate").stderr.count("has no effect") == 2


def test_an_unknown_client_is_named_with_those_that_exist(tmp_path: Path) -> None:
    write_settings(tmp_path, {"servers": listing(tmp_path, "calc")})
    failed = run_here(tmp_path, "tools", "--client", "nobody")
    assert failed.returncode == 2
    assert "no client 'nobody' is configured" in failed.stderr


@pytest.mark.slow
def test_that_no_intent_is_configured_is_said_where_it_changes_the_list_and_not_elsewhere(tmp_path: Path) -> None:
    with home_of(tmp_path, {"servers": listing(tmp_path, "calc"), "gateway": {"tools_exposure": "hybrid"}}):
        pml("tools", "--json")
        said = {
            words: "no intent is configured" in pml(*words.split()).stderr
            for words in (
                "tools",
                "tools --mode hybrid",
                "tools --mode hybrid --query sums",
                "search sums",
                "upstreams",
            )
        }
        assert said == {words: words == "tools --mode hybrid" for words in said}
        assert "no intent is configured" in pml("config", "show").stderr


def test_a_slip_in_the_value_of_a_flag_is_a_usage_error_that_names_the_nearest(tmp_path: Path) -> None:
    client = {"key": "${env:BOT_KEY}"}
    with home_of(tmp_path, {"servers": listing(tmp_path, "calc"), "clients": {"robot": client}}):
        for words, near in (
            ("--mode hybird", "hybrid"),
            ("--preset semantik", "semantic"),
            ("--client robt", "robot"),
        ):
            assert f"did you mean {near}?" in pml("tools", *words.split(), code=2).stderr
        error = json.loads(pml("tools", "--mode", "hybird", "--json", code=2).stdout)["error"]
        assert "did you mean hybrid?" in error["message"]
