"""The clients on this machine that a gateway serves over stdio or its bridges; they share the upstreams' sessions.

A shared session announces the combined capabilities of all of them. With `--alone` there is exactly one client, and
every call is from it.
"""

from __future__ import annotations

from dataclasses import dataclass

import anyio

from pml_gateway.mcp.capabilities import NO_CAPABILITIES, ClientCapabilities, union
from pml_gateway.mcp.elicitation import Audience


@dataclass(frozen=True, slots=True)
class LocalClient:
    """One client; `audience` reaches it also between its requests; None for a stateless client, which cannot be."""

    client_id: str
    client_capabilities: ClientCapabilities
    audience: Audience | None


class LocalClients:
    """The connected clients, and their combined capabilities; extensions only if all clients have the same.

    Other capabilities only grow, as sessions were opened with them.
    """

    def __init__(self, *, alone: bool = False) -> None:
        """Start without clients; `alone` is True if there will only be one."""
        self.is_alone = alone
        self.client_capabilities = NO_CAPABILITIES
        self.known = anyio.Event()
        self.has_several = False
        self._first = ""
        self._present: dict[str, LocalClient] = {}
        self._apart: dict[str, LocalClients] = {}

    def introduce(self, client_id: str, client_capabilities: ClientCapabilities, audience: Audience | None) -> None:
        """Note the capabilities of a client."""
        self.has_several = self.has_several or (self.known.is_set() and client_id != self._first)
        self._first = self._first or client_id
        self._present[client_id] = LocalClient(client_id, client_capabilities, audience)
        if (apart := self._apart.get(client_id)) is not None:
            # It reconnected: its own sessions reach it by the new connection from now on.
            apart.introduce(client_id, client_capabilities, audience)
        before = NO_CAPABILITIES if self.is_alone else self.client_capabilities
        combined = union(before, client_capabilities)
        is_alike = self.is_alone or not self.known.is_set() or before.extended == client_capabilities.extended
        # A server would answer all of its clients as it answers those with the extension.
        self.client_capabilities = combined if is_alike else combined.plain
        self.known.set()

    def leave(self, client_id: str) -> None:
        """Note that a client has disconnected."""
        self._present.pop(client_id, None)
        self._apart.pop(client_id, None)

    @property
    def count(self) -> int:
        """Return the number of connected clients."""
        return len(self._present)

    def find(self, client_id: str) -> LocalClient | None:
        """Return the client with this id, if it is local and connected."""
        return self._present.get(client_id)

    @property
    def are_one(self) -> bool:
        """Return True if there has been one client so far."""
        return self.known.is_set() and not self.has_several

    @property
    def sole(self) -> LocalClient | None:
        """Return the only client so far, if it is connected."""
        return None if self.has_several else self._present.get(self._first)

    def alone_with(self, client_id: str) -> LocalClients | None:
        """Return one client as if it were the only one, for its own sessions; None if it is stateless."""
        client = self._present.get(client_id)
        if client is None or client.audience is None:
            return None
        if client_id not in self._apart:
            apart = self._apart[client_id] = LocalClients(alone=True)
            apart.introduce(client_id, client.client_capabilities, client.audience)
        return self._apart[client_id]
