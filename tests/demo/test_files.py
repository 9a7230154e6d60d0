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


async def test_head_and_tail_return_the_ends_of_a_file(client: Client[Any]) -> None:
    assert await text(client, "read_head", path="a.md", lines=1) == "one\n"
    assert await text(client, "read_tail", path="a.md", lines=2) == "two\nthree\n"


async def test_write_creates_folders_and_keeps_an_existing_file_unless_told(client: Client[Any], root: Path) -> None:
    written = await client.call_tool("write_file", {"path": "new/deep.txt", "content": "grüezi"})
    assert written.structured_content == {"path": "new/deep.txt", "bytes": 7}
    with pytest.raises(ToolError, match="overwrite=true"):
        await client.call_tool("write_file", {"path": "a.md", "content": "x"})
    assert (root / "a.md").read_text() == "one\ntwo\nthree\n"
    await client.call_tool("write_file", {"path": "a.md", "content": "x", "overwrite": True})
    assert (root / "a.md").read_text() == "x"


async def test_append_adds_at_the_end(client: Client[Any], root: Path) -> None:
    await client.call_tool("append_to_file", {"path": "a.md", "content": "four\n"})
    assert (root / "a.md").read_text().endswith("three\nfour\n")


async def test_replace_changes_nothing_when_the_count_differs(client: Client[Any], root: Path) -> None:
    with pytest.raises(ToolError, match="occurs 2 times"):
        await client.call_tool("replace_in_file", {"path": "a.md", "old": "t", "new": "T", "expected": 1})
    result = await client.call_tool("replace_in_file", {"path": "a.md", "old": "t", "new": "T"})
    assert result.structured_content == {"path": "a.md", "replacements": 2}
    assert (root / "a.md").read_text() == "one\nTwo\nThree\n"


async def test_search_finds_lines_below_a_folder_and_honours_case(client: Client[Any]) -> None:
    found = await client.call_tool("search_text", {"text": "NEEDLE"})
    assert found.structured_content == {
        "matches": [
            {"path": "sub/b.txt", "line": 1, "text": "Needle here"},
            {"path": "sub/b.txt", "line": 3, "text": "needle again"},
        ],
        "files_searched": 2,
        "truncated": False,
    }
    exact = await client.call_tool("search_text", {"text": "needle", "ignore_case": False, "limit": 1})
    assert [match["line"] for match in fields(exact)["matches"]] == [3]


async def test_find_list_and_tree_agree_on_what_is_there(client: Client[Any]) -> None:
    found = await client.call_tool("find_files", {"pattern": "*.txt"})
    assert [entry["path"] for entry in fields(found)["entries"]] == ["sub/b.txt"]
    listed = await client.call_tool("list_directory", {})
    assert [(e["path"], e["kind"]) for e in fields(listed)["entries"]] == [
        ("a.md", "file"),
        ("sub", "folder"),
    ]
    assert await text(client, "directory_tree") == "./\n  a.md\n  sub/\n    b.txt"


async def test_move_and_copy_never_replace_a_destination(client: Client[Any], root: Path) -> None:
    for tool in ("move_file", "copy_file"):
        with pytest.raises(ToolError, match="exists already"):
            await client.call_tool(tool, {"source": "a.md", "destination": "sub/b.txt"})
    await client.call_tool("copy_file", {"source": "a.md", "destination": "copies/a.md"})
    await client.call_tool("move_file", {"source": "a.md", "destination": "moved.md"})
    assert not (root / "a.md").exists()
    assert (root / "moved.md").read_text() == (root / "copies" / "a.md").read_text()


async def test_a_folder_cannot_be_moved_into_itself(client: Client[Any]) -> None:
    with pytest.raises(ToolError, match="into itself"):
        await client.call_tool("move_file", {"source": "sub", "destination": "sub/deeper"})


async def test_hash_and_counts_describe_the_content(client: Client[Any]) -> None:
    digest = await client.call_tool("hash_file", {"path": "a.md", "algorithm": "md5"})
    assert fields(digest)["hexdigest"] == hashlib.md5(b"one\ntwo\nthree\n").hexdigest()
    counts = await client.call_tool("count_words", {"path": "a.md"})
    assert counts.structured_content == {"path": "a.md", "lines": 3, "words": 3, "characters": 14, "bytes": 14}


