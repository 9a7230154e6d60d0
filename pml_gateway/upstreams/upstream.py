"""One upstream as the gateway sees it: its state, and calls that reach it over a pooled connection."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
from mcp.shared.dispatcher import ProgressFnT

from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.settings import UpstreamSettings
from pml_gateway.errors import GatewayError, UpstreamTimeoutError, UpstreamUnavailableError
from pml_gateway.telemetry.observe import observed
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.activity import Activity
from pml_gateway.upstreams.breaker import Breaker, Ticket
from pml_gateway.upstreams.connection import Connection
from pml_gateway.upstreams.lifecycle import Lifecycle, UpstreamState
from pml_gateway.upstreams.listing import Listed, Remembered
from pml_gateway.upstreams.retries import is_repeatable, repeated
from pml_gateway.upstreams.slots import CallSlots
from pml_gateway.upstreams.translate import translate
from pml_gateway.upstreams.transport import OpenStreams, SessionUnknownError

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
        remembered: Remembered,
        on_listed: OnListed,
        on_failed: OnFailed,
    ) -> None:
        self.upstream_id = upstream_id
        self.definition = definition
        self.defaults = defaults
        self.call_timeout = definition.call_timeout or defaults.call_timeout
        max_queue = defaults.max_queue if definition.max_queue is None else definition.max_queue
        slots = CallSlots(upstream_id, definition.max_concurrent or defaults.max_concurrent, max_queue)
        self._activity = Activity(slots)
        self.breaker = Breaker(upstream_id, defaults.breaker, on_open=self._check_up)
        self._lifecycle = Lifecycle(
            upstream_id,
            definition,
            defaults,
            activity=self._activity,
            breaker=self.breaker,
            open_streams=open_streams,
            logs_dir=logs_dir,
            remembered=remembered,
            on_listed=lambda listed: on_listed(self, listed),
            on_failed=lambda: on_failed(self),
        )
        self.connect_timeout = self._lifecycle.connect_timeout
        self.run = self._lifecycle.run
        self.want = self._lifecycle.want
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
    ) -> JsonObject:
        """Send one request with raw params and return the raw result.

        Raises:
            UpstreamBusyError: the queue is full; UpstreamUnavailableError, UpstreamTimeoutError, UpstreamAuthError,
            UpstreamError: what became of the request.
        """
        limit = timeout or self.call_timeout
        deadline = anyio.current_time() + limit
        self.breaker.check()
        async with self._activity.slots.taken(deadline):
            attempt = partial(self._attempt, method, params, deadline, limit, on_progress)
            if is_repeatable(method, params, self._lifecycle.repeatable):
                return await repeated(attempt, deadline)
            return await attempt()

    async def _attempt(
        self, method: str, params: JsonObject, deadline: float, limit: float, on_progress: ProgressFnT | None
    ) -> JsonObject:
        with self.breaker.call(impatient=limit < self.call_timeout) as ticket:
            with anyio.move_on_at(deadline):
                return await self._send(ticket, method, params, deadline, on_progress)
            raise UpstreamTimeoutError(
                f"{self.upstream_id}: no answer to {_what(method, params)!r} within {limit:g} s",
                hint=f"raise servers.{self.upstream_id}.call_timeout if the tool needs longer",
                details={"timeout_seconds": limit, "executed": ticket.executed},
            )

    async def _send(
        self, ticket: Ticket, method: str, params: JsonObject, deadline: float, on_progress: ProgressFnT | None
    ) -> JsonObject:
        for _ in range(2):
            connection = await self._lifecycle.live()
            ticket.sent = True
            # One lost session fails all its calls; over HTTP, each fails for itself.
            ticket.incident = connection if connection.send_call is None else None
            try:
                return await self._send_on(connection, method, params, deadline, on_progress)
            except SessionUnknownError:
                # The server did not know the session, so it executed nothing: the one safe retry.
                ticket.sent = False
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
    ) -> JsonObject:
        try:
            with self._activity.sent():
                # The deadline of the caller's scope ends the wait; the request's own limit only backs it up.
                remaining = max(deadline - anyio.current_time(), 0.001) + 1
                return await connection.request(method, params, timeout=remaining, on_progress=on_progress)
        except SessionUnknownError:
            raise
        # Translated in one place, whatever the transport raised.
        except Exception as exc:
            raise translate(exc, self.upstream_id) from exc


def _what(method: str, params: JsonObject) -> str:
    return str(params.get("name") or params.get("uri") or method)[:100]
