"""Asking one upstream for its lists: which are due, all their pages, and what sending a call depends on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import assert_never

import anyio
import anyio.lowlevel
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import find_invalid_x_mcp_header, x_mcp_header_map
from mcp_types import ServerCapabilities
from mcp_types.jsonrpc import METHOD_NOT_FOUND

from pml_gateway.config.settings import EffectiveSettings
from pml_gateway.errors import GatewayError, UpstreamProtocolError, UpstreamTimeoutError
from pml_gateway.foreign_json import MAX_LISTED
from pml_gateway.log import get_logger
from pml_gateway.mcp.connection import HANDSHAKE, Connection
from pml_gateway.mcp.failures import translate
from pml_gateway.mcp.http import HttpSide
from pml_gateway.mcp.listing import (
    Difference,
    Due,
    Listed,
    ListKind,
    Offers,
    Remembered,
    difference,
    known_again,
    with_more,
)
from pml_gateway.mcp.session import PassthroughSession
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.retries import repeatable_tools, repeated


class ToolFacts:
    """Which arguments go into headers as well, and which tools may be called twice."""

    def __init__(self, tools: Sequence[JsonObject]) -> None:
        self._input_schemas = {str(tool.get("name")): tool.get("inputSchema") for tool in tools}
        self._header_maps: dict[str, Mapping[tuple[str, ...], str]] = {}
        self.repeatable = repeatable_tools(tools)

    def header_map(self, name: str) -> Mapping[tuple[str, ...], str]:
        """A tool's property paths that are annotated with `x-mcp-header`, with their header tokens."""
        if name not in self._input_schemas:
            return {}
        known = self._header_maps.get(name)
        if known is None:
            schema = self._input_schemas[name]
            known = x_mcp_header_map(schema) if find_invalid_x_mcp_header(schema) is None else {}
            self._header_maps[name] = known
        return known


MAX_PAGES = 2_000

MAX_LIST_BYTES = 64 * 1024 * 1024
"""JSON size of a whole list; each of its messages is limited besides (`upstreams.max_message_bytes`)."""

MEASURED_AT_ONCE = 50
"""Entries of a list that are looked at between two turns of everybody else, about 0.3 ms."""


async def all_pages(
    session: PassthroughSession, method: str, key: str, *, upstream_id: str, timeout: float
) -> tuple[JsonObject, ...]:
    """Every object of a paginated list, as the upstream sent it; `timeout` is for all of its pages.

    Raises:
        UpstreamTimeoutError: the list was not complete in time.
        UpstreamProtocolError: a cursor repeats, pages or objects exceed the limits, or there is no list under `key`.
        MCPError: the upstream's own error.
    """
    with anyio.move_on_after(timeout):
        return await _pages(session, method, key, upstream_id, timeout)
    raise UpstreamTimeoutError(
        f"{upstream_id}: {method}: no complete list within {timeout:g} s",
        hint=f"check the server, or raise servers.{upstream_id}.connect_timeout",
    )


async def _pages(
    session: PassthroughSession, method: str, key: str, upstream_id: str, timeout: float
) -> tuple[JsonObject, ...]:
    listed: list[JsonObject] = []
    size = 0
    cursors: set[str] = set()
    params: JsonObject = {}
    for _ in range(MAX_PAGES):
        result = await session.send_raw(method, params, timeout=timeout)
        page = result.get(key)
        if not isinstance(page, list):
            raise UpstreamProtocolError(f"{upstream_id}: {method} answered without a list of {key}")
        if len(listed) + len(page) > MAX_LISTED:
            raise UpstreamProtocolError(f"{upstream_id}: {method}: more than {MAX_LISTED} {key} listed")
        listed.extend(entry for entry in page if isinstance(entry, dict))
        cursor = result.get("nextCursor")
        if not isinstance(cursor, str) or not cursor:
            return tuple(listed)
        if cursor in cursors:
            raise UpstreamProtocolError(f"{upstream_id}: {method} repeats the cursor {cursor[:40]!r}")
        cursors.add(cursor)
        size += await _size(page)
        if size > MAX_LIST_BYTES:
            raise UpstreamProtocolError(f"{upstream_id}: {method}: more than {MAX_LIST_BYTES} bytes of {key} listed")
        params = {"cursor": cursor}
    raise UpstreamProtocolError(f"{upstream_id}: {method} did not end within {MAX_PAGES} pages")


async def _size(page: list[object]) -> int:
    """The JSON size of one page."""
    size = 0
    for start in range(0, len(page), MEASURED_AT_ONCE):
        size += len(json.dumps(page[start : start + MEASURED_AT_ONCE]))
        await anyio.lowlevel.checkpoint()
    return size


