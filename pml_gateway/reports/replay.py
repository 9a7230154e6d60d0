"""Recorded calls replayed in the next stage of the migration: listed, found by a search, or neither."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy as np

from pml_gateway.activity.history import RecordedCall, ToolKey
from pml_gateway.activity.stages import Stage, stage_in, values_of, with_values
from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.wire import encode
from pml_gateway.exposure.modes import ModeExposure
from pml_gateway.exposure.patterns import compile_grants
from pml_gateway.exposure.token_count import count_definition_tokens
from pml_gateway.gateway.state import GatewayState
from pml_gateway.gateway.tool_list import list_tokens
from pml_gateway.policy.principal import ANONYMOUS, LOCAL, Principal, configured
from pml_gateway.policy.view import View
from pml_gateway.types import ExposureMode

_ROUNDING = 1e-9
"""A share of calls is a decimal fraction, which a float meets only nearly: 0.95 * 600 must ask for 570 calls."""

MAX_LISTINGS = 20
"""Pairs of a client and an intent whose lists are counted, those with the most calls; lists take a while to count."""

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")

Words = str
"""Origin of a query: `search`, `intent`, `another call` of the same tool, or the tool's own `name`."""


@dataclass(frozen=True, slots=True)
class UsedTool:
    """A tool that was called, and what its definition costs in a list."""

    key: ToolKey
    calls: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Whitelist:
    """Tools by name, the calls that find their tool listed, and the tokens that lists grow by."""

    tools: tuple[ToolKey, ...]
    calls: int
    tokens: int


def cheapest_whitelist(used: Sequence[UsedTool], keep: float, fixed: Collection[ToolKey] = ()) -> Whitelist:
    """Return the whitelist of least tokens that keeps at least `keep` (0 to 1) of all calls listed; exact.

    Args:
        used: every tool that was called, with at least one call each.
        keep: the share of calls.
        fixed: tools that are whitelisted already and stay.

    Leaving tools out is a 0/1 knapsack: the most tokens that can go while the calls that go with them stay within what
    may be lost. The table has a row per tool and a column per call that may be lost. Of equally cheap whitelists it
    gives one that keeps the most calls.
    """
    tools = sorted(used, key=lambda tool: tool.key)
    total = sum(tool.calls for tool in tools)
    may_lose = total - min(total, math.ceil(keep * total - _ROUNDING))
    loose = [tool for tool in tools if tool.key not in fixed and tool.calls <= may_lose]
    saved = np.zeros(may_lose + 1, dtype=np.int64)
    rows = []
    for tool in loose:
        with_it = saved[: may_lose + 1 - tool.calls] + tool.tokens
        better = with_it > saved[tool.calls :]
        saved[tool.calls :] = np.where(better, with_it, saved[tool.calls :])
        rows.append(np.packbits(better))
    column = int(np.argmax(saved == saved[-1]))
    left_out = set()
    for tool, row in zip(reversed(loose), reversed(rows), strict=True):
        place = column - tool.calls
        if place >= 0 and np.unpackbits(row, count=may_lose + 1 - tool.calls)[place]:
            left_out.add(tool.key)
            column = place
    kept = [tool for tool in tools if tool.key not in left_out]
    return Whitelist(
        tuple(tool.key for tool in kept), sum(tool.calls for tool in kept), sum(tool.tokens for tool in kept)
    )


@dataclass(frozen=True, slots=True)
class ReplayedCalls:
    """Calls of one tool by one client with the same words, and where they find it now and then."""

    tool: CatalogTool
    client: str
    calls: int
    listed_now: bool
    listed_then: bool
    query: str = ""
    words: Words = ""
    rank: int | None = None


class SearchedCalls(TypedDict):
    """Calls of one tool by one client that would have to search for it: the words, their origin, and its place."""

    name: str
    client: str
    calls: int
    listed_now: bool
    query: str
    words_from: str
    rank: int | None


class ProposedWhitelist(TypedDict):
    """Tools to be whitelisted, the calls and the share of calls that find them listed, and tokens of lists."""

    tools: list[str]
    calls: int
    share: float
    tokens: int
    full_tokens: int


