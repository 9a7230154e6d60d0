"""Token costs of a catalog by mode, preset, server and tool, compared with searching."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypedDict

import anyio.to_thread

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.wire import encode
from pml_gateway.config.presets import PRESET_NAMES, with_preset
from pml_gateway.exposure.token_count import TOKENIZER, count_definition_tokens, count_tokens
from pml_gateway.gateway.call import CallContext
from pml_gateway.gateway.calling import Caller
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.gateway.request import CallOptions, RequestScope
from pml_gateway.gateway.state import GatewayState
from pml_gateway.gateway.tool_list import COUNTED_VERSION, ListCost, list_tokens
from pml_gateway.meta.search_tools import search_tools
from pml_gateway.policy.principal import LOCAL
from pml_gateway.text import first_sentence
from pml_gateway.types import ExposureMode, JsonObject

SAMPLED_INTENTS = 9
"""Enough for a median, and counted in a third of a second."""

DEAREST = 10

SAMPLED_SEARCHES = 25
"""Tools that are searched for to learn what a search costs: enough for a median, and done in a tenth of a second."""


class SampleSize(TypedDict):
    """Number of sample intents; `source` is `searches` or `tools`."""

    intents: int
    source: str


@dataclass(frozen=True, slots=True)
class Sample:
    """Sample intents if none is given: recorded searches, else descriptions of tools."""

    intents: tuple[str, ...]
    are_searches: bool

    @property
    def size(self) -> SampleSize:
        """Return the number and source of the intents."""
        return {"intents": len(self.intents), "source": "searches" if self.are_searches else "tools"}


def sample_intents(state: GatewayState, searches: Sequence[str]) -> Sample | None:
    """Return a sample for this catalog; None where there is no tool that an intent could select."""
    tools = state.view(LOCAL).tools
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


class PresetCost(TypedDict):
    """Cost of one preset with the current servers and lists."""

    preset: str
    tools: int
    tokens: int
    is_sampled: bool


def _cost(state: GatewayState, name: str, intent: str | None, sample: Sample | None) -> PresetCost:
    section = with_preset(state.settings.gateway, name)
    settings = state.settings.model_copy(update={"gateway": section})
    mode = section.tools_exposure
    cost = _typical(replace(state, settings=settings), mode, intent, sample)
    is_sampled = intent is None and sample is not None and section.selects_by_intent(mode)
    return {"preset": name, "tools": cost.tools, "tokens": cost.tokens, "is_sampled": is_sampled}


class ServerCost(TypedDict):
    """Cost of one server's tools when all are listed."""

    server: str
    tools: int
    tokens: int


class ToolCost(TypedDict):
    """Cost of one tool when it is listed."""

    name: str
    server: str
    tokens: int


class ModeCost(TypedDict):
    """Cost of the list in one mode, and the share of the full list that it saves; negative where it costs more."""

    mode: str
    configured: bool
    tools: int
    bytes: int
    tokens: int
    saved: float
    of_context_window: float


class BreakEven(TypedDict):
    """Number of searches after which listing everything would have been cheaper.

    `search_tokens` is what one search costs, request and answer, as the median of `samples` searches, each for a tool
    of this catalog; `searches` is the first number of them that costs more. Both are None where nothing can be found.
    """

    searches: int | None
    search_tokens: int | None
    samples: int


class InstructionsCost(TypedDict):
    """Cost of the instructions that clients get when they connect, and its limit."""

    tokens: int
    budget: int


class TokenReport(TypedDict):
    """Report of `pml tokens`; lists are measured against `context_window`.

    Where an intent matters and none is given, the costs of `modes` are those of a `sample`.
    """

    tokenizer: str
    protocol_version: str
    intent: str | None
    sample: SampleSize | None
    context_window: int
    catalog_tools: int
    modes: list[ModeCost]
    instructions: InstructionsCost
    servers: list[ServerCost]
    dearest_tools: list[ToolCost]
    break_even: BreakEven


