"""Approvals of all processes that serve: found and answered, whichever process has them."""

from __future__ import annotations

from typing import Any, Literal

from pml_gateway.errors import GatewayError, UsageError
from pml_gateway.gateway.approvals import ApprovalState
from pml_gateway.owner.operations import ANSWER_APPROVAL, APPROVAL, APPROVALS
from pml_gateway.owner.sockets import ask_gateways
from pml_gateway.paths import Paths

ANSWER_SECONDS = 20.0
"""Time limit in seconds for a process to answer; checking a passphrase takes a tenth of one."""

ApprovalAnswer = Literal["approve", "deny"]


async def asked_approvals(paths: Paths) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the calls that wait in any process, those that were answered lately, and errors of other processes."""
    answers = await ask_gateways(paths, APPROVALS, ANSWER_SECONDS)
    return [row for each in answers.results for row in each["approvals"]], answers.errors


async def pending_approvals(paths: Paths) -> list[dict[str, Any]]:
    """Return the calls that wait in any process, with their arguments."""
    rows, _ = await asked_approvals(paths)
    return [await found_approval(paths, row["id"]) for row in rows if row["state"] == ApprovalState.PENDING]


async def found_approval(paths: Paths, id_: str) -> dict[str, Any]:
    """Return one of them with its arguments.

    Raises:
        UsageError: no process has it.
    """
    return await _found(paths, id_, None)


async def answered_approval(
    paths: Paths, id_: str, answer: ApprovalAnswer, scope: str = "call", passphrase: str = ""
) -> dict[str, Any]:
    """Return an approval as it is after an answer.

    Raises:
        UsageError: no process has it, or the passphrase is wrong.
    """
    return await _found(paths, id_, {"id": id_, "answer": answer, "scope": scope, "passphrase": passphrase})


def goes_on(asked: dict[str, Any], answer: ApprovalAnswer) -> str:
    """Return a sentence on what follows an approval, as it was before the answer; a denial needs none."""
    if answer == "deny":
        return ""
    return " The call goes on." if asked["is_held"] else " Its client has to send the call again."


async def _found(paths: Paths, id_: str, answer: dict[str, Any] | None) -> dict[str, Any]:
    operation = APPROVAL if answer is None else ANSWER_APPROVAL
    answers = await ask_gateways(paths, operation, ANSWER_SECONDS, answer or {"id": id_})
    for each in answers.results:
        if each["approval"] is not None:
            return each["approval"]
    if answers.errors:
        raise GatewayError(answers.errors[0])
    raise UsageError(f"no approval {id_!r} is asked for", hint="pml approvals list")