class PlannedMigration(TypedDict):
    """Effect of one step, in calls and in tokens of a list; `changes` are the calls whose tool is not listed then."""

    stage: str | None
    target: str
    calls: int
    calls_of_gone_tools: int
    listed_calls: int
    changed_calls: int
    found_calls: int
    lost_calls: int
    first_hits: int
    tokens_now: int
    tokens_then: int
    changes: list[SearchedCalls]
    whitelist: ProposedWhitelist


def plan_migration(
    state: GatewayState,
    calls: Sequence[RecordedCall],
    target: Stage,
    *,
    client: str | None = None,
    keep: float = 1.0,
    ranking: tuple[ToolKey, ...] = (),
) -> PlannedMigration:
    """Replay calls against a stage with the gateway's own lists and search. Blocks: call it in a thread.

    `ranking` fills lists that no intent selects, where the stage wants that.

    Raises:
        ConfigurationError: no such client, or its stage cannot be had alone.
    """
    settings = with_values(state.settings, values_of(target, state.settings, client))
    then = replace(state, settings=settings, ranking=ranking)
    now_side, then_side = _Side(state), _Side(then)
    known = _tools(state)
    groups = Counter((call.client, call.tool, call.intent, call.query) for call in calls)
    spoken = {call.tool: call.query for call in calls if call.query}
    replayed: list[ReplayedCalls] = []
    gone = 0
    for (name, key, intent, query), count in groups.items():
        principal = _client(state, name)
        tool = known.get(key)
        if principal is None or tool is None or tool.qualified_name not in state.view(principal).names:
            gone += count
            continue
        listed_now = now_side.lists(principal, intent, tool)
        listed_then = then_side.lists(principal, intent, tool)
        asked, words, rank = "", "", None
        if not listed_then:
            asked, words = _query(tool, query, intent, spoken.get(key))
            rank = then_side.rank(principal, asked, tool)
        replayed.append(ReplayedCalls(tool, name, count, listed_now, listed_then, asked, words, rank))
    used = _used(replayed)
    ownership = state.catalog.ownership
    fixed = compile_grants(settings.gateway.hybrid.whitelisted_tools, ownership)
    whitelist = cheapest_whitelist(used, keep, {tool.key for tool in used if fixed.admits(known[tool.key])})
    tokens_now, tokens_then = _tokens(state, then, groups)
    replayed.sort(key=lambda each: (-each.calls, each.tool.qualified_name, each.client))
    searched = [each for each in replayed if not each.listed_then]
    count = sum(each.calls for each in replayed)
    stage = stage_in(state.settings, client)
    return {
        "stage": stage.value if stage else None,
        "target": target.value,
        "calls": count,
        "calls_of_gone_tools": gone,
        "listed_calls": count - sum(each.calls for each in searched),
        "changed_calls": sum(each.calls for each in searched if each.listed_now),
        "found_calls": sum(each.calls for each in searched if each.rank is not None),
        "lost_calls": sum(each.calls for each in searched if each.rank is None),
        "first_hits": settings.search.limit,
        "tokens_now": tokens_now,
        "tokens_then": tokens_then,
        "changes": [
            {
                "name": each.tool.qualified_name,
                "client": each.client,
                "calls": each.calls,
                "listed_now": each.listed_now,
                "query": each.query,
                "words_from": each.words,
                "rank": each.rank,
            }
            for each in searched
        ],
        "whitelist": {
            "tools": [ownership.rule_name(*key, known[key].qualified_name) for key in whitelist.tools],
            "calls": whitelist.calls,
            "share": whitelist.calls / count if count else 1.0,
            "tokens": whitelist.tokens,
            "full_tokens": sum(_definition_tokens(tool) for tool in state.view(LOCAL).tools),
        },
    }


