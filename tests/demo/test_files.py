from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastmcp.client import Client
from fastmcp.client.client import CallToolResult
from fastmcp.exceptions import ToolError

from pml_gateway.demo.servers import files

pytestmark = pytest.mark.anyio


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    (folder / "a.md").write_text("one\ntwo\nthree\n")
    (folder / "sub").mkdir()
    (folder / "sub" / "b.txt").write_text("Needle here\nnothing\nneedle again\n")
    (tmp_path / "secret.txt").write_text("secret needle")
    return folder


@pytest.fixture
async def client(root: Path) -> AsyncIterator[Client[Any]]:
    async with Client(files.build(root)) as connected:
        yield connected


def fields(result: CallToolResult) -> dict[str, Any]:
    assert result.structured_content is not None
    return result.structured_content


def names(folder: Path) -> set[str]:
    return {place.name for place in folder.iterdir()}


async def text(client: Client[Any], tool: str, **arguments: object) -> str:
    result = await client.call_tool(tool, arguments)
    return str(result.content[0].text)  # type: ignore[union-attr]


async def test_read_file_returns_a_range_and_says_where_to_continue(client: Client[Any]) -> None:
    assert await text(client, "read_file", path="a.md") == "one\ntwo\nthree\n"
    part = await text(client, "read_file", path="a.md", start_line=2, max_lines=1)
    assert part == "two\n\n[1 more lines; continue with start_line=3]"


async def test_the_tail_is_the_end_of_a_file(client: Client[Any]) -> None:
    assert await text(client, "read_tail", path="a.md", lines=2) == "two\nthree\n"


async def test_write_creates_folders_and_keeps_an_existing_file_unless_told(client: Client[Any], root: Path) -> None:
    written = await client.call_tool("write_file", {"path": "new/deep.txt", "content": "grüezi"})
    assert (fields(written)["path"], fields(written)["bytes"]) == ("new/deep.txt", 7)
    with pytest.raises(ToolError, match="exists already"):
        await client.call_tool("write_file", {"path": "a.md", "content": "x"})
    assert (root / "a.md").read_text() == "one\ntwo\nthree\n"
    await client.call_tool("write_file", {"path": "a.md", "content": "x", "overwrite": True})
    assert (root / "a.md").read_text() == "x"


async def test_replace_changes_every_occurrence(client: Client[Any], root: Path) -> None:
    with pytest.raises(ToolError, match="does not occur"):
        await client.call_tool("replace_in_file", {"path": "a.md", "old": "x", "new": "T"})
    result = await client.call_tool("replace_in_file", {"path": "a.md", "old": "t", "new": "T"})
    assert result.structured_content == {"result": 2}
    assert (root / "a.md").read_text() == "one\nTwo\nThree\n"


async def test_search_finds_lines_below_a_folder_and_honours_case(client: Client[Any]) -> None:
    found = await client.call_tool("search_text", {"text": "NEEDLE"})
    assert found.structured_content == {
        "result": [
            {"path": "sub/b.txt", "line": 1, "text": "Needle here"},
            {"path": "sub/b.txt", "line": 3, "text": "needle again"},
        ]
    }
    exact = await client.call_tool("search_text", {"text": "needle", "ignore_case": False, "limit": 1})
    assert [match["line"] for match in fields(exact)["result"]] == [3]


async def test_find_and_list_agree_on_what_is_there(client: Client[Any]) -> None:
    found = await client.call_tool("find_files", {"pattern": "*.txt"})
    assert [entry["path"] for entry in fields(found)["entries"]] == ["sub/b.txt"]
    listed = await client.call_tool("list_directory", {})
    assert [(e["path"], e["kind"]) for e in fields(listed)["entries"]] == [
        ("a.md", "file"),
        ("sub", "folder"),
    ]


async def test_a_move_never_replaces_a_destination(client: Client[Any], root: Path) -> None:
    with pytest.raises(ToolError, match="exists already"):
        await client.call_tool("move_file", {"source": "a.md", "destination": "sub/b.txt"})
    await client.call_tool("move_file", {"source": "a.md", "destination": "new/moved.md"})
    assert not (root / "a.md").exists()
    assert (root / "new" / "moved.md").read_text() == "one\ntwo\nthree\n"


async def test_a_folder_cannot_be_moved_into_itself(client: Client[Any]) -> None:
    with pytest.raises(ToolError, match="Invalid argument"):
        await client.call_tool("move_file", {"source": "sub", "destination": "sub/deeper"})


async def test_hash_and_counts_describe_the_content(client: Client[Any]) -> None:
    digest = await client.call_tool("hash_file", {"path": "a.md", "algorithm": "md5"})
    assert fields(digest)["result"] == hashlib.md5(b"one\ntwo\nthree\n").hexdigest()
    counts = await client.call_tool("count_words", {"path": "a.md"})
    assert counts.structured_content == {"lines": 3, "words": 3, "characters": 14, "bytes": 14}


