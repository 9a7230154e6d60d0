"""Everything a client can ask for, again and again, with every answer checked and the gateway's memory sampled."""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import anyio
import anyio.to_thread

from benchmarks.client import AnswerError, Client, Era, open_client
from benchmarks.figures import Figures, figures
from benchmarks.harness import Payloads
from benchmarks.peers import Upstream, plain_text, synthetic_upstream
from benchmarks.processes import REPOSITORY, running
from benchmarks.synthetic import ECHO

OVER_HTTP, OVER_STDIO = "remote", "local"
TOOLS = 30
LARGE_PAYLOADS = 60
"""Texts of 200 characters in a result that is stored: over the 4,000 tokens from which results are."""

REQUESTS_OF_A_CONNECTION = 250
STORE = "1MiB"
"""What stored results may take: some 70 of 15 KB, reached after about 4,000 calls, so that they add nothing later."""

READY_SECONDS = 120
WORDS = ("create", "find", "list", "move", "read", "share", "account", "branch", "calendar", "document", "invoice")


@dataclass(frozen=True, slots=True)
class Plan:
    """How many calls, and when memory is compared."""

    calls: int = 50_000
    first_sample: int = 5000
    clients: int = 4
    seed: int = 1
    growth: float = 0.10
    cap_seconds: float = 3600.0


@dataclass(slots=True)
class Report:
    """Samples of the gateway along the way."""

    done: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    samples: list[dict[str, object]] = field(default_factory=list)
    seconds: float = 0.0

    def rss(self, calls: int) -> float:
        """Resident memory at the first sample after so many calls."""
        return next(float(str(row["rss_mib"])) for row in self.samples if int(str(row["when"])) >= calls)

    def growth(self, plan: Plan) -> float:
        """Memory at the end, against that after the first calls."""
        return float(str(self.samples[-1]["rss_mib"])) / self.rss(plan.first_sample) - 1


@dataclass(frozen=True, slots=True)
class Worker:
    """One client's connection and its own stream of payloads."""

    client: Client
    payloads: Payloads
    generator: random.Random

    def tool(self) -> str:
        """An echo of one of the upstreams."""
        return f"{self.generator.choice((OVER_HTTP, OVER_STDIO))}__{ECHO}"

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The result of one `tools/call`."""
        return (await self.client.request("tools/call", {"name": name, "arguments": arguments})).result()

    async def ask(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The answer of a meta-tool."""
        result = await self.call(name, arguments)
        answer: dict[str, Any] = result["structuredContent"]
        if result.get("isError"):
            raise AnswerError(f"{name}: {json.dumps(answer)[:500]}")
        return answer


async def listing(worker: Worker) -> int:
    """The whole list."""
    listed = (await worker.client.request("tools/list")).result()["tools"]
    _expect(len(listed), 2 * TOOLS)
    return 1


async def direct(worker: Worker) -> int:
    """A tool by its name."""
    payload = worker.payloads.next()
    _expect(plain_text(await worker.call(worker.tool(), {"payload": payload})), payload)
    return 1


async def through_call_tool(worker: Worker) -> int:
    """A tool through the meta-tool."""
    payload = worker.payloads.next()
    result = await worker.call("call_tool", {"name": worker.tool(), "arguments": {"payload": payload}})
    _expect(plain_text(result), payload)
    return 1


async def search(worker: Worker) -> int:
    """A query that was hardly asked before."""
    query = " ".join(["return the payload unchanged", *worker.generator.sample(WORDS, k=3)])
    answer = await worker.ask("search_tools", {"query": query, "limit": 5})
    if not any(hit["name"].endswith(ECHO) for hit in answer["hits"]):
        raise AnswerError(f"no echo found for {query!r}: {json.dumps(answer)[:500]}")
    return 1


async def batch(worker: Worker) -> int:
    """Three calls side by side."""
    payloads = [worker.payloads.next() for _ in range(3)]
    calls = [{"name": worker.tool(), "arguments": {"payload": payload}} for payload in payloads]
    answer = await worker.ask("call_batch", {"calls": calls})
    _expect([slot.get("result") for slot in answer["slots"]], payloads)
    return 1


