"""A plan in which nothing is wrong or unknown never fails by what its steps hand on, whatever servers answer."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pml_gateway.catalog.build import build_catalog
from pml_gateway.catalog.model import UpstreamListing
from pml_gateway.errors import GatewayError
from pml_gateway.exposure.validation import check_arguments
from pml_gateway.results.functions import FUNCTIONS, arity_of
from pml_gateway.workflow.checks import check_plan
from pml_gateway.workflow.execute import Run
from pml_gateway.workflow.expressions import Expression
from pml_gateway.workflow.inference import Inference
from pml_gateway.workflow.kinds import ANYTHING, Kind, Type, declared, mismatches, type_of
from pml_gateway.workflow.outcome import StepStatus
from pml_gateway.workflow.parse import parse_workflow
from pml_gateway.workflow.plan import PlanError
from pml_gateway.workflow.sharing import Invocation
from tests.support.examples import examples
from tests.support.scripted_server import tool
from tests.workflow.stand import LIMITS, Stand, data

NAMES = ("a", "b", "c")
LEAVES: list[dict[str, Any]] = [
    {"type": "string"},
    {"type": "integer"},
    {"type": "number"},
    {"type": "boolean"},
    {"type": ["string", "null"]},
    {"enum": ["x", "y"]},
    {"anyOf": [{"type": "integer"}, {"type": "string"}]},
]


def record(fields: dict[str, Any], optional: set[str], is_closed: bool) -> dict[str, Any]:
    made = {"type": "object", "properties": fields, "required": [name for name in fields if name not in optional]}
    return {**made, "additionalProperties": False} if is_closed else made


def records(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    fields = st.dictionaries(st.sampled_from(NAMES), inner, min_size=1, max_size=3)
    return st.builds(record, fields, st.sets(st.sampled_from(NAMES), max_size=1), st.booleans())


def lists(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda items, least: {"type": "array", "items": items, "minItems": least}, inner, st.integers(0, 2)
    )


SCHEMAS = st.recursive(st.sampled_from(LEAVES), lambda inner: records(inner) | lists(inner), max_leaves=5)


def values(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """What a server that keeps its schema may answer."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        return st.one_of([values(each) for each in schema["anyOf"]])
    match schema["type"]:
        case "object":
            fields = schema["properties"]
            return st.fixed_dictionaries(
                {name: values(fields[name]) for name in schema["required"]},
                optional={name: values(each) for name, each in fields.items() if name not in schema["required"]},
            )
        case "array":
            return st.lists(values(schema["items"]), min_size=schema["minItems"], max_size=3)
        case ["string", "null"]:
            return st.none() | st.just("text")
        case kind:
            plain = {"string": st.text(max_size=3), "integer": st.integers(-9, 9), "boolean": st.booleans()}
            return plain.get(kind, st.floats(-9, 9))


Path = tuple[str, dict[str, Any] | None]
"""An expression, and the schema of what is there where it is a plain one."""

SIGNS = ("[0]", "[*]", "[*]", "[1:]", "[-1]", "[]", "[?@ == @]")
STRAYS = (".a", ".z", "[0]", "[*]", ".*", "[].b", "[?a > `1`].b")
AROUND = (
    *("length({})", "keys({})", "values({})", "sort({})", "join(',', {})", "sum({})", "max({})", "reverse({})"),
    *("to_string({})", "to_number({})", "not_null({}, 'x')", "{} || 'x'", "sort_by({}, &a)", "map(&a, {})"),
    *("to_array({})", 'merge({}, {{"z": `1`}})', "abs({})", "!{}", "{{a: {}, b: 'x'}}", "[{}, `1`]", "{} > `1`"),
    *("{} == 'x'", "contains({}, 'x')", "type({})", "max_by({}, &@.a)", "starts_with({}, 'x')", "{} && 'x'"),
    *("avg({})", "ceil({})", "[{}][0]", "lines({})", "split({}, 'x')", "trim({})", "match({}, 'x')", "to_json({})"),
    *("from_json({})", "from_csv({})", "split('a', {})", "match('a', {})", "lines({})[0]", "match({}, 'x')[0]"),
)


@st.composite
def paths(draw: st.DrawFn, root: str, schema: dict[str, Any] | None) -> Path:
    """A path that mostly follows a schema."""
    text, at, is_plain = root, schema, True
    for _ in range(draw(st.integers(1, 4))):
        kind = at.get("type") if at is not None else None
        if at is None or draw(st.integers(0, 19)) == 0:
            return text + draw(st.sampled_from(STRAYS)), None
        if kind == "object":
            name = draw(st.sampled_from(at["required"] or sorted(at["properties"])))
            text, at = f"{text}.{name}", at["properties"][name]
        elif kind == "array":
            sign = draw(st.sampled_from(SIGNS))
            text, at, is_plain = text + sign, at["items"], is_plain and sign in ("[0]", "[-1]")
    return text, at if is_plain else None


