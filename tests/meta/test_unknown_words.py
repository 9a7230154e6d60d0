"""A search for something that no tool knows says so, and scores nothing as if it were right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.memory import settings_for
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import serving

pytestmark = pytest.mark.anyio

GIT = ScriptedServer(
    [
        tool("git_create_branch", "Creates a new branch from an optional base branch"),
        tool("git_commit", "Records changes to the repository"),
        tool("git_status", "Shows the working tree status"),
    ]
)


@pytest.mark.parametrize(
    ("query", "unknown"),
    [
        ("create a github issue", ["github", "issue"]),
        ("open a jira ticket", ["jira", "ticket"]),
        ("list my gitlab branches", ["gitlab"]),
        ("send an email", ["email"]),
        ("create a branch", None),
        ("commit my changes on slack-bot", None),
    ],
)
async def test_an_answer_names_what_no_tool_knows(tmp_path: Path, query: str, unknown: list[str] | None) -> None:
    async with serving(tmp_path, {"git": GIT}, settings_for({"git": GIT})) as served:
        await served.gateway.refresh(30)
        assert await served.gateway.indexer.wait(30)
        answer: Any = (await served.call("search_tools", {"query": query}))["structuredContent"]
    assert answer.get("unknown_words") == unknown
    if unknown is None:
        assert answer["hits"][0]["score"] > 0.6
    else:
        assert all(hit["score"] < 0.5 for hit in answer["hits"])
        assert answer["hits"] or repr(unknown[0]) in answer["reason"]


async def test_an_answer_without_hits_says_how_to_see_the_servers(tmp_path: Path) -> None:
    async with serving(tmp_path, {"git": GIT}, search={"ranking": "lexical", "min_score": 1.0}) as served:
        await served.gateway.refresh(30)
        answer: Any = (await served.call("search_tools", {"query": "create working"}))["structuredContent"]
    assert answer["hits"] == []
    assert answer["reason"].endswith("use other words, or '*' for the servers")


async def test_a_client_that_may_not_see_the_tools_of_a_system_hears_that_none_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    github = ScriptedServer([tool("create_issue", "Create an issue in a repository.")])
    upstreams = {"git": GIT, "github": github}
    monkeypatch.setenv("PML_TEST_ALL", "key-of-a-client-for-all")
    monkeypatch.setenv("PML_TEST_GIT", "key-of-a-client-for-git")
    clients = {"all": {"key": "${env:PML_TEST_ALL}"}, "git": {"key": "${env:PML_TEST_GIT}", "allow": ["git:*"]}}
    async with serving(tmp_path, upstreams, settings_for(upstreams, clients=clients)) as served:
        await served.gateway.refresh(30)
        assert await served.gateway.indexer.wait(30)
        answers: list[Any] = [
            (await served.call("search_tools", {"query": "create a github issue"}, key=key))["structuredContent"]
            for key in ("key-of-a-client-for-all", "key-of-a-client-for-git")
        ]
    assert "unknown_words" not in answers[0]
    assert answers[0]["hits"][0]["name"] == "github__create_issue"
    assert answers[1]["unknown_words"] == ["github", "issue"]
