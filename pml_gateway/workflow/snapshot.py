"""Snapshots of runs as text, from which a run goes on in another process with the same results."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

from pydantic import TypeAdapter

from pml_gateway.workflow.outcome import BudgetExceeded, StepOutcome


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """The state of a run beyond its plan and its input.

    Args:
        outcomes: the outcome of each step, by its position.
        items: the outcomes in loops, by the positions of the step and the item.
        lengths: the number of items of each loop that has begun.
        begun: the positions of the steps that have made calls.
        exceeded: the limits that were reached.
        spent: the seconds that the run has taken, waits for its user excluded.
        calls_left: the number of calls that it may still make.
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
def _adapter() -> TypeAdapter[RunSnapshot]:
    return TypeAdapter(RunSnapshot)


def dump(snapshot: RunSnapshot) -> str:
    """Return a snapshot as JSON. Takes time proportional to its size.

    Raises:
        ValueError, TypeError, RecursionError: a value in it is not JSON.
    """
    return json.dumps(_adapter().dump_python(snapshot), default=list)


def load(text: str) -> RunSnapshot:
    """Return the snapshot that `dump` wrote."""
    return _adapter().validate_python(json.loads(text))
