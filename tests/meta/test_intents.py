"""`execute_workflow` with only an intent answers the tools for each part of it, and calls none."""

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


def defined(name: str, description: str, *parameters: str, **members: Any) -> JsonObject:
    properties = {each: {"type": "string"} for each in parameters}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"name": name, "description": description, "inputSchema": schema, **members}


ISSUE = {"type": "object", "properties": {"number": {"type": "integer"}, "headline": {"type": "string"}}}
ISSUES = {"type": "object", "properties": {"issues": {"type": "array", "items": ISSUE}}}


def tracker() -> ScriptedServer:
    return ScriptedServer(
        [
            defined("list_issues", "List the issues of the tracker.", outputSchema=ISSUES),
            defined("create_issue", "Create an issue.", "headline", annotations={"readOnlyHint": False}),
            defined("close_issue", "Close an issue for good.", "issue_number"),
            defined("update_issue", "Change an issue.", "issue_number", "headline"),
            defined("write_note", "Write a note into the notebook.", "text"),
            defined("forecast", "Forecast the weather of a city.", "city"),
        ]
    )


@asynccontextmanager
async def asking(tmp_path: Path, **upstreams: ScriptedServer) -> AsyncIterator[Serving]:
    async with serving(tmp_path, upstreams, search={"ranking": "lexical", "min_score": 0.05}) as served:
        yield served


async def parts_of(served: Serving, intent: str) -> list[JsonObject]:
    answer = (await served.call("execute_workflow", {"intent": intent}))["structuredContent"]
    assert answer.keys() == {"parts", "next"}
    found: list[JsonObject] = answer["parts"]
    return found


@pytest.mark.parametrize(
    ("intent", "expected"),
    [
        (
            "list the issues and write a note",
            [("list the issues", "up__list_issues"), ("write a note", "up__write_note")],
        ),
        (
            "List the issues. Close an issue for good!",
            [("List the issues.", "up__list_issues"), ("Close an issue for good!", "up__close_issue")],
        ),
        ("forecast the weather", [("forecast the weather", "up__forecast")]),
    ],
)
async def test_each_part_gets_its_tools_and_none_is_called(
    tmp_path: Path, intent: str, expected: list[tuple[str, str]]
) -> None:
    async with asking(tmp_path, up=(fake := tracker())) as served:
        found = await parts_of(served, intent)
    assert [(each["part"], each["tools"][0]["name"]) for each in found] == expected
    assert all(len(each["tools"]) <= 3 for each in found)
    assert fake.calls == []


async def test_the_tools_are_described_as_hits_are_without_arguments(tmp_path: Path) -> None:
    intent = "list the issues of the tracker"
    async with asking(tmp_path, up=tracker()) as served:
        [part] = await parts_of(served, intent)
        hits = (await served.call("search_tools", {"query": intent, "limit": 3}))["structuredContent"]["hits"]
    assert part["tools"] == hits
    assert hits[0]["signature"] == "up__list_issues() -> {issues: [{number, headline}]}"
    assert hits[0].keys() == {"name", "score", "signature", "description"}


async def test_a_part_that_no_tool_fits_has_none(tmp_path: Path) -> None:
    async with asking(tmp_path, up=tracker()) as served:
        first, second = await parts_of(served, "list the issues and buy xylophones")
    assert first["tools"]
    assert second == {"part": "buy xylophones", "tools": []}


async def test_the_rest_of_the_intent_tells_which_system_is_meant(tmp_path: Path) -> None:
    """Both servers have the tool that closes; only one is named, in the other part."""
    one = ScriptedServer([defined("close_issue", "Close an issue."), defined("list_issues", "List issues of GitHub.")])
    other = ScriptedServer([defined("close_issue", "Close an issue."), defined("list_issues", "List issues of Jira.")])
    for system in ("github", "jira"):
        async with asking(tmp_path / system, github=one, jira=other) as served:
            _, second = await parts_of(served, f"list the issues of {system} and close an issue")
            assert second["tools"][0]["name"] == f"{system}__close_issue"


@pytest.mark.parametrize("intent", [7, "", "  "])
async def test_an_intent_without_words_is_refused(tmp_path: Path, intent: Any) -> None:
    async with asking(tmp_path, up=tracker()) as served:
        answer = await served.call("execute_workflow", {"intent": intent})
    assert answer["structuredContent"]["error"]["code"] == "INVALID_INPUT"
