"""`execute_workflow` with only an intent suggests steps that feed each other, and runs none of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.types import JsonObject
from tests.support.scripted_server import ScriptedServer
from tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio

TEXT: JsonObject = {"type": "string"}


def defined(name: str, description: str, output: JsonObject | None = None, **parameters: JsonObject) -> dict[str, Any]:
    schema = {"type": "object", "properties": parameters, "required": list(parameters)}
    definition = {"name": name, "description": description, "inputSchema": schema}
    return definition if output is None else {**definition, "outputSchema": output}


def listed(field: str, **properties: JsonObject) -> JsonObject:
    items = {"type": "object", "properties": properties}
    return {"type": "object", "properties": {field: {"type": "array", "items": items}}}


ISSUE = {"number": {"type": "integer"}, "headline": TEXT}


def tracker() -> ScriptedServer:
    issues = defined("list_issues", "List the issues of the tracker.", listed("issues", **ISSUE))
    issues["inputSchema"]["properties"] = {"state": {"enum": ["open", "closed"]}}
    return ScriptedServer(
        [
            issues,
            defined("comment", "Comment on an issue.", None, issue_number={"type": "integer"}, body=TEXT),
            defined("delete_issue", "Delete an issue for good.", None, issue_number={"type": "integer"}),
            defined("write_note", "Write a note into the notebook.", None, text=TEXT),
            defined("forecast", "Forecast the weather of a city.", None, city=TEXT),
        ]
    )


@asynccontextmanager
async def planning(tmp_path: Path, fake: ScriptedServer) -> AsyncIterator[Serving]:
    async with serving(tmp_path, {"up": fake}, search={"ranking": "lexical", "min_score": 0.05}) as served:
        yield served


async def plan(served: Serving, intent: str) -> JsonObject:
    answer = (await served.call("execute_workflow", {"intent": intent}))["structuredContent"]
    assert answer["executed"] is False
    found: JsonObject = answer["plan"]
    return found


@pytest.mark.parametrize(
    "intent",
    [
        "list the issues and comment on an issue",
        "list the issues; then comment on an issue",
        "List the issues. Comment on an issue.",
        "Comment on an issue; list the issues first.",
    ],
)
async def test_each_part_gets_its_step_and_takes_what_an_earlier_one_gives(tmp_path: Path, intent: str) -> None:
    fake = tracker()
    async with planning(tmp_path, fake) as served:
        found = await plan(served, intent)
        assert [step["tool"] for step in found["steps"]] == ["up__list_issues", "up__comment"]
        assert found["steps"][1]["arguments"]["issue_number"] == "$step0.issues[0].number"
        assert found["missing"] == ["step1.arguments.body"]
        filled = [*found["steps"]]
        filled[1]["arguments"]["body"] = "Done."
        request = {"steps": filled, "dry_run": True}
        assert (await served.call("execute_workflow", request))["structuredContent"]["valid"] is True
    assert fake.calls == []


async def test_a_step_is_added_for_what_nothing_else_gives(tmp_path: Path) -> None:
    async with planning(tmp_path, tracker()) as served:
        found = await plan(served, "delete an issue for good")
    assert [step["tool"] for step in found["steps"]] == ["up__list_issues", "up__delete_issue"]


async def test_each_of_many_is_a_loop(tmp_path: Path) -> None:
    async with planning(tmp_path, tracker()) as served:
        first, second = (await plan(served, "list the closed issues and delete every issue for good"))["steps"]
    assert first["arguments"] == {"state": "closed"}
    assert second["for_each"] == "$step0.issues"
    assert second["arguments"] == {"issue_number": "$item.number"}


async def test_values_of_the_intent_are_marked_and_are_no_references(tmp_path: Path) -> None:
    async with planning(tmp_path, tracker()) as served:
        found = await plan(served, "write a note 'costs $10'")
    assert found["steps"] == [{"id": "step0", "tool": "up__write_note", "arguments": {"text": "costs $$10"}}]
    assert found["from_intent"] == ["step0.arguments.text"]
    assert found["missing"] == []


async def test_what_no_tool_does_is_missing_and_other_tools_are_alternatives(tmp_path: Path) -> None:
    async with planning(tmp_path, tracker()) as served:
        found = await plan(served, "comment on an issue and buy xylophones")
    assert "no tool for 'buy xylophones'" in found["missing"]
    assert any("up__delete_issue" in names for names in found["alternatives"].values())


async def test_a_step_that_changes_something_is_never_added(tmp_path: Path) -> None:
    fake = tracker()
    fake.tools[0]["annotations"] = {"readOnlyHint": False}
    async with planning(tmp_path, fake) as served:
        found = await plan(served, "delete an issue for good")
    assert [step["tool"] for step in found["steps"]] == ["up__delete_issue"]
    assert any(each["signature"].endswith("[write]") for each in found["tools"]), found["tools"]


async def test_what_is_named_once_counts_for_all_steps_at_a_server(tmp_path: Path) -> None:
    fake = ScriptedServer(
        [
            defined("git_add", "Stage files in a repository.", None, repo_path=TEXT),
            defined("git_commit", "Commit to a repository.", None, repo_path=TEXT, message=TEXT),
        ]
    )
    async with planning(tmp_path, fake) as served:
        found = await plan(served, "stage the files and commit to the repository /srv/site")
    assert [step["arguments"]["repo_path"] for step in found["steps"]] == ["/srv/site", "/srv/site"]
    assert found["missing"] == ["step1.arguments.message"]


async def test_a_new_thing_is_not_made_of_those_that_there_are(tmp_path: Path) -> None:
    people = listed("people", name=TEXT)
    made = defined("create_people", "Create people in the directory.", None, people=people["properties"]["people"])
    fake = ScriptedServer([made, defined("read_directory", "Read the whole directory of people.", people)])
    async with planning(tmp_path, fake) as served:
        found = await plan(served, "create people in the directory")
    assert [step["tool"] for step in found["steps"]] == ["up__create_people"]
    assert found["missing"] == ["step0.arguments.people"]


async def test_tools_of_a_plan_are_described_as_hits_are(tmp_path: Path) -> None:
    async with planning(tmp_path, tracker()) as served:
        found = await plan(served, "list the issues of the tracker")
        (hit, *_) = (await served.call("search_tools", {"query": "list the issues of the tracker"}))[
            "structuredContent"
        ]["hits"]
    tool = found["tools"][0]
    assert tool["signature"] == hit["signature"]
    assert tool["signature"].endswith(" -> {issues: [{number, headline}]}")
    assert tool.keys() == {"name", "signature", "description", "score"}
