"""The fields that workflows and batches share, read leniently and reported with their JSON pointers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from pml_gateway.errors import ErrorCode
from pml_gateway.text import did_you_mean, nearest
from pml_gateway.types import JsonObject
from pml_gateway.workflow.plan import Budget, PlanError, StepProblem, tightened

BUDGET_KEYS = ("max_steps", "max_tokens", "max_seconds", "max_parallel")


def condition(wanted: JsonObject) -> str:
    """`{kind: issue}` as an expression over `$input`; a list means any of its values."""
    parts = []
    for name, value in wanted.items():
        field = json.dumps(str(name))
        choices = value if isinstance(value, list) else [value]
        equal = " || ".join(
            f"$input.{field} == `{json.dumps(choice).replace('`', chr(92) + '`')}`" for choice in choices
        )
        parts.append(f"({equal or '`false`'})")
    return " && ".join(parts) or "`true`"


def renamed(fields: JsonObject, aliases: dict[str, str]) -> JsonObject:
    """The fields under the names this version knows; a field given under both keeps the known one."""
    return {
        (aliases[key] if key in aliases and aliases[key] not in fields else key): value for key, value in fields.items()
    }


def unknown_keys(fields: JsonObject, known: tuple[str, ...], step_id: str, pointer: str) -> list[StepProblem]:
    """A problem for each key that nothing reads, with the nearest known one."""
    problems = []
    for key in fields:
        if key not in known:
            hint = did_you_mean(nearest(key, known)) or f"known are {', '.join(known)}"
            problems.append(StepProblem(step_id, f"{pointer}/{str(key)[:64]}", f"unknown key {str(key)[:64]!r}", hint))
    return problems


def list_of(value: Any, key: str, example: str, *, subject: str = "the workflow") -> list[Any]:
    """A list, also as JSON text, as models send it."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, list) or not value:
        problem = StepProblem("", f"/{key}", f"{key} is a list with at least one entry", f"for example {example}")
        raise PlanError([problem], subject=subject)
    return value


def arguments_of(value: Any, step_id: str, pointer: str, problems: list[StepProblem]) -> JsonObject:
    """Arguments as an object; models also send them as JSON text."""
    if value is None:
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, dict):
        problems.append(StepProblem(step_id, pointer, "arguments are a JSON object", 'for example {"path": "a.txt"}'))
        return {}
    return value


def etag_of(fields: JsonObject, step_id: str, pointer: str, problems: list[StepProblem]) -> str | None:
    """The etag of an earlier result, if one is given."""
    value = fields.get("if_none_match")
    if value is None or isinstance(value, str):
        return value
    problems.append(
        StepProblem(step_id, f"{pointer}/if_none_match", "if_none_match is the etag of an earlier result", "a text")
    )
    return None


def budget_of(request: JsonObject, limits: Budget, problems: list[StepProblem]) -> Budget:
    """The configured limits, tightened by what the request asks for."""
    raw = request.get("budget") or {}
    if not isinstance(raw, dict):
        problems.append(StepProblem("", "/budget", "budget is an object", f"its keys are {', '.join(BUDGET_KEYS)}"))
        return limits
    problems += unknown_keys(raw, BUDGET_KEYS, "", "/budget")
    wanted = {**raw, "max_parallel": raw.get("max_parallel", request.get("max_parallel"))}
    values: dict[str, Any] = {}
    for key in BUDGET_KEYS:
        value = tightened(getattr(limits, key), wanted.get(key), whole=key != "max_seconds")
        if value is None:
            message = f"{key} {str(wanted[key])[:40]!r} is no positive number"
            problems.append(
                StepProblem("", f"/budget/{key}", message, f"for example {getattr(limits, key):g}, its limit")
            )
            value = getattr(limits, key)
        values[key] = value
    return replace(limits, **values)


def check_size(count: int, budget: Budget, what: str, *, subject: str = "the workflow") -> None:
    """Refuse more entries than one request may have, before any of them runs."""
    if count <= budget.max_steps:
        return
    message = f"{count} {what}; at most {budget.max_steps} in one request (workflow.max_steps)"
    problem = StepProblem("", f"/{what}", message, "split it into several requests", ErrorCode.BUDGET_EXCEEDED)
    raise PlanError([problem], subject=subject)
