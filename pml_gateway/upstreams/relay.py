r"""Requests during which the upstream may ask or tell their client something, and how questions cross the two eras.

A handshake upstream asks in the middle of a call and waits; a client of the stateless protocol gets the question as
the result of its request and answers with another one.

| client \ upstream | handshake | stateless |
| --- | --- | --- |
| handshake | asked in the middle of the call | asked between rounds, which the gateway makes |
| stateless | the call waits in a task of its own | questions and answers pass as they are |
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import METHOD_NOT_FOUND

from pml_gateway.config.settings import EffectiveSettings
from pml_gateway.errors import ErrorCode, GatewayError, UpstreamError, UpstreamProtocolError
from pml_gateway.log import get_logger
from pml_gateway.mcp.connection import Connection
from pml_gateway.mcp.deadlines import paused, running
from pml_gateway.mcp.elicitation import Audience, OpenCall
from pml_gateway.mcp.negotiation import MODERN
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.breaker import Breaker
from pml_gateway.upstreams.call import Calls, Request, SessionExpiredError
from pml_gateway.upstreams.concurrency import CallLimit
from pml_gateway.upstreams.dialogue.background import Background
from pml_gateway.upstreams.dialogue.client_sessions import OwnSessions
from pml_gateway.upstreams.dialogue.question_probe import QuestionProbe
from pml_gateway.upstreams.dialogue.shared_questions import UnclearQuestionError
from pml_gateway.upstreams.dialogue.suspended_calls import SuspendedCall, SuspendedCalls
from pml_gateway.upstreams.retries import repeated
from pml_gateway.upstreams.session_choice import TRIED, UNTRIED, SessionChoice

logger = get_logger(__name__)

MAX_ROUNDS = 10
"""How often a stateless upstream may ask in one call; as the official SDKs."""

WAIT_SECONDS = 0.25
"""Pause before a round without questions, with which an upstream says that it is not ready."""

SendRound = Callable[[JsonObject, ProgressFnT | None, Audience], Awaitable[JsonObject]]
"""One round: the raw result of the request with these params, whose upstream may ask this audience."""


class QuestionRefusedError(UpstreamError):
    """The client answered an upstream's question with an error."""

    code = ErrorCode.CANCELLED


