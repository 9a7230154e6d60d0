"""Calls that wait for their clients' answers: whose gives way where too many wait."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest

from pml_gateway.background import Background
from pml_gateway.storage import pending
from pml_gateway.storage.pending import PendingNotFoundError
from pml_gateway.upstreams.dialogue.suspended_calls import SuspendedCall, SuspendedCalls
from tests.support.asking import Asked

pytestmark = pytest.mark.anyio


def request() -> str:
    return "the fingerprint"


async def ask(call: SuspendedCall) -> dict[str, Any]:
    return await call.ask("elicitation/create", {}, None)


async def test_one_client_whose_calls_wait_costs_no_other_its_own_and_each_goes_on_with_its_own_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pending, "MAX_PENDING", 4)
    background = Background()
    calls = SuspendedCalls("up", background, 60)
    a, b = Asked("client:a", answers_later=True), Asked("client:b", answers_later=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(background.run)
        mine = (await calls.begin(b, None, request, ask))["requestState"]
        flood = [(await calls.begin(a, None, request, ask))["requestState"] for _ in range(6)]
        answer = {"q1": {"action": "accept"}}
        resume = partial(calls.resume, a, None, request())
        for state in flood[:3]:
            with pytest.raises(PendingNotFoundError):
                await resume(state, answer)
        with pytest.raises(PendingNotFoundError):
            await calls.resume(a, None, "of other arguments", flood[3], answer)
        assert await resume(flood[3], answer) == {"action": "accept"}
        assert await calls.resume(b, None, request(), mine, answer) == {"action": "accept"}
        tasks.cancel_scope.cancel()
