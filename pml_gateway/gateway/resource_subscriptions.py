"""Clients that follow resources, and the notices they get as long as they may see them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import anyio
import anyio.abc
from mcp.shared.exceptions import MCPError

from pml_gateway.catalog.prompts_and_resources import Route
from pml_gateway.errors import GatewayError
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.gateway.request import Context, RequestAudience, RequestScope
from pml_gateway.log import ThrottledWarning, get_logger
from pml_gateway.mcp.sdk import connection_of
from pml_gateway.policy.principal import ANONYMOUS, Principal
from pml_gateway.policy.prompts_and_resources import OfferView
from pml_gateway.quotas import Holdings
from pml_gateway.results.answers import resource_not_found
from pml_gateway.signal import CoalescedSignal
from pml_gateway.upstreams.upstream import Upstream

logger = get_logger(__name__)

MAX_FOLLOWED = 1_000
"""Resources that one session or stream may follow."""

MAX_FOLLOWERS = 20_000
"""Maximum number of subscriptions of all clients; past it, the client with the most loses its oldest."""

NOTICE_SECONDS = 5.0
"""Time limit in seconds for one client to accept a notification."""

COALESCE_SECONDS = 0.05
"""Changes within this time, of a resource or of the catalog, are one."""

_SESSION_KEY = "pml_gateway.followed"

Notify = Callable[[str], Awaitable[None]]
"""Tells a client that the resource at a URI changed."""


@dataclass(eq=False, slots=True)
class ResourceSubscriber:
    """One client that follows one resource; `attached` says where its notices come from now.

    `is_given_up` says that others needed the room.
    """

    client: Principal
    uri: str
    notify: Notify
    attached: tuple[Upstream, str] | None = None
    pending: set[str] = field(default_factory=set)
    is_given_up: bool = False

    @property
    def client_id(self) -> str:
        """Return the client's identity, if it can be told from others."""
        return "" if self.client.id == ANONYMOUS.id else self.client.id


class ResourceFollowers:
    """Attaches followers to the upstreams that have their resources, again whenever the catalog or the rules change."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._followers: Holdings[ResourceSubscriber] = Holdings()
        self._too_many = ThrottledWarning(logger)
        self._changed = CoalescedSignal(COALESCE_SECONDS)
        # One change may be told in several sessions of the same client.
        self._updated = CoalescedSignal(COALESCE_SECONDS)
        gateway.current.on_swap(lambda _before, _after: self._changed.ask())

    async def run(self) -> None:
        """Follow swaps and pass on notices, for as long as the owner's task group lives."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._changed.run, self._attach_anew)
            while True:
                await self._updated.next()
                for follower in list(self._followers):
                    for uri in follower.pending:
                        tasks.start_soon(self._tell, follower, uri)
                    follower.pending.clear()

    async def subscribe_session(self, ctx: Context, uri: str) -> None:
        """Let a handshake session follow a resource until it ends or no longer wants to.

        Raises:
            GatewayError: the upstream refused, or cannot be reached.
        """
        connection = connection_of(ctx)
        if _SESSION_KEY not in connection.state:
            connection.state[_SESSION_KEY] = {}
            connection.exit_stack.callback(lambda: self.end(connection.state[_SESSION_KEY].values()))
        own: dict[str, ResourceSubscriber] = connection.state[_SESSION_KEY]
        if (known := own.get(uri)) is not None and not known.is_given_up:
            return
        if known is None and len(own) >= MAX_FOLLOWED:
            return

        async def notify(updated: str) -> None:
            await connection.notify("notifications/resources/updated", {"uri": updated})

        follower = ResourceSubscriber(ctx.scope.client, uri, notify)
        routed = self._route(follower)
        if routed is None:
            raise resource_not_found(uri, ctx.protocol_version)
        upstream, route = routed
        own[uri] = follower
        try:
            await upstream.sessions.subscribe(
                route.uri, follower, self._on_updated(follower, route), RequestAudience(ctx)
            )
        except BaseException:
            own.pop(uri, None)
            raise
        follower.attached = (upstream, route.uri)
        if own.get(uri) is follower:
            self._add(follower)
            # A swap during the subscription did not find this follower, whose upstream may be another one since.
            self._changed.ask()
        else:
            self._detach(follower)

    def unsubscribe_session(self, ctx: Context, uri: str) -> None:
        """End what `subscribe_session` began; nothing happens where nothing is followed."""
        own = connection_of(ctx).state.get(_SESSION_KEY, {})
        follower = own.pop(uri, None)
        if follower is not None:
            self.end([follower])

    def follow(self, scope: RequestScope, uri: str, notify: Notify) -> ResourceSubscriber:
        """Follow a resource until `end`; one that is unknown or hidden now is followed once it is neither."""
        follower = ResourceSubscriber(scope.client, uri, notify)
        self._add(follower)
        self._attach(follower)
        return follower

    def end(self, followers: Iterable[ResourceSubscriber]) -> None:
        """Follow no longer."""
        for follower in list(followers):
            self._followers.forget(follower)
            self._detach(follower)

    def _add(self, follower: ResourceSubscriber) -> None:
        self._followers.note(follower, follower.client.quota_key)
        while len(self._followers) > MAX_FOLLOWERS and (oldest := self._followers.first_to_go()) is not None:
            self._too_many.warning("over %d resources are followed; the oldest no longer are", MAX_FOLLOWERS)
            oldest.is_given_up = True
            self.end([oldest])

    async def _attach_anew(self) -> None:
        for follower in list(self._followers):
            routed = self._route(follower)
            if routed is None or follower.attached != (routed[0], routed[1].uri):
                self._detach(follower)
                self._attach(follower)

    def _view(self, client: Principal) -> OfferView | None:
        state = self._gateway.state
        now = state.with_current_rights(client)
        return None if now is None else state.view(now).offers

    def _route(self, follower: ResourceSubscriber) -> tuple[Upstream, Route] | None:
        view = self._view(follower.client)
        for route in view.routes(follower.uri) if view is not None else ():
            upstream = self._gateway.pool.upstreams.get(route.upstream_id)
            if upstream is not None:
                return upstream, route
        return None

    def _attach(self, follower: ResourceSubscriber) -> None:
        routed = self._route(follower)
        if routed is not None:
            upstream, route = routed
            follower.attached = (upstream, route.uri)
            upstream.sessions.follow(route.uri, follower, self._on_updated(follower, route), follower.client_id)

    def _detach(self, follower: ResourceSubscriber) -> None:
        if follower.attached is not None:
            upstream, uri = follower.attached
            upstream.sessions.unfollow(uri, follower, follower.client_id)
            follower.attached = None

    def _on_updated(self, follower: ResourceSubscriber, route: Route) -> Callable[[str], None]:
        def on_updated(uri: str) -> None:
            table = self._gateway.state.catalog.offers
            public = follower.uri if table.is_same(route, uri) else table.public_uri(route.upstream_id, uri)
            view = self._view(follower.client)
            if view is not None and view.permits(route.upstream_id, uri):
                follower.pending.add(public)
                self._updated.ask()

        return on_updated

    async def _tell(self, follower: ResourceSubscriber, uri: str) -> None:
        try:
            with anyio.move_on_after(NOTICE_SECONDS):
                await follower.notify(uri)
        except (MCPError, GatewayError, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self.end([follower])
