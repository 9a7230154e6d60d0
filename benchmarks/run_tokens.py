"""What each mode's list costs a model, on 700 real tools.

    python -m benchmarks.run_tokens [--tools 700] [--intents 100] [--write]

Takes the tools from $PML_DATA (default `../shared/data` beside the repository) as servers list them, and intents of
other sets, so that most of them have no tool made for them here. The lists are the gateway's own bytes. `--write`
keeps the figures and puts them into the README, the pages and the presets.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.token_figures import ListFigure, TokenFigures, meta_tool_tokens, save
from pml_gateway.catalog.build import build_catalog
from pml_gateway.catalog.model import UpstreamListing
from pml_gateway.config.presets import load_preset
from pml_gateway.config.settings import Settings
from pml_gateway.exposure.meta_tool import RESERVED
from pml_gateway.exposure.token_count import TOKENIZER
from pml_gateway.gateway.state import GatewayState, documents
from pml_gateway.gateway.tool_list import list_tokens
from pml_gateway.index.models import load_embedder
from pml_gateway.index.search import ToolIndex
from pml_gateway.meta.meta_tools import ALL_META_TOOLS
from pml_gateway.types import ExposureMode, JsonObject

REPOSITORY = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("PML_DATA", REPOSITORY.parent / "shared" / "data"))
PRESETS = ("full_proxy", "hybrid_permissive", "hybrid_balanced", "meta_only")


def main() -> None:
    """Count, print a table and a chart."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tools", type=int, default=700)
    parser.add_argument("--intents", type=int, default=100)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    figures = measured(arguments.tools, arguments.intents)
    print(f"{figures.tools} tools of {figures.servers} servers, {figures.intents} intents, {TOKENIZER}")
    print(figures.chart())
    print(f"the default meta-tools, 12 systems named: {figures.meta_tools}; the first three: {figures.few}")
    if arguments.write:
        save(figures)


def measured(tools: int, intent_count: int) -> TokenFigures:
    """Count the list of each preset, as the median over the intents where those select."""
    listings = _listings(tools)
    catalog = build_catalog(listings, reserved=RESERVED)
    index = ToolIndex.build(documents(catalog.tools, catalog.ownership), load_embedder("builtin"))
    intents = _intents(intent_count)
    lists = {}
    for preset in PRESETS:
        settings = Settings.model_validate(load_preset(preset).values)
        state = GatewayState(settings, catalog, index, meta_tools=ALL_META_TOOLS)
        mode = settings.gateway.tools_exposure
        asked = intents if mode is ExposureMode.HYBRID else [None]
        costs = [list_tokens(state, mode, intent) for intent in asked]
        lists[preset] = ListFigure(
            tools=round(median(cost.tools for cost in costs)), tokens=round(median(cost.tokens for cost in costs))
        )
    whole, few = meta_tool_tokens()
    return TokenFigures(len(catalog.tools), len(listings), len(intents), lists, whole, few)


def _listings(count: int) -> list[UpstreamListing]:
    servers: dict[str, list[JsonObject]] = {}
    with (DATA / "dev" / "distractors.jsonl").open(encoding="utf-8") as lines:
        for line in islice(lines, count):
            row: dict[str, Any] = json.loads(line)
            tool = {
                "name": row["name"],
                "description": row.get("description", ""),
                "inputSchema": row.get("input_schema"),
            }
            servers.setdefault(row["server"], []).append(tool)
    return [UpstreamListing(server, tuple(tools)) for server, tools in servers.items()]


def _intents(count: int) -> list[str]:
    intents = []
    for queries in sorted((DATA / "dev").glob("mcp*/queries.jsonl")):
        intents += [json.loads(line)["query"] for line in queries.read_text(encoding="utf-8").splitlines()]
    return random.Random(0).sample(intents, count)


if __name__ == "__main__":
    main()
