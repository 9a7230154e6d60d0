"""Decisions of the owner about what waits, as `pml approvals` and `pml trust` make them."""

from __future__ import annotations

from pml_gateway.console.change import ChangeRequest, MadeChange, PlannedChange, Undo
from pml_gateway.gateway.approvals import ApprovalScope
from pml_gateway.owner.approvals import ApprovalAnswer, answered_approval


async def approve(request: ChangeRequest) -> PlannedChange:
    """Plan to approve calls."""
    return await _answer(request, "approve")


async def deny(request: ChangeRequest) -> PlannedChange:
    """Plan to deny calls, or to take back an approval."""
    return await _answer(request, "deny")


async def _answer(request: ChangeRequest, answer: ApprovalAnswer) -> PlannedChange:
    """Plan to answer an approval. Its calls are shown where it is asked for, and never change."""
    source, values = request.source, request.values
    id_ = values["id"]

    async def make() -> MadeChange:
        scope, passphrase = values.get("scope") or ApprovalScope.CALL.value, values.get("passphrase", "")
        row = await answered_approval(source.paths, id_, answer, scope, passphrase)
        tools = ", ".join(dict.fromkeys(call["tool"] for call in row["calls"]))
        undo = Undo("deny", {"id": id_}) if answer == "approve" else None
        return MadeChange(f"{tools}: {row['state']}.", undo)

    return PlannedChange(f"{answer.capitalize()} {id_}?", make, answer.capitalize())