async def test_compare_shows_a_unified_diff(client: Client[Any], root: Path) -> None:
    (root / "c.md").write_text("one\n2\nthree\n")
    difference = await text(client, "compare_files", old_path="a.md", new_path="c.md", context=0)
    assert difference.splitlines()[3:] == ["-two", "+2"]
    assert await text(client, "compare_files", old_path="a.md", new_path="a.md") == "the files are equal"


@pytest.mark.parametrize(
    "path", ["../secret.txt", "sub/../../secret.txt", "/etc/passwd", "~/../secret.txt/../../secret.txt", "a.md\0"]
)
@pytest.mark.parametrize(
    ("tool", "key", "more"),
    [
        ("read_file", "path", {}),
        ("read_head", "path", {}),
        ("read_tail", "path", {}),
        ("write_file", "path", {"content": "x", "overwrite": True}),
        ("append_to_file", "path", {"content": "x"}),
        ("replace_in_file", "path", {"old": "secret", "new": "x"}),
        ("list_directory", "path", {}),
        ("directory_tree", "path", {}),
        ("find_files", "path", {"pattern": "*"}),
        ("search_text", "path", {"text": "secret"}),
        ("file_info", "path", {}),
        ("hash_file", "path", {}),
        ("count_words", "path", {}),
        ("compare_files", "new_path", {"old_path": "a.md"}),
        ("create_directory", "path", {}),
        ("move_file", "source", {"destination": "stolen"}),
        ("move_file", "destination", {"source": "a.md"}),
        ("copy_file", "source", {"destination": "stolen"}),
        ("copy_file", "destination", {"source": "a.md"}),
        ("delete_file", "path", {}),
    ],
)
async def test_no_tool_reaches_outside_the_root(
    client: Client[Any], root: Path, tool: str, key: str, more: dict[str, object], path: str
) -> None:
    with pytest.raises(ToolError, match=r"outside the root|null character"):
        await client.call_tool(tool, {key: path, **more})
    assert (root.parent / "secret.txt").read_text() == "secret needle"
    assert (names(root.parent), names(root)) == ({"root", "secret.txt"}, {"a.md", "sub"})


@pytest.mark.parametrize("link_target", ["../secret.txt", "..", "../new.txt"])
async def test_links_are_not_followed_out_of_the_root(client: Client[Any], root: Path, link_target: str) -> None:
    (root / "link").symlink_to(link_target)
    for path in ("link", "link/secret.txt"):
        for tool, more in (("read_file", {}), ("append_to_file", {"content": "x"}), ("hash_file", {})):
            with pytest.raises(ToolError, match="outside the root"):
                await client.call_tool(tool, {"path": path, **more})
    found = await client.call_tool("search_text", {"text": "secret"})
    assert fields(found)["matches"] == []
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


async def test_a_pipe_is_refused_instead_of_waited_for(client: Client[Any], root: Path) -> None:
    os.mkfifo(root / "pipe")
    for tool in ("read_file", "hash_file", "read_tail"):
        with pytest.raises(ToolError, match="not a regular file"):
            await client.call_tool(tool, {"path": "pipe"})


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("read_file", {"path": "missing.md"}, "there is no file 'missing.md'"),
        ("read_file", {"path": "sub"}, "is a folder"),
        ("list_directory", {"path": "a.md"}, "there is no folder"),
        ("delete_file", {"path": "sub"}, "sub: Directory not empty"),
        ("delete_file", {"path": "."}, "names the root folder"),
        ("create_directory", {"path": "a.md"}, "a.md: File exists"),
        ("append_to_file", {"path": "sub", "content": "x"}, "is a folder"),
        ("read_head", {"path": "a.md", "lines": 0}, "greater than or equal to 1"),
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
    with pytest.raises(ToolError, match="not UTF-8 text"):
        await client.call_tool("read_file", {"path": "image.png"})
