"""Whether one checkout is slower or larger than another: pairs of both, measured in turns on one machine.

    python -m benchmarks.run_pairs --before ../old/.venv --after .venv

Both are given as a Python interpreter, or as the folder of a virtual environment, that has the package installed. Only
the gateway's process is theirs; upstreams and clients are this checkout's for both. In each round of a pair fresh
gateways of both take short turns at the same requests, the other one first each time. Each figure is judged by its
ratios after/before within the pairs: by their median, and by the upper end of the sign test's 95 % interval, which
needs six pairs. A wrong answer ends the run. Exit code 1 when a limit is missed or something could not be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx2

from benchmarks.baselines.pml import gateway
from benchmarks.client import AnswerError, Client, Era, open_client
from benchmarks.harness import first_answer, table
from benchmarks.metrics import median, rotated, sign_test_interval
from benchmarks.peers import Endpoint, Upstream, synthetic_upstream
from benchmarks.processes import PeerError, resident_mib
from benchmarks.results import save
from benchmarks.run_calls import Measure, Plan, latency
from benchmarks.run_lists import measure_for
from benchmarks.run_start import Scene, fill_manifest, first_list
from benchmarks.synthetic import synthetic_tools

MEDIAN_LIMIT = 1.05
UPPER_LIMIT = 1.10
"""The interval of ten pairs ends at their second largest ratio, which scatters by as much on a shared machine."""

WARM_UP_SEARCHES = 2
QUERY_WORDS = 12
READY_SECONDS = 120
POLL_SECONDS = 0.5
IMPORT_SECONDS = 60
SECONDS_OF_A_TURN = 60.0
BUSY_LOAD = 1.0


@dataclass(frozen=True, slots=True)
class Work:
    """How much is measured: pairs of some rounds, each with fresh gateways that take some turns at the requests."""

    pairs: int
    rounds: int = 2
    turns: int = 3
    calls: int = 40
    lists: int = 8
    searches: int = 30
    starts: int = 1
    listed_tools: int = 700
    searched_tools: int = 1000
    upstreams: int = 10


QUICK = Work(
    pairs=1, rounds=1, turns=1, calls=3, lists=2, searches=3, starts=1, listed_tools=20, searched_tools=20, upstreams=2
)


@dataclass(frozen=True, slots=True)
class Side:
    """One checkout: its interpreter, where its gateways keep what they know, and its start over stdio."""

    name: str
    python: str
    home: Path
    scene: Scene


Values = dict[str, float]
"""What one side reached, by figure."""

MeasureTurn = Callable[[Side, int], Awaitable[list[float]]]


async def in_turns(sides: Sequence[Side], turns: int, measure: MeasureTurn) -> Values:
    """The median of each side, by its name; sides take turns, and who goes first changes every time."""
    series: dict[str, list[float]] = {side.name: [] for side in sides}
    for turn in range(turns):
        for side in rotated(sides, turn):
            series[side.name] += await measure(side, turn)
    return {name: median(values) for name, values in series.items()}


def at(endpoints: Mapping[str, Endpoint], era: Era, measure: Measure, count: int) -> MeasureTurn:
    """A turn of `count` requests at a side's gateway, in milliseconds; both sides are asked the same."""
    plan = Plan(rounds=1, calls=count, call_seconds=SECONDS_OF_A_TURN, clients=1, load_seconds=0)

    async def turn_of(side: Side, turn: int) -> list[float]:
        return [seconds * 1000 for seconds in await measure(endpoints[side.name], era, plan, turn)]

    return turn_of


def searches_of(tools: int) -> Measure:
    """A measure that times searches, each for another tool by what its description says."""
    questions = [(tool["name"], query_for(tool)) for tool in synthetic_tools(tools)]

    async def searches(endpoint: Endpoint, era: Era, plan: Plan, turn: int) -> list[float]:
        assert endpoint.listed_name is not None
        generator, series = random.Random(turn), []
        async with open_client(endpoint.url, era) as client:
            for number in range(WARM_UP_SEARCHES + plan.calls):
                name, query = generator.choice(questions)
                seconds, answer = await search(client, query)
                check_hits(answer, endpoint.listed_name(name))
                if number >= WARM_UP_SEARCHES:
                    series.append(seconds)
        return series

    return searches


def check_hits(answer: Mapping[str, Any], name: str) -> None:
    """The tool that was looked for is found, and not by its words alone."""
    found = [hit["name"] for hit in answer["hits"]]
    if name not in found:
        raise AnswerError(f"{name} is not among the hits {found}")
    if answer.get("ranking") == "lexical":
        raise AnswerError("words alone ranked; the time would not be comparable")


