"""Lists that clients get become counts of tokens, beside the requests that get them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import anyio
import anyio.to_thread
from cachetools import FIFOCache

from pml_gateway.exposure.tokens import count_tokens
from pml_gateway.policy.client import Client
from pml_gateway.server.gateway import Gateway
from pml_gateway.server.request import RequestScope, effective_mode
from pml_gateway.server.state import GatewayState
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

    def note(self, scope: RequestScope, tools_json: bytes) -> None:
        """A client was given this list."""
        state = self._gateway.state
        key = (effective_mode(scope, state.settings.gateway), scope.client.rules, tools_json)
        if key not in self._pending and len(self._pending) >= MAX_PENDING:
            return
        self._pending.setdefault(key, _Given(state, scope.client)).count += 1
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
        for (mode, _, tools_json), given in pending.items():
            tools, tokens, full = await anyio.to_thread.run_sync(self._count, tools_json, given)
            for observer in self._observers:
                observer.listed(mode.value, given.count, tools, tokens, max(full - tokens, 0))

    def _count(self, tools_json: bytes, given: _Given) -> tuple[int, int, int]:
        digest = hashlib.sha256(tools_json).digest()
        if digest not in self._sizes:
            self._sizes[digest] = len(json.loads(tools_json)), count_tokens(tools_json.decode())
        state, client = given.state, given.client
        seen = (client.rules, state.catalog.gates.group(client.abilities))
        key = (state.catalog.fingerprint, state.settings.gateway.blacklisted_tools, seen)
        if key not in self._full:
            self._full[key] = list_tokens(state, ExposureMode.FULL_PROXY, client=client).tokens
        return (*self._sizes[digest], self._full[key])
