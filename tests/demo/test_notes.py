from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastmcp.client import Client
from fastmcp.client.client import CallToolResult
from fastmcp.exceptions import ToolError

from pml_gateway.demo.servers import notes

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client[Any]]:
    async with Client(notes.build(tmp_path / "notes.sqlite3")) as connected:
        yield connected


def fields(result: CallToolResult) -> dict[str, Any]:
    assert result.structured_content is not None
    return result.structured_content


async def create(client: Client[Any], title: str, **more: object) -> int:
    created = await client.call_tool("create_note", {"title": title, **more})
    return int(fields(created)["id"])


async def titles(client: Client[Any], tool: str, **arguments: object) -> list[str]:
    found = await client.call_tool(tool, arguments)
    return [note["title"] for note in fields(found)["result"]]


async def test_notes_survive_the_process(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "notes.sqlite3"
    async with Client(notes.build(path)) as first:
        number = await create(first, "Kept", body="text", tags=["#Work"])
    async with Client(notes.build(path)) as second:
        note = fields(await second.call_tool("get_note", {"note_id": number}))
    assert (note["title"], note["body"], note["tags"]) == ("Kept", "text", ["work"])


async def test_update_replaces_only_what_is_given(client: Client[Any]) -> None:
    number = await create(client, "Old", body="text")
    changed = await client.call_tool("update_note", {"note_id": number, "title": "New"})
    assert (fields(changed)["title"], fields(changed)["body"]) == ("New", "text")


async def test_search_wants_every_word_whatever_the_case(client: Client[Any]) -> None:
    await create(client, "Zürich", body="ÄRGER with trams")
    await create(client, "Bern", body="trams")
    assert await titles(client, "search_notes", query="trams ärger") == ["Zürich"]
    assert await titles(client, "search_notes", query="100%") == []


async def test_pinned_notes_come_first_and_archived_ones_are_left_out(client: Client[Any]) -> None:
    first, second, third = [await create(client, name) for name in ("first", "second", "third")]
    await client.call_tool("pin_note", {"note_id": first})
    await client.call_tool("archive_note", {"note_id": second})
    assert await titles(client, "list_notes") == ["first", "third"]
    assert await titles(client, "list_notes", archived=True) == ["second"]
    assert await titles(client, "search_notes", query="second") == []
    await client.call_tool("pin_note", {"note_id": first, "pinned": False})
    await client.call_tool("update_note", {"note_id": third, "body": "newest"})
    assert await titles(client, "list_notes") == ["third", "first"]


async def test_a_list_is_cut_and_holds_excerpts(client: Client[Any]) -> None:
    for number in range(3):
        await create(client, f"note {number}", body="word " * 100)
    found = await client.call_tool("list_notes", {"limit": 2})
    assert [len(note["body"]) for note in fields(found)["result"]] == [notes.EXCERPT, notes.EXCERPT]


async def test_tags_select_notes_and_are_counted(client: Client[Any]) -> None:
    number = await create(client, "tagged", tags=["a", "B"])
    await create(client, "other", tags=["a"])
    await client.call_tool("tag_note", {"note_id": number, "tags": ["c", "c"]})
    tags = await client.call_tool("list_tags", {})
    assert tags.structured_content == {"a": 2, "b": 1, "c": 1}
    assert await titles(client, "list_notes", tag="#C") == ["tagged"]


async def test_links_are_followed_both_ways_and_go_with_the_note(client: Client[Any]) -> None:
    source, target = await create(client, "source"), await create(client, "target")
    linked = await client.call_tool("link_notes", {"from_id": source, "to_id": target})
    assert fields(linked)["links"] == [target]
    assert await titles(client, "find_backlinks", note_id=target) == ["source"]
    await client.call_tool("delete_note", {"note_id": target})
    left = await client.call_tool("get_note", {"note_id": source})
    assert fields(left)["links"] == []


async def test_the_number_of_a_deleted_note_is_not_used_again(client: Client[Any]) -> None:
    first = await create(client, "first")
    await client.call_tool("delete_note", {"note_id": first})
    assert await create(client, "second") > first


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("get_note", {"note_id": 99}, "there is no note 99"),
        ("delete_note", {"note_id": 99}, "there is no note 99"),
        ("pin_note", {"note_id": 99}, "there is no note 99"),
        ("link_notes", {"from_id": 1, "to_id": 99}, "there is no note 99"),
        ("tag_note", {"note_id": 1, "tags": ["two words"]}, "should match pattern"),
        ("tag_note", {"note_id": 1, "tags": ["#"]}, "should match pattern"),
        ("create_note", {"title": ""}, "at least 1 character"),
        ("get_note", {"note_id": 2**60}, "less than or equal to"),
    ],
)
async def test_bad_requests_are_explained(
    client: Client[Any], tool: str, arguments: dict[str, object], message: str
) -> None:
    await create(client, "only")
    with pytest.raises(ToolError) as raised:
        await client.call_tool(tool, arguments)
    assert message in str(raised.value)


async def test_a_refused_tag_leaves_no_half_made_note(client: Client[Any]) -> None:
    with pytest.raises(ToolError):
        await client.call_tool("create_note", {"title": "half", "tags": ["fine", "not fine"]})
    assert await titles(client, "list_notes") == []


async def test_text_is_stored_as_text_and_never_run_as_sql(client: Client[Any]) -> None:
    number = await create(client, "'); DROP TABLE notes; --", tags=["'--"])
    assert await titles(client, "search_notes", query="'); DROP") == ["'); DROP TABLE notes; --"]
    assert await titles(client, "list_notes", tag="'/**/OR/**/1=1") == []
    assert fields(await client.call_tool("get_note", {"note_id": number}))["tags"] == ["'--"]