async def test_compare_shows_a_unified_diff(client: Client[Any], root: Path) -> None:
    (root / "c.md").write_text("one\n2\nthree\n")
    difference = await text(client, "compare_files", old_path="a.md", new_path="c.md")
    assert difference.splitlines()[3:] == [" one", "-two", "+2", " three"]
    assert await text(client, "compare_files", old_path="a.md", new_path="a.md") == "the files are equal"


@pytest.mark.parametrize(
    "path", ["../secret.txt", "sub/../../secret.txt", "/etc/passwd", "~/../secret.txt/../../secret.txt", "a.md\0"]
)
@pytest.mark.parametrize(
    ("tool", "key", "more"),
    [
        ("read_file", "path", {}),
        ("read_tail", "path", {}),
        ("write_file", "path", {"content": "x", "overwrite": True}),
        ("replace_in_file", "path", {"old": "secret", "new": "x"}),
        ("list_directory", "path", {}),
        ("find_files", "path", {"pattern": "*"}),
        ("search_text", "path", {"text": "secret"}),
        ("file_info", "path", {}),
        ("hash_file", "path", {}),
        ("count_words", "path", {}),
        ("compare_files", "new_path", {"old_path": "a.md"}),
        ("create_directory", "path", {}),
        ("move_file", "source", {"destination": "stolen"}),
        ("move_file", "destination", {"source": "a.md"}),
        ("delete_file", "path", {}),
    ],
)
async def test_no_tool_reaches_outside_the_root(
    client: Client[Any], root: Path, tool: str, key: str, more: dict[str, object], path: str
) -> None:
    with pytest.raises(ToolError, match=r"outside the root|null byte"):
        await client.call_tool(tool, {key: path, **more})
    assert (root.parent / "secret.txt").read_text() == "secret needle"
    assert (names(root.parent), names(root)) == ({"root", "secret.txt"}, {"a.md", "sub"})


@pytest.mark.parametrize("link_target", ["../secret.txt", "..", "../new.txt"])
async def test_links_are_not_followed_out_of_the_root(client: Client[Any], root: Path, link_target: str) -> None:
    (root / "link").symlink_to(link_target)
    for path in ("link", "link/secret.txt"):
        for tool, more in (("read_file", {}), ("write_file", {"content": "x"}), ("hash_file", {})):
            with pytest.raises(ToolError, match="outside the root"):
                await client.call_tool(tool, {"path": path, **more})
    found = await client.call_tool("search_text", {"text": "secret"})
    assert fields(found)["result"] == []
    listed = await client.call_tool("list_directory", {})
    assert ("link", "link") in [(e["path"], e["kind"]) for e in fields(listed)["entries"]]
    assert not (root.parent / "new.txt").exists()


async def test_deleting_a_link_removes_the_link_and_not_its_target(client: Client[Any], root: Path) -> None:
    (root / "link").symlink_to("../secret.txt")
    await client.call_tool("delete_file", {"path": "link"})
    assert not (root / "link").is_symlink()
    assert (root.parent / "secret.txt").exists()


async def test_a_loop_of_links_is_refused(client: Client[Any], root: Path) -> None:
    (root / "x").symlink_to("y")
    (root / "y").symlink_to("x")
    with pytest.raises(ToolError):
        await client.call_tool("read_file", {"path": "x"})
    (root / "link").symlink_to("../secret.txt")
    with pytest.raises(ToolError, match="outside the root"):
        await client.call_tool("read_file", {"path": "x/../link"})


async def test_a_pipe_is_refused_instead_of_waited_for(client: Client[Any], root: Path) -> None:
    os.mkfifo(root / "pipe")
    for tool in ("read_file", "hash_file", "read_tail"):
        with pytest.raises(ToolError, match="not a regular file"):
            await client.call_tool(tool, {"path": "pipe"})


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("read_file", {"path": "missing.md"}, "'missing.md' is not a regular file"),
        ("read_file", {"path": "sub"}, "'sub' is not a regular file"),
        ("list_directory", {"path": "a.md"}, "a.md: Not a directory"),
        ("delete_file", {"path": "sub"}, "sub: Directory not empty"),
        ("delete_file", {"path": "."}, "does not name an entry"),
        ("create_directory", {"path": "a.md"}, "a.md: File exists"),
        ("read_tail", {"path": "a.md", "lines": 0}, "greater than or equal to 1"),
        ("read_file", {"path": "a.md", "colour": "red"}, "colour"),
    ],
)
async def test_bad_requests_are_explained(
    client: Client[Any], root: Path, tool: str, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ToolError) as raised:
        await client.call_tool(tool, arguments)
    assert message in str(raised.value)
    assert str(root) not in str(raised.value)


async def test_a_binary_file_is_not_read_as_text(client: Client[Any], root: Path) -> None:
    (root / "image.png").write_bytes(b"\x89PNG\xff")
    with pytest.raises(ToolError, match="can't decode byte"):
        await client.call_tool("read_file", {"path": "image.png"})
