"""The fields common to workflows and batches: they are read leniently, and problems name their JSON pointers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from pml_gateway.errors import ErrorCode
from pml_gateway.exposure.vocabulary import UnreadableKeysError, from_text, kind_of, meaning, object_in, read
from pml_gateway.types import JsonObject
from pml_gateway.workflow.plan import Budget, PlanError, StepProblem, tightened

_NUMBER = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,6})?")

BUDGET_KEYS = ("max_steps", "max_tokens", "max_seconds", "max_parallel")


def condition(wanted: JsonObject) -> str:
    """Write a condition such as `{kind: issue}` as an expression over `$input`; a list means any of its values."""
    parts = []
    for name, value in wanted.items():
        field = json.dumps(str(name))
        choices = value if isinstance(value, list) else [value]
        equal = " || ".join(
            f"$input.{field} == `{json.dumps(choice).replace('`', chr(92) + '`')}`" for choice in choices
        )
        parts.append(f"({equal or '`false`'})")
    return " && ".join(parts) or "`true`"


def key_problems(error: UnreadableKeysError, step_id: str, pointer: str) -> list[StepProblem]:
    """Return the problems of one entry with its keys."""
    return [StepProblem(step_id, f"{pointer}{each.path}", each.message, each.hint) for each in error.problems]


def list_of(value: Any, key: str, example: str, *, subject: str = "the workflow") -> list[Any]:
    """Return a list that models may also send as JSON text, or as its only entry."""
    value = from_text(value)
    if isinstance(value, dict) and is_entry(value):
        return [value]
    if not isinstance(value, list) or not value:
        problem = StepProblem("", f"/{key}", f"{key} is a list with at least one entry", f"for example {example}")
        raise PlanError([problem], subject=subject)
    return [from_text(each) if isinstance(each, str) else each for each in value]


def is_entry(value: JsonObject) -> bool:
    """Return True if an object is itself a call or a step, and not several of them by name."""
    return any(meaning(key, ("tool", "transform")) is not None and isinstance(value[key], str) for key in value)


def arguments_of(value: Any, step_id: str, pointer: str, problems: list[StepProblem]) -> JsonObject:
    """Return arguments as an object; models also send them as JSON text."""
    if value is None:
        return {}
    found = object_in(value)
    if found is None:
        hint = 'write "arguments": {"<parameter>": <value>}'
        problems.append(StepProblem(step_id, pointer, f"arguments are a JSON object, and not {kind_of(value)}", hint))
        return {}
    return found


def etag_of(fields: JsonObject, step_id: str, pointer: str, problems: list[StepProblem]) -> str | None:
    """Return the etag of an earlier result, if one is given."""
    value = fields.get("if_none_match")
    if value is None or isinstance(value, str):
        return value
    problems.append(
        StepProblem(step_id, f"{pointer}/if_none_match", "if_none_match is the etag of an earlier result", "a text")
    )
    return None


def budget_of(request: JsonObject, limits: Budget, problems: list[StepProblem]) -> Budget:
    """Return the configured limits, lowered by those that the request asks for."""
    raw = from_text(request.get("budget")) or {}
    if not isinstance(raw, dict):
        problems.append(StepProblem("", "/budget", "budget is an object", f"its keys are {', '.join(BUDGET_KEYS)}"))
        return limits
    try:
        reading = read(raw, BUDGET_KEYS)
    except UnreadableKeysError as error:
        problems += key_problems(error, "", "/budget")
        return limits
    wanted = {**reading.fields, "max_parallel": reading.fields.get("max_parallel", request.get("max_parallel"))}
    values: dict[str, Any] = {}
    for key in BUDGET_KEYS:
        value = tightened(getattr(limits, key), number_in(wanted.get(key)), whole=key != "max_seconds")
        if value is None:
            message = f"{key} {str(wanted[key])[:40]!r} is no positive number"
            problems.append(
                StepProblem("", f"/budget/{key}", message, f"for example {getattr(limits, key):g}, its limit")
            )
            value = getattr(limits, key)
        values[key] = value
    return replace(limits, **values)


def number_in(value: Any) -> Any:
    """Return the number in a text; return any other value unchanged."""
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        return value
    return float(value) if "." in value else int(value)


def check_size(count: int, budget: Budget, what: str, *, subject: str = "the workflow") -> None:
    """Refuse more entries than one request may have, before any of them runs."""
    if count <= budget.max_steps:
        return
    message = f"{count} {what}; at most {budget.max_steps} in one request (workflow.max_steps)"
    problem = StepProblem("", f"/{what}", message, "split it into several requests", ErrorCode.BUDGET_EXCEEDED)
    raise PlanError([problem], subject=subject)
