"""Schemas that would take for ever get an answer within a budget, and are known from then on."""

from __future__ import annotations

from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest
from hypothesis import given, settings

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.schema import combines_only_at_root, repair_input_schema
from pml_gateway.config.settings import LimitSettings
from pml_gateway.errors import InvalidInputError
from pml_gateway.exposure.compact import Compactor
from pml_gateway.exposure.schema_cost import UNCLEAR, cost_of, parts_of
from pml_gateway.exposure.schema_text import inline_type, signature, typescript_type
from pml_gateway.exposure.validation import (
    MAX_STEPS,
    QUICK_STEPS,
    STEPS_OF_BUDGET,
    argument_problems,
    check_arguments,
    open_problems,
    schema_digests,
)
from pml_gateway.processes.budget import RequestBudget, exceeded_schemas, spending
from pml_gateway.processes.workers import Workers, open_workers
from pml_gateway.reports.doctor.tools import checked_shallowly
from tests.catalog.listings import catalog_of, only_tool
from tests.support.cases import started_case
from tests.support.examples import examples
from tests.support.hostile import HOSTILE_ARGUMENTS, HOSTILE_SCHEMAS, VALUES, combined_schemas, doubled, wide

pytestmark = pytest.mark.anyio

PLAIN = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "list": {"type": "array", "items": {"$ref": "#/$defs/row"}}},
    "$defs": {"row": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
}


@asynccontextmanager
async def requests() -> AsyncIterator[tuple[Workers, MutableMapping[str, str]]]:
    """What requests share."""
    async with open_workers() as workers:
        yield workers, exceeded_schemas()


async def checked(tool: CatalogTool, arguments: dict[str, Any], budget: RequestBudget) -> list[str]:
    with spending(budget):
        try:
            await check_arguments(tool, arguments)
        except InvalidInputError as error:
            return [f"{fault['path']}: {fault['message']}" for fault in error.details["errors"]]
    return []


def steps_of(budget: RequestBudget) -> int:
    """The keywords that were evaluated for a request."""
    return (budget.limits.request_steps - budget.steps) // STEPS_OF_BUDGET


async def test_forty_checks_with_one_endless_schema_take_the_steps_of_one() -> None:
    tool = only_tool(inputSchema=doubled())
    async with requests() as (workers, exceeded), anyio.create_task_group() as tasks:
        budget = RequestBudget(workers=workers, exceeded=exceeded)
        for _ in range(40):
            tasks.start_soon(checked, tool, {"a": 1}, budget)
    assert steps_of(budget) == MAX_STEPS


async def test_forty_different_endless_schemas_take_no_more_than_one_request_may() -> None:
    tools = [only_tool(inputSchema=doubled(mark=str(number))) for number in range(40)]
    async with requests() as (workers, exceeded):
        budget = RequestBudget(LimitSettings(request_steps=600_000), workers, exceeded)
        async with anyio.create_task_group() as tasks:
            for tool in tools:
                tasks.start_soon(checked, tool, {"a": 1}, budget)
        assert steps_of(budget) == 600_000 // STEPS_OF_BUDGET
        # Whether the last one would have ended is not known: less than a whole check was left for it.
        assert sum(bool(schema_digests(tool) & set(exceeded)) for tool in tools) == 2


async def test_a_schema_that_took_too_much_is_checked_shallowly_from_then_on() -> None:
    tool = only_tool(name="slow", inputSchema=doubled())
    async with requests() as (workers, exceeded):
        assert await checked(tool, {"a": 1}, RequestBudget(workers=workers, exceeded=exceeded)) == []
        budget = RequestBudget(workers=workers, exceeded=exceeded)
        assert await checked(tool, {"a": 1}, budget) == []
        assert await checked(tool, {"n": "x"}, budget) == [
            ": 'a' is a required property",
            "/n: string instead of integer",
        ]
        assert steps_of(budget) == 0


async def test_doctor_names_it() -> None:
    tool = only_tool(name="slow", inputSchema=doubled())
    async with requests() as (workers, exceeded):
        await checked(tool, {"a": 1}, RequestBudget(workers=workers, exceeded=exceeded))
    assert set(exceeded) <= schema_digests(tool)
    catalog = replace(catalog_of(), tools=(tool,))
    [finding] = checked_shallowly(started_case(catalog, exceeded=exceeded))
    assert finding.subject == "server"
    assert "1 tool" in finding.what
    assert finding.details == ("server__slow: ended after 50000 steps",)
    assert "author" in finding.fix
    assert list(checked_shallowly(started_case(catalog_of("other"), exceeded=exceeded))) == []


async def test_plain_schemas_never_leave_the_process() -> None:
    tool = only_tool(inputSchema=PLAIN)
    async with requests() as (workers, exceeded):
        budget = RequestBudget(workers=workers, exceeded=exceeded)
        assert await checked(tool, {"a": "x", "list": [{"n": 1}]}, budget) == []
        assert 0 < steps_of(budget) < 20
        # Many rows are no fault of the schema.
        assert await checked(tool, {"list": [{"n": at} for at in range(500)]}, budget) == []
        assert await checked(tool, {"list": [{"n": at} for at in range(500)] + [{}]}, budget) != []
        assert workers.pids == []
        assert not exceeded


async def test_arguments_that_are_too_many_to_check_do_not_count_against_their_schema() -> None:
    tool = only_tool(inputSchema=PLAIN)
    async with requests() as (workers, exceeded):
        budget = RequestBudget(workers=workers, exceeded=exceeded)
        assert await checked(tool, {"list": [{"n": at} for at in range(50_000)]}, budget) == []
        assert not exceeded
        assert await checked(tool, {"list": 5, "a": "x"}, budget) != []