def query_for(tool: Mapping[str, Any]) -> str:
    """What somebody would say who looks for this tool."""
    words = f"{tool['name'].replace('_', ' ')} {tool['description']}".split()
    return " ".join(words[:QUERY_WORDS])


async def search(client: Client, query: str) -> tuple[float, dict[str, Any]]:
    """Seconds and answer of one search."""
    arguments = {"query": query, "limit": 10}
    timed = await client.request("tools/call", {"name": "search_tools", "arguments": arguments})
    result = timed.result()
    answer: dict[str, Any] = result.get("structuredContent") or {}
    if result.get("isError") or "hits" not in answer:
        raise AnswerError(f"no search: {json.dumps(result)[:500]}")
    return timed.seconds, answer


@asynccontextmanager
async def gateways(sides: Sequence[Side], upstream: Upstream, mode: str) -> AsyncIterator[dict[str, Endpoint]]:
    """A fresh gateway of each side, by its name; what they know of this upstream was kept by earlier ones."""
    async with AsyncExitStack() as stack:
        endpoints = {}
        for side in sides:
            home = side.home / mode
            home.mkdir(parents=True, exist_ok=True)
            endpoint = await stack.enter_async_context(gateway(upstream, home, python=side.python, mode=mode))
            await first_answer(endpoint)
            endpoints[side.name] = endpoint
        yield endpoints


async def ranked_by_model(endpoint: Endpoint) -> None:
    """Wait until every tool is encoded; until then words alone rank."""
    deadline = time.monotonic() + READY_SECONDS
    async with open_client(endpoint.url, Era.STATELESS) as client:
        while (await search(client, "return the payload unchanged"))[1].get("ranking") == "lexical":
            if time.monotonic() > deadline:
                raise PeerError(f"words alone rank after {READY_SECONDS} s")
            await anyio.sleep(POLL_SECONDS)


async def calls_and_lists(sides: Sequence[Side], upstream: Upstream, work: Work) -> dict[str, Values]:
    """Direct calls and whole lists over HTTP, in both eras."""
    found: dict[str, Values] = {}
    lists = measure_for(upstream, {})
    async with gateways(sides, upstream, "full_proxy") as endpoints:
        for era in Era:
            for figure, measure, count in (("call", latency, work.calls), ("list", lists, work.lists)):
                turn_of = at(endpoints, era, measure, count)
                await in_turns(sides, 1, turn_of)  # what a fresh gateway still does beside its first requests
                found[f"{figure} ms, {era.value}"] = await in_turns(sides, work.turns, turn_of)
    return found


async def searches_and_memory(sides: Sequence[Side], upstream: Upstream, work: Work) -> dict[str, Values]:
    """Searches over HTTP in both eras, and what the gateways weigh after them."""
    found: dict[str, Values] = {}
    searches = searches_of(upstream.tools)
    async with gateways(sides, upstream, "meta_only") as endpoints:
        for endpoint in endpoints.values():
            await ranked_by_model(endpoint)
        for era in Era:
            turn_of = at(endpoints, era, searches, work.searches)
            found[f"search ms, {era.value}"] = await in_turns(sides, work.turns, turn_of)
        found["memory MiB"] = {name: resident_mib(endpoint.pid) for name, endpoint in endpoints.items()}
    return found


async def starts(sides: Sequence[Side], work: Work) -> dict[str, Values]:
    """From process start to the first whole list over stdio, with a manifest."""

    async def start(side: Side, _: int) -> list[float]:
        return [(await first_list(side.scene, Era.HANDSHAKE))["seconds"]]

    return {"start to first list s": await in_turns(sides, work.starts, start)}


async def measure(sides: Sequence[Side], work: Work) -> list[dict[str, Values]]:
    """Every figure of both sides, pair by pair. A round before the first, which fills the caches, is left out."""
    for side in sides:
        side.scene.write_config()
        await fill_manifest(side.scene)
    rounds = []
    async with (
        synthetic_upstream(work.listed_tools) as listed,
        synthetic_upstream(work.searched_tools) as searched,
    ):
        for number in range(work.pairs * work.rounds + 1):
            begun = time.monotonic()
            ordered = rotated(sides, number)
            found = await calls_and_lists(ordered, listed, work)
            found |= await searches_and_memory(ordered, searched, work)
            found |= await starts(ordered, work)
            rounds.append(found)
            took = time.monotonic() - begun
            print(f"round {number} of {work.pairs * work.rounds}: {took:.0f} s", file=sys.stderr)
    return in_pairs(rounds[1:], work.rounds)


