"""One request to an upstream: attempts on a live connection, within its deadline, with its outcome in our errors."""

from __future__ import annotations

import math
from contextlib import AsyncExitStack
from functools import partial

import anyio
from mcp.shared.dispatcher import ProgressFnT

from pml_gateway.config.settings import EffectiveSettings
from pml_gateway.errors import UpstreamProtocolError, UpstreamTimeoutError, UpstreamUnavailableError
from pml_gateway.mcp.connection import Connection
from pml_gateway.mcp.deadlines import within
from pml_gateway.mcp.elicitation import Audience, OpenCall
from pml_gateway.mcp.failures import translate
from pml_gateway.mcp.http import SessionUnknownError
from pml_gateway.telemetry.observe import observed
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.breaker import Breaker, Ticket
from pml_gateway.upstreams.concurrency import Activity
from pml_gateway.upstreams.dialogue.background import Background
from pml_gateway.upstreams.dialogue.client_sessions import OwnSessions
from pml_gateway.upstreams.dialogue.suspended_calls import RelayedRequests, SuspendedCall, SuspendedCalls
from pml_gateway.upstreams.lifecycle import Lifecycle
from pml_gateway.upstreams.retries import is_repeatable, repeated
from pml_gateway.upstreams.session_choice import SessionChoice, late


