"""The lists of one upstream: which are due, asking for those, and what all of them said last."""

from __future__ import annotations

import time

from pml_gateway.upstreams.connection import Connection
from pml_gateway.upstreams.listing import Due, Listed, ListKind, Remembered, known_again
from pml_gateway.upstreams.offers import list_offers
from pml_gateway.upstreams.terms import Terms
from pml_gateway.upstreams.tool_facts import ToolFacts
from pml_gateway.upstreams.tool_listing import list_tools
from pml_gateway.upstreams.transport import HttpSide

OFFERS_SHARE = 0.2
"""Of the time to connect, what each list beside the tools may take: one that is never given costs no tools."""


class Lists:
    """What an upstream lists; `last` is None until it has listed something since the start."""

    def __init__(self, terms: Terms, remembered: Remembered) -> None:
        self._upstream_id = terms.upstream_id
        self._timeout = terms.connect_timeout
        self.due = Due()
        self.last: Listed | None = None
        self.tool_facts = ToolFacts(remembered.tools)
        self._tools = remembered.tools
        self._offers = remembered.offers

    async def ask(self, connection: Connection, http: HttpSide, *, is_new: bool, poll: bool) -> Listed:
        """Ask for the lists that are due, of a new connection for all; the others are as they were.

        Raises:
            GatewayError: the tools could not be listed.
        """
        kinds = self.due.take() | (connection.unannounced if poll else frozenset())
        before = None if is_new else self.last
        if before is None:
            kinds = frozenset(ListKind)
        started = time.monotonic()
        if before is None or ListKind.TOOLS in kinds:
            tools = await list_tools(connection, self._upstream_id, self._timeout, http)
            tools = await known_again(tools, self._tools) if self._tools else tools
        else:
            tools = before.tools
        self._offers = await list_offers(
            connection.session,
            kinds,
            self._offers,
            upstream_id=self._upstream_id,
            timeout=self._timeout * OFFERS_SHARE,
        )
        if tools is not self._tools:
            self._tools, self.tool_facts = tools, ToolFacts(tools)
        info = connection.session.server_info
        self.last = Listed(
            tools,
            listed_at=time.time(),
            era=connection.era,
            server_name=info.name if info else "",
            server_version=info.version if info else "",
            seconds=time.monotonic() - started,
            offers=self._offers,
            polled=poll and before is not None,
        )
        return self.last
