"""What Python servers wrap in `{"result": ...}` is addressed without the wrapper, and reaches clients with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.results.content import Content, content_of
from pml_gateway.results.shapes import unwrapped
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio

LOG = "\n".join(f"line {number}" for number in range(3))
ROWS = [{"id": 1, "name": "one"}, {"id": 2, "name": "two"}]


def wrapped(value: Any, **extra: Any) -> dict[str, Any]:
    text = value if isinstance(value, str) else json.dumps(value)
    return {"content": [{"type": "text", "text": text}], "structuredContent": {"result": value}, **extra}


def sdk_schema(name: str, inner: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"result": inner}, "required": ["result"], "title": f"{name}Output"}


RESULTS = {"log": wrapped(LOG), "rows": wrapped(ROWS), "own": wrapped(ROWS), "said": wrapped(7)}
RESULTS["said"]["_meta"] = {"fastmcp": {"wrap_result": True}}


def upstream() -> ScriptedServer:
    async def answer(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        return RESULTS.get(call["name"]) or text_result(json.dumps(call["arguments"]))

    fastmcp = {**sdk_schema("", {"type": "string"}), "title": "other", "x-fastmcp-wrap-result": True}
    return ScriptedServer(
        [
            tool("log", outputSchema=fastmcp),
            tool("rows", outputSchema=sdk_schema("rows", {"type": "array"})),
            tool("own", outputSchema=sdk_schema("Search", {"type": "array"})),
            tool("said"),
            tool("take", properties={"value": {}, "rows": {}}),
        ],
        answer,
    )


async def values(served: Serving, *steps: dict[str, Any]) -> list[Any]:
    answer = await served.call("execute_workflow", {"steps": list(steps)})
    assert "steps" in answer["structuredContent"], answer
    return [step.get("result", step) for step in answer["structuredContent"]["steps"]]


async def test_steps_read_what_is_inside_the_wrapper_and_old_paths_still_lead_there(tmp_path: Path) -> None:
    async with serving(tmp_path, {"up": upstream()}) as served:
        found = await values(
            served,
            {"id": "log", "tool": "up__log"},
            {"id": "rows", "tool": "up__rows"},
            {"id": "other", "tool": "up__take", "arguments": {"rows": {"result": 5}}},
            {"id": "new", "transform": "{log: $log, ids: $rows[*].id}"},
            {"id": "old", "transform": "{ids: $rows.result[*].id, log: $log}"},
            {"id": "piped", "transform": "$rows | result[0].name"},
            {"id": "given", "tool": "up__take", "arguments": {"value": "$rows.result[1].name"}},
            {"id": "each", "tool": "up__rows", "for_each": [1, 2]},
            {"id": "first", "transform": "$each[*].result[0].id"},
            {"id": "second", "transform": "$each[*][1].id"},
            {"id": "field", "transform": "{other: $other.rows.result, rows: $rows[?log.result == `null`].id}"},
            {"id": "when", "transform": "$log", "when": "$rows.result[0].id == `1`"},
        )
    assert found[:3] == [LOG, ROWS, {"rows": {"result": 5}}]
    assert found[3:7] == [{"log": LOG, "ids": [1, 2]}, {"ids": [1, 2], "log": LOG}, "one", {"value": "two"}]
    assert found[8:] == [[1, 1], [2, 2], {"other": 5, "rows": [1, 2]}, LOG]


async def test_an_objects_own_field_called_result_stays_where_it_is(tmp_path: Path) -> None:
    async with serving(tmp_path, {"up": upstream()}) as served:
        found = await values(served, {"id": "a", "tool": "up__own"}, {"id": "b", "transform": "$a.result[0].id"})
    assert found == [{"result": ROWS}, 1]


async def test_direct_calls_and_call_tool_answer_the_wrapper_as_it_came(tmp_path: Path) -> None:
    async with serving(tmp_path, {"up": upstream()}) as served:
        for name in ("log", "rows", "own"):
            for result in (
                await served.call(f"up__{name}"),
                await served.call("call_tool", {"name": f"up__{name}"}),
            ):
                assert {key: result[key] for key in RESULTS[name]} == RESULTS[name]


async def test_shapes_are_learned_from_what_is_inside(tmp_path: Path) -> None:
    async with serving(tmp_path, {"up": upstream()}) as served:
        await served.call("up__said")
        described = await served.call("tool_schema", {"names": ["up__said"]})
    assert described["structuredContent"]["tools"][0]["inferred"]["outputSchema"] == {"type": "integer"}


def test_only_made_up_titles_and_marks_name_a_wrapper() -> None:
    inner = {"type": "string"}
    assert unwrapped(sdk_schema("fetch", inner), {"fetch"}) == inner
    assert unwrapped(sdk_schema("Fetch", inner), {"fetch"}) is None
    assert unwrapped({**sdk_schema("Any", inner), "x-fastmcp-wrap-result": True}, ()) == inner
    nested = {"result": {"result": 1}}
    assert content_of({"content": [], "structuredContent": nested}, wraps=True) == Content("json", nested)
    assert content_of(wrapped("a"), wraps=False) == Content("json", {"result": "a"})
    assert content_of(wrapped("a"), wraps=True) == Content("text", "a", is_unwrapped=True)
