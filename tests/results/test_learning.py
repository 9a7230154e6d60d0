"""Learned shapes: what is kept, for whom, how long, and at what cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.policy.principal import Principal
from pml_gateway.results.content import Content
from pml_gateway.results.learning import MAX_SHAPE, LearnedShapes, ShapesFile
from pml_gateway.results.shapes import fields
from tests.catalog.listings import only_tool
from tests.support.principals import principal

pytestmark = pytest.mark.anyio

ANNA, TEAM_MATE, GUEST = (
    principal("client:anna"),
    principal("client:ben"),
    principal("client:guest", allow=("server:*",)),
)


def make_tool(description: str = "d") -> CatalogTool:
    return only_tool(name="make", description=description)


async def observed(shapes: ShapesFile, tool: CatalogTool, *values: Any, client: Principal = ANNA) -> dict[str, Any]:
    for value in values:
        await shapes.observe(client, tool, Content("json", value))
    learned = shapes.shape_of(client, tool)
    assert learned is not None
    return learned.schema


def names(shapes: ShapesFile, client: Principal) -> set[str]:
    learned = shapes.shape_of(client, make_tool())
    return set() if learned is None else set(fields(learned.schema))


async def test_clients_with_equal_rights_share_what_two_of_them_saw_and_others_see_none(tmp_path: Path) -> None:
    shapes, tool = ShapesFile(tmp_path / "s.json"), make_tool()
    await observed(shapes, tool, {"items": [{"id": 1, "salary": 2}], "anna": {"id": 1}})
    assert names(shapes, ANNA) == {"/items", "/items/[]/id", "/items/[]/salary", "/anna", "/anna/id"}
    assert names(shapes, TEAM_MATE) == names(shapes, GUEST) == set()
    await observed(shapes, tool, {"items": [{"id": 1}], "ben": True}, client=TEAM_MATE)
    shared = {"/items", "/items/[]/id"}
    assert names(shapes, principal("client:cleo")) == shared
    assert names(shapes, TEAM_MATE) == shared | {"/ben"}
    assert names(shapes, ANNA) == shared | {"/items/[]/salary", "/anna", "/anna/id"}
    learned = shapes.shape_of(TEAM_MATE, tool)
    assert learned is not None
    assert "salary" not in json.dumps(learned.schema)
    assert names(shapes, GUEST) == set()


async def test_one_client_that_calls_often_is_one_witness(tmp_path: Path) -> None:
    shapes, tool = ShapesFile(tmp_path / "s.json"), make_tool()
    await observed(shapes, tool, *[{"a": 1}] * 40)
    assert names(shapes, TEAM_MATE) == set()
    await observed(shapes, tool, {"a": 1}, client=TEAM_MATE)
    assert names(shapes, TEAM_MATE) == {"/a"}, "a client's first results are looked at, however many others had"


@given(
    results=st.lists(
        st.tuples(
            st.sampled_from([ANNA, TEAM_MATE]), st.dictionaries(st.sampled_from("abcd"), st.integers() | st.none())
        ),
        max_size=12,
    ),
    processes=st.booleans(),
)
async def test_nobody_is_told_a_name_that_only_another_saw(
    tmp_path_factory: pytest.TempPathFactory, results: list[tuple[Principal, dict[str, Any]]], processes: bool
) -> None:
    path, tool = tmp_path_factory.mktemp("shapes") / "s.json", make_tool()
    mine, other = ShapesFile(path), ShapesFile(path)
    for client, value in results:
        await (other if processes and client is ANNA else mine).observe(client, tool, Content("json", value))
    for shapes in (other, mine, other):
        await kept(shapes)
    fresh = await kept(ShapesFile(path))
    saw = {
        each: {f"/{name}" for client, value in results if client is each for name in value}
        for each in (ANNA, TEAM_MATE)
    }
    for shapes in (mine, other, fresh):
        assert names(shapes, ANNA) <= saw[ANNA]
        assert names(shapes, TEAM_MATE) <= saw[TEAM_MATE]
        assert names(shapes, principal("client:cleo")) <= saw[ANNA] & saw[TEAM_MATE]


async def kept(shapes: ShapesFile) -> ShapesFile:
    """The shapes, after they were loaded and saved as `run` does."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shapes.run)
        await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    return shapes


async def test_shapes_that_an_older_version_learned_are_forgotten(tmp_path: Path) -> None:
    path, tool = tmp_path / "s.json", make_tool()
    await observed(await kept(ShapesFile(path)), tool, {"a": 1})
    path.write_text('{"format": 1, "shapes": [["s", "u", "t", "d", 1, {"type": "object"}]]}', encoding="utf-8")
    assert names(await kept(ShapesFile(path)), ANNA) == set()


async def test_later_results_widen_a_shape(tmp_path: Path) -> None:
    shapes = ShapesFile(tmp_path / "s.json")
    schema = await observed(shapes, make_tool(), {"a": 1, "b": "x"}, {"a": None})
    assert schema == {
        "type": "object",
        "properties": {"a": {"type": ["integer", "null"]}, "b": {"type": "string"}},
        "required": ["a"],
    }


async def test_nothing_is_learned_while_it_is_off_or_from_bytes(tmp_path: Path) -> None:
    is_on = False
    shapes, tool = LearnedShapes(ShapesFile(tmp_path / "s.json"), lambda: is_on), make_tool()
    await shapes.observe(ANNA, tool, Content("json", {"a": 1}))
    is_on = True
    await shapes.observe(ANNA, tool, Content("binary", "aGk=", "image/png"))
    assert shapes.shape_of(ANNA, tool) is None


async def test_a_changed_tool_is_learned_anew(tmp_path: Path) -> None:
    shapes = ShapesFile(tmp_path / "s.json")
    await observed(shapes, make_tool(), {"a": 1})
    changed = make_tool("another description")
    assert shapes.shape_of(ANNA, changed) is None
    assert set((await observed(shapes, changed, {"b": 1}))["properties"]) == {"b"}


async def test_after_the_first_results_only_some_are_looked_at(tmp_path: Path) -> None:
    shapes, tool = ShapesFile(tmp_path / "s.json"), make_tool()
    await observed(shapes, tool, *[{"a": 1}] * 8)
    assert set((await observed(shapes, tool, {"late": 1}))["properties"]) == {"a"}
    assert set((await observed(shapes, tool, *[{"late": 1}] * 16))["properties"]) == {"a", "late"}


async def test_a_shape_without_bounds_is_given_up(tmp_path: Path) -> None:
    shapes = ShapesFile(tmp_path / "s.json")
    letters = "abcdefghij"
    wide: dict[str, dict[str, Any]] = {
        f"f{one}{two}": {**{f"g{three}": 1 for three in letters}, one: {}} for one in letters[:5] for two in letters
    }
    schema = await observed(shapes, make_tool(), {"deep": [wide], "flat": wide})
    assert len(json.dumps(schema)) <= MAX_SHAPE


async def test_shapes_survive_a_restart_and_processes_merge_theirs(tmp_path: Path) -> None:
    path, tool = tmp_path / "s.json", make_tool()
    for value in ({"a": 1}, {"b": "secret-value"}):
        shapes = ShapesFile(path)
        await shapes.observe(ANNA, tool, Content("json", value))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shapes.run)
            await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
    fresh = ShapesFile(path)
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
    shapes = ShapesFile(path)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shapes.run)
        await observed(shapes, tool, {"a": 1})
        tasks.cancel_scope.cancel()
    assert shapes.shape_of(ANNA, tool) is not None
