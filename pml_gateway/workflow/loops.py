"""The outcomes of the items of a `for_each` become the outcome of its step."""

from __future__ import annotations

from pml_gateway.errors import ErrorCode
from pml_gateway.workflow.outcome import Outcome, SkipReason, StepStatus, error_json
from pml_gateway.workflow.plan import Step

MAX_TOLD = 20
"""Failed items whose errors are told one by one."""


def gathered(step: Step, items: tuple[Outcome, ...]) -> Outcome:
    """The outcome of a `for_each`: the list of its values, null where an item failed or was not called."""
    values = [item.value for item in items]
    if any(item.status is StepStatus.WAITING for item in items):
        return Outcome(StepStatus.WAITING, items=items)
    failed = [index for index, item in enumerate(items) if item.status is StepStatus.ERROR]
    stopped = [item for item in items if item.status is StepStatus.SKIPPED]
    if not failed and not stopped:
        return Outcome(StepStatus.OK, values, items=items)
    not_called = f"; {len(stopped)} were not called" if stopped else ""
    if failed:
        first = items[failed[0]].error or {}
        error = {
            "code": first.get("code", ErrorCode.INTERNAL.value),
            "message": f"{len(failed)} of {len(items)} items of step {step.id!r} failed: "
            f"{first.get('message', '')}{not_called}",
            "retryable": bool(first.get("retryable")),
            "hint": str(first.get("hint", "")),
            "details": {"items": [{"index": index, "error": items[index].error} for index in failed[:MAX_TOLD]]},
        }
        return Outcome(StepStatus.ERROR, values, error=error, items=items)
    by = stopped[0].blocked_by
    if len(stopped) == len(items):
        return Outcome(StepStatus.SKIPPED, reason=SkipReason.STOPPED, blocked_by=by)
    message = f"{len(stopped)} of {len(items)} items of step {step.id!r} were not called, because {by[0]!r} failed"
    return Outcome(StepStatus.ERROR, values, error=error_json(ErrorCode.CANCELLED, message), items=items)
