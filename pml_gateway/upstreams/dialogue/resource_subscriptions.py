"""Resources of one upstream that clients follow: on the shared session, and on sessions of single clients.

A handshake server has a subscription for each resource; a modern one has one stream for all. If they change, the next
stream is opened before the previous one is closed.

A handshake server notifies the session that subscribed, and some servers let a call decide what is notified. Calls of
such clients use their own sessions, so their subscriptions must be made there as well.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

import anyio
import anyio.abc
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.exceptions import MCPError

from pml_gateway.errors import GatewayError
from pml_gateway.log import get_logger
from pml_gateway.mcp.connection import Connection
from pml_gateway.mcp.failures import translate
from pml_gateway.mcp.negotiation import MODERN
from pml_gateway.signal import Signal

logger = get_logger(__name__)

ANSWER_SECONDS = 30.0
"""Time limit in seconds for the confirmation of one subscription."""

REOPEN_SECONDS = 2.0
"""Seconds until a stream that the server ended is opened again."""

UPDATED = "notifications/resources/updated"

OnUpdated = Callable[[str], None]
"""Handler for the URI that changed, which may be below the followed one."""

BRING_SECONDS = 5.0
"""Time limit in seconds for a session to accept its client's subscriptions; the call that needs it waits meanwhile."""


def tell_followers(followed: Mapping[str, Mapping[object, OnUpdated]], uri: str) -> None:
    """Notify the followers of a resource, and of any resource above it, that it changed."""
    for each, followers in list(followed.items()):
        if uri == each or uri.startswith(each.rstrip("/") + "/"):
            for on_updated in list(followers.values()):
                on_updated(uri)


class ResourceSubscriptions:
    """The followed resources of one upstream, their followers, and the upstream's confirmations."""

    def __init__(self, upstream_id: str) -> None:
        self._upstream_id = upstream_id
        self._followers: dict[str, dict[object, OnUpdated]] = {}
        self._confirmed: frozenset[str] = frozenset()
        self._refused: dict[str, GatewayError] = {}
        self._missed: set[str] = set()
        self._wanted = Signal()
        self._settled = Signal()

    @property
    def is_used(self) -> bool:
        """Return True if any resource is followed, so that the connection must stay open."""
        return bool(self._followers)

    def add(self, uri: str, key: object, on_updated: OnUpdated) -> None:
        """Follow a resource as soon as the upstream is connected."""
        self._followers.setdefault(uri, {})[key] = on_updated
        self._refused.pop(uri, None)
        self._wanted.set()

    def remove(self, uri: str, key: object) -> None:
        """Stop following it; the subscription ends with its last follower."""
        followers = self._followers.get(uri, {})
        followers.pop(key, None)
        if not followers:
            self._followers.pop(uri, None)
            self._refused.pop(uri, None)
            self._wanted.set()

    async def confirmed(self, uri: str) -> None:
        """Wait until the upstream has confirmed a subscription.

        Raises:
            GatewayError: it refused.
        """
        while uri not in self._confirmed:
            error = self._refused.get(uri)
            if error is not None:
                raise error
            await self._settled.wait()

    def updated(self, uri: str) -> None:
        """Pass on that a resource changed, to followers of it or of a resource above it."""
        tell_followers(self._followers, uri)

    @asynccontextmanager
    async def following(self, connection: Connection) -> AsyncIterator[None]:
        """Keep the subscriptions of one connection up to date, for the length of this context."""
        # Changes between two connections were not notified.
        self._missed |= self._confirmed
        self._confirmed = frozenset()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._listen if connection.era == MODERN else self._ask, connection)
            yield
            tasks.cancel_scope.cancel()

    async def _next(self) -> frozenset[str]:
        """Wait until the wanted resources differ from the confirmed and refused ones; return them."""
        while (wanted := frozenset(self._followers) - self._refused.keys()) == self._confirmed:
            await self._wanted.wait()
        return wanted

    def _settle(self, confirmed: frozenset[str]) -> None:
        self._confirmed = confirmed
        self._settled.set()
        for uri in sorted(self._missed & confirmed):
            self._missed.discard(uri)
            self.updated(uri)

    async def _ask(self, connection: Connection) -> None:
        while True:
            wanted = await self._next()
            for uri in sorted(self._confirmed - wanted):
                await self._request(connection, "resources/unsubscribe", uri)
                self._settle(self._confirmed - {uri})
            for uri in sorted(wanted - self._confirmed):
                error = await self._request(connection, "resources/subscribe", uri)
                if error is not None:
                    self._refused[uri] = error
                self._settle(self._confirmed | ({uri} if error is None else set()))

    async def _request(self, connection: Connection, method: str, uri: str) -> GatewayError | None:
        try:
            await connection.session.send_raw(method, {"uri": uri}, timeout=ANSWER_SECONDS)
        except MCPError as exc:
            error = translate(exc, self._upstream_id)
            error.__cause__ = exc
            return error
        return None

    async def _listen(self, connection: Connection) -> None:
        current = anyio.CancelScope()
        async with anyio.create_task_group() as tasks:

            async def refusal(uris: frozenset[str]) -> GatewayError | None:
                """Open a stream for these in place of the previous one, which stays if this one is refused."""
                nonlocal current
                scope = anyio.CancelScope()
                error = await tasks.start(self._stream, connection, uris, scope) if uris else None
                if error is None:
                    current.cancel()
                    current = scope
                    self._settle(uris)
                return error

            while True:
                wanted = await self._next()
                error = await refusal(wanted)
                if error is None:
                    continue
                kept = wanted & self._confirmed
                new = sorted(wanted - kept)
                if not new:
                    current.cancel()
                    self._refused.update(dict.fromkeys(wanted, error))
                    self._settle(frozenset())
                for uri in new:
                    # One refused resource must not cost the other clients their subscriptions.
                    error = await refusal(kept | {uri}) if len(new) > 1 else error
                    if error is None:
                        kept |= {uri}
                    else:
                        self._refused[uri] = error
                self._settle(self._confirmed)

    async def _stream(
        self,
        connection: Connection,
        uris: frozenset[str],
        scope: anyio.CancelScope,
        *,
        task_status: anyio.abc.TaskStatus[GatewayError | None],
    ) -> None:
        """Hold one stream; its messages reach the connection as notifications."""
        acknowledged = False
        with scope:
            try:
                with anyio.fail_after(ANSWER_SECONDS) as limit:
                    async with listen(connection.session, resource_subscriptions=sorted(uris)) as subscription:
                        limit.deadline = float("inf")
                        acknowledged = True
                        task_status.started(None)
                        async for _ in subscription:
                            pass
            except (MCPError, SubscriptionLost, TimeoutError) as exc:
                if not acknowledged:
                    task_status.started(translate(exc, self._upstream_id))
                    return
            await anyio.sleep(REOPEN_SECONDS)
            self._missed |= uris
            self._confirmed = frozenset()
            self._wanted.set()


