"""Checks of the fields that a plan reads from its arguments and from results, against their schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.exposure.shallow_check import undeclared_names
from pml_gateway.results.learning import inner_output
from pml_gateway.text import nearest, shortened, some_of
from pml_gateway.types import JsonObject
from pml_gateway.workflow.expressions import Expression
from pml_gateway.workflow.plan import INPUT, Plan, Step, StepProblem
from pml_gateway.workflow.templates import StepReference, Template, references

MAX_NAMED = 12
MAX_NAME = 60
"""Maximum number of fields in a message, and of characters of each."""

_COMBINED = ("anyOf", "oneOf", "allOf", "$ref", "patternProperties")
"""Keywords through which a schema may have more arguments than its `properties`."""

_BESIDE_MEDIA = ("structuredContent", "content")
"""Fields of a result that has both structured content and media, whatever the schema says."""


def input_problems(schema: JsonObject, plan: Plan, output: Template | None) -> list[StepProblem]:
    """Return a problem for each argument that a step or the output reads and `schema` does not name."""
    properties = schema.get("properties")
    is_open = schema.get("additionalProperties") not in (None, False) or any(key in schema for key in _COMBINED)
    if is_open or not isinstance(properties, dict):
        return []
    named = ", ".join(map(str, properties)) or "none"
    hint = f"its arguments are {named}; others are declared under input.properties"
    return [
        StepProblem(step_id, pointer, f"the workflow has no argument {name!r}", hint)
        for step_id, pointer, expression in _expressions(plan, output)
        for name in sorted(expression.members(INPUT))
        if name not in properties
    ]


def result_problems(plan: Plan, tools: Mapping[int, CatalogTool], output: Template | None = None) -> list[StepProblem]:
    """Return a problem for each first field of a step's result that its tool's output schema does not list.

    A field with an alternative, as in `$found.extra || ''`, may be missing.

    Args:
        plan: the steps.
        tools: the tools of steps by position, if they are known.
        output: the output of a composite tool.
    """
    schemas = {root: _result_schema(step, tools) for step in plan.steps for root in (str(step.index), step.id)}
    return [
        StepProblem(
            step_id,
            pointer,
            f"${root} has no field {shortened(name, MAX_NAME)!r}",
            _remedy(name, [shortened(each, MAX_NAME) for each in schemas[root]["properties"]]),
        )
        for step_id, pointer, expression in _expressions(plan, output)
        for root in sorted(expression.roots & schemas.keys())
        for name in undeclared_names(schemas[root], dict.fromkeys(sorted(expression.members(root, is_needed=True))))
        if name not in _BESIDE_MEDIA
    ]


def _remedy(name: str, fields: list[str]) -> str:
    near = nearest(name, fields)
    meant = f'write "{near[0]}" instead of "{shortened(name, MAX_NAME)}"; ' if near else ""
    return f"{meant}its fields are {some_of(fields, MAX_NAMED)}"


def _result_schema(step: Step, tools: Mapping[int, CatalogTool]) -> JsonObject:
    """Return the schema of the fields of a step's result; empty for the list of a loop, and for an unwrapped output."""
    tool = tools.get(step.index)
    if tool is None or step.for_each is not None or inner_output(tool) is not None:
        return {}
    schema = tool.definition.get("outputSchema")
    return schema if isinstance(schema, dict) else {}


def _expressions(plan: Plan, output: Template | None) -> Iterator[tuple[str, str, Expression]]:
    """Yield every expression with its step and its JSON pointer."""
    for step in plan.steps:
        at = f"/steps/{step.index}"
        for key, expression in (("when", step.when), ("transform", step.transform)):
            if expression is not None:
                yield step.id, f"{at}/{key}", expression
        for key, template in (("arguments", step.arguments), ("for_each", step.for_each), ("input", step.input)):
            for pointer, expression in _of_template(template):
                yield step.id, f"{at}/{key}{pointer}", expression
    for pointer, expression in _of_template(output):
        yield "", f"/output{pointer}", expression


def _of_template(template: Template | None) -> Iterator[tuple[str, Expression]]:
    for pointer, part in references(template) if template is not None else ():
        if isinstance(part, StepReference):
            yield pointer, part.expression
