"""What do calls cost with several workers behind one port, and how much memory does a worker take?

    python -m benchmarks.run_workers [--workers 1 2] [--memory 1 2 4] [--rounds 7] [--calls 3000] [--quick]

One process and two workers run side by side in front of the same HTTP server and take turns under the same load. CPU
seconds are those of all processes of a gateway: the accepting one, the workers and their Redis server.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from benchmarks.client import Era, open_client
from benchmarks.figures import parent_of
from benchmarks.harness import Payloads, checked_call, first_answer, table
from benchmarks.machine.stand import cpu_seconds, own_mib, proportional_mib, total
from benchmarks.metrics import median, ratios, rotated
from benchmarks.peers import UPSTREAM, Endpoint, synthetic_upstream
from benchmarks.processes import READY_SECONDS, PeerError, running
from benchmarks.results import save
from pml_gateway.demo.definitions import demo_servers

TOOLS = 50
READY = re.compile(r"worker \d+ is ready")
POLL_SECONDS = 0.1

GROUPS: Mapping[str, str] = {
    "redis": r"(redis|valkey)-server",
    "accepting": r"serve .*--workers",
    "workers": r"pml_gateway serve",
}
"""Processes of a gateway by their command lines; all others are servers and what watches over them."""


@asynccontextmanager
async def gateway(
    workers: int, folder: Path, servers: Mapping[str, Any], mode: str = "full_proxy"
) -> AsyncIterator[tuple[str, int]]:
    """The URL and process id of a gateway, all of whose workers are ready."""
    config, log = folder / "config.yaml", folder / "log"
    config.write_text(json.dumps({"servers": servers}), encoding="utf-8")
    command = [sys.executable, "-P", "-m", "pml_gateway", "serve", "--http", "--port", "0", "--config", str(config)]
    more = ["--workers", str(workers)] if workers > 1 else []
    async with running([*command, "--mode", mode, *more], env={"PML_HOME": str(folder)}, log=log) as process:
        with anyio.fail_after(READY_SECONDS):
            while workers > 1 and len(READY.findall(log.read_text(encoding="utf-8"))) < workers:  # noqa: ASYNC110
                await anyio.sleep(POLL_SECONDS)
        yield f"{process.origin}/mcp", process.pid


def family(pid: int) -> list[int]:
    """A process with all its descendants."""
    parents = {int(each.name): parent_of(int(each.name)) for each in Path("/proc").glob("[0-9]*")}
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


def of_gateway(pid: int) -> dict[str, list[int]]:
    """Process ids of a gateway by their group."""
    groups: dict[str, list[int]] = {name: [] for name in (*GROUPS, "servers")}
    for each in family(pid):
        command = Path(f"/proc/{each}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        group = next((name for name, pattern in GROUPS.items() if re.search(pattern, command)), "servers")
        groups[group].append(each)
    return groups


def endpoint(url: str, pid: int) -> Endpoint:
    """The gateway as the harness calls it."""
    return Endpoint(url, pid, called_name=lambda tool: f"{UPSTREAM}__{tool}")


async def load(target: Endpoint, era: Era, clients: int, calls: int, seed: int) -> tuple[float, float]:
    """CPU seconds of a call, and calls a second, of clients that each have a connection; every answer is checked."""
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(open_client(target.url, era)) for _ in range(clients)]
        pids = [pid for name, group in of_gateway(target.pid).items() if name != "servers" for pid in group]
        left = calls

        async def work(number: int) -> None:
            nonlocal left
            payloads = Payloads(seed * 1000 + number)
            while left > 0:
                left -= 1
                await checked_call(opened[number], target, payloads.next())

        used, began = total(pids, cpu_seconds), time.monotonic()
        async with anyio.create_task_group() as tasks:
            for number in range(clients):
                tasks.start_soon(work, number)
        seconds = time.monotonic() - began
        return (total(pids, cpu_seconds) - used) / calls, calls / seconds


async def cost(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each number of workers and era."""
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(synthetic_upstream(TOOLS))
        targets = {}
        for count in arguments.workers:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="workers-")))
            started = gateway(count, folder, {UPSTREAM: {"url": upstream.url}})
            targets[count] = endpoint(*await stack.enter_async_context(started))
            await first_answer(targets[count])
        rows = []
        for era in Era:
            used: dict[str, list[float]] = {}
            rates: dict[str, list[float]] = {}
            for turn in range(arguments.rounds + 1):
                for count in rotated(arguments.workers, turn):
                    seconds, rate = await load(targets[count], era, arguments.clients, arguments.calls, turn)
                    # The first round fills caches.
                    if turn:
                        used.setdefault(str(count), []).append(seconds)
                        rates.setdefault(str(count), []).append(rate)
            base = str(arguments.workers[0])
            x_used, x_rates = ratios(used, base), ratios(rates, base)
            rows += [
                {
                    "era": era.value,
                    "workers": count,
                    "cpu_ms_a_call": median(used[count]) * 1000,
                    "x_cpu": x_used[count],
                    "calls_per_s": median(rates[count]),
                    "x_calls": x_rates[count],
                }
                for count in used
            ]
        return rows