@st.composite
def expressions(draw: st.DrawFn, root: str, schema: dict[str, Any] | None) -> str:
    """A path, or something made of it."""
    text, _ = draw(paths(root, schema))
    return draw(st.just("{}") | st.sampled_from(AROUND)).format(text)


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any], Any]:
    """Steps, what `find` declares, what `take` takes, and what `find` answers."""
    found = draw(records(SCHEMAS))
    steps: list[dict[str, Any]] = [{"id": "m", "tool": "s:find"}]
    if draw(st.integers(0, 4)) == 0:
        steps[0]["when"] = "`true`"
    text, schema = draw(paths("$m", found))
    taken = schema if schema is not None and draw(st.booleans()) else draw(st.just({}) | SCHEMAS)
    match draw(st.sampled_from(["transform", "hand on", "loop", "two", "text"])):
        case "transform":
            steps.append({"id": "t", "transform": draw(expressions("$m", found))})
        case "hand on":
            steps.append({"id": "k", "tool": "s:take", "arguments": {"v": text}})
        case "text":
            steps.append({"id": "k", "tool": "s:take", "arguments": {"v": f"of {text}"}})
        case "loop":
            steps.append({"id": "k", "tool": "s:take", "for_each": text, "arguments": {"v": "$item"}})
            steps.append({"id": "u", "transform": draw(st.sampled_from(["$k[*].w", "length($k)", "$k[].w", "$k.w"]))})
        case _:
            steps.append({"id": "t", "transform": draw(expressions("$m", found))})
            steps.append({"id": "u", "transform": draw(expressions("$t", None))})
            taken = {"type": "string"} if draw(st.booleans()) else taken
            steps.append({"id": "k", "tool": "s:take", "arguments": {"v": draw(st.sampled_from(["$t", "$u"]))}})
    return steps, found, taken, draw(values(found))


@given(plans())
@settings(max_examples=examples(100), suppress_health_check=list(HealthCheck))
def test_a_plan_without_a_problem_and_without_a_doubt_does_not_fail(
    made: tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any], Any],
) -> None:
    steps, found, taken, answer = made
    given_back = {"type": "object", "properties": {"w": {"type": "integer"}}, "required": ["w"]}
    takes = {"name": "take", "inputSchema": {"type": "object", "properties": {"v": taken}, "required": ["v"]}}
    takes["outputSchema"] = given_back
    listing = UpstreamListing("s", ({**tool("find"), "outputSchema": found}, takes))
    catalog = build_catalog([listing])
    by_name = {f"s:{each.name}": each for each in catalog.tools}
    try:
        plan, problems = parse_workflow({"steps": steps}, LIMITS)
    except PlanError:
        assume(False)
        return
    assume(not problems)
    checked = check_plan(plan, by_name.__getitem__, (), lambda _: None)
    if checked.problems or checked.flow.unknown:
        return

    async def find(_: Invocation) -> dict[str, Any]:
        return data(answer)

    async def take(invocation: Invocation) -> dict[str, Any]:
        await check_arguments(by_name["s:take"], invocation.arguments)
        return data({"w": 1})

    async def main() -> None:
        run = Run(plan)
        await run.advance(Stand({"s:find": find, "s:take": take}))
        for step in plan.steps:
            outcome = run.outcomes[step.index]
            assert outcome.status is not StepStatus.ERROR, (steps, answer, outcome.error)

    anyio.run(main)


@given(SCHEMAS.flatmap(lambda schema: st.tuples(st.just(schema), values(schema))), SCHEMAS)
@settings(max_examples=examples(100))
def test_a_value_is_of_its_schema_s_type_and_what_is_refused_for_certain_is_refused(
    drawn: tuple[dict[str, Any], Any], other: dict[str, Any]
) -> None:
    schema, value = drawn
    assert type_of(value).kinds <= declared(schema).kinds | ({Kind.INTEGER} if isinstance(value, float) else set())
    assert not [each for each in mismatches(type_of(value), declared(schema)) if each.is_certain]
    takes = {"name": "take", "inputSchema": {"type": "object", "properties": {"v": other}, "required": ["v"]}}
    [checked] = build_catalog([UpstreamListing("s", (takes,))]).tools

    async def is_refused() -> bool:
        try:
            await check_arguments(checked, {"v": value})
        except GatewayError:
            return True
        return False

    certain = [each for each in mismatches(type_of(value), declared(other)) if each.is_certain]
    doubtful = list(mismatches(type_of(value), declared(other)))
    refused = anyio.run(is_refused)
    assert not certain or refused, (value, other, certain)
    assert doubtful or not refused, (value, other)


def test_a_schema_that_refers_to_itself_is_read_to_a_depth() -> None:
    node: dict[str, Any] = {"type": "object", "properties": {"next": {"$ref": "#"}, "more": {"$ref": "#"}}}
    found: Type = declared(node)
    for _ in range(3):
        found, _presence = found.member("next")
        assert found.kinds == {Kind.OBJECT}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_every_function_is_known_to_the_check(name: str) -> None:
    taken, _ = arity_of(name)
    inference = Inference({"a": ANYTHING})
    inference.of(Expression(f"{name}({', '.join(['$a'] * taken)})"))
    assert not [fault for fault in inference.faults if "no function" in fault.reason]