async def token_report(
    gateway: Gateway, intent: str | None, context_window: int, searches: Sequence[str] = ()
) -> TokenReport:
    """Count all token costs; wait for the index, which the modes semantic and hybrid need."""
    state = await gateway.wait_for_search(60)
    intent = intent or state.settings.gateway.intent
    sample = None if intent is not None else sample_intents(state, searches)
    costs = [await anyio.to_thread.run_sync(_typical, state, mode, intent, sample) for mode in ExposureMode]
    tools = await anyio.to_thread.run_sync(_tool_costs, state)
    full, meta = (
        next(cost.tokens for cost in costs if cost.mode is mode)
        for mode in (ExposureMode.FULL_PROXY, ExposureMode.META_ONLY)
    )
    return {
        "tokenizer": TOKENIZER,
        "protocol_version": COUNTED_VERSION,
        "intent": intent,
        "sample": None if sample is None else sample.size,
        "context_window": context_window,
        "catalog_tools": len(state.catalog.tools),
        "modes": [
            {
                "mode": cost.mode.value,
                "configured": cost.mode is state.settings.gateway.tools_exposure,
                "tools": cost.tools,
                "bytes": cost.bytes,
                "tokens": cost.tokens,
                "saved": round(1 - cost.tokens / full, 4) if full and state.catalog.tools else 0.0,
                "of_context_window": round(cost.tokens / context_window, 4),
            }
            for cost in costs
        ],
        "instructions": await anyio.to_thread.run_sync(_instructions_cost, state),
        "servers": _by_server(state, tools),
        "dearest_tools": sorted(tools, key=lambda tool: (-tool["tokens"], tool["name"]))[:DEAREST],
        "break_even": await _break_even(gateway, full - meta),
    }


def _instructions_cost(state: GatewayState) -> InstructionsCost:
    told = state.instructions(state.view(LOCAL), state.settings.gateway.tools_exposure)
    return {"tokens": count_tokens(told), "budget": state.settings.gateway.instructions_tokens}


def _tool_costs(state: GatewayState) -> list[ToolCost]:
    return [
        {
            "name": tool.qualified_name,
            "server": tool.upstream_id,
            "tokens": count_definition_tokens(tool.as_json(COUNTED_VERSION, as_sent=True)),
        }
        for tool in state.view(LOCAL).tools
    ]


def _by_server(state: GatewayState, tools: Sequence[ToolCost]) -> list[ServerCost]:
    """Every server, also those of which no tool is known, the dearest first."""
    rows: list[ServerCost] = []
    for server in state.catalog.upstream_ids:
        own = [tool["tokens"] for tool in tools if tool["server"] == server]
        rows.append({"server": server, "tools": len(own), "tokens": sum(own)})
    return sorted(rows, key=lambda row: (-row["tokens"], row["server"]))


async def _break_even(gateway: Gateway, saved: int) -> BreakEven:
    costs = await search_costs(gateway)
    if not costs:
        return {"searches": None, "search_tokens": None, "samples": 0}
    search = round(median(costs))
    searches = saved // search + 1 if saved >= 0 else 0
    return {"searches": searches, "search_tokens": search, "samples": len(costs)}


async def search_costs(gateway: Gateway) -> list[int]:
    """Tokens of real searches, request and answer, for tools from all over the catalog."""
    state = await gateway.wait_for_search(60)
    tools = state.view(LOCAL).tools
    step = max(len(tools) // SAMPLED_SEARCHES, 1)
    # Asked here and not as a call: nobody searched, and nothing is to be recorded of it.
    context = CallContext(gateway, Caller(gateway), state, state.view(LOCAL), RequestScope(is_last=True), CallOptions())
    costs = []
    for tool in tools[::step][:SAMPLED_SEARCHES]:
        arguments: JsonObject = {"query": _words(tool)}
        result = await search_tools(context, arguments)
        request = encode({"name": "search_tools", "arguments": arguments}).decode()
        costs.append(count_tokens(request) + sum(count_tokens(each["text"]) for each in result["content"]))
    return costs


def _words(tool: CatalogTool) -> str:
    """Return a query that a person who wants this tool might search for."""
    return first_sentence(tool.description, 100) or tool.name.replace("_", " ")


class CatalogCosts(TypedDict):
    """Costs of a catalog by preset, from the fewest tools to all; of the `servers`, `known` have listed their tools."""

    servers: int
    known: int
    intent: str | None
    search_tokens: int | None
    sample: SampleSize | None
    presets: list[PresetCost]


async def catalog_costs(gateway: Gateway, intent: str | None, searches: Sequence[str]) -> CatalogCosts:
    """Count what the catalog costs.

    Args:
        gateway: the gateway of the catalog.
        intent: the intent to count with instead of the configured one.
        searches: recorded searches, oldest first, of which a sample stands in for an intent.
    """
    state = await gateway.wait_for_search(60)
    wanted = intent or state.settings.gateway.intent
    found = await search_costs(gateway)
    sample = None if wanted else sample_intents(state, searches)
    enabled = {name for name, definition in state.settings.servers.items() if definition.enabled}
    return {
        "servers": len(enabled),
        "known": len(enabled & state.catalog.listed_upstreams),
        "intent": wanted,
        "search_tokens": round(median(found)) if found else None,
        "sample": None if sample is None else sample.size,
        "presets": [await anyio.to_thread.run_sync(_cost, state, name, wanted, sample) for name in PRESET_NAMES],
    }
