"""Calls that wait for their clients' answers: whose gives way where too many wait."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest

from pml_gateway.upstreams.dialogue import suspended_calls
from pml_gateway.upstreams.dialogue.background import Background
from pml_gateway.upstreams.dialogue.suspended_calls import StateUnknownError, SuspendedCall, SuspendedCalls
from tests.support.asking import Asked

pytestmark = pytest.mark.anyio


async def ask(call: SuspendedCall) -> dict[str, Any]:
    return await call.ask("elicitation/create", {}, None)


async def test_one_client_whose_calls_wait_costs_no_other_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspended_calls, "MAX_WAITING", 4)
    background = Background()
    calls = SuspendedCalls("up", background, 60)
    a, b = Asked("client:a", answers_later=True), Asked("client:b", answers_later=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(background.run)
        mine = (await calls.begin(b, None, ask))["requestState"]
        flood = [(await calls.begin(a, None, ask))["requestState"] for _ in range(6)]
        answer = {"q1": {"action": "accept"}}
        resume = partial(calls.resume, a, None)
        for state in flood[:3]:
            with pytest.raises(StateUnknownError):
                await resume(state, answer)
        assert await resume(flood[3], answer) == {"action": "accept"}
        assert await calls.resume(b, None, mine, answer) == {"action": "accept"}
        tasks.cancel_scope.cancel()
