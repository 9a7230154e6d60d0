"""What lists cost the model that reads them, in tokens, counted beside the requests."""

from __future__ import annotations

from dataclasses import dataclass

import anyio
import anyio.to_thread
from cachetools import FIFOCache

from pml_gateway.catalog.wire import decoded_items
from pml_gateway.exposure.token_count import count_tokens
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.gateway.request import RequestScope, effective_mode
from pml_gateway.gateway.state import GatewayState
from pml_gateway.gateway.tool_list import ToolList, own_definitions, render
from pml_gateway.policy.client import LOCAL, Client
from pml_gateway.telemetry.events import Observer
from pml_gateway.types import ExposureMode

COUNTED_VERSION = "2025-11-25"
"""The protocol version whose list is counted: the one most clients speak."""


@dataclass(frozen=True, slots=True)
class ListCost:
    """One mode's list: how many tools, how large."""

    mode: ExposureMode
    tools: int
    bytes: int
    tokens: int


def list_tokens(state: GatewayState, mode: ExposureMode, intent: str | None = None, client: Client = LOCAL) -> ListCost:
    """Count the `tools` array a client gets in this mode. Blocks: call it in a thread for large catalogs."""
    view = state.view(client)
    exposure = state.expose(view, mode, intent)
    rendered = render(state, view, exposure, COUNTED_VERSION)
    return ListCost(
        mode,
        tools=len(exposure.tools) + len(exposure.legacy) + len(own_definitions(state, view, exposure)),
        bytes=len(rendered),
        tokens=count_tokens(rendered.decode()),
    )


MAX_PENDING = 512
"""Different lists that wait to be counted; beyond, a list is not counted at all."""

MAX_REMEMBERED = 512


@dataclass(slots=True)
class _Given:
    state: GatewayState
    client: Client
    finished: ToolList
    count: int = 0


class ListCosts:
    """Counts each different list once, in a thread: a large one takes longer to count than to send."""

    def __init__(self, gateway: Gateway, observers: tuple[Observer, ...]) -> None:
        self._gateway = gateway
        self._observers = observers
        self._pending: dict[tuple[ExposureMode, object, bytes], _Given] = {}
        self._arrived = anyio.Event()
        self._sizes: FIFOCache[bytes, tuple[int, int]] = FIFOCache(MAX_REMEMBERED)
        self._full: FIFOCache[object, int] = FIFOCache(MAX_REMEMBERED)

    def note(self, scope: RequestScope, finished: ToolList) -> None:
        """A client was given this list."""
        state = self._gateway.state
        key = (effective_mode(scope, state.settings.gateway), scope.client.rules, finished.digest)
        if key not in self._pending and len(self._pending) >= MAX_PENDING:
            return
        self._pending.setdefault(key, _Given(state, scope.client, finished)).count += 1
        self._arrived.set()

    async def run(self) -> None:
        """Count what arrives, for as long as the owner's task group lives."""
        while True:
            await self._arrived.wait()
            await self.settle()

    async def settle(self) -> None:
        """Count what has arrived so far."""
        self._arrived = anyio.Event()
        pending, self._pending = self._pending, {}
        for (mode, _, _), given in pending.items():
            tools, tokens, full = await anyio.to_thread.run_sync(self._count, given)
            for observer in self._observers:
                observer.listed(mode.value, given.count, tools, tokens, max(full - tokens, 0))

    def _count(self, given: _Given) -> tuple[int, int, int]:
        digest, tools_json = given.finished.digest, given.finished.tools_json
        if digest not in self._sizes:
            self._sizes[digest] = sum(1 for _ in decoded_items(tools_json)), count_tokens(tools_json.decode())
        state, client = given.state, given.client
        seen = (client.rules, state.catalog.visibility.group(client.client_capabilities))
        key = (state.catalog.fingerprint, state.settings.gateway.blacklisted_tools, seen)
        if key not in self._full:
            self._full[key] = list_tokens(state, ExposureMode.FULL_PROXY, client=client).tokens
        return (*self._sizes[digest], self._full[key])