async def list_tools(
    connection: Connection, upstream_id: str, timeout: float, http: HttpSide | None = None
) -> tuple[JsonObject, ...]:
    """All tools, as the upstream sent them.

    Args:
        connection: where to ask.
        upstream_id: whose it is, for messages.
        timeout: seconds for all attempts.
        http: what is known of its HTTP side.

    Raises:
        GatewayError: it did not answer, or with what is no list.
    """

    session = connection.session
    capabilities = session.server_capabilities
    if capabilities is not None and capabilities.tools is None and connection.era == HANDSHAKE:
        return ()

    async def attempt() -> tuple[JsonObject, ...]:
        try:
            return await all_pages(session, "tools/list", "tools", upstream_id=upstream_id, timeout=timeout)
        except MCPError as exc:
            raise translate(exc, upstream_id, http=http) from exc

    return await repeated(attempt, anyio.current_time() + timeout)


logger = get_logger(__name__)

MAX_INSTRUCTIONS = 20_000
"""Characters of a server's instructions that are kept; what clients get of them is less."""


async def list_offers(
    session: PassthroughSession,
    kinds: Collection[ListKind],
    known: Offers,
    *,
    upstream_id: str,
    timeout: float,
    on_fault: Callable[[ListKind], None] = lambda _kind: None,
) -> Offers:
    """What the upstream offers; lists that are not among `kinds`, and those that fail, are as known before.

    Nothing here raises for what the upstream answers: its tools do not depend on it. `on_fault` is told which lists
    were against the protocol.
    """
    capabilities = session.server_capabilities or ServerCapabilities()

    async def listed(kind: ListKind, method: str, key: str, before: tuple[JsonObject, ...]) -> tuple[JsonObject, ...]:
        try:
            return await all_pages(session, method, key, upstream_id=upstream_id, timeout=timeout)
        except (MCPError, GatewayError) as exc:
            if isinstance(exc, MCPError) and exc.code == METHOD_NOT_FOUND:
                return ()
            error = translate(exc, upstream_id)
            logger.warning("%s are as listed before: %s", key, error)
            if isinstance(error, UpstreamProtocolError):
                on_fault(kind)
            return before

    prompts = known.prompts if capabilities.prompts else ()
    resources = known.resources if capabilities.resources else ()
    templates = known.templates if capabilities.resources else ()
    if capabilities.prompts and ListKind.PROMPTS in kinds:
        prompts = await listed(ListKind.PROMPTS, "prompts/list", "prompts", prompts)
    if capabilities.resources and ListKind.RESOURCES in kinds:
        resources = await listed(ListKind.RESOURCES, "resources/list", "resources", resources)
        templates = await listed(ListKind.RESOURCES, "resources/templates/list", "resourceTemplates", templates)
    return Offers(
        prompts=prompts,
        resources=resources,
        templates=templates,
        instructions=(session.instructions or "")[:MAX_INSTRUCTIONS],
        has_prompts=capabilities.prompts is not None,
        has_resources=capabilities.resources is not None,
        completes=capabilities.completions is not None,
        subscribes=bool(capabilities.resources and capabilities.resources.subscribe),
    )


OFFERS_SHARE = 0.2
"""Of the time to connect, what each list beside the tools may take: one that is never given costs no tools."""


FIRST_REST = 30.0
REST_FACTOR = 4
LAST_REST = 3600.0
"""Seconds until a list that was against the protocol is asked for again: such a fault is in the server and stays there,
while one of the connection passes."""


def _lists_others(
    kind: ListKind, before: tuple[Sequence[JsonObject], Offers], now: tuple[Sequence[JsonObject], Offers]
) -> bool:
    """Whether a list has other things than before; tools are the very same objects then, in whichever order."""
    match kind:
        case ListKind.TOOLS:
            return set(map(id, before[0])) != set(map(id, now[0]))
        case ListKind.PROMPTS:
            return before[1].prompts != now[1].prompts
        case ListKind.RESOURCES:
            return (before[1].resources, before[1].templates) != (now[1].resources, now[1].templates)
        case _:
            assert_never(kind)


