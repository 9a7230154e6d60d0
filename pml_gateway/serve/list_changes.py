"""Notices to clients whose own list changed when the gateway's state was swapped."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

import anyio
import anyio.abc
import anyio.lowlevel
import mcp_types
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)

from pml_gateway.catalog.prompts_and_resources import OfferKind
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.gateway.prompts_and_resources import offers_json
from pml_gateway.gateway.request import Context, RequestScope, list_intent
from pml_gateway.gateway.resource_subscriptions import MAX_FOLLOWED, NOTICE_SECONDS, ResourceFollowers
from pml_gateway.gateway.tool_list import list_tools
from pml_gateway.log import Seldom, get_logger
from pml_gateway.mcp.listing import ListKind
from pml_gateway.mcp.sdk import connection_of
from pml_gateway.policy.client import current_client
from pml_gateway.shares import Holdings
from pml_gateway.signal import Coalesced

logger = get_logger(__name__)

MAX_SUBSCRIBERS = 10_000
"""Sessions and streams that get notices; past it, the client that has most of them loses its oldest."""

Notify = Callable[[ListKind], Awaitable[None]]

_EVENTS: Mapping[ListKind, ServerEvent] = {
    ListKind.TOOLS: ToolsListChanged(),
    ListKind.PROMPTS: PromptsListChanged(),
    ListKind.RESOURCES: ResourcesListChanged(),
}


@dataclass(slots=True)
class _Subscriber:
    scope: RequestScope
    version: str
    notify: Notify
    end: Callable[[], None]
    digests: dict[ListKind, bytes]
    pending: dict[ListKind, None] = field(default_factory=dict)
    is_being_told: bool = False


class Subscribers:
    """Handshake sessions and `subscriptions/listen` streams, each with digests of the lists it was last told of."""

    def __init__(self, gateway: Gateway, followers: ResourceFollowers) -> None:
        self._gateway = gateway
        self._followers = followers
        self._subscribers: dict[object, _Subscriber] = {}
        self._held: Holdings[object] = Holdings()
        self._too_many = Seldom(logger)
        self._changed = Coalesced(0.05)
        gateway.on_swap(lambda _before, _after: self._changed.ask())

    async def run(self) -> None:
        """Notify after every swap, for as long as the owner's task group lives."""
        async with anyio.create_task_group() as tasks:
            while True:
                await self._changed.next()
                for key, subscriber in list(self._subscribers.items()):
                    digests = await self._digests(subscriber.scope, subscriber.version)
                    subscriber.pending |= {kind: None for kind in ListKind if digests[kind] != subscriber.digests[kind]}
                    subscriber.digests = digests
                    if subscriber.pending and not subscriber.is_being_told:
                        subscriber.is_being_told = True
                        # Each for itself: one that takes nothing must not keep the others waiting.
                        tasks.start_soon(self._tell, key, subscriber)

    async def add_session(self, ctx: Context) -> None:
        """Notify a handshake session from now on, until it ends."""
        connection = connection_of(ctx)
        if "pml_gateway.subscribed" in connection.state:
            return
        key = connection.state["pml_gateway.subscribed"] = object()

        async def notify(kind: ListKind) -> None:
            await connection.notify(f"notifications/{kind}/list_changed", None)

        await self._add(key, ctx.scope, ctx.protocol_version, notify)
        connection.exit_stack.callback(self._forget, key)

    async def listen(
        self, ctx: Context, params: mcp_types.SubscriptionsListenRequestParams
    ) -> mcp_types.SubscriptionsListenResult:
        """Serve one `subscriptions/listen` stream with the events of this client's own lists and resources."""
        bus = InMemorySubscriptionBus()
        listener = ListenHandler(bus)
        key = object()

        async def notify(kind: ListKind) -> None:
            await bus.publish(_EVENTS[kind])

        await self._add(key, ctx.scope, ctx.protocol_version, notify, listener.close)
        uris = list(dict.fromkeys(params.notifications.resource_subscriptions or ()))[:MAX_FOLLOWED]
        followed = [self._followers.follow(ctx.scope, uri, _publish(bus, uri)) for uri in uris]
        try:
            return await listener(ctx, params)
        finally:
            self._forget(key)
            self._followers.end(followed)

    async def _add(
        self, key: object, scope: RequestScope, version: str, notify: Notify, end: Callable[[], None] = lambda: None
    ) -> None:
        """Notify from now on; `end` is called where others need the room."""
        state = self._gateway.state
        self._subscribers[key] = _Subscriber(scope, version, notify, end, await self._digests(scope, version))
        self._held.note(key, scope.client.share)
        while len(self._held) > MAX_SUBSCRIBERS:
            self._too_many.warning("over %d open subscriptions; the oldest get no more notices", MAX_SUBSCRIBERS)
            gone = self._held.first_to_go()
            subscriber = self._subscribers.get(gone)
            self._forget(gone)
            if subscriber is not None:
                subscriber.end()
        if self._gateway.state is not state:
            # Whoever was told of that swap was not this one yet.
            self._changed.ask()

    def _forget(self, key: object) -> None:
        self._subscribers.pop(key, None)
        self._held.forget(key)

    async def _digests(self, scope: RequestScope, version: str) -> dict[ListKind, bytes]:
        settings = self._gateway.state.settings
        client = current_client(scope.client, settings.clients)
        if client is None:
            return dict.fromkeys(ListKind, b"")
        scope = replace(scope, client=client)
        intent = list_intent(None, scope, settings.gateway)
        tools = (await list_tools(self._gateway, scope, intent, version)).digest
        state = self._gateway.state
        view = state.view(scope.client)

        def offered(*kinds: OfferKind) -> bytes:
            text = b"\n".join(offers_json(state, view, kind, version) for kind in kinds)
            return hashlib.sha256(text).digest()

        # Lists that are known take no time: with many subscribers, others have their turn in between.
        await anyio.lowlevel.checkpoint()
        return {
            ListKind.TOOLS: tools,
            ListKind.PROMPTS: offered(OfferKind.PROMPT),
            ListKind.RESOURCES: offered(OfferKind.RESOURCE, OfferKind.TEMPLATE),
        }

    async def _tell(self, key: object, subscriber: _Subscriber) -> None:
        try:
            while subscriber.pending and key in self._subscribers:
                kind = next(iter(subscriber.pending))
                del subscriber.pending[kind]
                with anyio.move_on_after(NOTICE_SECONDS):
                    await subscriber.notify(kind)
        except (MCPError, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._forget(key)
        finally:
            subscriber.is_being_told = False


def _publish(bus: InMemorySubscriptionBus, uri: str) -> Callable[[str], Awaitable[None]]:
    """Events name what the client asked for, which is all that its stream lets through."""

    async def publish(_updated: str) -> None:
        await bus.publish(ResourceUpdated(uri=uri))

    return publish
