"""What a composite tool reads of its arguments becomes the list of those that it does not declare."""

from __future__ import annotations

from collections.abc import Iterator

from pml_gateway.types import JsonObject
from pml_gateway.workflow.expressions import Expression
from pml_gateway.workflow.plan import INPUT, Plan, StepProblem
from pml_gateway.workflow.templates import Reference, Template, references

_COMBINED = ("anyOf", "oneOf", "allOf", "$ref", "patternProperties")
"""Keywords through which a schema may have more arguments than its `properties`."""


def input_problems(schema: JsonObject, plan: Plan, output: Template | None) -> list[StepProblem]:
    """Each argument that a step or the output reads and `schema` does not name: it could only ever be missing."""
    properties = schema.get("properties")
    is_open = schema.get("additionalProperties") not in (None, False) or any(key in schema for key in _COMBINED)
    if is_open or not isinstance(properties, dict):
        return []
    named = ", ".join(map(str, properties)) or "none"
    hint = f"its arguments are {named}; others are declared under input.properties"
    return [
        StepProblem(
            step_id,
            pointer,
            f"the workflow has no argument {name!r}",
            hint,
        )
        for step_id, pointer, expression in _expressions(plan, output)
        for name in sorted(expression.members(INPUT))
        if name not in properties
    ]


def _expressions(plan: Plan, output: Template | None) -> Iterator[tuple[str, str, Expression]]:
    """Every expression with its step and its JSON pointer."""
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
        if isinstance(part, Reference):
            yield pointer, part.expression
