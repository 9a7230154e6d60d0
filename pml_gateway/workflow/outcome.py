"""The outcome of a step, and the value of a tool's result for the steps after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import anyio.to_thread

from pml_gateway.errors import ErrorCode, error_json
from pml_gateway.results.content import WRAPPED, Content, addressed
from pml_gateway.results.encoding import shown_at_most
from pml_gateway.results.settle import PresentedResult
from pml_gateway.text import counted
from pml_gateway.types import JsonObject

DECODED_AT_ONCE = 64 * 1024
"""Maximum number of characters of JSON text decoded on the event loop (about a millisecond); more goes to a thread."""

MAX_ERROR = 6000
"""Maximum number of characters of a tool's error; a longer one keeps its beginning (2/3) and its end (1/3)."""


class StepStatus(StrEnum):
    """The status of a step; `waiting` is not final: its user has to answer first."""

    OK = "ok"
    ERROR = "error"
    SKIPPED = "skipped"
    WAITING = "waiting"


class SkipReason(StrEnum):
    """The reason why a step did not run."""

    CONDITION = "when"
    BLOCKED = "blocked"
    STOPPED = "stopped"
    BUDGET = "budget"


class RunStatus(StrEnum):
    """The final status of a run."""

    COMPLETED = "completed"
    PARTIAL = "partial"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a tool to its user: its requests by key, and the state that it wants back."""

    requests: JsonObject
    state: str | None = None


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The outcome of one step; `value` is the value that references read, `called` the result of the tool.

    `refs` name the sources of the value: its own reference if it is stored, otherwise those that went into it.
    Times are in seconds since the run began.
    """

    status: StepStatus
    value: Any = None
    called: PresentedResult | None = None
    error: JsonObject | None = None
    reason: SkipReason | None = None
    blocked_by: tuple[str, ...] = ()
    question: Question | None = None
    items: tuple[StepOutcome, ...] | None = None
    arguments: JsonObject | None = None
    shared_with: str | None = None
    refs: tuple[str, ...] = ()
    began: float = 0.0
    ended: float = 0.0

    @property
    def has_wrapper(self) -> bool:
        """Return True if `result` may name the whole value: the tool answered `{"result": value}`, or a text.

        Answers show the value under that name. For a loop, return True if that holds for one of its items.
        """
        if self.items is not None:
            return any(item.has_wrapper for item in self.items)
        return isinstance(self.value, str) or (self.called is not None and self.called.content.is_unwrapped)

    @property
    def wrapped(self) -> Any:
        """Return the value as `{"result": value}` if `has_wrapper` is true, otherwise unchanged."""
        if self.items is not None and isinstance(self.value, list):
            return [item.wrapped for item in self.items]
        return {WRAPPED: self.value} if self.has_wrapper else self.value

    @property
    def is_failure(self) -> bool:
        """Return True if the run is incomplete because of this step."""
        if self.status is StepStatus.ERROR:
            return True
        return self.status is StepStatus.SKIPPED and self.reason in (SkipReason.STOPPED, SkipReason.BUDGET)


@dataclass(frozen=True, slots=True)
class BudgetExceeded:
    """A limit that was reached: its name, its value and details. It comes from the setting `workflow.NAME`."""

    limit: str
    value: int | float
    """A whole number stays one when it is read back."""
    details: JsonObject = field(default_factory=dict)

    def as_json(self) -> JsonObject:
        """Return the limit as an answer shows it."""
        return {"limit": self.limit, "value": self.value, "setting": f"workflow.{self.limit}", **self.details}


def run_status(outcomes: list[StepOutcome]) -> RunStatus:
    """Return completed if nothing failed, failed if nothing succeeded, else partial; an item of a loop counts too."""
    if not any(outcome.is_failure for outcome in outcomes):
        return RunStatus.COMPLETED
    results = [*outcomes, *(item for outcome in outcomes for item in outcome.items or ())]
    return RunStatus.PARTIAL if any(each.status is StepStatus.OK for each in results) else RunStatus.FAILED


async def value_of(content: Content) -> Any:
    """Return the value of a result that references read; paths into a stored result read the same."""
    if content.kind == "text" and len(content.value) > DECODED_AT_ONCE:
        return await anyio.to_thread.run_sync(addressed, content)
    return addressed(content)


def error_of(result: JsonObject) -> JsonObject:
    """Return the error in a tool's `isError` result: the gateway's own unchanged, another's as text, shortened."""
    structured = result.get("structuredContent")
    own = structured.get("error") if isinstance(structured, dict) else None
    if isinstance(own, dict) and own.get("code") in list(ErrorCode):
        return own
    content = result.get("content")
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    texts = [str(block["text"]) for block in blocks if block.get("type") == "text" and "text" in block]
    text = _cut("\n".join(texts)) or "the tool answered with an error and no text"
    error = error_json(ErrorCode.UPSTREAM_ERROR, text)
    if structured is not None:
        error["details"] = {"structuredContent": shown_at_most(structured, MAX_ERROR)}
    return error


def _cut(text: str) -> str:
    left_out = len(text) - MAX_ERROR
    if left_out <= 0:
        return text
    last = MAX_ERROR // 3
    note = f"[{counted(left_out, 'character')} left out; a single call has them all]"
    return f"{text[: MAX_ERROR - last]}\n{note}\n{text[-last:]}"
