"""Records made of events: each access, which search led to it, and the cost of lists."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import anyio.to_thread
from cachetools import FIFOCache, LRUCache

from pml_gateway.activity.arguments import as_text, kept_arguments, masked, size_of
from pml_gateway.activity.recorder import AccessRow, ListRow, Recorder, Row, SearchRow
from pml_gateway.activity.sharing import ActivitySharing
from pml_gateway.activity.stages import stage_of
from pml_gateway.catalog.wire import decoded_items
from pml_gateway.exposure.token_count import count_tokens
from pml_gateway.gateway.call import Access, Attempt
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

_ROUTES: dict[Route, str] = {
    "direct": "direct",
    "meta": "call_tool",
    "inside": "composite",
    "workflow": "workflow",
}
"""Names of routes in the record; batches are told apart from workflows."""


def _how(call: Attempt) -> str:
    if not isinstance(call, ToolCall):
        return "direct"
    return "batch" if call.run_name == "call_batch" else _ROUTES[call.route]


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


class ActivitySubscriber:
    """Records what one gateway's clients do, as far as the settings of each moment want it."""

    def __init__(self, identity: str, recorder: Recorder, sharing: ActivitySharing | None = None) -> None:
        """Record in a file, and pass records on to other gateways if `sharing` is given."""
        self._config = identity
        self._recorder = recorder
        self._sharing = sharing
        self._recent: LRUCache[str, _Recent] = LRUCache(MAX_CLIENTS)
        self._stages: tuple[GatewayState | None, dict[tuple[str | None, ExposureMode], str]] = (None, {})

    def subscribe_to(self, events: Events) -> None:
        """Record what happens from now on."""
        events.subscribe(Access, self.accessed)
        events.subscribe(ToolsSearched, self.searched)
        events.subscribe(ToolsListed, self.listed)

    def _record(self, make: Callable[[], Row]) -> None:
        sharing = self._sharing
        self._recorder.add(make if sharing is None else lambda: sharing.take(make()))

    def accessed(self, event: Access) -> None:
        """Take note of an attempt to use something."""
        call, scope, state = event.attempt, event.attempt.context.scope, event.attempt.context.state
        settings = state.settings
        if not settings.activity.record:
            return
        mode = effective_mode(scope, settings.gateway)
        recent = self._recent.get(scope.client.id)
        intent = recent.intent if recent is not None and recent.intent else call_intent(scope, settings.gateway)
        search = rank = None
        if recent is not None and call.tool is not None:
            key = (call.tool.upstream_id, call.tool.name)
            for each in reversed(recent.searches):
                if key in each.ranks and event.began - each.at <= SEARCH_SECONDS:
                    search, rank = each.key, each.ranks[key]
                    break
        stage = self._stage(state, scope.client, mode)
        self._record(lambda: self._row(event, mode, stage, intent, search, rank))

    def _row(
        self, event: Access, mode: ExposureMode, stage: str, intent: str | None, search: int | None, rank: int | None
    ) -> AccessRow:
        """Return the row of an attempt. In the thread of the recorder, since masking and measuring take time."""
        call, tool = event.attempt, event.tool
        # Of a call that asks its user something, the end counts; commands of the owner are no usage.
        counts = isinstance(call, ToolCall) and tool is not None and not event.is_refused
        counts = counts and event.code != INPUT_REQUIRED and not call.context.scope.is_last
        kept, arguments = kept_arguments(call.arguments, call.context.state.settings.activity.arguments)
        return AccessRow(
            at=event.began,
            config=self._config,
            client=event.principal.shown,
            method=call.method,
            server=event.server,
            tool="" if tool is None else tool.name,
            target=masked(event.target),
            effect=event.effect.value,
            code=event.code,
            refused=event.is_refused,
            rule=event.rule,
            approval=call.approval,
            request=event.request_id,
            how=_how(call),
            mode=mode.value,
            stage=stage,
            intent=None if intent is None else masked(intent),
            search=search,
            rank=rank,
            seconds=event.seconds,
            server_seconds=call.sends.seconds,
            sends=call.sends.count,
            given=size_of(call.arguments),
            answered=0 if call.result is None else size_of(call.result),
            kept=kept,
            arguments=as_text(arguments),
            counts=counts,
            program=masked(call.context.scope.program),
            replica="" if self._sharing is None else self._sharing.replica,
        )

    def searched(self, event: ToolsSearched) -> None:
        """Take note of a search; a further page of one belongs to it."""
        settings, scope, query = event.state.settings, event.scope, event.query
        if not settings.activity.record or scope.is_last:
            return
        recent, now = self._of(scope.client), time.time()
        ranks = {(tool.upstream_id, tool.name): place for place, tool in enumerate(event.hits, event.offset + 1)}
        if event.offset and recent.searches and recent.searches[-1].query == query:
            recent.searches[-1].ranks.update(ranks)
            return
        mode = effective_mode(scope, settings.gateway)
        key = random.getrandbits(62)
        recent.searches.append(_Search(key, now, query, ranks))
        name, program = scope.client.shown, scope.program
        stage = self._stage(event.state, scope.client, mode)
        config, hits = self._config, tuple(ranks)
        self._record(lambda: SearchRow(now, config, key, name, mode.value, stage, masked(query), hits, masked(program)))

    def listed(self, event: ToolsListed) -> None:
        """Take note of a list that a client was given."""
        state, client = event.state, event.scope.client
        if not state.settings.activity.record:
            return
        self._of(client).intent = event.intent
        mode = effective_mode(event.scope, state.settings.gateway)

        def full() -> bytes:
            if mode is ExposureMode.FULL_PROXY:
                return event.tools_json
            view = state.view(client)
            return render(state, view, state.expose(view, ExposureMode.FULL_PROXY, None), event.version)

        stage = self._stage(state, client, mode)
        now, body, program = time.time(), event.tools_json, event.scope.program
        about = (now, self._config, client.shown, mode.value, stage, body, cache(full))
        self._record(lambda: ListRow(*about, masked(program)))

    def _of(self, client: Principal) -> _Recent:
        recent = self._recent.get(client.id)
        if recent is None:
            recent = self._recent[client.id] = _Recent()
        return recent

    def _stage(self, state: GatewayState, client: Principal, mode: ExposureMode) -> str:
        known, stages = self._stages
        if known is None or known.settings is not state.settings:
            stages = {}
            self._stages = (state, stages)
        key = (client.rules.preset, mode)
        if key not in stages:
            stages[key] = stage_of(state.settings_of(client).gateway, mode) or CUSTOM
        return stages[key]


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
