"""The resources that single clients follow at one upstream, in every session that is theirs.

A handshake server tells a session of the resources that this session subscribed to, and some let a call decide what is
told. Calls of such clients take sessions of their own, so that their subscriptions have to be there as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import anyio
from mcp.shared.exceptions import MCPError

from pml_gateway.errors import GatewayError
from pml_gateway.log import get_logger
from pml_gateway.upstreams.connection import MODERN, Connection
from pml_gateway.upstreams.subscriptions import OnUpdated, tell_followers
from pml_gateway.upstreams.translate import translate

logger = get_logger(__name__)

BRING_SECONDS = 5.0
"""How long a session may take to agree to its client's subscriptions; the call that it is for waits meanwhile."""


class Subscriber(Protocol):
    """A session of one client: `followed` has the URIs it asked for, and whether the server agreed."""

    followed: dict[str, bool]

    @property
    def client_id(self) -> str:
        """Whose it is."""

    @property
    def is_usable(self) -> bool:
        """Whether it is open, or about to be."""


class OwnSubscriptions:
    """What each client follows, and what it is told of it in its own sessions."""

    def __init__(self, upstream_id: str) -> None:
        self._upstream_id = upstream_id
        self._followers: dict[str, dict[str, dict[object, OnUpdated]]] = {}
        self._refused: dict[tuple[str, str], GatewayError] = {}

    def add(self, client_id: str, uri: str, key: object, on_updated: OnUpdated) -> None:
        """Follow a resource in the sessions of a client, those of now (once they are brought up to date) and later."""
        self._followers.setdefault(client_id, {}).setdefault(uri, {})[key] = on_updated
        self._refused.pop((client_id, uri), None)

    def remove(self, client_id: str, uri: str, key: object) -> None:
        """Follow it no longer."""
        own = self._followers.get(client_id, {})
        followers = own.get(uri, {})
        followers.pop(key, None)
        if not followers:
            own.pop(uri, None)
            self._refused.pop((client_id, uri), None)
        if not own:
            self._followers.pop(client_id, None)

    def refusal(self, client_id: str, uri: str) -> GatewayError | None:
        """Why the upstream does not let this client follow a resource, if it said so."""
        return self._refused.get((client_id, uri))

    def updated(self, client_id: str, uri: str) -> None:
        """A session of this client was told that a resource changed."""
        tell_followers(self._followers.get(client_id, {}), uri)

    async def bring(self, session: Subscriber, connection: Connection) -> None:
        """Have a session follow what its client follows, and nothing else."""
        wanted = self._followers.get(session.client_id, {})
        if wanted.keys() == session.followed.keys() or connection.era == MODERN:
            return
        surplus = session.followed.keys() - wanted.keys()
        lacking = wanted.keys() - session.followed.keys()
        for uri in surplus:
            del session.followed[uri]
        # At once, so that calls which begin meanwhile do not ask as well.
        session.followed.update(dict.fromkeys(lacking, False))
        with anyio.move_on_after(BRING_SECONDS):
            async with anyio.create_task_group() as tasks:
                for uri in surplus:
                    tasks.start_soon(self._request, connection, "resources/unsubscribe", uri)
                for uri in lacking:
                    tasks.start_soon(self._subscribe, session, connection, uri)

    async def _subscribe(self, session: Subscriber, connection: Connection, uri: str) -> None:
        error = await self._request(connection, "resources/subscribe", uri)
        if error is not None:
            self._refused[session.client_id, uri] = error
        elif uri in session.followed:
            session.followed[uri] = True

    async def _request(self, connection: Connection, method: str, uri: str) -> GatewayError | None:
        try:
            await connection.session.send_raw(method, {"uri": uri}, timeout=BRING_SECONDS)
        except (MCPError, GatewayError) as exc:
            error = translate(exc, self._upstream_id)
            error.__cause__ = exc
            return error
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as exc:
            logger.debug("%s did not reach %s: %s", method, self._upstream_id, exc)
        return None


def hears(sessions: Iterable[Subscriber], client_id: str, uri: str) -> bool:
    """Whether one of a client's own sessions is told of a resource."""
    return any(each.client_id == client_id and each.followed.get(uri) and each.is_usable for each in sessions)