class _Side:
    """Lists and searches of clients in one state; equal questions are asked once."""

    def __init__(self, state: GatewayState) -> None:
        self._state = state
        self._exposures: dict[tuple[Principal, str | None], tuple[ModeExposure, frozenset[str]]] = {}
        self._ranks: dict[tuple[Principal, str], dict[str, int]] = {}

    def lists(self, client: Principal, intent: str | None, tool: CatalogTool) -> bool:
        """Return True if the tool is on the client's list, or an action of a namespace there."""
        _, names = self._exposed(client, intent)
        return tool.qualified_name in names

    def rank(self, client: Principal, query: str, tool: CatalogTool) -> int | None:
        """Return the tool's place among the first hits of `search_tools`, if it is there."""
        own = self._own(client)
        search_tools = self._state.meta_tools_of(self._state.view(own)).find("search_tools")
        is_enabled = search_tools is not None and search_tools.is_enabled(self._state.settings_of(own))
        if not is_enabled or not self._exposed(own, None)[0].meta_tools:
            return None
        if (own, query) not in self._ranks:
            search = self._state.settings.search
            found = self._state.search(self._state.view(own), query, search.limit).tools
            hits = [each.qualified_name for each, score in found if score >= search.min_score]
            self._ranks[own, query] = {name: place for place, name in enumerate(hits, 1)}
        return self._ranks[own, query].get(tool.qualified_name)

    def _exposed(self, client: Principal, intent: str | None) -> tuple[ModeExposure, frozenset[str]]:
        own = self._own(client)
        key = (own, intent)
        if key not in self._exposures:
            view = self._state.view(own)
            mode = own.mode or self._state.settings.gateway.tools_exposure
            exposure = self._state.expose(view, mode, intent)
            names = exposure.names() | (self._actions(view) if exposure.namespaces else frozenset())
            self._exposures[key] = (exposure, names)
        return self._exposures[key]

    def _actions(self, view: View) -> frozenset[str]:
        return frozenset(name for each in self._state.namespaces(view).values() for name in each.by_tool)

    def _own(self, client: Principal) -> Principal:
        """Return the client by the settings of this side."""
        return _client(self._state, client.shown) or client


def _client(state: GatewayState, name: str) -> Principal | None:
    """Return the principal that usage was recorded for; None if it is no longer configured."""
    if name in (LOCAL.id, ANONYMOUS.id):
        return LOCAL if name == LOCAL.id else ANONYMOUS
    return configured(state.settings).get(name)


def _tools(state: GatewayState) -> dict[ToolKey, CatalogTool]:
    return {(tool.upstream_id, tool.name): tool for tool in state.catalog.tools}


def _query(tool: CatalogTool, query: str | None, intent: str | None, spoken: str | None) -> tuple[str, Words]:
    """Return the words a search for the tool would have: as close to what the client said as was recorded."""
    if query:
        return query, "search"
    if intent:
        return intent, "intent"
    if spoken:
        return spoken, "another call"
    # A model that searches says at least what the name says.
    return " ".join(_WORDS.findall(f"{tool.upstream_id} {tool.name}")).lower() or tool.name, "name"


def _used(replayed: Sequence[ReplayedCalls]) -> list[UsedTool]:
    calls: dict[ToolKey, int] = defaultdict(int)
    tokens: dict[ToolKey, int] = {}
    for each in replayed:
        key = (each.tool.upstream_id, each.tool.name)
        calls[key] += each.calls
        tokens[key] = _definition_tokens(each.tool)
    return [UsedTool(key, count, tokens[key]) for key, count in calls.items()]


def _definition_tokens(tool: CatalogTool) -> int:
    return count_definition_tokens(encode(tool.definition))


def _tokens(now: GatewayState, then: GatewayState, groups: Counter[Any]) -> tuple[int, int]:
    """Tokens of one list now and then, on average over what the recorded calls' lists were asked for."""
    asked: Counter[tuple[str, str | None]] = Counter()
    for (name, _, intent, _), count in groups.items():
        if _client(now, name) is not None:
            asked[name, intent] += count
    weighed = asked.most_common(MAX_LISTINGS) or [((LOCAL.id, now.settings.gateway.intent), 1)]
    total = sum(count for _, count in weighed)
    sums = []
    for state in (now, then):
        tokens = 0
        for (name, intent), count in weighed:
            client = _client(state, name) or LOCAL
            mode: ExposureMode = client.mode or state.settings.gateway.tools_exposure
            tokens += count * list_tokens(state, mode, intent, client).tokens
        sums.append(round(tokens / total))
    return sums[0], sums[1]
