"""Rules with `answered_by: client`: the user of the client is asked, for what no rule leaves to the owner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mcp_types
import pytest

from tests.support.approving import ASK, Asking, asking
from tests.support.asking import Person

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.usefixtures("gateways")]

BY_CLIENT = {**ASK, "answered_by": "client"}
LONG, SHORT = {"hold_seconds": 30}, {"hold_seconds": 1}
"""Time for a client to answer, and for an owner who does not."""

MINE = {"repo": "mine"}


class Decided(Person):
    """A person who accepts or declines."""

    action: Any = "accept"

    async def elicit(self, context: Any, params: Any) -> mcp_types.ElicitResult:
        self.asked.append(params.message)
        return mcp_types.ElicitResult(action=self.action, content={} if self.action == "accept" else None)


def decided(action: str) -> Decided:
    person = Decided("ada")
    person.action = action
    return person


async def code_of(asked: Asking, person: Person, name: str, given: dict[str, Any], *, modern: bool = False) -> str:
    """The outcome of a call by a client behind which a person answers, by default of the handshake era."""
    async with person.client(asked.served.url, modern=modern) as client:
        result = await client.call_tool(name, given)
    data = result.structured_content or {}
    slots = [data, *data.get("results", ())]
    return next((each["error"]["code"] for each in slots if each.get("error")), "OK")


@pytest.mark.parametrize(("action", "code"), [("accept", "OK"), ("decline", "FORBIDDEN"), ("cancel", "FORBIDDEN")])
async def test_the_answer_of_the_clients_user_decides(action: str, code: str, tmp_path: Path) -> None:
    person = decided(action)
    async with asking(tmp_path, BY_CLIENT, clients={}, approvals=LONG) as asked:
        assert await code_of(asked, person, "up__wipe", {"repo": "mi\u202ene"}) == code
        assert await asked.rows() == []
    assert person.asked == ['Call up__wipe with {"repo": "mi\\u202ene"}?']
    assert len(asked.sent) == (action == "accept")


async def test_an_answer_is_for_one_call(tmp_path: Path) -> None:
    person = decided("accept")
    async with asking(tmp_path, BY_CLIENT, clients={}, approvals=LONG) as asked:
        calls = {"calls": [{"name": "up__wipe", "arguments": MINE}] * 2}
        assert await code_of(asked, person, "call_batch", calls) == "OK"
    assert len(person.asked) == len(asked.sent) == 2


@pytest.mark.parametrize(
    "rules",
    [
        (ASK, BY_CLIENT),
        ({"match": {"tool": "up:wipe", "where": "length(repo) > `3`"}, "do": "ask", "answered_by": "client"},),
        ({"preset": "careful"}, {"match": {"tool": "up:*"}, "do": "ask", "answered_by": "client"}),
    ],
    ids=["before", "a condition without a value", "a preset"],
)
async def test_a_client_that_accepts_is_never_asked_about_what_is_the_owners(rules: Any, tmp_path: Path) -> None:
    person = decided("accept")
    async with asking(tmp_path, *rules, clients={}, approvals=SHORT) as asked:
        given: dict[str, Any] = {} if "where" in str(rules) else MINE
        assert await code_of(asked, person, "up__wipe", given) == "PENDING_APPROVAL"
        assert len(await asked.waiting()) == 1
    assert person.asked == [] and asked.sent == []


async def test_a_client_without_a_handshake_leaves_the_question_to_the_owner(tmp_path: Path) -> None:
    person = decided("accept")
    async with asking(tmp_path, BY_CLIENT, clients={}, approvals=SHORT) as asked:
        assert await code_of(asked, person, "up__wipe", MINE, modern=True) == "PENDING_APPROVAL"
    assert person.asked == [] and asked.sent == []


async def test_arguments_that_are_too_long_for_a_question_are_shown_to_the_owner(tmp_path: Path) -> None:
    person = decided("accept")
    async with asking(tmp_path, BY_CLIENT, clients={}, approvals=SHORT) as asked:
        assert await code_of(asked, person, "up__wipe", {"repo": "x" * 2000}) == "PENDING_APPROVAL"
    assert person.asked == [] and asked.sent == []
