"""Usage records made of events: which search led to which call, and the cost of lists."""

from __future__ import annotations

import random
import time
from collections import deque
from dataclasses import dataclass, field

import anyio.to_thread
from cachetools import FIFOCache, LRUCache

from pml_gateway.catalog.wire import decoded_items
from pml_gateway.exposure.token_count import count_tokens
from pml_gateway.gateway.call import Access
from pml_gateway.gateway.events import ToolsListed, ToolsSearched
from pml_gateway.gateway.request import call_intent, effective_mode
from pml_gateway.gateway.state import GatewayState
from pml_gateway.gateway.tool_call import ToolCall
from pml_gateway.gateway.tool_list import list_tokens, render
from pml_gateway.policy.principal import Principal
from pml_gateway.results.settle import Route
from pml_gateway.signal import CoalescedSignal
from pml_gateway.telemetry.events import INPUT_REQUIRED, Events, ListsCounted
from pml_gateway.types import ExposureMode
from pml_gateway.usage.recorder import CallRow, ListRow, Recorder, SearchRow
from pml_gateway.usage.stages import stage_of

_HOW: dict[Route, str] = {
    "direct": "direct",
    "meta": "call_tool",
    "inside": "composite",
    "workflow": "workflow",
}
"""Names of routes in the record; batches are told apart from workflows."""

MAX_CLIENTS = 256
SEARCHES_REMEMBERED = 8
SEARCH_SECONDS = 1800.0
"""A call counts as led by one of its client's last searches if that is not older; a model calls what it found soon."""

MAX_PENDING = 512
"""Different lists that wait to be counted; beyond, a list is not counted at all."""

MAX_SIZES = 512

CUSTOM = "custom"
"""The stage of settings that are none."""


@dataclass(slots=True)
class _Search:
    key: int
    at: float
    query: str
    ranks: dict[tuple[str, str], int]


@dataclass(slots=True)
class _Recent:
    """Last actions of one client; `intent` is that of its last list."""

    intent: str | None = None
    searches: deque[_Search] = field(default_factory=lambda: deque(maxlen=SEARCHES_REMEMBERED))


class UsageNotes:
    """Records what one gateway's clients do, as far as the settings of each moment want it."""

    def __init__(self, identity: str, recorder: Recorder) -> None:
        self._config = identity
        self._recorder = recorder
        self._recent: LRUCache[str, _Recent] = LRUCache(MAX_CLIENTS)
        self._stages: tuple[GatewayState | None, dict[ExposureMode, str]] = (None, {})

    def subscribe_to(self, events: Events) -> None:
        """Record what happens from now on."""
        events.subscribe(Access, self.accessed)
        events.subscribe(ToolsSearched, self.searched)
        events.subscribe(ToolsListed, self.listed)

    def accessed(self, event: Access) -> None:
        """Take note of a call of a server's tool; one that asks its user something is noted when it ends."""
        call, scope, state = event.attempt, event.attempt.context.scope, event.attempt.context.state
        settings, tool = state.settings, call.tool
        if not settings.usage.record or scope.is_last or call.refusal is not None or event.code == INPUT_REQUIRED:
            return
        if tool is None or not isinstance(call, ToolCall):
            return
        mode = effective_mode(scope, settings.gateway)
        recent = self._recent.get(scope.client.id)
        intent = recent.intent if recent is not None and recent.intent else call_intent(scope, settings.gateway)
        key = (tool.upstream_id, tool.name)
        search = rank = None
        if recent is not None:
            for each in reversed(recent.searches):
                if key in each.ranks and event.began - each.at <= SEARCH_SECONDS:
                    search, rank = each.key, each.ranks[key]
                    break
        self._recorder.add(
            CallRow(
                event.began,
                self._config,
                *key,
                scope.client.shown,
                event.code,
                event.seconds,
                "batch" if call.run_name == "call_batch" else _HOW[call.route],
                mode.value,
                self._stage(state, mode),
                intent,
                search,
                rank,
                call.arguments if settings.usage.arguments else None,
            )
        )

    def searched(self, event: ToolsSearched) -> None:
        """Take note of a search; a further page of one belongs to it."""
        settings, scope, query = event.state.settings, event.scope, event.query
        if not settings.usage.record or scope.is_last:
            return
        recent, now = self._of(scope.client), time.time()
        ranks = {(tool.upstream_id, tool.name): place for place, tool in enumerate(event.hits, event.offset + 1)}
        if event.offset and recent.searches and recent.searches[-1].query == query:
            recent.searches[-1].ranks.update(ranks)
            return
        mode = effective_mode(scope, settings.gateway)
        key = random.getrandbits(62)
        recent.searches.append(_Search(key, now, query, ranks))
        name = scope.client.shown
        stage = self._stage(event.state, mode)
        self._recorder.add(SearchRow(now, self._config, key, name, mode.value, stage, query, tuple(ranks)))

    def listed(self, event: ToolsListed) -> None:
        """Take note of a list that a client was given."""
        state, client = event.state, event.scope.client
        if not state.settings.usage.record:
            return
        self._of(client).intent = event.intent
        mode = effective_mode(event.scope, state.settings.gateway)

        def full() -> bytes:
            if mode is ExposureMode.FULL_PROXY:
                return event.tools_json
            view = state.view(client)
            return render(state, view, state.expose(view, ExposureMode.FULL_PROXY, None), event.version)

        stage = self._stage(state, mode)
        row = ListRow(time.time(), self._config, client.shown, mode.value, stage, event.tools_json, full)
        self._recorder.add(row)

    def _of(self, client: Principal) -> _Recent:
        recent = self._recent.get(client.id)
        if recent is None:
            recent = self._recent[client.id] = _Recent()
        return recent

    def _stage(self, state: GatewayState, mode: ExposureMode) -> str:
        known, stages = self._stages
        if known is None or known.settings is not state.settings:
            stages = {}
            self._stages = (state, stages)
        if mode not in stages:
            stages[mode] = stage_of(state.settings.gateway, mode) or CUSTOM
        return stages[mode]


