"""The catalog becomes what each preset would list, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import anyio.to_thread

from pml_gateway.config.presets import PRESET_NAMES, load_preset
from pml_gateway.config.settings import GatewaySection
from pml_gateway.server.gateway import Gateway
from pml_gateway.server.state import GatewayState
from pml_gateway.server.tokens import list_tokens


@dataclass(frozen=True, slots=True)
class PresetCost:
    """What one preset lists with the lists and the servers of now."""

    preset: str
    tools: int
    tokens: int


async def preset_costs(gateway: Gateway, intent: str | None) -> tuple[PresetCost, ...]:
    """Every preset, from the fewest listed tools to all of them."""
    state = await gateway.searchable(60)
    return tuple([await anyio.to_thread.run_sync(_cost, state, name, intent) for name in PRESET_NAMES])


def _cost(state: GatewayState, name: str, intent: str | None) -> PresetCost:
    written = load_preset(name).values["gateway"]
    section = GatewaySection.model_validate(_overlaid(state.settings.gateway.model_dump(), written))
    settings = state.settings.model_copy(update={"gateway": section})
    cost = list_tokens(replace(state, settings=settings, lists={}), section.tools_exposure, intent)
    return PresetCost(name, cost.tools, cost.tokens)


def _overlaid(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        merged[key] = _overlaid(merged[key], value) if isinstance(value, Mapping) else value
    return merged
