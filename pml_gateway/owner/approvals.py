"""Approvals of all processes that serve: found and answered, whichever process has them."""

from __future__ import annotations

from typing import Any, Literal

from pml_gateway.errors import GatewayError, UsageError
from pml_gateway.gateway.approval_requests import ApprovalState
from pml_gateway.owner.operations import ANSWER_APPROVAL, APPROVAL, APPROVALS
from pml_gateway.owner.sockets import NO_ANSWER, ask_gateways, ask_socket
from pml_gateway.paths import Paths

ANSWER_SECONDS = 20.0
"""Time limit in seconds for a process to answer; checking a passphrase takes a tenth of one."""

ApprovalAnswer = Literal["approve", "deny"]


async def asked_approvals(paths: Paths) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the calls that wait in any process, those that were answered lately, and errors of other processes.

    Raises:
        GatewayError: no process knows them now.
    """
    answers = await ask_gateways(paths, APPROVALS, ANSWER_SECONDS)
    if answers.errors and not answers.by_socket:
        raise GatewayError(answers.errors[0])
    # Processes that share a Redis server have the same ones.
    rows = {row["id"]: row for each in answers.results for row in each["approvals"]}
    return list(rows.values()), answers.errors


async def pending_approvals(paths: Paths) -> list[dict[str, Any]]:
    """Return the calls that wait in any process, with their arguments.

    Raises:
        GatewayError: no process knows them now.
    """
    rows, _ = await asked_approvals(paths)
    return [await found_approval(paths, row["id"]) for row in rows if row["state"] == ApprovalState.PENDING]


async def found_approval(paths: Paths, id_: str) -> dict[str, Any]:
    """Return one of them with its arguments.

    Raises:
        UsageError: no process has it.
    """
    answers = await ask_gateways(paths, APPROVAL, ANSWER_SECONDS, {"id": id_})
    return _known(id_, [each["approval"] for each in answers.results], answers.errors)


async def answered_approval(
    paths: Paths, id_: str, answer: ApprovalAnswer, scope: str = "call", passphrase: str = ""
) -> dict[str, Any]:
    """Return an approval as it is after an answer.

    Raises:
        UsageError: no process has it, or the passphrase is wrong.
    """
    answers = await ask_gateways(paths, APPROVALS, ANSWER_SECONDS)
    asked = [path for path, each in answers.by_socket.items() if any(row["id"] == id_ for row in each["approvals"])]
    given = {"id": id_, "answer": answer, "scope": scope, "passphrase": passphrase}
    # Of several processes that share it one is told, so that a wrong passphrase counts once.
    try:
        found = [(await ask_socket(path, ANSWER_APPROVAL, ANSWER_SECONDS, given))["approval"] for path in asked[:1]]
    except NO_ANSWER as error:
        raise GatewayError(f"{asked[0].name}: no answer ({type(error).__name__})") from error
    return _known(id_, found, answers.errors)


def goes_on(asked: dict[str, Any], answer: ApprovalAnswer) -> str:
    """Return a sentence on what follows an approval, as it was before the answer; a denial needs none."""
    if answer == "deny":
        return ""
    return " The call goes on." if asked["is_held"] else " Its client has to send the call again."


def _known(id_: str, found: list[dict[str, Any] | None], errors: list[str]) -> dict[str, Any]:
    for each in found:
        if each is not None:
            return each
    if errors:
        raise GatewayError(errors[0])
    raise UsageError(f"no approval {id_!r} is asked for", hint="pml approvals list")
