"""How long a raw HTTP client waits for the whole `tools/list`, every tool listed.

python -m benchmarks.run_lists [--tools 700] [--quick]
"""

from __future__ import annotations

import argparse
from typing import Any

import anyio

from benchmarks.client import AnswerError, Era, list_everything, open_client
from benchmarks.harness import options, started, table
from benchmarks.metrics import median, ratios, summary
from benchmarks.peers import Endpoint, Upstream, synthetic_upstream
from benchmarks.results import save
from benchmarks.run_calls import Measure, Plan, in_rounds
from benchmarks.synthetic import synthetic_tools

DEFAULT_PEERS = ("direct", "pml", "fastmcp_proxy", "mcp_proxy")
WARM_UP_LISTS = 2


def check(endpoint: Endpoint, tools: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """The same tools under the peer's names, with description and input properties intact."""
    assert endpoint.listed_name is not None
    listed = {tool["name"]: tool for tool in tools}
    wanted = {endpoint.listed_name(tool["name"]): tool for tool in expected}
    if listed.keys() != wanted.keys():
        missing, extra = wanted.keys() - listed.keys(), listed.keys() - wanted.keys()
        raise AnswerError(f"{len(listed)} tools listed; missing {sorted(missing)[:3]}, extra {sorted(extra)[:3]}")
    for name, tool in wanted.items():
        if listed[name].get("description", "") != tool["description"]:
            raise AnswerError(f"{name} has another description")
        if (listed[name]["inputSchema"].get("properties") or {}).keys() != (
            tool["inputSchema"].get("properties") or {}
        ).keys():
            raise AnswerError(f"{name} has other input properties")


def measure_for(upstream: Upstream, sizes: dict[str, int]) -> Measure:
    """A measure that times lists and notes their size by URL."""
    expected = synthetic_tools(upstream.tools)

    async def lists(endpoint: Endpoint, era: Era, plan: Plan, turn: int) -> list[float]:
        series = []
        async with open_client(endpoint.url, era) as client:
            for number in range(WARM_UP_LISTS + plan.calls):
                seconds, size, tools = await list_everything(client)
                check(endpoint, tools, expected)
                sizes[endpoint.url] = size
                if number >= WARM_UP_LISTS:
                    series.append(seconds)
        return series

    return lists


def rows(series: dict[str, list[list[float]]], sizes: dict[str, int], tools: int, era: Era) -> list[dict[str, Any]]:
    """One row a peer; `sizes` by its name."""
    medians = {name: [median(values) for values in rounds] for name, rounds in series.items()}
    direct, proxy = ratios(medians, "direct"), ratios(medians, "fastmcp_proxy")
    return [
        {
            "tools": tools,
            "era": era.value,
            "peer": name,
            "p50_ms": median(medians[name]) * 1000,
            "p95_ms": summary([value * 1000 for values in rounds for value in values])["p95"],
            "kB": sizes[name] / 1000,
            "x_direct": direct.get(name),
            "x_fastmcp_proxy": proxy.get(name),
        }
        for name, rounds in series.items()
    ]


async def run(arguments: argparse.Namespace) -> None:
    """Measure, print, save."""
    plan, tools = Plan(arguments.rounds, arguments.lists, 0, 0, 0), arguments.tools
    if arguments.quick:
        plan, tools = Plan(1, 2, 0, 0, 0), 20
    measured: list[dict[str, Any]] = []
    async with synthetic_upstream(tools) as upstream, started(arguments.peers, upstream) as field:
        for name, endpoint in list(field.endpoints.items()):
            if endpoint.listed_name is None:
                field.drop(name, AnswerError("lists meta-tools only"))
        by_url: dict[str, int] = {}
        for era in arguments.eras:
            series = await in_rounds(field, era, plan, measure_for(upstream, by_url))
            sizes = {name: by_url[field.endpoints[name].url] for name in series}
            measured += rows(series, sizes, tools, era)
    print(table(measured))
    if not arguments.no_save and not arguments.quick:
        settings = {"rounds": plan.rounds, "lists": plan.calls, "tools": tools}
        print(save("lists", settings, {"lists": measured, "problems": field.problems}))


def main() -> None:
    """Parse and run."""
    parser = options("How long the whole tools/list takes.")
    parser.set_defaults(peers=list(DEFAULT_PEERS))
    parser.add_argument("--tools", type=int, default=700)
    parser.add_argument("--lists", type=int, default=20, help="lists in a round")
    anyio.run(run, parser.parse_args())


if __name__ == "__main__":
    main()
