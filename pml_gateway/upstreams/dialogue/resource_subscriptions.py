"""Resources of one upstream that clients follow: on the shared session, and on sessions of single clients.

A handshake server has a subscription for each resource; a modern one has one stream for all. If they change, the next
stream is opened before the previous one is closed.

A handshake server notifies the session that subscribed, and some servers let a call decide what is notified. Calls of
such clients use their own sessions, so their subscriptions must be made there as well.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

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


class FollowedResources:
    """Resources by URI, each with its followers, or the error with which the upstream refused it."""

    def __init__(self) -> None:
        self.followers: dict[str, dict[object, OnUpdated]] = {}
        self.refused: dict[str, GatewayError] = {}

    def add(self, uri: str, key: object, on_updated: OnUpdated) -> None:
        """Follow a resource as soon as the upstream is connected."""
        self.followers.setdefault(uri, {})[key] = on_updated
        self.refused.pop(uri, None)

    def remove(self, uri: str, key: object) -> None:
        """Stop following it; the subscription ends with its last follower."""
        followers = self.followers.get(uri, {})
        followers.pop(key, None)
        if not followers:
            self.followers.pop(uri, None)
            self.refused.pop(uri, None)

    def updated(self, uri: str) -> None:
        """Notify the followers of a resource, and of any resource above it, that it changed."""
        for each, followers in list(self.followers.items()):
            if uri == each or uri.startswith(each.rstrip("/") + "/"):
                for on_updated in list(followers.values()):
                    on_updated(uri)


async def _refusal(
    upstream_id: str, connection: Connection, method: str, uri: str, seconds: float = ANSWER_SECONDS
) -> GatewayError | None:
    """Send a request about a resource; return the error with which the upstream refuses it."""
    try:
        await connection.session.send_raw(method, {"uri": uri}, timeout=seconds)
    except MCPError as exc:
        error = translate(exc, upstream_id)
        error.__cause__ = exc
        return error
    return None


class ResourceSubscriptions(FollowedResources):
    """The followed resources of one upstream on the shared session, and the upstream's confirmations."""

    def __init__(self, upstream_id: str) -> None:
        super().__init__()
        self._upstream_id = upstream_id
        self._confirmed: frozenset[str] = frozenset()
        self._missed: set[str] = set()
        self._wanted = Signal()
        self._settled = Signal()

    def add(self, uri: str, key: object, on_updated: OnUpdated) -> None:
        super().add(uri, key, on_updated)
        self._wanted.set()

    def remove(self, uri: str, key: object) -> None:
        super().remove(uri, key)
        self._wanted.set()

    async def confirmed(self, uri: str) -> None:
        """Wait until the upstream has confirmed a subscription.

        Raises:
            GatewayError: it refused.
        """
        while uri not in self._confirmed:
            error = self.refused.get(uri)
            if error is not None:
                raise error
            await self._settled.wait()

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
        while (wanted := frozenset(self.followers) - self.refused.keys()) == self._confirmed:
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
                await _refusal(self._upstream_id, connection, "resources/unsubscribe", uri)
                self._settle(self._confirmed - {uri})
            for uri in sorted(wanted - self._confirmed):
                error = await _refusal(self._upstream_id, connection, "resources/subscribe", uri)
                if error is not None:
                    self.refused[uri] = error
                self._settle(self._confirmed | ({uri} if error is None else set()))

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
                    self.refused.update(dict.fromkeys(wanted, error))
                    self._settle(frozenset())
                for uri in new:
                    # One refused resource must not cost the other clients their subscriptions.
                    error = await refusal(kept | {uri}) if len(new) > 1 else error
                    if error is None:
                        kept |= {uri}
                    else:
                        self.refused[uri] = error
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


class OwnSubscriptions:
    """The resources that each client follows, and their updates in the client's own sessions."""

    def __init__(self, upstream_id: str) -> None:
        self._upstream_id = upstream_id
        self._clients: dict[str, FollowedResources] = {}

    def of(self, client_id: str) -> FollowedResources:
        return self._clients.get(client_id, FollowedResources())

    def add(self, client_id: str, uri: str, key: object, on_updated: OnUpdated) -> None:
        """Follow a resource in the current sessions of a client (once `bring` ran) and in later ones."""
        self._clients.setdefault(client_id, FollowedResources()).add(uri, key, on_updated)

    def remove(self, client_id: str, uri: str, key: object) -> None:
        self.of(client_id).remove(uri, key)
        if not self.of(client_id).followers:
            self._clients.pop(client_id, None)

    async def bring(self, client_id: str, followed: dict[str, bool], connection: Connection) -> None:
        """Subscribe a client's session to the resources that it follows, and to no others.

        `followed` has the URIs that the session subscribed to, each with True if the server agreed.
        """
        resources = self.of(client_id)
        wanted = resources.followers.keys()
        if wanted == followed.keys() or connection.era == MODERN:
            return
        surplus, lacking = followed.keys() - wanted, wanted - followed.keys()
        for uri in surplus:
            del followed[uri]
        # Set at once, so that calls which begin meanwhile do not subscribe as well.
        followed.update(dict.fromkeys(lacking, False))

        async def subscribe(uri: str) -> None:
            error = await self._request(connection, "resources/subscribe", uri)
            if error is not None:
                resources.refused[uri] = error
            elif uri in followed:
                followed[uri] = True

        with anyio.move_on_after(BRING_SECONDS):
            async with anyio.create_task_group() as tasks:
                for uri in surplus:
                    tasks.start_soon(self._request, connection, "resources/unsubscribe", uri)
                for uri in lacking:
                    tasks.start_soon(subscribe, uri)

    async def _request(self, connection: Connection, method: str, uri: str) -> GatewayError | None:
        try:
            return await _refusal(self._upstream_id, connection, method, uri, BRING_SECONDS)
        except GatewayError as error:
            return error
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as exc:
            logger.debug("%s did not reach %s: %s", method, self._upstream_id, exc)
        return None
