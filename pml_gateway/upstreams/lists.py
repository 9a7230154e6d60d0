"""Requests for the lists of one upstream: those that are due, with all their pages, and the facts that calls need."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import assert_never

from mcp.shared.inbound import find_invalid_x_mcp_header, x_mcp_header_map
from mcp_types import ServerCapabilities
from mcp_types.jsonrpc import METHOD_NOT_FOUND

from pml_gateway.config.settings import EffectiveSettings
from pml_gateway.errors import GatewayError, UpstreamProtocolError
from pml_gateway.log import get_logger
from pml_gateway.mcp.connection import Connection
from pml_gateway.mcp.listing import (
    Difference,
    Due,
    Listed,
    ListKind,
    Offers,
    RememberedListing,
    difference,
    known_again,
    with_more,
)
from pml_gateway.mcp.negotiation import HANDSHAKE
from pml_gateway.mcp.session import PassthroughSession
from pml_gateway.text import some_of
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.change_pace import ChangePace
from pml_gateway.upstreams.pages import Pages, all_pages
from pml_gateway.upstreams.retries import repeatable_tools

logger = get_logger(__name__)

OnPages = Callable[[ListKind, Pages], None]
"""Callback for a list that arrived; it may be faulty or lack some definitions."""

OnError = Callable[[ListKind, GatewayError], None]
"""Callback for a list that could not be fetched, with the error."""

MAX_INSTRUCTIONS = 20_000
"""Maximum characters of a server's instructions that are kept; clients get fewer."""

OFFERS_SHARE = 0.2
"""Share of the connect timeout for each list other than tools, so that a list that never arrives costs no tools."""

FIRST_REST = 30.0
REST_FACTOR = 4
LAST_REST = 3600.0
"""Maximum seconds until a failed or invalid list is requested again; the pause grows, as most such faults are in the
server and stay there."""


class ToolFacts:
    """Facts of tools for sending calls: arguments that are also sent as headers, and tools that may be called twice."""

    def __init__(self, tools: Sequence[JsonObject]) -> None:
        self._input_schemas = {str(tool.get("name")): tool.get("inputSchema") for tool in tools}
        self._header_maps: dict[str, Mapping[tuple[str, ...], str]] = {}
        self.repeatable = repeatable_tools(tools)

    def header_map(self, name: str) -> Mapping[tuple[str, ...], str]:
        """Return the property paths of a tool annotated with `x-mcp-header`, each with its header token."""
        if name not in self._input_schemas:
            return {}
        known = self._header_maps.get(name)
        if known is None:
            schema = self._input_schemas[name]
            known = x_mcp_header_map(schema) if find_invalid_x_mcp_header(schema) is None else {}
            self._header_maps[name] = known
        return known


async def list_tools(connection: Connection, upstream_id: str, timeout: float) -> Pages:
    """Fetch all tools, as the upstream sent them, within `timeout` seconds.

    Raises:
        GatewayError: there was no answer, or it was not a list.
    """
    session = connection.session
    capabilities = session.server_capabilities
    if capabilities is not None and capabilities.tools is None and connection.era == HANDSHAKE:
        return Pages(())
    return await all_pages(session, "tools/list", "tools", upstream_id=upstream_id, timeout=timeout)


async def list_whole(connection: Connection, upstream_id: str, timeout: float) -> tuple[tuple[JsonObject, ...], Offers]:
    """Fetch tools and all other lists in a session of one client.

    Nothing is used if a list failed or was faulty: the result would differ from the common list only because of that.

    Raises:
        GatewayError: a list failed, or was faulty.
    """

    def take(_kind: ListKind, pages: Pages) -> None:
        if pages.fault:
            raise UpstreamProtocolError(pages.fault)

    def fail(_kind: ListKind, error: GatewayError) -> None:
        raise error

    tools = await list_tools(connection, upstream_id, timeout)
    take(ListKind.TOOLS, tools)
    offers = await list_offers(
        connection.session,
        frozenset(ListKind),
        Offers(),
        upstream_id=upstream_id,
        timeout=timeout * OFFERS_SHARE,
        on_pages=take,
        on_error=fail,
    )
    return tools.entries, offers


async def list_offers(
    session: PassthroughSession,
    kinds: Collection[ListKind],
    known: Offers,
    *,
    upstream_id: str,
    timeout: float,
    on_pages: OnPages,
    on_error: OnError,
) -> Offers:
    """Fetch prompts, resources and templates; lists that are not among `kinds`, or fail, stay as in `known`.

    Errors of the upstream are not raised, unless `on_pages` or `on_error` does: tools do not depend on these lists.
    """
    capabilities = session.server_capabilities or ServerCapabilities()

    async def listed(kind: ListKind, method: str, key: str, before: tuple[JsonObject, ...]) -> tuple[JsonObject, ...]:
        try:
            pages = await all_pages(session, method, key, upstream_id=upstream_id, timeout=timeout)
        except GatewayError as error:
            if error.details.get("jsonrpc_code") == METHOD_NOT_FOUND:
                return ()
            on_error(kind, error)
            return before
        on_pages(kind, pages)
        return pages.completed(before, key)

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