class Relay:
    """The requests to one upstream whose clients may be asked or told something, or have sessions of their own."""

    def __init__(
        self,
        effective: EffectiveSettings,
        choice: SessionChoice,
        calls: Calls,
        *,
        own_sessions: OwnSessions,
        question_probe: QuestionProbe,
        background: Background,
        limit: CallLimit,
        breaker: Breaker,
    ) -> None:
        self._question_timeout = effective.defaults.question_timeout
        self._choice = choice
        self._calls = calls
        self._own_sessions = own_sessions
        self._question_probe = question_probe
        self._limit = limit
        self._breaker = breaker
        self._suspended = SuspendedCalls(effective.upstream_id, background, self._question_timeout)

    async def send(
        self,
        method: str,
        params: JsonObject,
        limits: tuple[float, float],
        on_progress: ProgressFnT | None,
        audience: Audience,
    ) -> JsonObject:
        """The result of a request, or the interim result that asks a client which answers later.

        Each round of it has the first of `limits` in seconds, which progress renews until the second.

        Raises:
            GatewayError: what became of the request, or of a question.
        """
        self._breaker.check(audience.share)
        limit, total = limits
        era, why_own = await self._choice.choose(audience, limit)

        async def send(given: JsonObject, report: ProgressFnT | None, asked: Audience) -> JsonObject:
            now = anyio.current_time()
            request = Request(method, given, report, limit, now + limit, now + total, asked.share)
            try:
                return await self._round(request, asked, era, why_own)
            except UnclearQuestionError:
                if not self._calls.is_repeatable(request):
                    raise
                again = replace(request, deadline=anyio.current_time() + limit)
                return await self._round(again, asked, era, TRIED)

        if era == MODERN:
            first = await send(params, on_progress, audience)
            return first if audience.answers_later else await self._rounds(first, params, audience, on_progress, send)
        if not audience.answers_later or not (audience.client_capabilities or "requestState" in params):
            return await send(params, on_progress, audience)
        given = dict(params)
        state, responses = given.pop("requestState", None), given.pop("inputResponses", None)
        if state is not None:
            answers = responses if isinstance(responses, dict) else {}
            return await self._suspended.resume(audience, on_progress, str(state), answers)
        return await self._suspended.begin(
            audience, on_progress, lambda call: send(given, call.report if on_progress else None, call)
        )

    def end_client(self, client_id: str) -> None:
        """Give up the calls that wait for a client which does not come back."""
        self._suspended.end_client(client_id)

    async def _round(self, request: Request, audience: Audience, era: str, why_own: str) -> JsonObject:
        """One request in which the upstream may ask; it is repeated only while nobody has been asked.

        It takes a session of the client's own where there is a reason for that.
        """
        calls: list[OpenCall] = []
        check = partial(self._breaker.check, request.share)
        # A suspended call is given up as a whole when its client does not come back.
        patience = math.inf if isinstance(audience, SuspendedCall) else self._question_timeout

        async def attempt() -> JsonObject:
            call = OpenCall(audience, patience)
            if isinstance(audience, SuspendedCall):
                call.party = call
            calls.append(call)
            proven, tried = self._question_probe.proven, request.subject
            call.is_proven, call.is_repeatable = tried in proven, self._calls.is_repeatable(request)
            async with AsyncExitStack() as stack:
                borrowed, why = None, why_own
                is_tried = not why and self._choice.is_tried(request.method, era)
                if is_tried:
                    why = await self._why_apart(request, call, era, stack)
                if why:
                    check()
                    borrowed = await self._own(request, call, era, why, stack)
                place = self._limit.taken(request.deadline, check, request.share)
                permit = await stack.enter_async_context(place)
                call.lend_place = permit.lent
                result = await self._calls.attempt(request, call, borrowed)
                if is_tried and not call.was_questioned and not result.get("isError"):
                    self._question_probe.passed(tried, proven)
                return result

        if self._calls.is_repeatable(request):
            return await repeated(attempt, request.deadline, lambda: not any(call.has_asked for call in calls))
        try:
            return await attempt()
        except SessionExpiredError:
            return await attempt()

    async def _why_apart(self, request: Request, call: OpenCall, era: str, stack: AsyncExitStack) -> str:
        """Why a request leaves the shared session, where others may be asked what it asks; empty where it does not.

        It waits for its turn there, which it has until the end of `stack`.
        """
        audience, deadline = call.audience, request.deadline

        def moves() -> bool:
            return bool(self._choice.why_own(audience, era))

        def apart() -> bool:
            return not call.is_repeatable and bool(audience.client_capabilities) and self._choice.is_joined(audience)

        if self._own_sessions.keeps(audience.client_id, era):
            # A server that keeps something of each call is to have all of them.
            return UNTRIED
        if call.is_proven:
            if self._choice.joins(audience):
                await self._question_probe.until_quiet(call.party, deadline=deadline, moves=moves)
            return self._choice.why_own(audience, era)
        turn = self._question_probe.turn(request.subject, call.party, deadline=deadline, moves=moves, apart=apart)
        if await stack.enter_async_context(turn):
            return ""
        return self._choice.why_own(audience, era) or (UNTRIED if apart() else TRIED)

    async def _own(
        self, request: Request, call: OpenCall, era: str, why: str, stack: AsyncExitStack
    ) -> Connection | None:
        """A session of the client's own until the end of `stack`; None for the shared one, if there can be no other.

        Raises:
            GatewayError: there is none, and the shared one will not do.
        """
        is_needed = why != UNTRIED
        now = anyio.current_time()
        deadline = request.deadline if is_needed else (now + request.deadline) / 2
        alone = self._choice.is_alone(call.audience, era)
        try:
            taken = self._own_sessions.taken(call, era, deadline, alone=alone, why=why)
            return await stack.enter_async_context(taken)
        except GatewayError as error:
            if is_needed:
                raise
            # Some servers run once at a time only. What this call asks on the shared session is refused.
            logger.debug("no session to try %s in: %s", request.what, error)
            return None

    async def _rounds(
        self,
        first: JsonObject,
        params: JsonObject,
        audience: Audience,
        on_progress: ProgressFnT | None,
        send: SendRound,
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