@dataclass(slots=True)
class _PendingList:
    event: ToolsListed
    count: int = 0


COUNTED_SECONDS = 2.0
"""Seconds until tokens are counted, which would slow down clients that have just connected."""


class ListCosts:
    """Counts each different list once, in a thread: a large one takes longer to count than to send."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._pending: dict[tuple[ExposureMode, object, bytes], _PendingList] = {}
        self._arrived = CoalescedSignal(COUNTED_SECONDS)
        self._sizes: FIFOCache[bytes, tuple[int, int]] = FIFOCache(MAX_SIZES)
        self._full: FIFOCache[object, int] = FIFOCache(MAX_SIZES)

    def listed(self, event: ToolsListed) -> None:
        """Take a list up to be counted."""
        client = event.scope.client
        key = (effective_mode(event.scope, event.state.settings.gateway), client.rules, event.digest)
        if key not in self._pending and len(self._pending) >= MAX_PENDING:
            return
        self._pending.setdefault(key, _PendingList(event)).count += 1
        self._arrived.ask()

    async def run(self) -> None:
        """Count the lists that clients are given, for as long as the owner's task group lives."""
        await self._arrived.run(self.settle)

    async def settle(self) -> None:
        pending, self._pending = self._pending, {}
        for (mode, _, _), given in pending.items():
            tools, tokens, full = await anyio.to_thread.run_sync(self._count, given.event)
            self._events.publish(ListsCounted(mode.value, given.count, tools, tokens, max(full - tokens, 0)))

    def _count(self, given: ToolsListed) -> tuple[int, int, int]:
        digest, tools_json = given.digest, given.tools_json
        if digest not in self._sizes:
            self._sizes[digest] = sum(1 for _ in decoded_items(tools_json)), count_tokens(tools_json.decode())
        state, client = given.state, given.scope.client
        seen = (client.rules, state.catalog.visibility.group(client.client_capabilities))
        key = (state.catalog.fingerprint, state.settings.gateway.blacklisted_tools, seen)
        if key not in self._full:
            self._full[key] = list_tokens(state, ExposureMode.FULL_PROXY, client=client).tokens
        return (*self._sizes[digest], self._full[key])
