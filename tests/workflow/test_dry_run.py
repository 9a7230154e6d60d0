"""What cannot work is refused before anything is called, in a dry run and in a real one alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import serving

pytestmark = pytest.mark.anyio


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": sorted(fields)}


TEXT = {"type": "string"}
NUMBER = {"type": "integer"}
ENTRY = record(path=TEXT, size=NUMBER)
FOUND = {
    "type": "object",
    "properties": {"items": {"type": "array", "items": ENTRY}, "total": NUMBER, "note": TEXT},
    "required": ["items", "total"],
}
VALUE = {"items": [{"path": "a", "size": 1}, {"path": "b", "size": 2}], "total": 2}
PATHS = {"type": "array", "items": TEXT}


def upstream() -> ScriptedServer:
    async def act(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        if call["name"] == "find":
            return {**text_result(json.dumps(VALUE)), "structuredContent": VALUE}
        return text_result(json.dumps(call["arguments"]))

    remove = {**tool("remove", properties={"paths": PATHS}), "annotations": {"destructiveHint": True}}
    return ScriptedServer(
        [
            tool("find", outputSchema=FOUND, annotations={"readOnlyHint": True}),
            remove,
            tool("note", properties={"text": TEXT, "count": NUMBER}, annotations={"destructiveHint": False}),
            tool("plain"),
            tool("pick", properties={"kind": {"enum": ["open", "closed"]}}),
        ],
        act,
    )


FIND = {"id": "m", "tool": "up__find"}

WRONG: dict[str, tuple[list[dict[str, Any]], str]] = {
    "no such field": ([{"tool": "up__note", "arguments": {"text": "$m.nosuch"}}], "$m has no field 'nosuch'"),
    "no such field in a text": ([{"tool": "up__note", "arguments": {"text": "x $m.nosuch"}}], "no field 'nosuch'"),
    "by position": ([{"tool": "up__note", "arguments": {"text": "$0.nosuch"}}], "$0 has no field 'nosuch'"),
    "no such list": ([{"tool": "up__remove", "arguments": {"paths": "$m.itms[*].path"}}], "no field 'itms'"),
    "no such field in quotes": ([{"id": "t", "transform": '$m."first name"[0]'}], "no field 'first name'"),
    "in the place of another": ([{"id": "t", "transform": "$m.total || $m.nosuch"}], "no field 'nosuch'"),
    "in a function": ([{"id": "t", "transform": "sort_by($m.nosuch, &path)"}], "no field 'nosuch'"),
    "an unknown function": ([{"id": "t", "transform": "splitt($m, ' ')"}], "splitt"),
    "too few arguments": ([{"id": "t", "transform": "join($m.items[*].path)"}], "join()"),
    "no expression": ([{"id": "t", "transform": "$m.items[?"}], "is no JMESPath expression"),
    "a condition": ([{"tool": "up__plain", "when": "$m.nosuch"}], "no field 'nosuch'"),
    "a loop": (
        [{"tool": "up__note", "for_each": "$m.nosuch", "arguments": {"text": "$item.path"}}],
        "no field 'nosuch'",
    ),
    "an input": ([{"id": "t", "input": {"x": ["$m.nosuch"]}, "transform": "x"}], "no field 'nosuch'"),
    "no such tool": ([{"tool": "up__nosuch"}], "nosuch"),
    "no such step": ([{"tool": "up__note", "arguments": {"text": "$nosuch.text"}}], "there is no step 'nosuch'"),
    "a number for a text": ([{"tool": "up__note", "arguments": {"count": "many", "text": "$m.note"}}], "/count: "),
    "a parameter that there is not": (
        [{"tool": "up__note", "arguments": {"colour": "$m.note"}}],
        "'colour' is none of",
    ),
}

NUMBERED = list(enumerate(WRONG.values()))


@pytest.mark.slow
async def test_what_cannot_work_is_refused_before_anything_is_called(tmp_path: Path) -> None:
    fake = upstream()
    workflows = {f"w{at}": {"description": "The same.", "steps": [FIND, *steps]} for at, (steps, _) in NUMBERED}
    async with serving(tmp_path, {"up": fake}, workflows=workflows) as served:
        for at, (steps, expected) in NUMBERED:
            told = await served.call("execute_workflow", {"steps": [FIND, *steps], "dry_run": True})
            real = await served.call("execute_workflow", {"steps": [FIND, *steps]})
            answer = told["structuredContent"]
            assert answer["valid"] is False, expected
            assert expected in json.dumps([step.get("problems") for step in answer["steps"]]), answer
            assert real["isError"] is True
            problems = served.gateway.state.composites[f"w{at}"].problems
            assert any(expected in problem.message for problem in problems), problems
    assert fake.calls == []


async def test_a_field_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    steps = [
        FIND,
        {"tool": "up__note", "arguments": {"text": "the $m.result.items[0].path"}},
        {"tool": "up__remove", "arguments": {"paths": ["$m.itms[0].path"]}},
    ]
    async with serving(tmp_path, {"up": upstream()}) as served:
        told = await served.call("execute_workflow", {"steps": steps})
    first, second = told["structuredContent"]["error"]["details"]["errors"]
    assert (first["path"], first["hint"]) == ("/steps/1/arguments/text", "its fields are items, total, note")
    assert second["path"] == "/steps/2/arguments/paths/0"
    assert second["hint"] == 'write "items" instead of "itms"; its fields are items, total, note'


RIGHT: dict[str, list[dict[str, Any]]] = {
    "names of a list": [{"tool": "up__remove", "arguments": {"paths": "$m.items[*].path"}}],
    "parts of a text": [{"tool": "up__note", "arguments": {"text": "$m.total of $m.items", "count": "$m.total"}}],
    "a number of a list": [{"id": "t", "transform": "$m.items[?size > `1`] | length(@)"}],
    "what may be missing, with another": [{"tool": "up__note", "arguments": {"text": "$m.items[0].path"}}],
    "a loop": [{"tool": "up__note", "for_each": "$m.items", "arguments": {"text": "$item.path", "count": "$index"}}],
    "made objects": [
        {"id": "t", "transform": "{n: length($m.items), first: sort($m.items[*].path)[0]}"},
        {"tool": "up__note", "arguments": {"text": "$t.first", "count": "$t.n"}},
    ],
    "one value for a list": [{"tool": "up__remove", "arguments": {"paths": "$m.items[0].path"}}],
    "a number in a text": [
        {"id": "t", "transform": "to_string($m.total)"},
        {"tool": "up__note", "arguments": {"text": "two", "count": "$t"}},
    ],
    "a calculation for a number": [{"tool": "up__note", "arguments": {"text": "two", "count": "$m.total * 2 + 1"}}],
    "a step without a dollar sign for a number": [
        {"tool": "up__note", "arguments": {"text": "two", "count": "m.total"}},
        {"tool": "up__note", "arguments": {"text": "two", "count": "length(m.items) - 1"}},
    ],
    "a choice in another case": [
        {"id": "t", "transform": "$m.{kind: 'Open'}"},
        {"tool": "up__pick", "arguments": {"kind": "$t.kind"}},
    ],
    "functions of texts": [
        {
            "id": "t",
            "transform": "$m.items[0].path.{a: lines(@), b: split(@, '/')[0], c: trim(@), d: match(@, 'x'), "
            "e: from_json(to_json(@)), f: from_csv(@)}",
        },
        {"tool": "up__note", "when": "length(lines($m.items[0].path)) > 0", "arguments": {"text": "$t.b"}},
    ],
    "a fallback": [{"id": "t", "transform": "$m.nosuch || $m.total"}],
    "what is undeclared": [{"id": "p", "tool": "up__plain"}, {"id": "t", "transform": "$p.anything || 'none'"}],
    "structure beside media": [{"id": "t", "transform": "$m.structuredContent.items || $m.items"}],
}


async def test_what_may_work_is_valid_and_works(tmp_path: Path) -> None:
    async with serving(tmp_path, {"up": upstream()}) as served:
        for what, steps in RIGHT.items():
            told = await served.call("execute_workflow", {"steps": [FIND, *steps], "dry_run": True})
            assert told["structuredContent"]["valid"] is True, (what, told["structuredContent"])
            real = await served.call("execute_workflow", {"steps": [FIND, *steps]})
            assert real["structuredContent"]["status"] == "completed", (what, real["structuredContent"])


async def test_a_dry_run_shows_every_call_and_what_it_may_do(tmp_path: Path) -> None:
    fake = upstream()
    steps = [
        FIND,
        {"id": "gone", "tool": "up__remove", "arguments": {"paths": "$m.items[*].path"}},
        {"id": "told", "tool": "up__note", "arguments": {"text": "word " * 1000, "count": "$m.total"}},
        {"id": "p", "tool": "up__plain"},
        {"id": "t", "transform": "$p.rows[*].id"},
    ]
    purge = {"description": "Remove.", "steps": [{"tool": "up__find"}, {"tool": "up__remove"}]}
    async with serving(tmp_path, {"up": fake}, workflows={"purge": purge}) as served:
        steps.append({"id": "w", "tool": "workflows:purge"})
        told = await served.call("execute_workflow", {"steps": steps, "dry_run": True})
    answer = told["structuredContent"]
    assert answer["valid"] is True
    assert answer["questions"]
    by_id = {step["id"]: step for step in answer["steps"]}
    assert by_id["gone"]["call"] == {"tool": "up__remove", "arguments": {"paths": "$m.items[*].path"}}
    shown = by_id["told"]["call"]["arguments"]
    assert (shown["count"], len(shown["text"])) == ("$m.total", 400)
    assert [by_id[each].get("effect") for each in ("m", "gone", "told", "p", "t", "w")] == [
        "read",
        "destructive",
        "write",
        "unknown",
        None,
        "destructive",
    ]
    assert fake.calls == []


async def test_arguments_that_are_nested_too_deeply_are_shown_cut(tmp_path: Path) -> None:
    steps = [{"tool": "up__note", "arguments": f'{{"text": {"[" * 600}{"]" * 600}}}'}]
    async with serving(tmp_path, {"up": upstream()}) as served:
        [step] = (await served.call("execute_workflow", {"steps": steps, "dry_run": True}))["structuredContent"][
            "steps"
        ]
    assert "nested" in step["problems"][0]["message"]
    assert json.dumps(step["call"]["arguments"], ensure_ascii=False).count("[") < 100


async def test_a_field_is_only_missing_where_a_schema_lists_all_that_there_are(tmp_path: Path) -> None:
    fields = {"a": TEXT}
    schemas: dict[str, dict[str, Any]] = {
        "others": {"type": "object", "properties": fields, "additionalProperties": True},
        "patterns": {"type": "object", "properties": fields, "patternProperties": {"^x": TEXT}},
        "choice": {"type": "object", "properties": fields, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        "nothing": {"type": "object"},
        "wrapped": {"type": "object", "properties": {"result": PATHS}, "x-fastmcp-wrap-result": True},
    }
    steps: list[dict[str, Any]] = [
        *({"id": name, "tool": f"up__{name}"} for name in schemas),
        {"id": "each", "tool": "up__closed", "for_each": ["x"]},
        *({"id": f"of_{name}", "transform": f"${name}.b"} for name in schemas),
        {"id": "loop", "transform": "$each[*].b"},
        {"id": "value", "transform": "$wrapped.result[0]"},
    ]
    tools = [tool(name, outputSchema=schema) for name, schema in schemas.items()]
    closed = tool("closed", outputSchema={**record(a=TEXT), "additionalProperties": False})
    async with serving(tmp_path, {"up": ScriptedServer([*tools, closed])}) as served:
        told = await served.call("execute_workflow", {"steps": steps, "dry_run": True})
        closed_one = [{"id": "c", "tool": "up__closed"}, {"transform": "$c.b"}]
        refused = await served.call("execute_workflow", {"steps": closed_one, "dry_run": True})
    assert told["structuredContent"]["valid"] is True, told["structuredContent"]
    [problem] = refused["structuredContent"]["steps"][1]["problems"]
    assert (problem["message"], problem["hint"]) == ("$c has no field 'b'", "its fields are a")


async def test_a_text_is_named_result_as_answers_name_it_and_has_no_other_fields(tmp_path: Path) -> None:
    async def reply(_: Any, __: Any) -> dict[str, Any]:
        return text_result("found")

    fake = ScriptedServer([tool("read"), tool("write", properties={"text": {"type": "string"}})], reply)
    async with serving(tmp_path, {"up": fake}) as served:

        async def written(text: str) -> dict[str, Any]:
            steps = [{"id": "a", "tool": "up__read"}, {"tool": "up__write", "arguments": {"text": text}}]
            answer: dict[str, Any] = (await served.call("execute_workflow", {"steps": steps}))["structuredContent"]
            return answer

        assert (await written("$a.result"))["status"] == "completed"
        assert fake.calls[-1]["arguments"] == {"text": "found"}
        error = (await written("$a.result: $a"))["steps"][1]["error"]
        assert error["hint"] == "$a is itself a text"
        # What was only learned is no reason to refuse: the second run reads it as the first one does.
        for _ in range(2):
            error = (await written("$a.content[0].text"))["steps"][1]["error"]
            assert error["hint"] == "$a is itself a text"
