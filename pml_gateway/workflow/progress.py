"""The progress of a run as text, so that it can go on in another process with equal results."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

from pydantic import TypeAdapter

from pml_gateway.workflow.outcome import BudgetExceeded, StepOutcome


@dataclass(frozen=True, slots=True)
class Progress:
    """Everything that a run knows beyond its plan and its input.

    Args:
        outcomes: by the position of the step.
        items: those of loops, by the position of the step and of the item.
        lengths: the items of each loop that has begun.
        begun: the steps that have called something.
        exceeded: limits that were reached.
        spent: seconds that the run has taken, without the time for which it waited.
        calls_left: calls that it may still make.
        stopped_by: the step whose failure stopped the run.
    """

    outcomes: dict[int, StepOutcome]
    items: dict[int, dict[int, StepOutcome]]
    lengths: dict[int, int]
    begun: set[int]
    exceeded: list[BudgetExceeded]
    spent: float
    calls_left: int
    stopped_by: str | None


@cache
def _adapter() -> TypeAdapter[Progress]:
    return TypeAdapter(Progress)


def written(progress: Progress) -> str:
    """Return the progress as JSON, which `read` turns into an equal one. Takes time proportional to its size.

    Raises:
        ValueError, TypeError, RecursionError: a value in it is not JSON.
    """
    return json.dumps(_adapter().dump_python(progress), default=list)


def read(text: str) -> Progress:
    """Return what `written` wrote."""
    return _adapter().validate_python(json.loads(text))
