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
    "an object for a list": ([{"tool": "up__remove", "arguments": {"paths": "$m"}}], "list of text is wanted"),
    "objects for texts": ([{"tool": "up__remove", "arguments": {"paths": "$m.items"}}], "an item of it is"),
    "an object for a text": ([{"tool": "up__remove", "arguments": {"paths": ["$m.items[0]"]}}], "text is wanted"),
    "no such field": ([{"tool": "up__note", "arguments": {"text": "$m.nosuch"}}], "no field 'nosuch'"),
    "no such field in a text": ([{"tool": "up__note", "arguments": {"text": "x $m.nosuch"}}], "no field 'nosuch'"),
    "a field of a list": ([{"tool": "up__remove", "arguments": {"paths": "$m.items.path"}}], "'path' of list of"),
    "a field of all items": ([{"tool": "up__remove", "arguments": {"paths": "$m.items[*].pth"}}], "no field 'pth'"),
    "a field in a filter": ([{"id": "t", "transform": "$m.items[?siz > `1`]"}], "no field 'siz'"),
    "an unknown function": ([{"id": "t", "transform": "splitt($m, ' ')"}], "splitt"),
    "lines of an object": ([{"id": "t", "transform": "lines($m)"}], "lines() takes string"),
    "split by nothing": ([{"id": "t", "transform": "split($m.items[0].path, '')"}], "a separator that is not empty"),
    "match by no pattern": ([{"id": "t", "transform": "match($m.items[0].path, '(')"}], "no regular expression"),
    "too few arguments": ([{"id": "t", "transform": "join($m.items[*].path)"}], "join()"),
    "a number for a text": ([{"id": "t", "transform": "join(',', $m.items[*].size)"}], "join() takes"),
    "an object for a number": ([{"id": "t", "transform": "sum($m.items)"}], "sum() takes"),
    "nothing to sort by": ([{"id": "t", "transform": "sort_by($m.items, &nosuch)"}], "no field 'nosuch'"),
    "an object to sort by": ([{"id": "t", "transform": "max_by($m.items, &@)"}], "max_by() goes by"),
    "texts and numbers": ([{"id": "t", "transform": "$m.items[?size == 'x']"}], "never equal"),
    "texts put in order with numbers": ([{"id": "t", "transform": "$m.items[?path > `1`]"}], "put in order"),
    "a condition": ([{"tool": "up__plain", "when": "$m.nosuch"}], "no field 'nosuch'"),
    "a loop over an object": (
        [{"tool": "up__note", "for_each": "$m", "arguments": {"text": "$item.path"}}],
        "for_each needs a list",
    ),
    "a field of a loop's item": (
        [{"tool": "up__note", "for_each": "$m.items", "arguments": {"text": "$item.pth"}}],
        "no field 'pth'",
    ),
    "what a transform made": (
        [
            {"id": "t", "transform": "{n: length($m.items), first: $m.items[0].path}"},
            {"tool": "up__note", "arguments": {"text": "$t.n"}},
        ],
        "text is wanted",
    ),
    "what a transform of a transform made": (
        [
            {"id": "t", "transform": "$m.items[*].{p: path}"},
            {"id": "u", "transform": "$t[*].q"},
        ],
        "no field 'q'",
    ),
    "what a loop made": (
        [
            {"id": "l", "tool": "up__find", "for_each": "$m.items"},
            {"tool": "up__remove", "arguments": {"paths": "$l.items"}},
        ],
        "'items' of list of",
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


@pytest.mark.parametrize("wrapper", ["result", "output", "data"])
async def test_a_field_that_other_systems_put_around_a_result_is_named_in_the_hint(
    tmp_path: Path, wrapper: str
) -> None:
    steps = [FIND, {"tool": "up__note", "arguments": {"text": f"the $m.{wrapper}.items[0].path"}}]
    async with serving(tmp_path, {"up": upstream()}) as served:
        told = await served.call("execute_workflow", {"steps": steps})
    hint = told["structuredContent"]["error"]["details"]["errors"][0]["hint"]
    assert hint == f'write "$m.items[0].path" instead of "$m.{wrapper}.items[0].path"'


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


async def test_a_dry_run_shows_every_call_what_it_may_do_and_what_is_not_known(tmp_path: Path) -> None:
    fake = upstream()
    steps = [
        FIND,
        {"id": "gone", "tool": "up__remove", "arguments": {"paths": "$m.items[*].path"}},
        {"id": "told", "tool": "up__note", "arguments": {"text": "$m.total gone: $m.note", "count": 3}},
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
    assert by_id["gone"]["call"] == {
        "tool": "up__remove",
        "arguments": {"paths": "<$m.items[*].path: list of text>"},
    }
    assert by_id["told"]["call"]["arguments"] == {
        "text": "<$m.total: integer> gone: <$m.note: null or text>",
        "count": 3,
    }
    assert by_id["told"]["unknown"] == ["$m.note: field 'note' may be missing"]
    assert [by_id[each].get("effect") for each in ("m", "gone", "told", "p", "t", "w")] == [
        "read",
        "destructive",
        "write",
        "undeclared",
        None,
        "destructive",
    ]
    assert "nothing says" in by_id["t"]["unknown"][0]
    assert "unknown" not in by_id["gone"]
    assert fake.calls == []


async def test_what_was_learned_is_no_ground_for_refusing(tmp_path: Path) -> None:
    async def act(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        return {"content": [], "structuredContent": {"items": [{"path": "a"}]}}

    fake = ScriptedServer([tool("find")], act)
    steps = [FIND, {"id": "t", "transform": "$m.nosuch || $m.items[0].path"}, {"id": "u", "transform": "$m.items.path"}]
    async with serving(tmp_path, {"up": fake}) as served:
        for _ in range(3):
            await served.call("call_tool", {"name": "up__find"})
        told = await served.call("execute_workflow", {"steps": steps, "dry_run": True})
    answer = told["structuredContent"]
    assert answer["valid"] is True
    assert any("'nosuch'" in each for each in answer["steps"][1]["unknown"])
    assert any("'path' of list" in each for each in answer["steps"][2]["unknown"])


async def test_a_function_that_is_given_an_object_names_the_field_to_take(tmp_path: Path) -> None:
    text = {"type": "object", "properties": {"content": {"type": "string"}}, "required": ["content"]}
    fake = ScriptedServer([{**tool("read"), "outputSchema": text}])
    steps = [{"id": "a", "tool": "up__read"}, {"transform": "lines($a)"}]
    async with serving(tmp_path, {"up": fake}) as served:
        answer = await served.call("execute_workflow", {"steps": steps, "dry_run": True})
    [problem] = answer["structuredContent"]["steps"][1]["problems"]
    assert problem["hint"] == "take a field of it: content"


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
