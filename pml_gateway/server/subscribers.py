"""Swaps of the gateway's state become notices to the clients whose own list changed."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.abc
import mcp_types
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ServerEvent, ToolsListChanged

from pml_gateway.log import get_logger
from pml_gateway.server.gateway import Gateway
from pml_gateway.server.listing import list_tools
from pml_gateway.server.request import RequestScope, list_intent

logger = get_logger(__name__)

MAX_SUBSCRIBERS = 10_000
Notify = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class _Subscriber:
    scope: RequestScope
    version: str
    notify: Notify
    digest: bytes


class Subscribers:
    """Handshake sessions and `subscriptions/listen` streams, each with a digest of the list it was last told of."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._subscribers: dict[object, _Subscriber] = {}
        self._changed = anyio.Event()
        gateway.on_swap(lambda _before, _after: self._changed.set())

    async def run(self) -> None:
        """Notify after every swap, for as long as the owner's task group lives."""
        while True:
            await self._changed.wait()
            await anyio.sleep(0.05)
            self._changed = anyio.Event()
            for key, subscriber in list(self._subscribers.items()):
                digest = await self._digest(subscriber.scope, subscriber.version)
                if digest != subscriber.digest and key in self._subscribers:
                    subscriber.digest = digest
                    await self._notify(key, subscriber)

    async def add_session(self, ctx: ServerRequestContext[Any, Any], scope: RequestScope) -> None:
        """Notify a handshake session from now on, until it ends."""
        connection = ctx.session._connection  # the SDK offers no public way to reach a session later
        if "pml_gateway.subscribed" in connection.state:
            return
        key = connection.state["pml_gateway.subscribed"] = object()

        async def notify() -> None:
            await connection.notify("notifications/tools/list_changed", None)

        await self._add(key, scope, ctx.protocol_version, notify)
        connection.exit_stack.callback(self._subscribers.pop, key, None)

    async def listen(
        self, ctx: ServerRequestContext[Any, Any], params: mcp_types.SubscriptionsListenRequestParams
    ) -> mcp_types.SubscriptionsListenResult:
        """Serve one `subscriptions/listen` stream with the events of this client's own list."""
        bus = InMemorySubscriptionBus()
        key = object()
        event: ServerEvent = ToolsListChanged()

        async def notify() -> None:
            await bus.publish(event)

        scope = ctx.request.scope["pml_gateway.scope"] if ctx.request is not None else RequestScope()
        await self._add(key, scope, ctx.protocol_version, notify)
        try:
            return await ListenHandler(bus)(ctx, params)
        finally:
            self._subscribers.pop(key, None)

    async def _add(self, key: object, scope: RequestScope, version: str, notify: Notify) -> None:
        if len(self._subscribers) >= MAX_SUBSCRIBERS:
            logger.warning("over %d open subscriptions; this one gets no notices", MAX_SUBSCRIBERS)
            return
        self._subscribers[key] = _Subscriber(scope, version, notify, await self._digest(scope, version))

    async def _digest(self, scope: RequestScope, version: str) -> bytes:
        intent = list_intent(None, scope, self._gateway.state.settings.gateway)
        finished = await list_tools(self._gateway, scope, intent, version)
        return hashlib.sha256(finished.tools_json).digest()

    async def _notify(self, key: object, subscriber: _Subscriber) -> None:
        try:
            with anyio.move_on_after(5):
                await subscriber.notify()
        except (MCPError, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._subscribers.pop(key, None)
