"""Decisions of the owner about what waits, as `pml approvals` and `pml trust` make them."""

from __future__ import annotations

import time
from collections.abc import Mapping

import anyio.to_thread

from pml_gateway.console.change import ChangeRequest, MadeChange, PlannedChange, Undo
from pml_gateway.console.waiting import known_cases, pins_file
from pml_gateway.gateway.approval_requests import ApprovalScope, ApprovalState
from pml_gateway.owner.approvals import ApprovalAnswer, answered_approval, found_approval, goes_on
from pml_gateway.trust.review import Outcome, State, decide, meant, selected


async def approve(request: ChangeRequest) -> PlannedChange:
    """Plan to approve calls."""
    return await _answer(request, "approve")


async def deny(request: ChangeRequest) -> PlannedChange:
    """Plan to deny calls, or to take back an approval."""
    return await _answer(request, "deny")


async def _answer(request: ChangeRequest, answer: ApprovalAnswer) -> PlannedChange:
    """Plan to answer an approval, whose calls are shown with the form and never change."""
    source, values = request.source, request.values
    id_, scope = values["id"], values.get("scope") or ApprovalScope.CALL.value
    found = await found_approval(source.paths, id_)
    tools = ", ".join(dict.fromkeys(call["tool"] for call in found["calls"]))

    async def make() -> MadeChange:
        row = await answered_approval(source.paths, id_, answer, scope, values.get("passphrase", ""))
        undo = Undo("deny", {"id": id_}) if answer == "approve" else None
        return MadeChange(f"{tools}: {row['state']}{_SCOPES[scope] if undo else ''}.{goes_on(found, answer)}", undo)

    question = f"{answer.capitalize()} {tools}, asked by {found['client']}?"
    if answer == "deny":
        is_denied = found["state"] == ApprovalState.DENIED
        return PlannedChange(question, make, asks=False, made_already=f"{tools}: denied already." if is_denied else "")
    meanwhile = found["state"] != ApprovalState.PENDING
    notes = [f"It was {found['state']} meanwhile."] if meanwhile else []
    return PlannedChange(question, make, "Approve", notes=notes, asks=meanwhile)


_SCOPES = {
    ApprovalScope.CALL.value: "",
    ApprovalScope.ARGUMENTS.value: " with the same arguments",
    ApprovalScope.TOOL.value: " for this client",
}


_ALREADY: Mapping[Outcome, State] = {"approved": State.ACCEPTED, "rejected": State.REJECTED}


async def accept(request: ChangeRequest) -> PlannedChange:
    """Plan to accept a definition."""
    return await _decide(request, "approved")


async def reject(request: ChangeRequest) -> PlannedChange:
    """Plan to reject a definition."""
    return await _decide(request, "rejected")


async def _decide(request: ChangeRequest, outcome: Outcome) -> PlannedChange:
    """Plan to decide about exactly one form of a definition, whose text is shown with the form."""
    source, name = request.source, request.values["name"]
    known = await anyio.to_thread.run_sync(known_cases, source)
    case, already = meant(known, name), _ALREADY[outcome]
    if case.state is not already:
        # Refuses what cannot be accepted.
        [case] = selected(known, [name], None, outcome)
    file = await anyio.to_thread.run_sync(pins_file, source)

    async def make() -> MadeChange:
        await anyio.to_thread.run_sync(decide, file, [case], outcome, time.time())
        again = "" if outcome == "approved" else f" To accept it after all: pml trust approve {case.exact}"
        return MadeChange(f"{case.source} is {'accepted' if outcome == 'approved' else 'rejected'}.{again}")

    verb = "Accept" if outcome == "approved" else "Reject"
    made_already = f"{case.source} is {already.value} already." if case.state is already else ""
    # What was decided otherwise meanwhile, and what is named without its exact form, is asked about.
    is_shown = case.is_waiting and name == case.exact
    return PlannedChange(f"{verb} {case.source}?", make, verb, asks=not is_shown, made_already=made_already)