def in_pairs(rounds: Sequence[Mapping[str, Values]], size: int) -> list[dict[str, Values]]:
    """The medians of every `size` rounds, which make a pair."""
    return [
        {
            figure: {name: median([each[figure][name] for each in rounds[start : start + size]]) for name in values}
            for figure, values in rounds[start].items()
        }
        for start in range(0, len(rounds), size)
    ]


def row(figure: str, before: Sequence[float], after: Sequence[float]) -> dict[str, Any]:
    """One line of the report; what needs more pairs is left open, and nothing is judged without it."""
    compared = [new / old for new, old in zip(after, before, strict=True)]
    interval = sign_test_interval(compared)
    ratio, upper = median(compared), interval[1] if interval else None
    holds = None if upper is None else ratio <= MEDIAN_LIMIT and upper <= UPPER_LIMIT
    return {
        "figure": figure,
        "before": median(before),
        "after": median(after),
        "ratio": ratio,
        "upper": upper,
        "holds": holds,
    }


def shown(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line with ratios as exact as the limits need them, for people."""
    ratio, upper, holds = line["ratio"], line["upper"], line["holds"]
    return {
        **line,
        "ratio": f"{ratio:.3f}",
        "upper": "-" if upper is None else f"{upper:.3f}",
        "holds": "-" if holds is None else "yes" if holds else "NO",
    }


def rows(pairs: Sequence[Mapping[str, Values]]) -> list[dict[str, Any]]:
    """A line for each figure."""
    return [
        row(figure, [pair[figure]["before"] for pair in pairs], [pair[figure]["after"] for pair in pairs])
        for figure in pairs[0]
    ]


def interpreter(text: str) -> str:
    """The Python that is meant, from its path or from that of its virtual environment."""
    # Not resolved: an environment is found by where the link to its interpreter lies.
    path = Path(text).absolute()
    python = path / "bin" / "python" if path.is_dir() else path
    if not python.is_file():
        raise argparse.ArgumentTypeError(f"there is no {python}")
    return str(python)


def package_of(python: str) -> Path:
    """The folder of the package that this interpreter runs."""
    command = [python, "-P", "-c", "import pml_gateway; print(pml_gateway.__file__)"]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_SECONDS, check=False)
    if asked.returncode:
        raise PeerError(f"{python} has no pml_gateway: {asked.stderr.strip()[-300:]}")
    return Path(asked.stdout.strip()).parent


def commit_of(package: Path) -> str:
    """The commit of a package that lies in a checkout."""
    if not (package.parent / ".git").exists():
        return "installed"
    command = ["git", "-C", str(package.parent), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def keep_bytecode(folder: Path) -> None:
    """Let every process keep its compiled modules here: a checkout that came without any would start more slowly."""
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


async def run(arguments: argparse.Namespace) -> bool:
    """Measure, print, save; whether every limit holds."""
    work = QUICK if arguments.quick else Work(arguments.pairs)
    given = {"before": arguments.before, "after": arguments.after}
    packages = {name: package_of(python) for name, python in given.items()}
    for name, package in packages.items():
        print(f"{name}: {package}", file=sys.stderr)
    if (load := os.getloadavg()[0]) > BUSY_LOAD:
        print(f"the machine is busy (load {load:.1f}): expect ratios that scatter", file=sys.stderr)
    if packages["before"] == packages["after"]:
        print("both are the same code: the ratios show how far such runs scatter", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="pml-") as folder:
        keep_bytecode(Path(folder) / "bytecode")
        sides = []
        for name, python in given.items():
            home = Path(folder) / name
            tools = work.searched_tools // work.upstreams
            sides.append(Side(name, python, home, Scene(home / "stdio", work.upstreams, 0, tools, python)))
        pairs = await measure(sides, work)
    compared = rows(pairs)
    print(table([shown(line) for line in compared]))
    if not arguments.no_save and not arguments.quick:
        commits = {name: commit_of(package) for name, package in packages.items()}
        print(save("pairs", {**commits, **asdict(work)}, {"figures": compared, "pairs": pairs}))
    return all(line["holds"] is not False for line in compared)


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description="Whether one checkout is slower or larger than another.")
    for name in ("before", "after"):
        parser.add_argument(f"--{name}", type=interpreter, required=True, help="a Python, or its virtual environment")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="tiny counts: shows that it runs, measures nothing")
    parser.add_argument("--no-save", action="store_true", help="print only")
    try:
        holds = anyio.run(run, parser.parse_args())
    except (AnswerError, PeerError, TimeoutError, httpx2.HTTPError) as error:
        raise SystemExit(f"not measured: {type(error).__name__}: {error}") from error
    raise SystemExit(0 if holds else 1)


if __name__ == "__main__":
    main()
