"""Lists that clients get become counts of tokens, beside the requests that get them."""

from __future__ import annotations

from dataclasses import dataclass

import anyio
import anyio.to_thread

from pml_gateway.catalog.wire import decoded_items
from pml_gateway.exposure.tokens import count_tokens
from pml_gateway.policy.client import Client
from pml_gateway.server.gateway import Gateway
from pml_gateway.server.listing import ToolList
from pml_gateway.server.request import RequestScope, effective_mode
from pml_gateway.server.state import GatewayState, remember
from pml_gateway.server.tokens import list_tokens
from pml_gateway.telemetry.observe import Observer
from pml_gateway.types import ExposureMode

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
        self._sizes: dict[object, tuple[int, int]] = {}
        self._full: dict[object, int] = {}

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
            size = (sum(1 for _ in decoded_items(tools_json)), count_tokens(tools_json.decode()))
            remember(self._sizes, digest, size, MAX_REMEMBERED)
        state, client = given.state, given.client
        seen = (client.rules, state.catalog.gates.group(client.abilities))
        key = (state.catalog.fingerprint, state.settings.gateway.blacklisted_tools, seen)
        if key not in self._full:
            cost = list_tokens(given.state, ExposureMode.FULL_PROXY, client=given.client)
            remember(self._full, key, cost.tokens, MAX_REMEMBERED)
        return (*self._sizes[digest], self._full[key])