class Lists:
    """What an upstream lists; `last` is None until it has listed something since the start.

    That is what its shared session lists, and what it says in sessions of single clients that it has more there.
    """

    def __init__(self, effective: EffectiveSettings, remembered: Remembered) -> None:
        self._upstream_id = effective.upstream_id
        self._timeout = effective.connect_timeout
        self.due = Due()
        self.last: Listed | None = None
        self.tool_facts = ToolFacts(remembered.tools)
        self._facts_of = remembered.tools
        self.asks = remembered.asks
        self._next_rest = FIRST_REST
        self._tools = remembered.tools
        self._offers = remembered.offers
        self._announced: set[ListKind] = set()
        self._own: dict[Hashable, Difference] = {}

    def announce(self, kind: ListKind) -> None:
        """The upstream says that a list changed."""
        self._announced.add(kind)
        self.due.announce((kind,))

    async def ask(self, connection: Connection, http: HttpSide, *, is_new: bool, poll: bool) -> Listed:
        """Ask for the lists that are due, and to `poll` or of a new connection for all; the others are as they were.

        Raises:
            GatewayError: the tools could not be listed.
        """
        polled = poll and not self.due.is_any
        kinds = self.due.take(frozenset(ListKind) if poll else frozenset())
        before = None if is_new else self.last
        if before is None:
            kinds = frozenset(ListKind)
        # What is announced from here on is due again, and told with that listing.
        announced = kinds & self._announced
        self._announced -= announced
        started = time.monotonic()
        faulty: set[ListKind] = set()
        if before is None or ListKind.TOOLS in kinds:
            try:
                tools = await list_tools(connection, self._upstream_id, self._timeout, http)
            except GatewayError:
                self._announced |= announced
                raise
            tools = await known_again(tools, self._tools) if self._tools else tools
        else:
            tools = self._tools
        tools_before, offers_before = self._tools, self._offers
        self._offers = await list_offers(
            connection.session,
            kinds,
            self._offers,
            upstream_id=self._upstream_id,
            timeout=self._timeout * OFFERS_SHARE,
            on_fault=faulty.add,
        )
        if faulty:
            self.rest(faulty)
        else:
            self._next_rest = FIRST_REST
        self._tools = tools
        listed_tools, offers = self._with_own()
        info = connection.session.server_info
        self.last = Listed(
            listed_tools,
            listed_at=time.time(),
            era=connection.era,
            server_name=info.name if info else "",
            server_version=info.version if info else "",
            seconds=time.monotonic() - started,
            offers=offers,
            asks=self.asks,
            polled=polled and before is not None,
            announced={
                kind: _lists_others(kind, (tools_before, offers_before), (self._tools, self._offers))
                for kind in announced
            },
        )
        return self.last

    async def ask_own(self, session: Hashable, connection: Connection) -> Listed | None:
        """Ask for all lists in a session of one client's; None if that changes nothing.

        Raises:
            GatewayError: the tools could not be listed.
        """
        tools = await list_tools(connection, self._upstream_id, self._timeout)
        offers = await list_offers(
            connection.session,
            frozenset(ListKind),
            Offers(),
            upstream_id=self._upstream_id,
            timeout=self._timeout * OFFERS_SHARE,
        )
        before = self._own.get(session, Difference())
        more = difference(tools, offers, base=(self._tools, self._offers))
        more = replace(more, tools=await known_again(more.tools, before.tools), missing=())
        return self._own_changed(session, more)

    def forget_own(self, session: Hashable) -> Listed | None:
        """What such a session listed is no more, as it ended; None if that changes nothing."""
        return self._own_changed(session, Difference())

    def _own_changed(self, session: Hashable, more: Difference) -> Listed | None:
        if self._own.pop(session, Difference()) == more or self.last is None:
            return None
        if more:
            self._own[session] = more
        before = self.last
        tools, offers = self._with_own()
        changes = {kind: _lists_others(kind, (before.tools, before.offers), (tools, offers)) for kind in ListKind}
        announced = {kind: is_other for kind, is_other in changes.items() if is_other}
        self.last = replace(before, tools=tools, offers=offers, polled=False, announced=announced)
        return self.last

    def _with_own(self) -> tuple[tuple[JsonObject, ...], Offers]:
        """What the shared session lists and what single clients' sessions have more."""
        tools, offers = self._tools, self._offers
        if self._own:
            tools, offers = with_more(tools, offers, self._own.values())
        if tools is not self._facts_of:
            self._facts_of, self.tool_facts = tools, ToolFacts(tools)
        return tools, offers

    def rest(self, kinds: Collection[ListKind]) -> float:
        """Let lists rest that are against the protocol, each time longer until all are sound; how many seconds."""
        pause, self._next_rest = self._next_rest, min(self._next_rest * REST_FACTOR, LAST_REST)
        self.due.rest(kinds, pause)
        return pause
