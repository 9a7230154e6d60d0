"""Notices to clients: that their own list changed, and that a server of which it shows something announced a change."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

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
from pml_gateway.gateway.request import CONNECTION, Context, RequestScope, SessionMemory, call_intent, followed
from pml_gateway.gateway.resource_subscriptions import MAX_FOLLOWED, NOTICE_SECONDS, ResourceFollowers
from pml_gateway.gateway.state import FinishedList
from pml_gateway.gateway.tool_list import list_tools
from pml_gateway.gateway.updates import Announced
from pml_gateway.log import ThrottledWarning, get_logger
from pml_gateway.mcp.listing import ListKind
from pml_gateway.mcp.sdk import connection_of
from pml_gateway.quotas import Holdings
from pml_gateway.signal import CoalescedSignal

logger = get_logger(__name__)

ANNOUNCED_EVERY = 5.0
"""Seconds in which one client is told at most once that a server announced a change of a list. What the server
announces meanwhile is told at their end. A change of the client's own list is told at once, and begins them anew."""

FOLLOWED_EVERY = 10.0
"""Seconds in which a session that searches and uses tools is told at most once that its list follows."""

CLOCK_EVERY = 10.0
"""Seconds after which the clock is read again while a history is to expire: it goes on while a computer sleeps."""

MAX_SUBSCRIBERS = 10_000
"""Sessions and streams that get notices; past it, the client that has most of them loses its oldest."""

Notify = Callable[[ListKind], Awaitable[None]]

_EVENTS: Mapping[ListKind, ServerEvent] = {
    ListKind.TOOLS: ToolsListChanged(),
    ListKind.PROMPTS: PromptsListChanged(),
    ListKind.RESOURCES: ResourcesListChanged(),
}

_OFFERED: Mapping[ListKind, tuple[OfferKind, ...]] = {
    ListKind.PROMPTS: (OfferKind.PROMPT,),
    ListKind.RESOURCES: (OfferKind.RESOURCE, OfferKind.TEMPLATE, OfferKind.SKILL),
}


@dataclass(slots=True)
class _Subscriber:
    """One client to tell. `memory` is where the digests are kept for a session that may be restored.

    Of what servers announced it was `told` when; some is `owed` at the end of that time, and some was of what is
    `hidden` from it.
    """

    scope: RequestScope
    version: str
    notify: Notify
    end: Callable[[], None]
    digests: dict[ListKind, bytes]
    memory: SessionMemory | None = None
    told: dict[Announced, float] = field(default_factory=dict)
    owed: set[Announced] = field(default_factory=set)
    hidden: set[Announced] = field(default_factory=set)
    pending: dict[ListKind, None] = field(default_factory=dict)
    is_being_told: bool = False
    listed_anew_at: float = -math.inf
    """Time at which its list of tools was last seen to be another."""
    expires_at: float = math.inf
    """Time of the clock at which the next entry of its history no longer counts."""


