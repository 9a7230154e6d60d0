"""Learned shapes: what is kept, for whom, how long, and at what cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.policy.client import Client
from pml_gateway.results.content import Content
from pml_gateway.results.learning import MAX_SHAPE, LearnedShapes
from tests.catalog.listings import only_tool

pytestmark = pytest.mark.anyio

ANNA, TEAM_MATE, GUEST = Client("client:anna"), Client("client:ben"), Client("client:guest", allow=("server:*",))


def make_tool(description: str = "d") -> CatalogTool:
    return only_tool(name="make", description=description)


async def observed(shapes: LearnedShapes, tool: CatalogTool, *values: Any, client: Client = ANNA) -> dict[str, Any]:
    for value in values:
        await shapes.observe(client, tool, Content("json", value))
    learned = shapes.shape_of(client, tool)
    assert learned is not None
    return learned.schema


async def test_clients_with_equal_rights_share_shapes_and_others_see_none(tmp_path: Path) -> None:
    shapes, tool = LearnedShapes(tmp_path / "s.json", lambda: True), make_tool()
    await observed(shapes, tool, {"a": 1})
    assert shapes.shape_of(TEAM_MATE, tool) is not None
    assert shapes.shape_of(GUEST, tool) is None


async def test_later_results_widen_a_shape(tmp_path: Path) -> None:
    shapes = LearnedShapes(tmp_path / "s.json", lambda: True)
    schema = await observed(shapes, make_tool(), {"a": 1, "b": "x"}, {"a": None})
    assert schema == {
        "type": "object",
        "properties": {"a": {"type": ["integer", "null"]}, "b": {"type": "string"}},
        "required": ["a"],
    }


async def test_nothing_is_learned_while_it_is_off_or_from_bytes(tmp_path: Path) -> None:
    is_on = False
    shapes, tool = LearnedShapes(tmp_path / "s.json", lambda: is_on), make_tool()
    await shapes.observe(ANNA, tool, Content("json", {"a": 1}))
    is_on = True
    await shapes.observe(ANNA, tool, Content("binary", "aGk=", "image/png"))
    assert shapes.shape_of(ANNA, tool) is None


async def test_a_changed_tool_is_learned_anew(tmp_path: Path) -> None:
    shapes = LearnedShapes(tmp_path / "s.json", lambda: True)
    await observed(shapes, make_tool(), {"a": 1})
    changed = make_tool("another description")
    assert shapes.shape_of(ANNA, changed) is None
    assert set((await observed(shapes, changed, {"b": 1}))["properties"]) == {"b"}


async def test_after_the_first_results_only_some_are_looked_at(tmp_path: Path) -> None:
    shapes, tool = LearnedShapes(tmp_path / "s.json", lambda: True), make_tool()
    await observed(shapes, tool, *[{"a": 1}] * 8)
    assert set((await observed(shapes, tool, {"late": 1}))["properties"]) == {"a"}
    assert set((await observed(shapes, tool, *[{"late": 1}] * 16))["properties"]) == {"a", "late"}


async def test_a_shape_without_bounds_is_given_up(tmp_path: Path) -> None:
    shapes = LearnedShapes(tmp_path / "s.json", lambda: True)
    letters = "abcdefghij"
    wide: dict[str, dict[str, Any]] = {
        f"f{one}{two}": {**{f"g{three}": 1 for three in letters}, one: {}} for one in letters[:5] for two in letters
    }
    schema = await observed(shapes, make_tool(), {"deep": [wide], "flat": wide})
    assert len(json.dumps(schema)) <= MAX_SHAPE


async def test_shapes_survive_a_restart_and_processes_merge_theirs(tmp_path: Path) -> None:
    path, tool = tmp_path / "s.json", make_tool()
    for value in ({"a": 1}, {"b": "secret-value"}):
        shapes = LearnedShapes(path, lambda: True)
        await shapes.observe(ANNA, tool, Content("json", value))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shapes.run)
            await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
    fresh = LearnedShapes(path, lambda: True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fresh.run)
        with anyio.fail_after(30):
            while fresh.shape_of(ANNA, tool) is None:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    learned = fresh.shape_of(ANNA, tool)
    assert learned is not None and set(learned.schema["properties"]) == {"a", "b"}
    assert "secret" not in path.read_text(encoding="utf-8")
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1, "shapes": [["a"]]}', '{"format": 9, "shapes": []}'])
async def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    path, tool = tmp_path / "s.json", make_tool()
    path.write_text(text, encoding="utf-8")
    shapes = LearnedShapes(path, lambda: True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shapes.run)
        await observed(shapes, tool, {"a": 1})
        tasks.cancel_scope.cancel()
    assert shapes.shape_of(ANNA, tool) is not None
