"""A negotiated session over open streams: listings, calls, notifications, and its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import mcp_types
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pml_gateway.config.servers import Transport, UpstreamDefinition
from pml_gateway.log import get_logger
from pml_gateway.mcp.elicitation import OpenCall, Questions
from pml_gateway.mcp.http import ConnectionFacts
from pml_gateway.mcp.listing import ListKind
from pml_gateway.mcp.negotiation import HANDSHAKE, MODERN, NegotiatedProtocol, negotiate
from pml_gateway.mcp.network import Network
from pml_gateway.mcp.session import (
    IMPLEMENTATION,
    HeaderMaps,
    OnNotice,
    PassthroughSession,
    WatchedDispatcher,
)
from pml_gateway.mcp.transport import OpenStreams, resolved_headers
from pml_gateway.secrets.references import resolve_in
from pml_gateway.types import JsonObject
from pml_gateway.working_directory import WorkingDirectory

logger = get_logger(__name__)

LOG_LEVEL_SECONDS = 5.0
"""Time limit in seconds for `logging/setLevel`; calls wait for it."""

PING_SECONDS = 2.0
"""Time limit in seconds for `ping`; some servers never answer."""

CallTool = Callable[..., Awaitable[JsonObject]]
"""(params, on_progress=, call=) -> the raw result of `tools/call`."""

Finish = Callable[[JsonObject], Awaitable[JsonObject]]


@dataclass(frozen=True, slots=True)
class Connection:
    """One live session with an upstream."""

    session: PassthroughSession
    lost: anyio.Event
    ended: anyio.Event
    send_call: CallTool | None = None
    http: ConnectionFacts | None = None
    is_surely_old: bool = False
    """True if the server was offered the modern protocol and does not speak it."""

    @property
    def pid(self) -> int | None:
        """Return the process id of the server, if the gateway started it."""
        return None if self.http is None else self.http.pid

    @property
    def is_over(self) -> bool:
        """Return True if the peer is gone (`lost`) or the connection must be replaced (`ended`)."""
        return self.lost.is_set() or self.ended.is_set()

    @property
    def era(self) -> str:
        """Return the negotiated protocol era."""
        return MODERN if self.session.protocol_version in MODERN_PROTOCOL_VERSIONS else HANDSHAKE

    @property
    def spoken(self) -> NegotiatedProtocol:
        """Return the era and version that the next connection to this server should use."""
        return NegotiatedProtocol(self.era, self.session.offered)

    async def has_begun(self) -> None:
        """Wait until an HTTP handshake is complete: calls bypass the session and could overtake its last message."""
        if self.send_call is None or self.era == MODERN:
            return
        try:
            await self.session.send_raw("ping", timeout=PING_SECONDS)
        except MCPError as error:
            logger.debug("ping refused: %s", error)

    async def set_log_level(self, level: str | None) -> None:
        """Set the log level that the client of this session wants at a handshake upstream, unless it is set already."""
        questions = self.session.questions
        if level is None or level == questions.log_level or not self.session.peer_capabilities.offers("logging"):
            return
        questions.log_level = level
        if self.era == MODERN:
            return
        try:
            await self.session.send_raw("logging/setLevel", {"level": level}, timeout=LOG_LEVEL_SECONDS)
        except (MCPError, anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            logger.debug("logging/setLevel refused: %s", error)

    async def request(
        self,
        method: str,
        params: JsonObject,
        *,
        on_progress: ProgressFnT | None,
        call: OpenCall | None = None,
        then: Finish | None = None,
    ) -> JsonObject:
        """Send one request and return the result as the upstream sent it. The caller limits its time.

        `then` is called with the answer while the request is still open, and returns the result.
        """
        with self.session.questions.during(call):
            if self.send_call is not None and method == "tools/call":
                answer = await self.send_call(params, on_progress=on_progress, call=call)
            else:
                answer = await self.session.send_raw(method, params, timeout=None, on_progress=on_progress, call=call)
            return answer if then is None else await then(answer)


@asynccontextmanager
async def open_connection(
    upstream_id: str,
    definition: UpstreamDefinition,
    *,
    open_streams: OpenStreams,
    working_directory: WorkingDirectory,
    spoken: NegotiatedProtocol,
    logs_dir: Path,
    connect_timeout: float,
    header_maps: HeaderMaps,
    on_notice: OnNotice,
    http: ConnectionFacts,
    questions: Questions,
) -> AsyncIterator[Connection]:
    """Open, negotiate and watch one session; it ends with this context.

    The peer is told the capabilities of the clients behind `questions`.
    """

    async def on_message(message: mcp_types.ServerNotification | Exception) -> None:
        if not isinstance(message, Exception):
            params = message.params
            on_notice(
                message.method, params.model_dump(mode="json", by_alias=True, exclude_none=True) if params else {}
            )

    async with (
        open_streams(
            upstream_id,
            definition,
            working_directory=working_directory,
            logs_dir=logs_dir,
            connect_timeout=connect_timeout,
            http=http,
        ) as (read, write),
        _session(read, write, header_maps, on_message, questions, http) as connection,
    ):
        is_surely_old = await negotiate(connection.session, definition.resolved_transport, spoken, connect_timeout)
        connection = replace(connection, is_surely_old=is_surely_old)
        http.look_after = connection.session.look_after
        async with anyio.create_task_group() as tasks:
            if connection.era == MODERN:
                tasks.start_soon(_listen, connection, on_notice)
            async with _calls(definition, working_directory, connection, http, connect_timeout, on_notice) as connected:
                await connected.set_log_level(questions.wanted_log_level)
                yield connected
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def _calls(
    definition: UpstreamDefinition,
    working_directory: WorkingDirectory,
    connection: Connection,
    http: ConnectionFacts,
    connect_timeout: float,
    on_notice: OnNotice,
) -> AsyncIterator[Connection]:
    if definition.resolved_transport is not Transport.HTTP or definition.url is None:
        yield connection
        return
    # Importing aiohttp takes 0.2 s, which gateways with only stdio upstreams never need.
    from pml_gateway.mcp.http_calls import open_http_calls

    async with open_http_calls(
        resolve_in(definition.url, working_directory),
        resolved_headers(definition, working_directory),
        connection.session,
        http,
        Network.of(working_directory),
        connect_timeout=connect_timeout,
        on_notice=on_notice,
    ) as send_call:
        yield replace(connection, send_call=send_call)


@asynccontextmanager
async def _session(
    read: object,
    write: object,
    header_maps: HeaderMaps,
    on_message: object,
    questions: Questions,
    http: ConnectionFacts,
) -> AsyncIterator[Connection]:
    dispatcher = WatchedDispatcher(read, write)
    session = PassthroughSession(
        dispatcher,
        header_maps,
        questions,
        http,
        message_handler=on_message,
        client_info=IMPLEMENTATION,
    )
    async with session:
        yield Connection(session, dispatcher.lost, ended=session.ended, http=http)


async def _listen(connection: Connection, on_notice: OnNotice) -> None:
    """Listen to the upstream's change events for as long as it has a stream for them."""
    offers = connection.session.peer_capabilities.offers
    wanted: dict[str, Any] = {f"{kind}_list_changed": offers(kind, "listChanged") for kind in ListKind}
    if not any(wanted.values()):
        return
    try:
        async with listen(connection.session, **wanted) as subscription:
            async for _ in subscription:
                # Each event also reaches `on_notice` as a separate notification.
                pass
    except (MCPError, SubscriptionLost, TimeoutError):
        pass
    # Without the stream, a change may have been missed.
    on_notice("notifications/tools/list_changed", {})
