"""The offers of one upstream: its lists that are due, the last ones, and the additions of single clients' sessions."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import replace
from typing import assert_never

import anyio

from pml_gateway.config.settings import EffectiveSettings
from pml_gateway.errors import GatewayError
from pml_gateway.log import get_logger
from pml_gateway.mcp.capabilities import ServerCapabilities
from pml_gateway.mcp.connection import Connection
from pml_gateway.mcp.listing import (
    Difference,
    DueLists,
    Listed,
    ListKind,
    Offers,
    RememberedListing,
    difference,
    known_again,
    with_more,
)
from pml_gateway.text import some_of
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.dialogue.session_policy import SessionPolicy
from pml_gateway.upstreams.lists import OFFERS_SHARE, ToolFacts, list_offers, list_tools, list_whole
from pml_gateway.upstreams.pages import Pages

logger = get_logger(__name__)

FIRST_REST = 30.0
REST_FACTOR = 4
LAST_REST = 3600.0
"""Maximum seconds until a failed or invalid list is requested again; the pause grows, as most such faults are in the
server and stay there."""

CHANGES_SECONDS = 600.0
FREE_CHANGES = 10
"""Changes per `CHANGES_SECONDS` that are processed at once: more than a developer of a server causes."""

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 300.0
"""Maximum seconds of a pause; the first one doubles with each further change."""

BURST_SECONDS = 0.05
"""Servers announce changes in bursts; one listing answers all that arrive within these seconds."""


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
            return any(
                getattr(before[1], each) != getattr(now[1], each) for each in ("resources", "templates", "skills")
            )
        case _:
            assert_never(kind)


class ChangePace:
    """Counts changes of lists, and computes the pause before the next: each is checked, indexed and written to disk."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changes: deque[float] = deque()
        self._paused_until = 0.0

    @property
    def remaining(self) -> float:
        """Return the seconds until the next change may be processed."""
        return max(self._paused_until - self._clock(), 0.0)

    def note(self) -> float:
        """Count a change; return the seconds to wait before the next."""
        now = self._clock()
        self._changes.append(now)
        while now - self._changes[0] > CHANGES_SECONDS:
            self._changes.popleft()
        more = len(self._changes) - FREE_CHANGES
        if more > 0:
            # Limit the exponent, as large powers overflow a float.
            self._paused_until = now + min(FIRST_PAUSE * 2.0 ** min(more - 1, 16), LONGEST_PAUSE)
        return self.remaining


class Lister:
    """The offers of an upstream; `last` is None until it has listed something since the start.

    This is what its shared session lists, and the additions that sessions of single clients announced.
    """

    def __init__(
        self,
        effective: EffectiveSettings,
        remembered: RememberedListing,
        policy: SessionPolicy,
        on_listed: Callable[[Listed], None],
        request_connect: Callable[[], None],
    ) -> None:
        """Begin with what is known from before.

        `on_listed` gets all lists if any of them changed, or was asked for; `request_connect` has the shared session
        opened and listed.
        """
        self._upstream_id = effective.upstream_id
        self._timeout = effective.connect_timeout
        self._policy = policy
        self.on_listed = on_listed
        self._request_connect = request_connect
        self._knew_lists = bool(remembered.era)
        self.due = DueLists()
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

    def note_asked(self, name: str) -> None:
        """Note that a server asked for something that requires this client capability; it is stored with the lists."""
        if name in self.asks:
            return
        self.asks |= {name}
        if self.last is not None:
            self.last = replace(self.last, asks=self.asks, polled=True, announced={})
            self.on_listed(self.last)

    @property
    def capabilities(self) -> ServerCapabilities:
        """Return what the server declared last, here or before this start."""
        return self._offers.capabilities

    @property
    def waits_for_calls(self) -> bool:
        """Return True if no connection is needed until a client calls: the lists are known, and it has no other use."""
        return self._policy.lists_only and (self._knew_lists or self.last is not None)

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

        def note(kind: ListKind, pages: Pages) -> None:
            if pages.fault:
                resting.add(kind)
            if said := (*filter(None, (pages.fault,)), *pages.left_out):
                faults[kind] = (*faults.get(kind, ()), *said)

        if before is None or ListKind.TOOLS in kinds:
            try:
                pages = await list_tools(connection, self._upstream_id, self._timeout)
            except GatewayError:
                self._announced |= announced
                raise
            note(ListKind.TOOLS, pages)
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
            on_pages=note,
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

    async def list_own(self, session: Hashable, connection: Connection, *, has_changed: bool) -> None:
        """List in one client's session if its lists changed, or if nothing has been listed yet."""
        local, is_first = self._policy.local, self.last is None and self._policy.lists_only
        if not (is_first or has_changed):
            return
        if not is_first and local.has_several:
            # The catalog is shared, and what one client's session has belongs to that client.
            return
        announced = connection.session.questions.client_capabilities
        if is_first and announced != local.client_capabilities:
            # Other clients may have more than this client's session lists.
            self._request_connect()
            return
        await anyio.sleep(max(BURST_SECONDS, self.pace.remaining if has_changed else 0.0))
        try:
            listed = (
                await self.ask(connection, is_new=True, poll=False)
                if is_first
                else await self._ask_own(session, connection)
            )
        except GatewayError as error:
            logger.debug("%s: what a client's session has is as before: %s", self._upstream_id, error)
            return
        if listed is not None:
            self.on_listed(listed)

    async def _ask_own(self, session: Hashable, connection: Connection) -> Listed | None:
        tools, offers = await list_whole(connection, self._upstream_id, self._timeout)
        before = self._own.get(session, Difference())
        more = difference(tools, offers, base=(self._tools, self._offers))
        more = replace(more, tools=await known_again(more.tools, before.tools), missing=())
        if (listed := self._own_changed(session, more)) is not None:
            self.pace.note()
        return listed

    def forget_own(self, session: Hashable) -> None:
        """Drop the lists of a client's session that ended."""
        if (listed := self._own_changed(session, Difference())) is not None:
            self.on_listed(listed)

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
        """Delay the next requests for faulty lists by a pause that grows until all are valid; return its seconds."""
        pause, self._next_rest = self._next_rest, min(self._next_rest * REST_FACTOR, LAST_REST)
        self.due.rest(kinds, pause)
        return pause
