"""One upstream as the gateway sees it: its state, and calls that reach it over a pooled connection."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from mcp.shared.dispatcher import ProgressFnT

from pml_gateway.config.servers import Transport, UpstreamDefinition
from pml_gateway.config.settings import UpstreamSettings
from pml_gateway.errors import GatewayError, UpstreamProtocolError, UpstreamTimeoutError, UpstreamUnavailableError
from pml_gateway.telemetry.observe import observed
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.activity import Activity
from pml_gateway.upstreams.background import Background
from pml_gateway.upstreams.breaker import Breaker, Ticket
from pml_gateway.upstreams.choice import SessionChoice, late
from pml_gateway.upstreams.connection import MODERN, Connection
from pml_gateway.upstreams.deadlines import within
from pml_gateway.upstreams.lifecycle import Lifecycle, UpstreamState
from pml_gateway.upstreams.listing import Listed, Remembered
from pml_gateway.upstreams.questions import Audience, OpenCall
from pml_gateway.upstreams.relayed import RelayedRequests
from pml_gateway.upstreams.retries import is_repeatable, repeated
from pml_gateway.upstreams.sessions import OwnSessions
from pml_gateway.upstreams.slots import CallSlots
from pml_gateway.upstreams.sole import SoleClient
from pml_gateway.upstreams.subscriptions import OnUpdated, ResourceSubscriptions
from pml_gateway.upstreams.suspended import SuspendedCall, SuspendedCalls
from pml_gateway.upstreams.translate import translate
from pml_gateway.upstreams.transport import OpenStreams, SessionUnknownError

if TYPE_CHECKING:
    from pml_gateway.upstreams.authorization import Authorization

OnListed = Callable[["Upstream", Listed], None]
OnFailed = Callable[["Upstream"], None]


class Upstream:
    """The gateway's side of one MCP server.

    `run` owns every connection; calls from other tasks borrow the live one. Nothing here blocks anyone else.
    """

    def __init__(
        self,
        upstream_id: str,
        definition: UpstreamDefinition,
        defaults: UpstreamSettings,
        *,
        open_streams: OpenStreams,
        logs_dir: Path,
        authorization: Authorization | None,
        remembered: Remembered,
        on_listed: OnListed,
        on_failed: OnFailed,
        client: SoleClient | None,
    ) -> None:
        self.upstream_id = upstream_id
        self.definition = definition
        self.authorization = authorization
        self.defaults = defaults
        self.call_timeout = definition.call_timeout or defaults.call_timeout
        max_queue = defaults.max_queue if definition.max_queue is None else definition.max_queue
        slots = CallSlots(upstream_id, definition.max_concurrent or defaults.max_concurrent, max_queue)
        self._activity = Activity(slots)
        self._subscriptions = ResourceSubscriptions(upstream_id)
        self._background = Background()
        self.breaker = Breaker(upstream_id, defaults.breaker, on_open=self._check_up)
        self._lifecycle = Lifecycle(
            upstream_id,
            definition,
            defaults,
            activity=self._activity,
            subscriptions=self._subscriptions,
            breaker=self.breaker,
            open_streams=open_streams,
            logs_dir=logs_dir,
            authorization=authorization,
            remembered=remembered,
            on_listed=lambda listed: on_listed(self, listed),
            on_failed=lambda: on_failed(self),
            client=client,
        )
        self.connect_timeout = self._lifecycle.connect_timeout
        self._own_sessions = OwnSessions(
            upstream_id,
            self._lifecycle.open_beside,
            self._background,
            shared=lambda: self._lifecycle.connection_of_client,
            max_sessions=definition.max_sessions or defaults.max_sessions,
            max_queue=max_queue,
            connect_timeout=self.connect_timeout,
            idle_timeout=defaults.idle_timeout,
            per_client=definition.sessions == "per_client",
        )
        self._choice = SessionChoice(definition, self._lifecycle, client)
        suspended = SuspendedCalls(upstream_id, self._background, defaults.question_timeout)
        self._relayed = RelayedRequests(suspended, defaults.question_timeout)
        self.end_client = self._own_sessions.end_client
        self.tell_of_client = self._own_sessions.notify
        self.set_log_level = self._own_sessions.set_log_level
        self.open_beside = self._lifecycle.open_beside
        self.want = self._lifecycle.want
        self.reconnect = self._lifecycle.reconnect
        self.meet_client = self._lifecycle.meet_client
        self.drain = self._activity.drain

    @property
    def state(self) -> UpstreamState:
        """Where its connection is in its life."""
        return self._lifecycle.state

    @property
    def last_error(self) -> GatewayError | None:
        """Why it cannot be reached, if it cannot."""
        return self._lifecycle.last_error

    @property
    def last_listed(self) -> Listed | None:
        """What it listed last, if it has listed anything since the start."""
        return self._lifecycle.last_listed

    @property
    def last_call_seconds(self) -> float | None:
        """How long the last answered call took."""
        return self._activity.last_call_seconds

    @property
    def in_flight(self) -> int:
        """Calls sent and not yet answered."""
        return self._activity.in_flight

    @property
    def waiting(self) -> int:
        """Calls that wait for a place."""
        return self._activity.slots.waiting

    @property
    def settled(self) -> anyio.Event:
        """Set once it has answered or failed."""
        return self._lifecycle.settled

    def unsettle(self) -> None:
        """Let `settled` be set by the next answer or failure."""
        self._lifecycle.settled = anyio.Event()

    async def retire(self, timeout: float) -> None:
        """Refuse calls that wait for a connection, and let the others finish within `timeout` seconds."""
        self._lifecycle.retire()
        await self._activity.slots.until_unused(timeout)

    def _check_up(self) -> None:
        """List when the breaker opens: an upstream that answers neither calls nor lists is connected anew."""
        if self.state is UpstreamState.READY:
            self.want()

    async def run(self) -> None:
        """Hold the connections for as long as the owner's task group lives."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._background.run)
            await self._lifecycle.run()

    async def call_tool(
        self, params: JsonObject, *, timeout: float | None = None, on_progress: ProgressFnT | None = None
    ) -> JsonObject:
        """Call a tool with raw `tools/call` params and return the raw result."""
        return await self.request("tools/call", params, timeout=timeout, on_progress=on_progress)

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
        limit = timeout or self.call_timeout
        if audience is not None and self._choice.concerns(audience, params):
            return await self._relay(method, params, limit, on_progress, audience)
        deadline = anyio.current_time() + limit
        self.breaker.check()
        async with self._activity.slots.taken(deadline):
            attempt = partial(self._attempt, method, params, deadline, limit, on_progress)
            if is_repeatable(method, params, self._lifecycle.tool_facts.repeatable):
                return await repeated(attempt, deadline)
            return await attempt()

    async def _relay(
        self, method: str, params: JsonObject, limit: float, on_progress: ProgressFnT | None, audience: Audience
    ) -> JsonObject:
        self.breaker.check()
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
        patience = math.inf if isinstance(audience, SuspendedCall) else self.defaults.question_timeout

        # Only here do questions not say which call they belong to.
        alone = bool(audience.abilities) and own != MODERN and self.definition.resolved_transport is not Transport.HTTP

        async def attempt() -> JsonObject:
            self.breaker.check()
            call = OpenCall(audience, patience)
            calls.append(call)
            async with AsyncExitStack() as stack:
                borrowed = None
                if own is not None:
                    taken = self._own_sessions.taken(call, own, deadline, alone=alone)
                    borrowed = await stack.enter_async_context(taken)
                place = await stack.enter_async_context(self._activity.slots.taken(deadline))
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
        with self.breaker.call(impatient=limit < self.call_timeout) as ticket:
            with within(deadline - anyio.current_time()):
                if call is not None:
                    call.begin(lambda: self.breaker.heard(ticket))
                return await self._send(ticket, method, params, deadline, on_progress, call, borrowed)
            raise late(self.upstream_id, _what(method, params), limit, ticket.executed)

    def follow(self, uri: str, key: object, on_updated: OnUpdated) -> None:
        """Be told when a resource changes, from the moment on that the upstream is connected and agrees."""
        self._subscriptions.add(uri, key, on_updated)
        if self.state is UpstreamState.IDLE:
            self.want()

    async def subscribe(self, uri: str, key: object, on_updated: OnUpdated) -> None:
        """As `follow`, and wait for the upstream to agree.

        Raises:
            GatewayError: it did not; nothing is followed then.
        """
        self._subscriptions.add(uri, key, on_updated)
        try:
            with anyio.move_on_after(self.call_timeout):
                await self._lifecycle.live()
                await self._subscriptions.confirmed(uri)
                return
            raise UpstreamTimeoutError(f"{self.upstream_id}: no answer to resources/subscribe within the limit")
        except BaseException:
            self._subscriptions.remove(uri, key)
            raise

    def unfollow(self, uri: str, key: object) -> None:
        """End what `follow` or `subscribe` began."""
        self._subscriptions.remove(uri, key)

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