async def workflow(worker: Worker) -> int:
    """Two steps, the second with the result of the first."""
    payload = worker.payloads.next()
    steps = [
        {"id": "a", "tool": worker.tool(), "arguments": {"payload": payload}},
        {"id": "b", "tool": worker.tool(), "arguments": {"payload": "$a"}},
    ]
    answer = await worker.ask("execute_workflow", {"steps": steps})
    _expect([step.get("result") for step in answer["steps"]], [payload, payload])
    return 1


async def stored(worker: Worker) -> int:
    """A result too large to answer: kept, read in part, and used as an argument."""
    payload = "".join(worker.payloads.next() for _ in range(LARGE_PAYLOADS))
    answer = await worker.ask("call_batch", {"calls": [{"name": worker.tool(), "arguments": {"payload": payload}}]})
    ref = answer["slots"][0]["reference"]["ref"]
    page = await worker.ask("read_result", {"ref": ref, "limit": 500})
    if payload[:100] not in json.dumps(page, ensure_ascii=False):
        raise AnswerError(f"another page: {json.dumps(page)[:300]}")
    again = await worker.call(worker.tool(), {"payload": {"$ref": ref}})
    _expect(plain_text(again), payload)
    return 3


Kind = Callable[[Worker], Awaitable[int]]
MIX: MappingProxyType[Kind, int] = MappingProxyType(
    {listing: 10, direct: 30, through_call_tool: 25, search: 10, batch: 10, workflow: 10, stored: 2}
)
"""How often of a hundred turns each is asked for; the last takes three calls."""


async def soak(plan: Plan, log: Path | None = None) -> Report:
    """Run it.

    Raises:
        AnswerError: an answer was not the right one.
        TimeoutError: the wall-clock limit was reached.
    """
    report = Report()
    with tempfile.TemporaryDirectory(prefix="soak-") as name, anyio.fail_after(plan.cap_seconds):
        folder = Path(name)
        async with synthetic_upstream(TOOLS) as upstream:
            env = {"PML_HOME": str(folder / "home")}
            async with running(_command(folder, upstream), env=env, log=log) as gateway:
                url = f"{gateway.origin}/mcp"
                await _ready(url)
                begun = time.monotonic()
                await _work(url, plan, report, lambda: figures(gateway.pid, folder / "observer"))
                report.seconds = round(time.monotonic() - begun, 1)
    return report


async def _work(url: str, plan: Plan, report: Report, look: Callable[[], Figures]) -> None:
    every = max(plan.first_sample // 5, 1)

    async def work(number: int) -> None:
        generator = random.Random(f"{plan.seed} {number}")
        payloads = Payloads(plan.seed * 1000 + number)
        eras = list(Era)
        while report.done < plan.calls:
            # Clients come and go; their sessions must go with them.
            async with open_client(url, eras[number % len(eras)]) as client:
                worker = Worker(client, payloads, generator)
                left = REQUESTS_OF_A_CONNECTION
                while report.done < plan.calls and left > 0:
                    kind = generator.choices(list(MIX), weights=list(MIX.values()))[0]
                    made = await kind(worker)
                    before, report.done, left = report.done, report.done + made, left - made
                    report.kinds[kind.__name__] += 1
                    if before // every < report.done // every:
                        report.samples.append((await anyio.to_thread.run_sync(look)).row(str(report.done)))

    report.samples.append(look().row("0"))
    async with anyio.create_task_group() as group:
        for number in range(plan.clients):
            group.start_soon(work, number)
    report.samples.append(look().row(str(report.done)))


async def _ready(url: str) -> None:
    with anyio.fail_after(READY_SECONDS):
        async with open_client(url, Era.STATELESS) as client:
            listed = 0
            while listed < 2 * TOOLS:
                await anyio.sleep(0.2)
                listed = len((await client.request("tools/list")).result()["tools"])


def _expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise AnswerError(f"{str(found)[:300]!r} instead of {str(wanted)[:300]!r}")


def _command(folder: Path, upstream: Upstream) -> list[str]:
    program, *arguments = upstream.command
    settings = {
        "gateway": {"tools_exposure": "full_proxy"},
        "references": {"max_bytes": STORE},
        "servers": {
            OVER_HTTP: {"url": upstream.url},
            OVER_STDIO: {"command": program, "args": arguments, "cwd": str(REPOSITORY)},
        },
    }
    config = folder / "config.yaml"
    config.write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "benchmarks.observed", str(folder / "observer"), "serve", "--http"]
    return [*command, "--port", "0", "--config", str(config)]
