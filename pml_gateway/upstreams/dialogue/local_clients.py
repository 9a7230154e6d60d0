"""The clients on this machine that a gateway serves over stdio or its bridges: upstreams' shared sessions are theirs.

A shared session announces what any of them can be asked. With `--alone` there is exactly one, and every call is its.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import anyio

from pml_gateway.mcp.elicitation import NO_CAPABILITIES, Audience, Capabilities

_OLDEST: dict[str, dict[str, Any]] = {"elicitation": {"form": {}}}
"""What a capability without details means; clients that name no mode show forms."""


def union(one: Capabilities, other: Capabilities) -> Capabilities:
    """What either of two clients can be asked."""
    if one == other or not other:
        return one
    if not one:
        return other
    announced = {
        name: _merged(one.announced.get(name), other.announced.get(name), _OLDEST.get(name, {}))
        for name in sorted({*one.announced, *other.announced})
    }
    return Capabilities(json.dumps(announced, sort_keys=True), announced)


def _merged(one: Any, other: Any, oldest: dict[str, Any]) -> Any:
    if one is None or other is None or one == other:
        return other if one is None else one
    merged = dict(one or oldest)
    for detail, value in (other or oldest).items():
        merged[detail] = merged.get(detail) or value
    return merged


@dataclass(frozen=True, slots=True)
class LocalClient:
    """What is known of one client; `audience` reaches it between its requests too, which a stateless one cannot be."""

    client_id: str
    name: str
    client_capabilities: Capabilities
    audience: Audience | None


class LocalClients:
    """Who is there, and what they can be asked together. That only grows: sessions were opened with it."""

    def __init__(self, *, alone: bool = False) -> None:
        """No client yet; `alone` says that there will be one only."""
        self.is_alone = alone
        self.client_capabilities = NO_CAPABILITIES
        self.known = anyio.Event()
        self.has_several = False
        self._first = ""
        self._present: dict[str, LocalClient] = {}
        self._apart: dict[str, LocalClients] = {}

    def introduce(
        self, client_id: str, name: str, client_capabilities: Capabilities, audience: Audience | None
    ) -> None:
        """A client said who it is and what it can be asked."""
        self.has_several = self.has_several or (self.known.is_set() and client_id != self._first)
        self._first = self._first or client_id
        self._present[client_id] = LocalClient(client_id, name, client_capabilities, audience)
        if (apart := self._apart.get(client_id)) is not None:
            # It came by another connection, by which its own sessions reach it from now on.
            apart.introduce(client_id, name, client_capabilities, audience)
        before = NO_CAPABILITIES if self.is_alone else self.client_capabilities
        self.client_capabilities = union(before, client_capabilities)
        self.known.set()

    def leave(self, client_id: str) -> None:
        """A client is gone."""
        self._present.pop(client_id, None)
        self._apart.pop(client_id, None)

    @property
    def count(self) -> int:
        """How many are there now."""
        return len(self._present)

    def find(self, client_id: str) -> LocalClient | None:
        """The client of this id, if it is a local one that is there."""
        return self._present.get(client_id)

    @property
    def sole(self) -> LocalClient | None:
        """The only client that there has been, if it is there."""
        return None if self.has_several else self._present.get(self._first)

    def alone_with(self, client_id: str) -> LocalClients | None:
        """One client as if there were no others, for sessions of its own; None for one that only its requests reach."""
        client = self._present.get(client_id)
        if client is None or client.audience is None:
            return None
        if client_id not in self._apart:
            apart = self._apart[client_id] = LocalClients(alone=True)
            apart.introduce(client_id, client.name, client.client_capabilities, client.audience)
        return self._apart[client_id]

    @property
    def writer(self) -> LocalClient | None:
        """The client to ask for its language model: of those that offer one, the latest, else the latest of all."""
        offering = [each for each in self._present.values() if each.audience is not None and _samples(each)]
        return next(iter(reversed(offering or list(self._present.values()))), None)


def _samples(client: LocalClient) -> bool:
    return "sampling" in client.client_capabilities.announced
