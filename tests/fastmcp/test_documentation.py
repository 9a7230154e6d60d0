"""The page about FastMCP servers is true: its example runs, and does what the page says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pml_gateway.fastmcp import Exposure
from tests.support.documents import PAGES, code_blocks
from tests.support.fastmcp_server import connected

pytestmark = pytest.mark.anyio

BLOCKS = [
    block for block in code_blocks(next(page for page in PAGES if page.stem == "fastmcp")) if block.language == "python"
]


async def test_the_example_lists_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PML_HOME", str(tmp_path))
    [example] = [block.text for block in BLOCKS if block.mark == "runs"]
    module: dict[str, Any] = {"__name__": "example"}
    exec(compile(example, "fastmcp.md", "exec"), module)
    async with connected(module["mcp"]) as client:
        assert await client.names() == ["search_tools", "tool_schema", "call_tool", "refund"]
        answer = await client.call("search_tools", {"query": "where is my parcel"})
        assert answer["structuredContent"]["hits"][0]["name"] == "track_parcel"
        called = await client.call("call_tool", {"name": "track_parcel", "order_id": 7})
    assert called["structuredContent"] == {"order": 7, "at": "Lyon"}


def test_what_the_page_chooses_can_be_chosen() -> None:
    for chosen in [block.text for block in BLOCKS if block.mark != "runs"]:
        assert isinstance(eval(chosen, {"Exposure": Exposure}), Exposure)
