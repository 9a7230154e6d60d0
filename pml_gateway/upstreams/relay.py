r"""Requests during which the upstream may ask their client or send it notices, across the two protocol eras.

A handshake upstream asks in the middle of a call and waits; a client of the stateless protocol gets the question as
the result of its request and answers with another one.

| client \ upstream | handshake | stateless |
| --- | --- | --- |
| handshake | asked in the middle of the call | asked between rounds, which the gateway makes |
| stateless | the call waits in its own task | questions and answers pass unchanged |
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

import anyio
from mcp.shared.dispatcher import ProgressFnT

from pml_gateway.errors import GatewayError, UpstreamProtocolError
from pml_gateway.log import get_logger
from pml_gateway.mcp.capabilities import TASKS
from pml_gateway.mcp.connection import Connection
from pml_gateway.mcp.elicitation import Audience, OpenCall
from pml_gateway.mcp.negotiation import MODERN
from pml_gateway.mcp.tasks import TaskRequest
from pml_gateway.quotas import OWN
from pml_gateway.storage.pending import fingerprint, waits_in_process
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.call import SessionExpiredError, UpstreamCalls, UpstreamRequest
from pml_gateway.upstreams.connector import UpstreamParts
from pml_gateway.upstreams.dialogue.client_sessions import SingleClientSessions
from pml_gateway.upstreams.dialogue.input_requests import answers_to
from pml_gateway.upstreams.dialogue.shared_questions import UnclearQuestionError
from pml_gateway.upstreams.dialogue.suspended_calls import SuspendedCall, SuspendedCalls
from pml_gateway.upstreams.faults import repeated
from pml_gateway.upstreams.session_choice import TRIED, UNTRIED, SessionChoice

logger = get_logger(__name__)

MAX_ROUNDS = 10
"""Maximum number of times that a stateless upstream may ask in one call; as in the official SDKs."""

WAIT_SECONDS = 0.25
"""Pause in seconds before a round without questions, with which an upstream signals that it is not ready."""

SendRound = Callable[[JsonObject, ProgressFnT | None, Audience], Awaitable[JsonObject]]
"""Sends one round: params, progress handler and the audience that may be asked, to the raw result."""


class Relay:
    """The requests to one upstream: plain ones, and those whose clients may be asked, get notices, or have sessions."""

    def __init__(
        self, parts: UpstreamParts, choice: SessionChoice, calls: UpstreamCalls, own_sessions: SingleClientSessions
    ) -> None:
        effective, self._policy = parts.effective, parts.policy
        self._question_timeout = effective.defaults.question_timeout
        self._choice = choice
        self._calls = calls
        self._own_sessions = own_sessions
        self._question_probe = parts.question_probe
        self._limit = parts.activity.limit
        self._breaker = parts.breaker
        self._lister = parts.lister
        self.suspended = SuspendedCalls(effective.upstream_id, parts.background, self._question_timeout)

    async def send(
        self,
        method: str,
        params: JsonObject,
        limits: tuple[float, float],
        on_progress: ProgressFnT | None,
        audience: Audience | None,
        *,
        once: bool = False,
        task: TaskRequest | None = None,
    ) -> JsonObject:
        """Send a request; return its result, or the interim result for a client that answers later.

        Each round has the first of `limits` in seconds, which progress extends up to the second.

        Raises:
            GatewayError: the request or a question failed.
        """
        limit, total = limits

        def begun(given: JsonObject, report: ProgressFnT | None, quota_key: str) -> UpstreamRequest:
            now = anyio.current_time()
            return UpstreamRequest(method, given, report, limit, now + limit, now + total, quota_key, once, task)

        if audience is None or not self._policy.converses(audience, params):
            return await self._calls.send(begun(params, on_progress, OWN if audience is None else audience.quota_key))
        self._breaker.check(audience.quota_key)
        era, why_own = await self._choice.choose(audience, limit)

        async def send(given: JsonObject, report: ProgressFnT | None, asked: Audience) -> JsonObject:
            request = begun(given, report, asked.quota_key)
            try:
                return await self._round(request, asked, era, why_own)
            except UnclearQuestionError:
                if not self._calls.is_repeatable(request):
                    raise
                again = replace(request, deadline=anyio.current_time() + limit)
                return await self._round(again, asked, era, TRIED)

        if era == MODERN and not audience.answers_later:
            return await self._rounds(await send(params, on_progress, audience), params, audience, on_progress, send)
        state = params.get("requestState")
        is_resumed = audience.answers_later and (waits_in_process(state) if era == MODERN else state is not None)
        # A server of 2026-07-28 asks in its results, but for those of tasks.
        can_be_asked = era != MODERN or (method == "tools/call" and self._lister.capabilities.has_extension(TASKS))
        if not is_resumed and not (audience.answers_later and audience.client_capabilities and can_be_asked):
            return await send(params, on_progress, audience)
        given = {key: value for key, value in params.items() if key not in ("requestState", "inputResponses")}
        request = partial(fingerprint, method, {key: value for key, value in given.items() if key != "_meta"})
        if is_resumed:
            responses = params.get("inputResponses")
            answers = responses if isinstance(responses, dict) else {}
            return await self.suspended.resume(audience, on_progress, request(), str(state), answers)
        sent = params if era == MODERN else given
        return await self.suspended.begin(
            audience, on_progress, request, lambda call: send(sent, call.report if on_progress else None, call)
        )

    async def _round(self, request: UpstreamRequest, audience: Audience, era: str, why_own: str) -> JsonObject:
        """Send one request in which the upstream may ask; repeat it only as long as no client has been asked.

        It uses the client's own session if there is a reason for that.
        """
        calls: list[OpenCall] = []
        check = partial(self._breaker.check, request.quota_key)
        # A suspended call is given up as a whole if its client does not come back.
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
                is_tried = not why and self._choice.is_ambiguous(request.method, era)
                if is_tried:
                    why = await self._why_apart(request, call, era, stack)
                if why:
                    check()
                    borrowed = await self._own(request, call, era, why, stack)
                place = self._limit.taken(request.deadline, check, request.quota_key)
                permit = await stack.enter_async_context(place)
                call.lend_place = permit.lent
                result = await self._calls.attempt(request, permit, call, borrowed)
                if is_tried and not call.was_questioned and not result.get("isError"):
                    self._question_probe.passed(tried, proven)
                return result

        if self._calls.is_repeatable(request):
            return await repeated(attempt, request.deadline, lambda: not any(call.has_asked for call in calls))
        try:
            return await attempt()
        except SessionExpiredError:
            return await attempt()

    async def _why_apart(self, request: UpstreamRequest, call: OpenCall, era: str, stack: AsyncExitStack) -> str:
        """Return the reason for a request to leave the shared session, whose questions may reach others; empty if none.

        Wait for the request's turn on the shared session, which lasts until the end of `stack`.
        """
        audience, deadline = call.audience, request.deadline

        def moves() -> bool:
            return bool(self._choice.why_own(audience, era))

        def apart() -> bool:
            return not call.is_repeatable and bool(audience.client_capabilities) and self._choice.is_joined(audience)

        if self._own_sessions.keeps(audience.client_id, era):
            # A server that keeps state from call to call must get all of them.
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
        self, request: UpstreamRequest, call: OpenCall, era: str, why: str, stack: AsyncExitStack
    ) -> Connection | None:
        """Open the client's own session until the end of `stack`; None to use the shared one, if no other is possible.

        Raises:
            GatewayError: no session could be opened, and the shared one cannot be used.
        """
        is_needed = why != UNTRIED
        now = anyio.current_time()
        deadline = request.deadline if is_needed else (now + request.deadline) / 2
        alone = self._choice.needs_exclusive(call.audience, era)
        try:
            taken = self._own_sessions.taken(call, era, deadline, alone=alone, why=why)
            return await stack.enter_async_context(taken)
        except GatewayError as error:
            if is_needed:
                raise
            # Some servers can only run once. Questions of this call on the shared session are refused.
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
        """Ask the client the upstream's questions, and send the request again with the answers."""
        result = first
        for _ in range(MAX_ROUNDS):
            if result.get("resultType") != "input_required":
                return result
            requests, again = result.get("inputRequests"), dict(params)
            again.pop("inputResponses", None)
            if isinstance(requests, dict) and requests:
                again["inputResponses"] = await answers_to(requests, OpenCall(audience, self._question_timeout))
            else:
                await anyio.sleep(WAIT_SECONDS)
            again["requestState"] = result.get("requestState")
            if again["requestState"] is None:
                del again["requestState"]
            result = await send(again, on_progress, audience)
        if result.get("resultType") == "input_required":
            raise UpstreamProtocolError(f"the server asked for input more than {MAX_ROUNDS} times in one call")
        return result
