"""Token costs of a catalog by mode, preset, server and tool, compared with searching."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import anyio.to_thread

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.wire import encode
from pml_gateway.config.presets import PRESET_NAMES, load_preset
from pml_gateway.config.settings import GatewaySection
from pml_gateway.exposure.token_count import TOKENIZER, count_definition_tokens, count_tokens
from pml_gateway.gateway.calling import Caller
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.gateway.request import CallOptions, RequestScope
from pml_gateway.gateway.state import GatewayState
from pml_gateway.gateway.tool_list import COUNTED_VERSION, ListCost, list_tokens
from pml_gateway.policy.client import LOCAL
from pml_gateway.text import first_sentence
from pml_gateway.types import ExposureMode, JsonObject

SAMPLED_INTENTS = 9
"""Enough for a median, and counted in a third of a second."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Intents that stand in for one that nobody gave: what was searched for, else what tools say of themselves."""

    intents: tuple[str, ...]
    are_searches: bool

    def as_json(self) -> JsonObject:
        """Return the sample for programs."""
        return {"intents": len(self.intents), "source": "searches" if self.are_searches else "tools"}

    def __str__(self) -> str:
        what = "recorded searches" if self.are_searches else "tools' own descriptions"
        return f"the median of a sample of {len(self.intents)} intents ({what})"


