"""What a step was made of: references to other steps count as explicit references to their results do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio

ROWS = [{"n": number, "name": f"row {number}"} for number in range(300)]
SECTIONS: dict[str, Any] = {
    "references": {"mode": "meta", "threshold_tokens": 100},
    "gateway": {"meta_tools": ["execute_workflow", "call_tool", "read_result", "gateway_info"]},
}


def upstream() -> ScriptedServer:
    async def act(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        if call["name"] == "make":
            return {"content": [{"type": "text", "text": "rows"}], "structuredContent": {"rows": ROWS}}
        if call["name"] == "count":
            return {"content": [{"type": "text", "text": "n"}], "structuredContent": {"n": 300}}
        return text_result("word " * 300)

    return ScriptedServer([tool("make"), tool("take"), tool("count")], act)


async def refs_of(served: Serving, steps: list[dict[str, Any]]) -> dict[str, str]:
    """The reference of each step whose result is stored."""
    answer = (await served.call("execute_workflow", {"steps": steps}))["structuredContent"]
    assert answer["status"] == "completed", answer
    return {step["id"]: step["reference"]["ref"] for step in answer["steps"] if "reference" in step}


async def made_of(served: Serving, ref: str) -> set[str]:
    """The results that went into the call that made a result."""
    graph = (await served.call("gateway_info", {"section": "lineage", "ref": ref}))["structuredContent"]
    [call] = [edge["from"] for edge in graph["edges"] if edge["to"] == ref]
    return {edge["from"] for edge in graph["edges"] if edge["to"] == call}


MADE = {"id": "r", "tool": "up__make"}


READING: list[list[dict[str, Any]]] = [
    [{"id": "t", "tool": "up__take", "arguments": {"rows": "$r.rows[0:200]"}}],
    [{"id": "t", "tool": "up__take", "arguments": {"text": "Of $r.rows[0].name: $r.rows[1].name"}}],
    [{"id": "t", "tool": "up__take", "arguments": {"n": "$r.none || $r.rows[0]"}}],
    [{"id": "t", "transform": "$r.rows[0:200]"}],
    [{"id": "t", "transform": "r.rows[0:200]", "depends_on": ["r"]}],
    [{"id": "t", "transform": "rows", "input": "$r"}],
    [
        {"id": "few", "transform": "$r.rows[?n > 290]"},
        {"id": "names", "transform": "$few[*].name"},
        {"id": "t", "tool": "up__take", "arguments": {"names": {"all": "$names"}}},
    ],
    [
        {"id": "few", "transform": "$r.rows[0:2]"},
        {"id": "t", "tool": "up__take", "for_each": "$few", "arguments": {"name": "$item.name"}, "max_tokens": 9},
    ],
    [
        {"id": "n", "tool": "up__count", "arguments": {"rows": "$r.rows"}},
        {"id": "t", "tool": "up__take", "arguments": {"n": "$n.n"}},
    ],
]


@pytest.mark.slow
async def test_a_result_is_made_of_those_that_its_step_read(tmp_path: Path) -> None:
    async with serving(tmp_path, {"up": upstream()}, **SECTIONS) as served:
        for steps in READING:
            refs = await refs_of(served, [MADE, *steps])
            made = await made_of(served, refs["t"])
            if "for_each" in steps[-1]:
                # The list is made of the stored results of its items, and they of what was read.
                assert len(made) == 2
                assert [await made_of(served, ref) for ref in made] == [{refs["r"]}] * 2
            else:
                assert made == {refs["r"]}, steps
            graph = (await served.call("gateway_info", {"section": "lineage", "ref": refs["r"]}))["structuredContent"]
            assert len([node for node in graph["nodes"] if node["kind"] == "call"]) >= 2


async def test_it_is_as_with_an_explicit_reference_and_across_requests(tmp_path: Path) -> None:
    async with serving(tmp_path, {"up": upstream()}, **SECTIONS) as served:
        first = (await served.call("call_tool", {"name": "up__make"}))["structuredContent"]["ref"]
        steps = [
            {"id": "few", "transform": "[0:3]", "input": {"$ref": first, "path": "rows"}},
            {"id": "t", "tool": "up__take", "arguments": {"rows": "$few"}},
            {"id": "u", "tool": "up__take", "arguments": {"rows": {"$ref": first}, "t": "$t"}},
        ]
        refs = await refs_of(served, steps)
        assert await made_of(served, refs["t"]) == {first}
        assert await made_of(served, refs["u"]) == {first, refs["t"]}


async def test_a_composite_tool_passes_it_on(tmp_path: Path) -> None:
    workflows = {
        "kept": {
            "description": "Take rows, kept.",
            "input": {"type": "object", "properties": {"rows": {}}},
            "steps": [{"id": "t", "tool": "up__take", "arguments": {"rows": "$input.rows"}}],
            "output_as": "reference",
        }
    }
    # Above what the answer with the reference has, which would be stored as well.
    sections = {**SECTIONS, "references": {"mode": "meta", "threshold_tokens": 1000}}
    async with serving(tmp_path, {"up": upstream()}, workflows=workflows, **sections) as served:
        first = (await served.call("call_tool", {"name": "up__make"}))["structuredContent"]["ref"]
        arguments = {"rows": {"$ref": first, "path": "rows[0:2]"}}
        kept = await served.call("call_tool", {"name": "workflows:kept", "arguments": arguments})
        assert await made_of(served, kept["structuredContent"]["ref"]) == {first}


async def test_a_handle_alone_is_refused_in_every_call(tmp_path: Path) -> None:
    async with serving(tmp_path, {"up": (fake := upstream())}, **SECTIONS) as served:
        first = (await served.call("call_tool", {"name": "up__make"}))["structuredContent"]["ref"]
        fake.calls.clear()
        for name, arguments in (
            ("call_tool", {"name": "up__take", "arguments": {"rows": first}}),
            ("up__take", {"rows": [first]}),
        ):
            error = (await served.call(name, arguments))["structuredContent"]["error"]
            assert error["code"] == "INVALID_INPUT"
            assert f'{{"$ref": "{first}"}}' in error["hint"]
        assert not fake.calls
        assert (
            "error"
            not in (await served.call("call_tool", {"name": "up__count", "arguments": {"ref": first}}))[
                "structuredContent"
            ]
        )