def _lists_others(
    kind: ListKind, before: tuple[Sequence[JsonObject], Offers], now: tuple[Sequence[JsonObject], Offers]
) -> bool:
    """Return True if a list changed; unchanged tools are identical objects, in any order."""
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
    """The lists of an upstream; `last` is None until it has listed something since the start.

    They contain the lists of its shared session, and the additions that sessions of single clients announced.
    """

    def __init__(self, effective: EffectiveSettings, remembered: RememberedListing) -> None:
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
        self._faults: dict[ListKind, tuple[str, ...]] = {}
        self._announced: set[ListKind] = set()
        self._own: dict[Hashable, Difference] = {}
        self.pace = ChangePace()

    def announce(self, kind: ListKind) -> None:
        """Note that the upstream announced a change of a list."""
        self._announced.add(kind)
        self.due.announce((kind,))

    async def ask(self, connection: Connection, *, is_new: bool, poll: bool) -> Listed:
        """Fetch the lists that are due, or all if `poll` or the connection is new; the others stay as they are.

        Raises:
            GatewayError: the tools could not be listed.
        """
        polled = poll and not self.due.is_any
        kinds = self.due.take(frozenset(ListKind) if poll else frozenset())
        before = None if is_new else self.last
        if before is None:
            kinds = frozenset(ListKind)
        # Changes announced from here on are due again, and reported with the next listing.
        announced = kinds & self._announced
        self._announced -= announced
        started = time.monotonic()
        faults = {kind: fault for kind, fault in self._faults.items() if kind not in kinds}

        resting = set[ListKind]()

        def note(kind: ListKind, fault: str, left_out: Sequence[str] = ()) -> None:
            if fault:
                resting.add(kind)
            if said := (*filter(None, (fault,)), *left_out):
                faults[kind] = (*faults.get(kind, ()), *said)

        if before is None or ListKind.TOOLS in kinds:
            try:
                pages = await list_tools(connection, self._upstream_id, self._timeout)
            except GatewayError:
                self._announced |= announced
                raise
            note(ListKind.TOOLS, pages.fault, pages.left_out)
            tools = pages.completed(self._tools, "tools")
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
            on_pages=lambda kind, pages: note(kind, pages.fault, pages.left_out),
            on_error=lambda kind, error: note(kind, error.message),
        )
        for kind in faults.keys() & kinds:
            if faults[kind] != self._faults.get(kind):
                logger.warning("a list is not as it should be; what came is kept: %s", some_of(faults[kind]))
        self._faults = faults
        if resting:
            self.rest(resting)
        else:
            self._next_rest = FIRST_REST
        self._tools = tools
        listed_tools, offers = self._with_own()
        info = connection.session.server_info
        self.last = Listed(
            listed_tools,
            listed_at=time.time(),
            era=connection.era,
            version=connection.session.offered,
            faults=tuple(fault for said in faults.values() for fault in said),
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
        changed = [kind for kind, is_other in self.last.announced.items() if is_other]
        if changed and (pause := self.pace.note()):
            self.due.quiet(changed, pause)
            logger.info("%s: its lists change all the time; next looked at in %.0f s", self._upstream_id, pause)
        return self.last

    async def ask_own(self, session: Hashable, connection: Connection) -> Listed | None:
        """Fetch all lists in a session of one client; return None if that changes nothing.

        Raises:
            GatewayError: the tools could not be listed.
        """
        tools, offers = await list_whole(connection, self._upstream_id, self._timeout)
        before = self._own.get(session, Difference())
        more = difference(tools, offers, base=(self._tools, self._offers))
        more = replace(more, tools=await known_again(more.tools, before.tools), missing=())
        if (listed := self._own_changed(session, more)) is not None:
            self.pace.note()
        return listed

    def forget_own(self, session: Hashable) -> Listed | None:
        """Drop the lists of a client's session that ended; return None if that changes nothing."""
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
        """Return the lists of the shared session and the additions of single clients' sessions."""
        tools, offers = self._tools, self._offers
        if self._own:
            tools, offers = with_more(tools, offers, self._own.values())
        if tools is not self._facts_of:
            self._facts_of, self.tool_facts = tools, ToolFacts(tools)
        return tools, offers

    def rest(self, kinds: Collection[ListKind]) -> float:
        """Delay the next requests for faulty lists; the pause grows each time until all lists are valid.

        Returns:
            The pause in seconds.
        """
        pause, self._next_rest = self._next_rest, min(self._next_rest * REST_FACTOR, LAST_REST)
        self.due.rest(kinds, pause)
        return pause
