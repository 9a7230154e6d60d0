"""What became of a step, and what a tool's result is worth to the steps after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import anyio.to_thread

from pml_gateway.errors import ErrorCode, error_json
from pml_gateway.results.content import WRAPPED, Content, addressed
from pml_gateway.results.encoding import shown_at_most
from pml_gateway.results.settle import Settled
from pml_gateway.text import counted
from pml_gateway.types import JsonObject

DECODED_AT_ONCE = 64 * 1024
"""Characters of JSON text that are decoded on the event loop, in about a millisecond; more goes to a thread."""


MAX_ERROR = 6000
"""Characters of a tool's error that are told; of a longer one two thirds of its beginning and a third of its end."""


class StepStatus(StrEnum):
    """How a step ended; `waiting` is no end: its user has to answer first."""

    OK = "ok"
    ERROR = "error"
    SKIPPED = "skipped"
    WAITING = "waiting"


class SkipReason(StrEnum):
    """Why a step did not run."""

    CONDITION = "when"
    BLOCKED = "blocked"
    STOPPED = "stopped"
    BUDGET = "budget"


class RunStatus(StrEnum):
    """How a whole run ended."""

    COMPLETED = "completed"
    PARTIAL = "partial"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Question:
    """What a tool asks its user before it goes on: its requests by key, and the state it wants back."""

    requests: JsonObject
    state: str | None = None


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What became of one step; `value` is what references read, `called` what the tool answered.

    `refs` name what the value was made of: its own reference where it is stored, or else those that went into it.
    Times are in seconds since the run began.
    """

    status: StepStatus
    value: Any = None
    called: Settled | None = None
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
        """Whether `result` is a name for all of it: the tool answered `{"result": value}`, or a text without fields.

        So answers name it. Of a loop, whether that is so of an item.
        """
        if self.items is not None:
            return any(item.has_wrapper for item in self.items)
        return isinstance(self.value, str) or (self.called is not None and self.called.content.is_unwrapped)

    @property
    def wrapped(self) -> Any:
        """The value under that name."""
        if self.items is not None and isinstance(self.value, list):
            return [item.wrapped for item in self.items]
        return {WRAPPED: self.value} if self.has_wrapper else self.value

    @property
    def is_failure(self) -> bool:
        """Whether the run is not complete because of this step."""
        if self.status is StepStatus.ERROR:
            return True
        return self.status is StepStatus.SKIPPED and self.reason in (SkipReason.STOPPED, SkipReason.BUDGET)


@dataclass(frozen=True, slots=True)
class Exceeded:
    """A limit that ran out: which, its value, and the setting it comes from."""

    limit: str
    value: float
    details: JsonObject = field(default_factory=dict)

    def as_json(self) -> JsonObject:
        """The limit as an answer shows it."""
        return {"limit": self.limit, "value": self.value, "setting": f"workflow.{self.limit}", **self.details}


def run_status(outcomes: list[StepOutcome]) -> RunStatus:
    """Completed without any failure, failed without any success, partial in between; an item of a loop counts too."""
    if not any(outcome.is_failure for outcome in outcomes):
        return RunStatus.COMPLETED
    results = [*outcomes, *(item for outcome in outcomes for item in outcome.items or ())]
    return RunStatus.PARTIAL if any(each.status is StepStatus.OK for each in results) else RunStatus.FAILED


async def value_of(content: Content) -> Any:
    """What references read of a result, which is what paths into a stored result read too."""
    if content.kind == "text" and len(content.value) > DECODED_AT_ONCE:
        return await anyio.to_thread.run_sync(addressed, content)
    return addressed(content)


def error_of(result: JsonObject) -> JsonObject:
    """The error in a tool's `isError` result: the gateway's own as it is, another's with its text, a long one cut."""
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
    note = f"[{counted(left_out, 'character')} left out; call_tool has them all]"
    return f"{text[: MAX_ERROR - last]}\n{note}\n{text[-last:]}"
