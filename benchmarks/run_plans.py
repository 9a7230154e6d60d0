"""How much of what agents did a suggested plan says, from the request alone.

    python -m benchmarks.run_plans [--sources workbench nestful] [--limit 150]

Requests of recorded sessions under $PML_DATA for which at least two tools were called, over the tools of their source.
What results hold is learned from the other half of the tasks, as the gateway learns it; nothing else is fitted. Of the
tools called, the plan has so many (`tools`), and so much of the plan was called (`called`); of pairs that were called
in an order and stand in the plan, so many stand in it (`order`); of the arguments that took a value nobody had written
from an earlier result, so many refer to that tool's step in the plan (`linked`).
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations

from benchmarks.harness import table
from benchmarks.recorded_sessions import SOURCES, Call, Source, flows, read_source
from benchmarks.results import save
from pml_gateway.catalog.model import Catalog
from pml_gateway.config.settings import Settings
from pml_gateway.gateway.state import GatewayState, WireCache, documents, linked_tool
from pml_gateway.index import Embedder, ToolIndex, load_embedder
from pml_gateway.index.links import Links
from pml_gateway.meta.suggestions import planned
from pml_gateway.policy.client import Client
from pml_gateway.results.learning import Output
from pml_gateway.types import JsonObject

LIMIT = 150
SEED = 7


@dataclass(frozen=True, slots=True)
class Request:
    """What a user asked, and the calls that an agent made for it."""

    text: str
    calls: tuple[Call, ...]

    @property
    def tools(self) -> list[str]:
        """The called tools, in the order of their first calls."""
        return list(dict.fromkeys(call.tool for call in self.calls))


def requests_of(source: Source, limit: int, *, for_test: bool = True) -> list[Request]:
    """Requests of one half of the tasks that took several tools, each text once, at most `limit` drawn at random."""
    found = {
        text: Request(text, tuple(call for call in calls if call.tool in source.tools))
        for session in source.sessions
        for text, calls in session.requests
        if session.is_for_test is for_test and text.strip()
    }
    several = [request for request in found.values() if len(request.tools) > 1]
    return several if len(several) <= limit else random.Random(SEED).sample(several, limit)


def measured(plan: JsonObject, request: Request) -> dict[str, list[float]]:
    """For one plan the values of each figure."""
    steps: Sequence[JsonObject] = plan["steps"]
    stands: dict[str, int] = {}
    for at, step in enumerate(steps):
        stands.setdefault(step["tool"], at)
    wanted = request.tools
    ordered = [(one, two) for one, two in combinations(wanted, 2) if one in stands and two in stands]
    return {
        "tools": [float(tool in stands) for tool in wanted],
        "called": [float(tool in wanted) for tool in stands],
        "order": [float(stands[one] < stands[two]) for one, two in ordered],
        "linked": [float(flow in _links(steps)) for flow in _flows(request)],
    }


def _links(steps: Sequence[JsonObject]) -> set[tuple[str, str, str]]:
    """(producer, consumer, parameter) of a plan's references."""
    tools = {f"${step['id']}": step["tool"] for step in steps}
    return {
        (tool, step["tool"], parameter)
        for step in steps
        for parameter, value in step["arguments"].items()
        for reference, tool in tools.items()
        if isinstance(value, str) and _refers(_spelled_out(value, step), reference)
    }


def _spelled_out(value: str, step: JsonObject) -> str:
    return value.replace("$item", str(step.get("for_each", "")), 1) if value.startswith("$item") else value


def _refers(text: str, reference: str) -> bool:
    return text.startswith(reference) and not text[len(reference) : len(reference) + 1].isalnum()


def _flows(request: Request) -> set[tuple[str, str, str]]:
    calls = request.calls
    return {
        (calls[flow.producer].tool, calls[flow.consumer].tool, flow.parameter)
        for flow in flows(calls)
        if flow.is_fresh and calls[flow.producer].tool != calls[flow.consumer].tool
    }


Plans = Callable[[str], JsonObject]


def plans_of(source: Source, embedder: Embedder, outputs: dict[str, JsonObject]) -> Plans:
    """What makes plans over the tools of one source."""
    catalog = Catalog(tuple(source.tools.values()))
    index = ToolIndex.build(documents(catalog.tools, catalog.ownership), embedder)
    state = GatewayState(Settings(), catalog, index, WireCache(catalog))
    view = state.view(Client("measured"))
    links = Links.build([linked_tool(tool) for tool in catalog.tools])

    def make(text: str) -> JsonObject:
        return planned(state, view, text, lambda tool: _output(outputs.get(tool.qualified_name)), lambda _: "", links)

    return make


def _output(schema: JsonObject | None) -> Output | None:
    return None if schema is None else Output(schema, 1)


def figures(requests: Sequence[Request], make: Plans) -> JsonObject:
    """The mean of each figure over all its values."""
    values: dict[str, list[float]] = {}
    for request in requests:
        for name, found in measured(make(request.text), request).items():
            values.setdefault(name, []).extend(found)
    means = {name: sum(each) / len(each) if each else None for name, each in values.items()}
    return {"requests": len(requests), **means, "flows": len(values.get("linked", ()))}


def run(arguments: argparse.Namespace) -> None:
    """Measure, print, save."""
    embedder = load_embedder("builtin")
    rows = []
    for name in arguments.sources:
        source = read_source(name)
        make = plans_of(source, embedder, source.outputs())
        rows.append({"source": name, **figures(requests_of(source, arguments.limit), make)})
    print(table(rows))
    if not arguments.no_save:
        print(save("plans", {"limit": arguments.limit}, {"plans": rows}))


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description="How much of what agents did a suggested plan says.")
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--limit", type=int, default=LIMIT, help="requests of each source at most")
    parser.add_argument("--no-save", action="store_true", help="print only")
    with suppress(KeyboardInterrupt):
        run(parser.parse_args())


if __name__ == "__main__":
    main()
