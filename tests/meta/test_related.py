"""Hits of `search_tools` name the tools that belong with them, as far as this client may see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pml_gateway.policy.client import LOCAL
from pml_gateway.types import JsonObject
from tests.support.scripted_server import ScriptedServer
from tests.support.serving import Serving, serving
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


def defined(name: str, description: str, *parameters: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {each: {"type": "string"} for each in parameters}}
    return {"name": name, "description": description, "inputSchema": schema}


def tracker() -> ScriptedServer:
    return ScriptedServer(
        [
            defined("create_ticket", "Create a ticket.", "subject"),
            defined("list_tickets", "List the tickets.", "queue"),
            defined("comment_on", "Say something about a ticket.", "ticket_id", "text"),
        ]
    )


async def hits(served: Serving, **arguments: Any) -> list[JsonObject]:
    """The hits once the links stand, for which the first search asks."""
    await until(lambda: served.gateway.linker.links(served.gateway.state.view(LOCAL)))
    found: list[JsonObject] = (await served.call("search_tools", arguments))["structuredContent"]["hits"]
    return found


async def test_a_hit_names_up_to_two_tools_that_belong_with_it(tmp_path: Path) -> None:
    async with serving(tmp_path, {"up": tracker()}) as served:
        [hit] = await hits(served, query="up__comment_on", limit=1)
        assert set(hit["related"]) == {"up__create_ticket", "up__list_tickets"}
        [hit] = await hits(served, query="up__comment_on", limit=1, detail="name")
        assert "related" not in hit


async def test_what_is_a_hit_itself_is_not_named_again(tmp_path: Path) -> None:
    async with serving(tmp_path, {"up": tracker()}) as served:
        found = await hits(served, query="up__*")
        assert len(found) == 3
        assert not any("related" in hit for hit in found)
        first, second = await hits(served, query="up__c*")
        assert [*first.get("related", ()), *second.get("related", ())] == ["up__list_tickets"]


async def test_a_hidden_tool_is_not_named_and_leaves_no_trace(tmp_path: Path) -> None:
    hidden = [defined(f"create_ticket_{number}", "Create a ticket.", "ticket_id") for number in range(40)]
    whole = ScriptedServer([*hidden, *tracker().tools])
    gateway = {"blacklisted_tools": ["up:create_ticket_*"]}
    answers = []
    for folder, fake in (("hiding", whole), ("without", tracker())):
        async with serving(tmp_path / folder, {"up": fake}, gateway=gateway) as served:
            answers.append([(hit["name"], hit.get("related")) for hit in await hits(served, query="up__c*", limit=1)])
    assert answers[0] == answers[1]
    assert answers[0][0][1] is not None


async def test_links_are_sought_for_those_that_list_and_search(tmp_path: Path) -> None:
    async with serving(tmp_path, {"up": tracker()}) as served:
        await served.names()
        known = served.gateway.linker._known
        await until(lambda: len(known))
        assert [view.client.rules for view in known] == [LOCAL.rules]