async def memory(counts: Sequence[int]) -> list[dict[str, Any]]:
    """One row for each number of workers, with the demo's servers: MiB, resident and with shares of what is shared."""
    rows = []
    for count in counts:
        with tempfile.TemporaryDirectory(prefix="workers-") as folder:
            servers = demo_servers(Path(folder, "demo"))
            async with gateway(count, Path(folder), servers, "meta_only") as (url, pid):
                target = endpoint(url, pid)
                for _ in range(2 * count):
                    async with open_client(url, Era.STATELESS) as client:
                        await _search(client.request)
                groups = of_gateway(target.pid)
                figures: dict[str, Callable[[int], float]] = {"rss": own_mib, "pss": proportional_mib}
                row: dict[str, Any] = {"workers": count}
                for name, figure in figures.items():
                    row |= {f"{group}_{name}": total(groups[group], figure) for group in groups}
                if len(groups["workers"]) != count:
                    raise PeerError(f"{len(groups['workers'])} instead of {count} workers run")
                rows.append(row)
    return rows


async def _search(request: Callable[[str, Mapping[str, Any]], Any]) -> None:
    """Have a worker load what a search takes; at first it may know no tools yet."""
    with anyio.fail_after(READY_SECONDS):
        while True:
            answer = await request("tools/call", {"name": "search_tools", "arguments": {"query": "find my notes"}})
            if "notes__" in json.dumps(answer.result()):
                return
            await anyio.sleep(POLL_SECONDS)


async def run(arguments: argparse.Namespace) -> None:
    """Measure, print, save."""
    if arguments.quick:
        arguments.rounds, arguments.calls, arguments.clients, arguments.memory = 1, 50, 4, [1]
    calls = await cost(arguments)
    print(table(calls), flush=True)
    resident = await memory(arguments.memory)
    print(table(resident))
    if not arguments.quick and not arguments.no_save:
        settings = {"clients": arguments.clients, "calls": arguments.calls, "rounds": arguments.rounds, "tools": TOOLS}
        print(save("workers", settings, {"calls": calls, "memory_mib": resident}))


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description="What calls cost with several workers, and their memory.")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="numbers to compare with the first")
    parser.add_argument("--memory", type=int, nargs="*", default=[1, 2, 4], help="numbers whose memory is measured")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=3000, help="of a round")
    parser.add_argument("--clients", type=int, default=16, help="each with one connection")
    parser.add_argument("--quick", action="store_true", help="tiny counts: shows that it runs, measures nothing")
    parser.add_argument("--no-save", action="store_true", help="print only")
    anyio.run(run, parser.parse_args())


if __name__ == "__main__":
    main()
