r"""A request of a client that may be asked something: which session it takes, and how questions cross the two eras.

| client \ upstream | handshake | stateless |
| --- | --- | --- |
| handshake | asked in the middle of the call | asked between rounds, which the gateway makes |
| stateless | the call waits in a task of its own | questions and answers pass as they are |
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import METHOD_NOT_FOUND

from pml_gateway.errors import ErrorCode, UpstreamError, UpstreamProtocolError
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.connection import MODERN
from pml_gateway.upstreams.deadlines import paused, running
from pml_gateway.upstreams.questions import Audience, OpenCall
from pml_gateway.upstreams.suspended import SuspendedCalls

MAX_ROUNDS = 10
"""How often a stateless upstream may ask in one call; as the official SDKs."""

WAIT_SECONDS = 0.25
"""Pause before a round without questions, with which an upstream says that it is not ready."""

Send = Callable[[JsonObject, ProgressFnT | None, Audience], Awaitable[JsonObject]]
"""One round: the raw result of the request with these params, whose upstream may ask this audience."""


class QuestionRefusedError(UpstreamError):
    """The client answered an upstream's question with an error."""

    code = ErrorCode.CANCELLED


class RelayedRequests:
    """The requests to one upstream whose clients may be asked."""

    def __init__(self, suspended: SuspendedCalls, question_timeout: float) -> None:
        self._suspended = suspended
        self._question_timeout = question_timeout

    async def request(
        self, params: JsonObject, audience: Audience, on_progress: ProgressFnT | None, era: str, send: Send
    ) -> JsonObject:
        """The result of a request, or the interim result that asks a client which answers later.

        Raises:
            GatewayError: what became of the request, or of a question.
        """
        if era == MODERN:
            first = await send(params, on_progress, audience)
            return first if audience.answers_later else await self._rounds(first, params, audience, on_progress, send)
        if not audience.answers_later or not (audience.abilities or "requestState" in params):
            return await send(params, on_progress, audience)
        given = dict(params)
        state, responses = given.pop("requestState", None), given.pop("inputResponses", None)
        if state is not None:
            answers = responses if isinstance(responses, dict) else {}
            return await self._suspended.resume(audience, on_progress, str(state), answers)
        return await self._suspended.begin(
            audience, on_progress, lambda call: send(given, call.report if on_progress else None, call)
        )

    async def _rounds(
        self, first: JsonObject, params: JsonObject, audience: Audience, on_progress: ProgressFnT | None, send: Send
    ) -> JsonObject:
        """Ask the client what the upstream wants to know, and send the request again with the answers."""
        result = first
        for _ in range(MAX_ROUNDS):
            if result.get("resultType") != "input_required":
                return result
            requests, again = result.get("inputRequests"), dict(params)
            again.pop("inputResponses", None)
            if isinstance(requests, dict) and requests:
                again["inputResponses"] = await self._ask_all(requests, audience)
            else:
                await anyio.sleep(WAIT_SECONDS)
            again["requestState"] = result.get("requestState")
            if again["requestState"] is None:
                del again["requestState"]
            result = await send(again, on_progress, audience)
        if result.get("resultType") == "input_required":
            raise UpstreamProtocolError(f"the server asked for input more than {MAX_ROUNDS} times in one call")
        return result

    async def _ask_all(self, requests: JsonObject, audience: Audience) -> JsonObject:
        answers: JsonObject = {}
        refusals: list[MCPError] = []
        call = OpenCall(audience, self._question_timeout)

        async def ask(key: str, request: Any) -> None:
            try:
                answers[key] = await call.answer(*_question(request))
            except MCPError as error:
                refusals.append(error)
                tasks.cancel_scope.cancel()

        with paused(running()):
            async with anyio.create_task_group() as tasks:
                for key, request in requests.items():
                    tasks.start_soon(ask, key, request)
        if refusals:
            raise QuestionRefusedError(
                f"the server asked its user something, and the client refused: {refusals[0].message}",
                details={"jsonrpc_code": refusals[0].code},
            )
        return answers


def _question(request: Any) -> tuple[str, JsonObject]:
    if not isinstance(request, dict) or not isinstance(request.get("method"), str):
        raise MCPError(METHOD_NOT_FOUND, "a question without a method")
    params = request.get("params")
    return request["method"], dict(params) if isinstance(params, dict) else {}