class Subscribers:
    """Handshake sessions and `subscriptions/listen` streams, each with digests of the lists it was last told of."""

    def __init__(self, gateway: Gateway, followers: ResourceFollowers) -> None:
        self._gateway = gateway
        self._followers = followers
        self._subscribers: dict[object, _Subscriber] = {}
        self._held: Holdings[object] = Holdings()
        self._too_many = ThrottledWarning(logger)
        self._due = CoalescedSignal(0.05)
        self._is_swapped = False
        self._followed: set[object] = set()
        self._announced: dict[Announced, bool] = {}
        gateway.current.on_swap(lambda _before, _after: self._look_again())
        gateway.updates.on_announced(self._note)

    async def run(self) -> None:
        """Notify after every swap and announcement, for as long as the owner's task group lives."""
        owed_at = math.inf
        async with anyio.create_task_group() as tasks:
            while True:
                with anyio.move_on_after(owed_at - anyio.current_time()):
                    await self._due.next()
                is_swapped, self._is_swapped = self._is_swapped, False
                active, self._followed = self._followed, set()
                announced, self._announced = self._announced, {}
                owed_at = math.inf
                clock = time.time()
                for key, subscriber in list(self._subscribers.items()):
                    if (key in active or subscriber.expires_at <= clock) and subscriber.scope.history is not None:
                        active.add(key)
                        subscriber.expires_at = subscriber.scope.history.next_expiry(clock)
                    if subscriber.expires_at < math.inf:
                        wait = min(subscriber.expires_at - clock, CLOCK_EVERY)
                        owed_at = min(owed_at, anyio.current_time() + wait)
                    if key in active and not is_swapped:
                        due_at = subscriber.listed_anew_at + FOLLOWED_EVERY
                        if due_at > anyio.current_time():
                            active.discard(key)
                            self._followed.add(key)
                            owed_at = min(owed_at, due_at)
                    may_differ = is_swapped or key in active
                    changed = await self._changed(subscriber) if may_differ else frozenset[ListKind]()
                    subscriber.pending |= dict.fromkeys(changed)
                    if announced or subscriber.owed:
                        owed_at = min(owed_at, await self._pass_on(subscriber, announced, changed))
                    if subscriber.pending and not subscriber.is_being_told:
                        subscriber.is_being_told = True
                        # Each for itself: one that takes nothing must not keep the others waiting.
                        tasks.start_soon(self._tell, key, subscriber)

    def _look_again(self) -> None:
        self._is_swapped = True
        self._due.ask()

    def _note(self, announced: Mapping[Announced, bool]) -> None:
        for each, lists_others in announced.items():
            self._announced[each] = lists_others or self._announced.get(each, False)
        self._due.ask()

    async def _changed(self, subscriber: _Subscriber) -> frozenset[ListKind]:
        """Return the lists of a client that are others now."""
        before = subscriber.digests
        subscriber.digests = await self._digests(subscriber.scope, subscriber.version)
        _remember(subscriber)
        if subscriber.digests[ListKind.TOOLS] != before[ListKind.TOOLS]:
            subscriber.listed_anew_at = anyio.current_time()
        return frozenset(kind for kind in ListKind if subscriber.digests[kind] != before[kind])

    async def _pass_on(
        self, subscriber: _Subscriber, announced: Mapping[Announced, bool], changed: frozenset[ListKind]
    ) -> float:
        """Pass on what servers announced, unless this client was told of it just now; when it is to be told next.

        Where a server lists other things and the client's list is the same, they are hidden or held back; so is what
        the server goes on to announce, for a while.
        """
        now, told = anyio.current_time(), subscriber.told
        for each in [each for each, since in told.items() if since + ANNOUNCED_EVERY <= now]:
            del told[each]
        subscriber.hidden &= told.keys()
        for each, lists_others in announced.items():
            if each[1] in changed:
                told[each] = now
                subscriber.owed.discard(each)
                subscriber.hidden.discard(each)
            elif lists_others:
                told.setdefault(each, now)
                subscriber.hidden.add(each)
            elif each not in subscriber.hidden:
                subscriber.owed.add(each)
        for each in subscriber.owed - told.keys():
            subscriber.owed.discard(each)
            # Also where nothing of it is shown: what clients are not told must not be looked at more often.
            told[each] = now
            if await self._shows(subscriber, *each):
                subscriber.pending[each[1]] = None
        return min((told[each] + ANNOUNCED_EVERY for each in subscriber.owed), default=math.inf)

    async def add_session(self, ctx: Context) -> None:
        """Notify a handshake session from now on, until it ends."""
        connection = connection_of(ctx)
        if "pml_gateway.subscribed" in connection.state:
            return
        key = connection.state["pml_gateway.subscribed"] = object()

        async def notify(kind: ListKind) -> None:
            await connection.notify(f"notifications/{kind}/list_changed", None)

        await self.add(key, ctx.scope, ctx.protocol_version, notify)
        connection.exit_stack.callback(self._forget, key)
        if (local := CONNECTION.get()) is not None:
            self._restore(key, local.memory)
        if ctx.scope.history is not None:
            ctx.scope.history.on_change = partial(self._follow, key)
            if ctx.scope.history.followed(time.time()):
                self._follow(key)

    def _restore(self, key: object, memory: SessionMemory) -> None:
        """Tell a session that another process had what has changed since it was told last."""
        subscriber = self._subscribers.get(key)
        if subscriber is None:
            return
        subscriber.memory, told = memory, memory.digests
        others = [kind for kind in ListKind if told.get(kind, now := subscriber.digests[kind].hex()) != now]
        _remember(subscriber)
        if others:
            subscriber.pending |= dict.fromkeys(others)
            self._due.ask()

    def _follow(self, key: object) -> None:
        self._followed.add(key)
        self._due.ask()
        if (subscriber := self._subscribers.get(key)) is not None and subscriber.memory is not None:
            subscriber.memory.keep()

    async def listen(
        self, ctx: Context, params: mcp_types.SubscriptionsListenRequestParams
    ) -> mcp_types.SubscriptionsListenResult:
        """Serve one `subscriptions/listen` stream with the events of this client's own lists and resources."""
        bus = InMemorySubscriptionBus()
        listener = ListenHandler(bus)
        key = object()

        async def notify(kind: ListKind) -> None:
            await bus.publish(_EVENTS[kind])

        await self.add(key, ctx.scope, ctx.protocol_version, notify, listener.close)
        uris = list(dict.fromkeys(params.notifications.resource_subscriptions or ()))[:MAX_FOLLOWED]
        followed = [self._followers.follow(ctx.scope, uri, _publish(bus, uri)) for uri in uris]
        try:
            return await listener(ctx, params)
        finally:
            self._forget(key)
            self._followers.end(followed)

    async def add(
        self, key: object, scope: RequestScope, version: str, notify: Notify, end: Callable[[], None] = lambda: None
    ) -> None:
        """Notify a subscriber from now on; `end` is called where others need the room."""
        state = self._gateway.state
        self._subscribers[key] = _Subscriber(scope, version, notify, end, await self._digests(scope, version))
        self._held.note(key, scope.client.quota_key)
        while len(self._held) > MAX_SUBSCRIBERS:
            self._too_many.warning("over %d open subscriptions; the oldest get no more notices", MAX_SUBSCRIBERS)
            gone = self._held.first_to_go()
            subscriber = self._subscribers.get(gone)
            self._forget(gone)
            if subscriber is not None:
                subscriber.end()
        if self._gateway.state is not state:
            # Whoever was told of that swap was not this one yet.
            self._look_again()

    def _forget(self, key: object) -> None:
        self._subscribers.pop(key, None)
        self._held.forget(key)

    async def _tools(self, scope: RequestScope, version: str) -> FinishedList:
        settings = self._gateway.state.settings.gateway
        intent = call_intent(scope, settings)
        return await list_tools(self._gateway, scope, intent, version, followed(scope, settings))

    def _now(self, scope: RequestScope) -> RequestScope | None:
        """Return the scope with the rights that its client has now; None where it has none."""
        client = self._gateway.state.with_current_rights(scope.client)
        return None if client is None else replace(scope, client=client)

    async def _shows(self, subscriber: _Subscriber, upstream_id: str, kind: ListKind) -> bool:
        """Return True if a client's own list has anything of a server."""
        scope = self._now(subscriber.scope)
        if scope is None:
            return False
        if kind is ListKind.TOOLS:
            return upstream_id in (await self._tools(scope, subscriber.version)).servers
        offers = self._gateway.state.view(scope.client).offers
        return any(upstream_id in offers.upstreams_of[each] for each in _OFFERED[kind])

    async def _digests(self, scope: RequestScope, version: str) -> dict[ListKind, bytes]:
        now = self._now(scope)
        if now is None:
            return dict.fromkeys(ListKind, b"")
        tools = (await self._tools(now, version)).digest
        state = self._gateway.state
        view = state.view(now.client)

        def offered(kind: ListKind) -> bytes:
            text = b"\n".join(offers_json(state, view, each, version) for each in _OFFERED[kind])
            return hashlib.sha256(text).digest()

        # Lists that are known take no time: with many subscribers, others have their turn in between.
        await anyio.lowlevel.checkpoint()
        return {
            ListKind.TOOLS: tools,
            **{kind: offered(kind) for kind in _OFFERED},
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


def _remember(subscriber: _Subscriber) -> None:
    """Have what a session knows kept where it outlives this process."""
    memory = subscriber.memory
    if memory is None:
        return
    memory.digests = {kind: digest.hex() for kind, digest in subscriber.digests.items()}
    memory.keep()


def _publish(bus: InMemorySubscriptionBus, uri: str) -> Callable[[str], Awaitable[None]]:
    """Events name what the client asked for, which is all that its stream lets through."""

    async def publish(_updated: str) -> None:
        await bus.publish(ResourceUpdated(uri=uri))

    return publish
