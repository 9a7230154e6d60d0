"""How long a call takes and how many fit in a second, HTTP to HTTP, by catalog size.

python -m benchmarks.run_calls [--tools 10 50 5000] [--quick]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import anyio
import httpx2

from benchmarks.client import AnswerError, Client, Era, open_client
from benchmarks.harness import Field, Payloads, checked_call, options, started, table
from benchmarks.metrics import median, ratios, rotated, summary
from benchmarks.peers import Endpoint, synthetic_upstream
from benchmarks.results import save

WARM_UP_CALLS = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """How much work one round is."""

    rounds: int
    calls: int
    call_seconds: float
    clients: int
    load_seconds: float


Measure = Callable[[Endpoint, Era, Plan, int], Awaitable[list[float]]]


async def latency(endpoint: Endpoint, era: Era, plan: Plan, turn: int) -> list[float]:
    """Seconds of calls one after the other, fewer when the peer is slow."""
    payloads = Payloads(turn)
    async with open_client(endpoint.url, era) as client:
        for _ in range(WARM_UP_CALLS):
            await checked_call(client, endpoint, payloads.next())
        deadline = time.monotonic() + plan.call_seconds
        seconds: list[float] = []
        while len(seconds) < plan.calls and (time.monotonic() < deadline or not seconds):
            seconds.append(await checked_call(client, endpoint, payloads.next()))
    return seconds


async def throughput(endpoint: Endpoint, era: Era, plan: Plan, turn: int) -> list[float]:
    """Calls a second of all clients together, as a list of one. A call begun before the end counts with its time."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(open_client(endpoint.url, era)) for _ in range(plan.clients)]
        done = 0
        first_error: list[Exception] = []
        begun = time.monotonic()

        async def work(client: Client, number: int) -> None:
            nonlocal done
            payloads = Payloads(turn * 1000 + number)
            try:
                while time.monotonic() < begun + plan.load_seconds and not first_error:
                    await checked_call(client, endpoint, payloads.next())
                    done += 1
            except (AnswerError, httpx2.HTTPError) as exc:
                first_error.append(exc)

        async with anyio.create_task_group() as workers:
            for number, client in enumerate(clients):
                workers.start_soon(work, client, number)
        if first_error:
            raise first_error[0]
        return [done / (time.monotonic() - begun)]


async def in_rounds(field: Field, era: Era, plan: Plan, measure: Measure) -> dict[str, list[list[float]]]:
    """Peers take turns; what each measured, round by round."""
    series: dict[str, list[list[float]]] = {}
    names = [name for name, endpoint in field.endpoints.items() if era in endpoint.eras]
    for turn in range(plan.rounds):
        for name in rotated(names, turn):
            if name not in field.endpoints:
                continue
            try:
                values = await measure(field.endpoints[name], era, plan, turn)
            except (AnswerError, httpx2.HTTPError) as exc:
                field.drop(name, exc)
                series.pop(name, None)
            else:
                series.setdefault(name, []).append(values)
    return series


def latency_rows(series: dict[str, list[list[float]]], tools: int, era: Era) -> list[dict[str, Any]]:
    """One row a peer: the median over rounds of the rounds' medians, in ms."""
    medians = {name: [median(values) for values in rounds] for name, rounds in series.items()}
    compared = ratios(medians, "direct")
    rows = []
    for name, rounds in series.items():
        every = summary([value * 1000 for values in rounds for value in values])
        rows.append(
            {
                "tools": tools,
                "era": era.value,
                "peer": name,
                "p50_ms": median(medians[name]) * 1000,
                "p95_ms": every["p95"],
                "calls": every["count"],
                "x_direct": compared.get(name),
            }
        )
    return rows


def throughput_rows(series: dict[str, list[list[float]]], tools: int, era: Era) -> list[dict[str, Any]]:
    """One row a peer: the median over rounds of calls a second."""
    rates = {name: [values[0] for values in rounds] for name, rounds in series.items()}
    compared = ratios(rates, "fastmcp_proxy")
    return [
        {
            "tools": tools,
            "era": era.value,
            "peer": name,
            "calls_per_s": median(values),
            "x_fastmcp_proxy": compared.get(name),
        }
        for name, values in rates.items()
    ]


async def run(arguments: argparse.Namespace) -> None:
    """Measure, print, save."""
    plan = Plan(arguments.rounds, arguments.calls, arguments.call_seconds, arguments.clients, arguments.load_seconds)
    sizes: list[int] = arguments.tools
    if arguments.quick:
        plan, sizes = Plan(1, 3, 5, 4, 0.5), [10]
    calls: list[dict[str, Any]] = []
    load: list[dict[str, Any]] = []
    problems: dict[str, dict[str, str]] = {}
    for size in sizes:
        print(f"{size} tools")
        async with synthetic_upstream(size) as upstream, started(arguments.peers, upstream) as field:
            for era in arguments.eras:
                calls += latency_rows(await in_rounds(field, era, plan, latency), size, era)
                load += throughput_rows(await in_rounds(field, era, plan, throughput), size, era)
            problems[str(size)] = field.problems
    print(table(calls), table(load), sep="\n\n")
    if not arguments.no_save and not arguments.quick:
        settings = {"plan": {name: getattr(plan, name) for name in Plan.__slots__}, "tools": sizes}
        print(save("calls", settings, {"latency": calls, "throughput": load, "problems": problems}))


def main() -> None:
    """Parse and run."""
    parser = options("How long a call takes and how many fit in a second.")
    parser.add_argument("--tools", type=int, nargs="+", default=[10, 50, 5000])
    parser.add_argument("--calls", type=int, default=200, help="calls in a round, one after the other")
    parser.add_argument("--call-seconds", type=float, default=15, help="a round of calls ends after this")
    parser.add_argument("--clients", type=int, default=16, help="concurrent clients of the load")
    parser.add_argument("--load-seconds", type=float, default=5)
    anyio.run(run, parser.parse_args())


if __name__ == "__main__":
    main()