def sample_intents(state: GatewayState, searches: Sequence[str]) -> Sample | None:
    """Return a sample for this catalog; None where there is no tool that an intent could select."""
    tools = state.view(LOCAL).searchable
    if not tools:
        return None
    asked = tuple(dict.fromkeys(searches))
    if len(asked) >= SAMPLED_INTENTS:
        return Sample(asked[-SAMPLED_INTENTS:], are_searches=True)
    step = max(len(tools) // SAMPLED_INTENTS, 1)
    return Sample(tuple(_words(tool) for tool in tools[::step][:SAMPLED_INTENTS]), are_searches=False)


def _typical(state: GatewayState, mode: ExposureMode, intent: str | None, sample: Sample | None) -> ListCost:
    """Return the cost of a list in the mode for the intent; without one, the median over the sample of intents."""
    if intent is not None or sample is None or not state.settings.gateway.selects_by_intent(mode):
        return list_tokens(state, mode, intent)
    costs = sorted((list_tokens(state, mode, each) for each in sample.intents), key=lambda cost: cost.tokens)
    return costs[len(costs) // 2]


@dataclass(frozen=True, slots=True)
class PresetCost:
    """Return the cost of one preset with the current servers and lists."""

    preset: str
    tools: int
    tokens: int
    is_sampled: bool = False


async def preset_costs(gateway: Gateway, intent: str | None, sample: Sample | None) -> tuple[PresetCost, ...]:
    """Every preset, from the fewest listed tools to all of them; without an intent, by the sample."""
    state = await gateway.wait_for_search(60)
    return tuple([await anyio.to_thread.run_sync(_cost, state, name, intent, sample) for name in PRESET_NAMES])


def _cost(state: GatewayState, name: str, intent: str | None, sample: Sample | None) -> PresetCost:
    written = load_preset(name).values["gateway"]
    section = GatewaySection.model_validate(_overlaid(state.settings.gateway.model_dump(), written))
    settings = state.settings.model_copy(update={"gateway": section})
    mode = section.tools_exposure
    cost = _typical(replace(state, settings=settings), mode, intent, sample)
    is_sampled = intent is None and sample is not None and section.selects_by_intent(mode)
    return PresetCost(name, cost.tools, cost.tokens, is_sampled)


def _overlaid(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        merged[key] = _overlaid(merged[key], value) if isinstance(value, Mapping) else value
    return merged


DEAREST = 10
SAMPLED_SEARCHES = 25
"""Tools that are searched for to learn what a search costs: enough for a median, and done in a tenth of a second."""


@dataclass(frozen=True, slots=True)
class ServerCost:
    """Cost of one server's tools when all are listed."""

    server: str
    tools: int
    tokens: int


@dataclass(frozen=True, slots=True)
class ToolCost:
    """Cost of one tool when it is listed."""

    name: str
    server: str
    tokens: int


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Number of searches after which listing everything would have been cheaper.

    `search_tokens` is what one search costs, request and answer, as the median of `samples` searches, each for a tool
    of this catalog; `searches` is the first number of them that costs more. Both are None where nothing can be found.
    """

    searches: int | None
    search_tokens: int | None
    samples: int


@dataclass(frozen=True, slots=True)
class InstructionsCost:
    """Cost of the instructions that clients get when they connect, and its limit."""

    tokens: int
    budget: int


@dataclass(frozen=True, slots=True)
class TokenReport:
    """Report of `pml tokens`; lists are measured against `context_window`.

    Where an intent matters and none is given, the costs of `modes` are those of a `sample`.
    """

    intent: str | None
    sample: Sample | None
    configured: ExposureMode
    context_window: int
    modes: tuple[ListCost, ...]
    servers: tuple[ServerCost, ...]
    dearest: tuple[ToolCost, ...]
    break_even: BreakEven
    catalog_tools: int
    instructions: InstructionsCost

    def cost(self, mode: ExposureMode) -> ListCost:
        """Return the cost of the list in one mode."""
        return next(cost for cost in self.modes if cost.mode is mode)

    def saved(self, cost: ListCost) -> float:
        """Return the share of the full list that a mode saves; negative where it costs more."""
        full = self.cost(ExposureMode.FULL_PROXY).tokens
        return 1 - cost.tokens / full if full and self.catalog_tools else 0.0

    def of_window(self, tokens: int) -> float:
        """Return the share of the context window that these tokens take."""
        return tokens / self.context_window

    def as_json(self) -> JsonObject:
        """Return the report for programs."""
        return {
            "tokenizer": TOKENIZER,
            "protocol_version": COUNTED_VERSION,
            "intent": self.intent,
            "sample": None if self.sample is None else self.sample.as_json(),
            "context_window": self.context_window,
            "catalog_tools": self.catalog_tools,
            "modes": [
                {
                    "mode": cost.mode.value,
                    "configured": cost.mode is self.configured,
                    "tools": cost.tools,
                    "bytes": cost.bytes,
                    "tokens": cost.tokens,
                    "saved": round(self.saved(cost), 4),
                    "of_context_window": round(self.of_window(cost.tokens), 4),
                }
                for cost in self.modes
            ],
            "instructions": {"tokens": self.instructions.tokens, "budget": self.instructions.budget},
            "servers": [{"server": each.server, "tools": each.tools, "tokens": each.tokens} for each in self.servers],
            "dearest_tools": [
                {"name": each.name, "server": each.server, "tokens": each.tokens} for each in self.dearest
            ],
            "break_even": {
                "searches": self.break_even.searches,
                "search_tokens": self.break_even.search_tokens,
                "samples": self.break_even.samples,
            },
        }


async def token_report(
    gateway: Gateway, intent: str | None, context_window: int, searches: Sequence[str] = ()
) -> TokenReport:
    """Count everything for whoever runs the command; an index is waited for, since semantic and hybrid need one."""
    state = await gateway.wait_for_search(60)
    intent = intent or state.settings.gateway.intent
    sample = None if intent is not None else sample_intents(state, searches)
    costs = [await anyio.to_thread.run_sync(_typical, state, mode, intent, sample) for mode in ExposureMode]
    tools = await anyio.to_thread.run_sync(_tool_costs, state)
    full, meta = (
        next(cost.tokens for cost in costs if cost.mode is mode)
        for mode in (ExposureMode.FULL_PROXY, ExposureMode.META_ONLY)
    )
    return TokenReport(
        intent,
        sample,
        state.settings.gateway.tools_exposure,
        context_window,
        tuple(costs),
        _by_server(state, tools),
        tuple(sorted(tools, key=lambda tool: (-tool.tokens, tool.name))[:DEAREST]),
        await _break_even(gateway, full - meta),
        len(state.catalog.tools),
        await anyio.to_thread.run_sync(_instructions_cost, state),
    )


def _instructions_cost(state: GatewayState) -> InstructionsCost:
    told = state.instructions(state.view(LOCAL))
    return InstructionsCost(count_tokens(told), state.settings.gateway.instructions_tokens)


def _tool_costs(state: GatewayState) -> list[ToolCost]:
    return [
        ToolCost(
            tool.qualified_name,
            tool.upstream_id,
            count_definition_tokens(state.wire.tool_json(tool, COUNTED_VERSION, as_sent=True)),
        )
        for tool in state.view(LOCAL).tools
    ]


def _by_server(state: GatewayState, tools: Sequence[ToolCost]) -> tuple[ServerCost, ...]:
    """Every server, also those of which no tool is known, the dearest first."""
    rows = []
    for server in state.catalog.upstream_ids:
        own = [tool.tokens for tool in tools if tool.server == server]
        rows.append(ServerCost(server, len(own), sum(own)))
    return tuple(sorted(rows, key=lambda row: (-row.tokens, row.server)))


async def _break_even(gateway: Gateway, saved: int) -> BreakEven:
    costs = await search_costs(gateway)
    if not costs:
        return BreakEven(None, None, 0)
    search = round(median(costs))
    return BreakEven(saved // search + 1 if saved >= 0 else 0, search, len(costs))


async def search_costs(gateway: Gateway) -> list[int]:
    """Tokens of real searches, request and answer, for tools from all over the catalog."""
    state = await gateway.wait_for_search(60)
    tools = state.view(LOCAL).searchable
    step = max(len(tools) // SAMPLED_SEARCHES, 1)
    caller = Caller(gateway)
    costs = []
    for tool in tools[::step][:SAMPLED_SEARCHES]:
        arguments: JsonObject = {"query": _words(tool)}
        result = await caller.as_owner(RequestScope(), "search_tools", arguments, CallOptions())
        request = encode({"name": "search_tools", "arguments": arguments}).decode()
        costs.append(count_tokens(request) + sum(count_tokens(each["text"]) for each in result["content"]))
    return costs


def _words(tool: CatalogTool) -> str:
    """Return a query that a person who wants this tool might search for."""
    return first_sentence(tool.description, 100) or tool.name.replace("_", " ")