class Requests:
    """The requests to one upstream, on its shared session or on one of a single client."""

    def __init__(
        self,
        effective: EffectiveSettings,
        choice: SessionChoice,
        lifecycle: Lifecycle,
        own_sessions: OwnSessions,
        background: Background,
        *,
        activity: Activity,
        breaker: Breaker,
    ) -> None:
        self.upstream_id = effective.upstream_id
        self._call_timeout = effective.call_timeout
        self._question_timeout = effective.defaults.question_timeout
        self._lifecycle = lifecycle
        self._own_sessions = own_sessions
        self._activity = activity
        self._breaker = breaker
        self._choice = choice
        suspended = SuspendedCalls(effective.upstream_id, background, effective.defaults.question_timeout)
        self._relayed = RelayedRequests(suspended, effective.defaults.question_timeout)

    @observed
    async def request(
        self,
        method: str,
        params: JsonObject,
        *,
        timeout: float | None = None,
        on_progress: ProgressFnT | None = None,
        audience: Audience | None = None,
    ) -> JsonObject:
        """Send one request with raw params and return the raw result.

        Args:
            method: of a request that clients send.
            params: as the upstream shall get them.
            timeout: seconds, not counting those in which the client is asked.
            on_progress: gets the upstream's progress.
            audience: the client, if the upstream may ask or tell it something.

        Raises:
            UpstreamBusyError: the queue is full; UpstreamUnavailableError, UpstreamTimeoutError, UpstreamAuthError,
            UpstreamError: what became of the request.
        """
        limit = timeout or self._call_timeout
        if audience is not None and self._choice.concerns(audience, params):
            return await self._relay(method, params, limit, on_progress, audience)
        deadline = anyio.current_time() + limit
        self._breaker.check()
        async with self._activity.limit.taken(deadline):
            attempt = partial(self._attempt, method, params, deadline, limit, on_progress)
            if is_repeatable(method, params, self._lifecycle.tool_facts.repeatable):
                return await repeated(attempt, deadline)
            return await attempt()

    async def _relay(
        self, method: str, params: JsonObject, limit: float, on_progress: ProgressFnT | None, audience: Audience
    ) -> JsonObject:
        self._breaker.check()
        era, needs_own_session = await self._choice.choose(audience, limit)
        own = era if needs_own_session else None

        async def send(given: JsonObject, report: ProgressFnT | None, asked: Audience) -> JsonObject:
            return await self._round(method, given, limit, report, asked, own=own)

        return await self._relayed.request(params, audience, on_progress, era, send)

    async def _round(
        self,
        method: str,
        params: JsonObject,
        limit: float,
        on_progress: ProgressFnT | None,
        audience: Audience,
        *,
        own: str | None,
    ) -> JsonObject:
        """One request in which the upstream may ask; it is repeated only while nobody has been asked."""
        deadline = anyio.current_time() + limit
        calls: list[OpenCall] = []
        # A suspended call is given up as a whole when its client does not come back.
        patience = math.inf if isinstance(audience, SuspendedCall) else self._question_timeout
        alone = own is not None and self._choice.is_alone(audience, own)

        async def attempt() -> JsonObject:
            self._breaker.check()
            call = OpenCall(audience, patience)
            calls.append(call)
            async with AsyncExitStack() as stack:
                borrowed = None
                if own is not None:
                    taken = self._own_sessions.taken(call, own, deadline, alone=alone)
                    borrowed = await stack.enter_async_context(taken)
                place = await stack.enter_async_context(self._activity.limit.taken(deadline))
                call.lend_place = place.lent
                return await self._attempt(method, params, deadline, limit, on_progress, call, borrowed)

        if is_repeatable(method, params, self._lifecycle.tool_facts.repeatable):
            return await repeated(attempt, deadline, lambda: not any(call.has_asked for call in calls))
        try:
            return await attempt()
        except _ExpiredError:
            return await attempt()

    async def _attempt(
        self,
        method: str,
        params: JsonObject,
        deadline: float,
        limit: float,
        on_progress: ProgressFnT | None,
        call: OpenCall | None = None,
        borrowed: Connection | None = None,
    ) -> JsonObject:
        with self._breaker.call(impatient=limit < self._call_timeout) as ticket:
            with within(deadline - anyio.current_time()):
                if call is not None:
                    call.begin(lambda: self._breaker.heard(ticket))
                return await self._send(ticket, method, params, deadline, on_progress, call, borrowed)
            raise late(self.upstream_id, _what(method, params), limit, ticket.executed)

    async def _send(
        self,
        ticket: Ticket,
        method: str,
        params: JsonObject,
        deadline: float,
        on_progress: ProgressFnT | None,
        call: OpenCall | None,
        borrowed: Connection | None,
    ) -> JsonObject:
        for _ in range(2):
            connection = borrowed or await self._lifecycle.live()
            ticket.sent = True
            # One lost session fails all its calls; over HTTP, each fails for itself.
            ticket.incident = connection if connection.send_call is None else None
            try:
                return await self._send_on(connection, method, params, deadline, on_progress, call)
            except SessionUnknownError:
                # The server did not know the session, so it executed nothing: the one safe retry.
                ticket.sent = False
                if borrowed is not None:
                    connection.ended.set()
                    raise _ExpiredError(
                        f"{self.upstream_id}: the session expired", details={"executed": "no"}
                    ) from None
                await self._lifecycle.replace(connection)
        raise UpstreamUnavailableError(
            f"{self.upstream_id}: the session expired twice in one call", details={"executed": "no"}
        )

    async def _send_on(
        self,
        connection: Connection,
        method: str,
        params: JsonObject,
        deadline: float,
        on_progress: ProgressFnT | None,
        call: OpenCall | None,
    ) -> JsonObject:
        try:
            with self._activity.sent():
                # The deadline of the caller's scope ends the wait; the request's own limit only backs it up, and
                # would go on while a person is asked.
                remaining = None if call is not None else max(deadline - anyio.current_time(), 0.001) + 1
                return await connection.request(method, params, timeout=remaining, on_progress=on_progress, call=call)
        except SessionUnknownError:
            raise
        # Translated in one place, whatever the transport raised.
        except Exception as exc:
            error = translate(exc, self.upstream_id)
            if isinstance(error, UpstreamProtocolError):
                error.details.setdefault("executed", "yes")
            elif isinstance(error, UpstreamUnavailableError | UpstreamTimeoutError):
                error.details.setdefault("executed", "unknown")
            raise error from exc


class _ExpiredError(UpstreamUnavailableError):
    """The server no longer knows the session of one client; the call was not executed."""


def _what(method: str, params: JsonObject) -> str:
    return str(params.get("name") or params.get("uri") or method)[:100]
