"""Hits of `search_tools` name the tools that belong with them, as far as this client may see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pml_gateway.types import JsonObject
from tests.support.scripted_server import ScriptedServer
from tests.support.serving import Serving, serving
from tests.support.waiting import swapped

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
    if served.gateway.state.links is None:
        await swapped(served.gateway, lambda: served.gateway.state.links)
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


async def test_tools_that_this_client_may_not_see_are_not_named(tmp_path: Path) -> None:
    gateway = {"blacklisted_tools": ["up:create_ticket"]}
    async with serving(tmp_path, {"up": tracker()}, gateway=gateway) as served:
        [hit] = await hits(served, query="up__comment_on", limit=1)
        assert hit["related"] == ["up__list_tickets"]