async def test_with_nothing_left_of_the_budget_calls_are_still_checked_shallowly() -> None:
    tool = only_tool(inputSchema=PLAIN)
    budget = RequestBudget()
    budget.spend(budget.steps)
    assert await checked(tool, {"a": 1}, budget) == ["/a: integer instead of string"]
    assert await checked(tool, {"list": [{}]}, budget) == []


@pytest.mark.slow
@pytest.mark.parametrize("schema", HOSTILE_SCHEMAS)
async def test_hostile_schemas_take_few_steps_of_the_event_loop(schema: str) -> None:
    tool = only_tool(inputSchema=HOSTILE_SCHEMAS[schema])
    async with open_workers() as workers:
        # A large schema is made ready first, which is counted as well.
        await checked(tool, {}, RequestBudget(workers=workers))
        for arguments in HOSTILE_ARGUMENTS.values():
            budget = RequestBudget(workers=workers)
            await checked(tool, arguments, budget)
            assert steps_of(budget) <= QUICK_STEPS + MAX_STEPS
            # A check of what is not all known yet, before a workflow.
            before = steps_of(budget)
            with spending(budget):
                open_problems(tool, arguments, frozenset())
            assert steps_of(budget) <= before + QUICK_STEPS


@pytest.mark.parametrize("keyword", ["not", "if", "allOf"])
def test_a_schema_that_goes_round_in_circles_is_left_to_the_server_wherever_the_stack_ends(keyword: str) -> None:
    # What looks for the reference is written in Rust, and panics where the stack ends in the middle of it.
    around: dict[str, Any] = {"$ref": "#"}
    tool = only_tool(inputSchema={"type": "object", keyword: [around] if keyword == "allOf" else around})

    def within(frames: int) -> list[str]:
        return within(frames - 1) if frames else anyio.run(checked, tool, {}, RequestBudget())

    for frames in range(20):
        assert within(frames) == []


@settings(max_examples=examples(100))
@given(schema=combined_schemas(), value=VALUES)
def test_any_combination_gets_an_answer_within_the_budget(schema: dict[str, Any], value: Any) -> None:
    budget = RequestBudget()
    found = anyio.run(checked, only_tool(inputSchema=schema), {"a": value}, budget)
    assert steps_of(budget) <= QUICK_STEPS + MAX_STEPS
    assert all(": " in fault for fault in found)


@settings(max_examples=examples(100))
@given(schema=combined_schemas(), value=VALUES)
def test_what_is_told_of_a_check_beforehand_is_never_too_little(schema: dict[str, Any], value: Any) -> None:
    cost = cost_of(schema)
    budget = RequestBudget()
    anyio.run(checked, only_tool(inputSchema=schema), {"a": value}, budget)
    # A value may be named by several keywords side by side, such as items and contains.
    assert steps_of(budget) <= 4 * cost.most_steps(parts_of({"a": value}, MAX_STEPS))


def test_references_that_multiply_show_in_the_estimate() -> None:
    assert cost_of(doubled(10)).expanded > 2**10
    assert cost_of(doubled()).expanded == UNCLEAR
    assert not cost_of(doubled()).is_recursive
    assert cost_of(PLAIN).expanded < 50
    assert cost_of({"properties": {"child": {"$ref": "#"}}}).is_recursive
    assert cost_of(wide()).expanded == UNCLEAR
    chain = {f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(3000)}
    assert cost_of({"$ref": "#/$defs/d0", "$defs": chain}).expanded == UNCLEAR


@pytest.mark.parametrize("schema", [*HOSTILE_SCHEMAS.values(), wide(500, 3)], ids=[*HOSTILE_SCHEMAS, "very wide"])
def test_hostile_schemas_are_written_in_few_words(schema: dict[str, Any]) -> None:
    # Without bounds, several of these take longer than a test run.
    assert len(signature("tool", schema)) < 100_000
    assert len(typescript_type(schema)) < 2_000_000
    for part in schema["properties"].values():
        assert len(inline_type(part, schema) or "") <= 120
    compactor = Compactor()
    compactor.compact(schema, schema)
    repaired, _ = repair_input_schema({**schema, "$ref": "#/$defs/a0"} if "$defs" in schema else schema)
    assert repaired["type"] == "object"
    combines_only_at_root(schema)


def test_a_root_that_is_merged_of_the_same_names_over_and_over_is_cut() -> None:
    named = {"properties": {f"p{at}": {"type": "string"} for at in range(3000)}}
    schema = {"type": "object", "allOf": [{"$ref": "#/$defs/x"}] * 400, "$defs": {"x": named}}
    repaired, repairs = repair_input_schema(schema)
    assert repaired["type"] == "object"
    assert repairs


async def test_a_large_schema_is_made_ready_beside_the_loop_and_then_at_hand() -> None:
    properties = {f"p{at}": {"type": "integer", "minimum": at} for at in range(2000)}
    [tool] = [only_tool(inputSchema={"type": "object", "properties": properties})]
    async with requests() as (workers, exceeded):
        budget = RequestBudget(workers=workers, exceeded=exceeded)
        assert await checked(tool, {"p7": 1}, budget) != []
        assert steps_of(budget) > QUICK_STEPS
        assert await argument_problems(tool, {"p7": 7}) == []
        assert workers.pids == []
        spent = RequestBudget(workers=workers, exceeded=exceeded)
        spent.spend(spent.steps)
        other = only_tool(inputSchema={"type": "object", "properties": properties})
        assert await checked(other, {"p7": "x", "p8": 1}, spent) == ["/p7: string instead of integer"]