class Subscriber(Protocol):
    """A session of one client: `followed` has the URIs it subscribed to, each with True if the server agreed."""

    followed: dict[str, bool]

    @property
    def client_id(self) -> str:
        """Return the id of its client."""

    @property
    def is_usable(self) -> bool:
        """Return True if it is open or opening."""


class OwnSubscriptions:
    """The resources that each client follows, and their updates in the client's own sessions."""

    def __init__(self, upstream_id: str) -> None:
        self._upstream_id = upstream_id
        self._followers: dict[str, dict[str, dict[object, OnUpdated]]] = {}
        self._refused: dict[tuple[str, str], GatewayError] = {}

    def add(self, client_id: str, uri: str, key: object, on_updated: OnUpdated) -> None:
        """Follow a resource in the current sessions of a client (once `bring` ran) and in later ones."""
        self._followers.setdefault(client_id, {}).setdefault(uri, {})[key] = on_updated
        self._refused.pop((client_id, uri), None)

    def remove(self, client_id: str, uri: str, key: object) -> None:
        """Stop following it."""
        own = self._followers.get(client_id, {})
        followers = own.get(uri, {})
        followers.pop(key, None)
        if not followers:
            own.pop(uri, None)
            self._refused.pop((client_id, uri), None)
        if not own:
            self._followers.pop(client_id, None)

    def refusal(self, client_id: str, uri: str) -> GatewayError | None:
        """Return the error with which the upstream refused a resource to this client, if it did."""
        return self._refused.get((client_id, uri))

    def updated(self, client_id: str, uri: str) -> None:
        """Notify followers that a session of this client reported a change of a resource."""
        tell_followers(self._followers.get(client_id, {}), uri)

    async def bring(self, session: Subscriber, connection: Connection) -> None:
        """Subscribe a session to the resources that its client follows, and to no others."""
        wanted = self._followers.get(session.client_id, {})
        if wanted.keys() == session.followed.keys() or connection.era == MODERN:
            return
        surplus = session.followed.keys() - wanted.keys()
        lacking = wanted.keys() - session.followed.keys()
        for uri in surplus:
            del session.followed[uri]
        # Set at once, so that calls which begin meanwhile do not subscribe as well.
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
    """Return True if one of a client's own sessions gets the updates of a resource."""
    return any(each.client_id == client_id and each.followed.get(uri) and each.is_usable for each in sessions)
