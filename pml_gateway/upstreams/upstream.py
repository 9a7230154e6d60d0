"""One upstream's whole life: connected lazily, pooled, watched, reconnected with backoff, closed by its owner task."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path

import anyio
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import find_invalid_x_mcp_header, x_mcp_header_map

from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.settings import UpstreamSettings
from pml_gateway.errors import (
    GatewayError,
    UpstreamTimeoutError,
    UpstreamUnavailableError,
    innermost,
)
from pml_gateway.log import get_logger
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.connection import MODERN, Connection, WrongEraError, open_connection
from pml_gateway.upstreams.listing import Listed, Remembered
from pml_gateway.upstreams.slots import CallSlots
from pml_gateway.upstreams.translate import translate
from pml_gateway.upstreams.transport import HttpSide, OpenStreams, SessionUnknownError

logger = get_logger(__name__)

FIRST_BACKOFF = 1.0
LAST_BACKOFF = 60.0
"""Seconds between attempts to reach an upstream that fails: doubled from the first to the last."""

CLOSING_SECONDS = 10.0
"""How long a connection that is no longer used for new calls stays open for those in flight."""

STABLE_AFTER = 5.0
"""Seconds a connection has to live for its loss to be an accident; two shorter ones in a row lead to a pause."""


class UpstreamState(StrEnum):
    """Where an upstream is in its life."""

    IDLE = "idle"
    CONNECTING = "connecting"
    READY = "ready"
    FAILED = "failed"


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
        self.state = UpstreamState.IDLE
        self.last_error: GatewayError | None = None
        self.last_listed: Listed | None = None
        self.last_call_seconds: float | None = None
        self.settled = anyio.Event()
        self.call_timeout = definition.call_timeout or defaults.call_timeout
        self.connect_timeout = definition.connect_timeout or defaults.connect_timeout
        self.defaults = defaults
        self._open_streams = open_streams
        self._logs_dir = logs_dir
        self._era = remembered.era
        self._note_schemas(remembered.tools)
        self._on_listed = on_listed
        self._on_failed = on_failed
        self._expired = False
        self._lost_quickly = False
        self._was_stable = False
        self._connection: Connection | None = None
        self._changed = anyio.Event()
        self._wanted = anyio.Event()
        self._relist = anyio.Event()
        self._http = HttpSide()
        self._last_used = time.monotonic()
        self._in_flight = 0
        self._drained: anyio.Event | None = None
        self._unused: anyio.Event | None = None
        max_queue = defaults.max_queue if definition.max_queue is None else definition.max_queue
        self._slots = CallSlots(upstream_id, definition.max_concurrent or defaults.max_concurrent, max_queue)
        self._retired = False
        self._retry_at = 0.0

    @property
    def in_flight(self) -> int:
        """Calls sent and not yet answered."""
        return self._in_flight

    async def drain(self, timeout: float) -> None:
        """Wait until no call is in flight, at most `timeout` seconds."""
        with anyio.move_on_after(timeout):
            while self._in_flight:
                self._drained = anyio.Event()
                await self._drained.wait()

    async def retire(self, timeout: float) -> None:
        """Refuse calls that wait for a connection, and let the others finish within `timeout` seconds."""
        self._retired = True
        self._set_state(self.state)
        with anyio.move_on_after(timeout):
            while not self._slots.is_unused:
                self._unused = anyio.Event()
                await self._unused.wait()

    def want(self) -> None:
        """Ask for a connection, and for a fresh listing once it stands."""
        self._wanted.set()
        self._relist.set()

    async def run(self) -> None:
        """Connect whenever wanted, for as long as the owner's task group lives."""
        backoff = FIRST_BACKOFF
        while True:
            await self._wanted.wait()
            self._set_state(UpstreamState.CONNECTING)
            error = await self._connect_once()
            if error is None:
                self._wanted = anyio.Event()
                self._set_state(UpstreamState.IDLE)
                backoff = FIRST_BACKOFF
                continue
            if isinstance(error, _StartAgainError):
                continue
            if self._was_stable:
                backoff, self._was_stable = FIRST_BACKOFF, False
            await self._back_off(error, backoff * random.uniform(0.8, 1.2))
            backoff = min(backoff * 2, LAST_BACKOFF)

    async def _back_off(self, error: GatewayError, pause: float) -> None:
        self.last_error = error
        self._retry_at = time.monotonic() + pause
        self._relist = anyio.Event()
        self._set_state(UpstreamState.FAILED)
        self.settled.set()
        self._on_failed(self)
        logger.warning("%s; next attempt in %.0f s", error, pause)
        with anyio.move_on_after(pause):
            await self._relist.wait()

    async def _connect_once(self) -> GatewayError | None:
        """Hold one connection until it is idle (None) or fails (why)."""
        outcome: list[GatewayError | None] = []
        established = anyio.Event()

        async def hold() -> None:
            try:
                async with self._open() as connection:
                    self._last_used = time.monotonic()
                    await self._list(connection)
                    established.set()
                    reason = await self._serve(connection)
                    # Calls that come from now on wait for the next connection; those in flight may finish on this one.
                    self._connection = None
                    self._set_state(UpstreamState.CONNECTING if reason else UpstreamState.IDLE)
                    if not connection.lost.is_set():
                        await self.drain(CLOSING_SECONDS)
                    outcome.append(reason)
            # One upstream's failure, of whatever kind, must not stop the others.
            except Exception as exc:  # noqa: BLE001
                if isinstance(innermost(exc), WrongEraError):
                    self._era = MODERN
                    outcome.append(_StartAgainError(f"{self.upstream_id}: speaks the modern protocol only"))
                else:
                    error = translate(exc, self.upstream_id, http_status=self._http.refused_with)
                    if not established.is_set() and error.details.get("executed"):
                        error = UpstreamUnavailableError(
                            f"{self.upstream_id}: the server ended or closed the connection while starting",
                            hint=f"its messages are in {self._logs_dir}",
                        )
                    outcome.append(error)
                    # The era may be what changed; the next attempt finds out again.
                    self._era = self._era if established.is_set() else ""
            finally:
                self._connection = None
                established.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hold)
            with anyio.move_on_after(self.connect_timeout) as deadline:
                await established.wait()
            if deadline.cancelled_caught:
                tasks.cancel_scope.cancel()
        if outcome:
            return outcome[0]
        return UpstreamUnavailableError(
            f"{self.upstream_id}: no answer within {self.connect_timeout:g} s while connecting",
            hint=f"check the server, or raise servers.{self.upstream_id}.connect_timeout",
        )

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Connection]:
        self._http = HttpSide()
        async with open_connection(
            self.upstream_id,
            self.definition,
            open_streams=self._open_streams,
            era_hint=self._era,
            logs_dir=self._logs_dir,
            connect_timeout=self.connect_timeout,
            header_maps=self._header_map,
            on_tools_changed=self._relist_soon,
            http=self._http,
        ) as connection:
            yield connection

    async def _list(self, connection: Connection) -> None:
        self._relist = anyio.Event()
        started = time.monotonic()
        tools = await connection.list_tools(self.upstream_id, self.connect_timeout)
        self._era = connection.era
        self._note_schemas(tools)
        info = connection.session.server_info
        self.last_listed = Listed(
            tools,
            listed_at=time.time(),
            era=connection.era,
            server_name=info.name if info else "",
            server_version=info.version if info else "",
            seconds=time.monotonic() - started,
        )
        self.last_error = None
        self._on_listed(self, self.last_listed)
        self._connection = connection
        self._set_state(UpstreamState.READY)
        self.settled.set()

    async def _list_again(self, connection: Connection) -> None:
        """A listing that fails keeps the connection and the tools listed before: calls may be running."""
        try:
            await self._list(connection)
        except (MCPError, GatewayError) as exc:
            logger.warning("tools are as listed before: %s", translate(exc, self.upstream_id))

    async def _serve(self, connection: Connection) -> GatewayError | None:
        """Follow changes until the peer goes away (an error) or nobody has used it for long (None)."""
        established = time.monotonic()
        while not connection.is_over:
            idle_for = time.monotonic() - self._last_used
            if self._slots.is_unused and idle_for >= self.defaults.idle_timeout:
                return None
            pause = max(self.defaults.idle_timeout - idle_for, 1.0)
            poll = not connection.notifies
            if poll:
                pause = min(pause, self.defaults.refresh_interval)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_first_of, (connection.lost, connection.ended, self._relist), tasks.cancel_scope)
                await anyio.sleep(pause)
                tasks.cancel_scope.cancel()
            if connection.is_over:
                break
            if self._relist.is_set() or (poll and pause == self.defaults.refresh_interval):
                # Servers announce changes in bursts; one listing answers all that arrive within this time.
                await anyio.sleep(0.05)
                await self._list_again(connection)
        closed = f"{self.upstream_id}: the server closed the connection"
        lost_quickly = time.monotonic() - established < STABLE_AFTER
        again = self._expired or not (lost_quickly and self._lost_quickly)
        self._expired, self._lost_quickly = False, lost_quickly
        self._was_stable = self._was_stable or not lost_quickly
        if again:
            return _StartAgainError(closed)
        return UpstreamUnavailableError(closed, hint=f"see {self._logs_dir} for its messages")

    async def call_tool(
        self, params: JsonObject, *, timeout: float | None = None, on_progress: ProgressFnT | None = None
    ) -> JsonObject:
        """Call a tool with raw `tools/call` params and return the raw result.

        Raises:
            UpstreamBusyError: the queue is full; UpstreamUnavailableError, UpstreamTimeoutError, UpstreamAuthError,
            UpstreamError: what became of the call.
        """
        limit = timeout or self.call_timeout
        deadline = anyio.current_time() + limit
        with anyio.move_on_at(deadline):
            try:
                async with self._slots.taken():
                    return await self._send(params, deadline, on_progress)
            finally:
                if self._unused is not None:
                    self._unused.set()
        raise UpstreamTimeoutError(
            f"{self.upstream_id}: no answer to {params.get('name')!r} within {limit:g} s",
            hint=f"raise servers.{self.upstream_id}.call_timeout if the tool needs longer",
            details={"timeout_seconds": limit},
        )

    async def _send(self, params: JsonObject, deadline: float, on_progress: ProgressFnT | None) -> JsonObject:
        for _ in range(2):
            connection = await self._live_connection()
            try:
                return await self._send_on(connection, params, deadline, on_progress)
            except SessionUnknownError:
                # The server did not know the session, so it executed nothing: the one safe retry.
                await self._replace(connection)
        raise UpstreamUnavailableError(f"{self.upstream_id}: the session expired twice in one call")

    async def _send_on(
        self, connection: Connection, params: JsonObject, deadline: float, on_progress: ProgressFnT | None
    ) -> JsonObject:
        started = time.monotonic()
        self._in_flight += 1
        try:
            # The deadline of the caller's scope ends the wait; the request's own limit only backs it up.
            remaining = max(deadline - anyio.current_time(), 0.001) + 1
            result = await connection.call_tool(params, timeout=remaining, on_progress=on_progress)
            self.last_call_seconds = time.monotonic() - started
            return result
        except SessionUnknownError:
            raise
        # Translated in one place, whatever the transport raised.
        except Exception as exc:
            raise translate(exc, self.upstream_id) from exc
        finally:
            self._in_flight -= 1
            self._last_used = time.monotonic()
            if self._in_flight == 0 and self._drained is not None:
                self._drained.set()

    async def _replace(self, connection: Connection) -> None:
        if self._connection is connection:
            self._expired = True
            connection.ended.set()
        while self._connection is connection:
            await self._changed.wait()

    async def _live_connection(self) -> Connection:
        while self._connection is None:
            if self._retired:
                raise UpstreamUnavailableError(
                    f"{self.upstream_id}: its configuration changed while the call waited", hint="call again"
                )
            if self.state is UpstreamState.FAILED and time.monotonic() < self._retry_at:
                raise self._failure()
            self.want()
            await self._changed.wait()
        return self._connection

    def _failure(self) -> GatewayError:
        """The last error as a new object: raising the same one again and again would grow its traceback."""
        error = self.last_error or UpstreamUnavailableError(f"{self.upstream_id}: not reachable")
        return type(error)(error.message, hint=error.hint, details=error.details)

    def _note_schemas(self, tools: Sequence[JsonObject]) -> None:
        self._input_schemas = {str(tool.get("name")): tool.get("inputSchema") for tool in tools}

    def _header_map(self, name: str) -> Mapping[tuple[str, ...], str]:
        schema = self._input_schemas.get(name)
        return x_mcp_header_map(schema) if find_invalid_x_mcp_header(schema) is None else {}

    def _relist_soon(self) -> None:
        self._relist.set()

    def _set_state(self, state: UpstreamState) -> None:
        self.state = state
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


class _StartAgainError(UpstreamUnavailableError):
    """The connection is worth opening again at once: the era was wrong, the session expired, or a long run ended."""


async def _first_of(events: Sequence[anyio.Event], scope: anyio.CancelScope) -> None:
    async with anyio.create_task_group() as tasks:

        async def wait(event: anyio.Event) -> None:
            await event.wait()
            scope.cancel()

        for event in events:
            tasks.start_soon(wait, event)
