"""Many clients on one machine: what do they take, how fast are they, and does each get only what is its own?

    python -m benchmarks.run_machine [--clients 20] [--servers 10] [--before VENV] [--part shared ...] [--save]

Before is a gateway for each client: `pml serve --alone` of the tree under test, or `pml serve` of another environment.
After is `pml serve`. Every client is a process that a scripted client starts, which announces roots, sampling and
elicitation. Exit code 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import anyio

from benchmarks.chaos.verdict import Check
from benchmarks.harness import table
from benchmarks.machine.client import MachineClient
from benchmarks.machine.run import Plan, Report, check_kills, check_storm
from benchmarks.machine.stand import (
    Place,
    Side,
    Stand,
    alone,
    attaching,
    cpu_seconds,
    maps_model_library,
    open_stand,
    own_mib,
    proportional_mib,
    scripted,
    total,
)
from benchmarks.machine.storm import warmed
from benchmarks.metrics import median, summary
from benchmarks.results import save
from pml_gateway.demo.definitions import demo_servers

SETTLE_SECONDS = 3.0
"""What a gateway may go on doing after its last client's first answers, before memory and time are read."""

RELATIVE_FOLDERS = 5
SMALL, LARGE = 100, 1024 * 1024
WARM_UP_CALLS = 20
DEMO_CLIENTS = 3

FURTHER_MIB, FURTHER_CPU = 20.0, 0.15
FIRST_LIST_SECONDS, LAST_OF_ALL_SECONDS = 0.4, 1.5
BRIDGE_MS = 0.6
DEMO_RATIO = 0.45


@dataclass(slots=True)
class Measured:
    """What a part found: rows for a table, and targets."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)

    def target(self, what: str, value: float | None, most: float) -> None:
        """At most so much."""
        found = "not measured" if value is None else f"{value:.3g}, target at most {most:g}"
        self.checks.append(Check(what, value is not None and value <= most, found))


@dataclass(frozen=True, slots=True)
class Bench:
    """What is compared, how large."""

    before: Side
    after: Side
    clients: int
    clients_before: int
    servers: int
    samples: int
    plan: Plan
    folder: Path

    @property
    def sides(self) -> list[tuple[Side, int]]:
        """Both sides and how many clients each gets."""
        return [(self.before, self.clients_before), (self.after, self.clients)]


async def shared(bench: Bench) -> Measured:
    """Clients one after the other in front of servers that never ask."""
    found = Measured()
    for side, clients in bench.sides:
        async with open_stand(side, bench.folder / f"shared-{side.name}", _quiet(bench.servers)) as stand:
            stand.write_config()
            row = await _one_by_one(stand, clients, bench.servers)
            found.rows.append({"side": side.name, **row})
            found.more[f"left, {side.name}"] = await stand.end()
    row = found.rows[-1]
    found.target("server processes", row["server processes"], bench.servers)
    found.target("gateways", row["gateways"], 1)
    found.target("processes that hold a model", row["models"], 1)
    found.target("each further client, MiB resident", row["further MiB"], FURTHER_MIB)
    found.target("each further client, s of CPU", row["further CPU s"], FURTHER_CPU)
    found.checks.append(_nothing_left(found.more["left, after"]))
    return found


async def _one_by_one(stand: Stand, clients: int, servers: int) -> dict[str, Any]:
    """What the first client takes, and what each further one adds once it has listed, searched and called."""
    before, opened = _Weight(), list[MachineClient]()
    for number in range(clients):
        client = await stand.open(_place(stand, number))
        opened.append(client)
        await client.result("tools/list")
        await warmed(client, servers)
        await _checked(client, "s0__fill", SMALL)
        if number == 0:
            await anyio.sleep(SETTLE_SECONDS)
            before = _weight(stand)
    await anyio.sleep(SETTLE_SECONDS)
    after, further = _weight(stand), max(1, clients - 1)
    roles = stand.processes()
    gateways = stand.gateways()
    bridges = [client.pid for client in opened if client.pid not in gateways]
    return {
        "clients": clients,
        "gateways": len(gateways),
        "server processes": stand.server_processes().total(),
        "models": sum(maps_model_library(pid) for pid in roles),
        "gateway MiB": total(gateways, own_mib) / max(1, len(gateways)),
        "gateway PSS": total(gateways, proportional_mib) / max(1, len(gateways)),
        "bridge MiB": total(bridges, own_mib) / max(1, len(bridges)),
        "all MiB (PSS)": total(list(roles), proportional_mib),
        "further MiB": (after.mib - before.mib) / further,
        "further PSS": (after.proportional - before.proportional) / further,
        "further CPU s": (after.cpu - before.cpu) / further,
    }


@dataclass(frozen=True, slots=True)
class _Weight:
    """Of gateways, bridges and what a gateway needs beside servers."""

    mib: float = 0.0
    proportional: float = 0.0
    cpu: float = 0.0


def _weight(stand: Stand) -> _Weight:
    own = [pid for pid, role in stand.processes().items() if role != "server"]
    return _Weight(total(own, own_mib), total(own, proportional_mib), total(own, cpu_seconds))


async def mixed(bench: Bench) -> Measured:
    """Servers that ask, one with a state, one with a relative path in a few folders: how many processes, and why."""
    found = Measured()

    def servers(folder: Path) -> Mapping[str, Mapping[str, Any]]:
        return {
            **_quiet(bench.servers)(folder),
            **{f"asks{number}": scripted(folder, f"asks{number}") for number in range(2)},
            "state": scripted(folder, "state", sessions="per_client"),
            "relative": scripted(folder, "relative", "./notes.txt"),
        }

    async with open_stand(bench.after, bench.folder / "mixed", servers) as stand:
        stand.write_config()
        opened = []
        for number in range(bench.clients):
            place = _place(stand, number % RELATIVE_FOLDERS)
            person = _Answering(f"c{number}")
            client = await stand.open(Place(f"c{number}", place.folder), person)
            await warmed(client, len(stand.servers))
            opened.append((client, place))
        for number, (client, place) in enumerate(opened):
            for server in range(bench.servers):
                await _checked(client, f"s{server}__fill", SMALL)
            for server in range(2):
                asked = await _call(client, f"asks{server}__ask", nonce=f"n{number}", question="elicitation")
                _right(asked, f"n{number} c{number} says n{number}")
            _right(await _call(client, "state__count", nonce="n"), "n 1")
            seen = json.loads(await _call(client, "relative__whoami", nonce="n"))
            _right(seen["folder"], str(place.folder))
        await anyio.sleep(SETTLE_SECONDS)
        processes = stand.server_processes()
        status = json.loads((await stand.pml("status", "--json")).stdout or "{}")
        left = await stand.end()
    groups = {"never asks": [f"s{n}" for n in range(bench.servers)], "asks": ["asks0", "asks1"]}
    groups |= {"state": ["state"], "relative": ["relative"]}
    folders = min(RELATIVE_FOLDERS, bench.clients)
    most = {"never asks": 1, "asks": bench.clients + 1, "state": bench.clients + 1, "relative": folders}
    for group, names in groups.items():
        counts = [processes[name] for name in names]
        found.rows.append({"servers": group, "count": len(names), "most processes": max(counts), "target": most[group]})
        found.target(f"{group}: processes of one server", max(counts), most[group])
    told = {row["server"]: row["processes"] for row in status.get("machine", {}).get("servers", [])}
    reasons = {name: Counter(f"{each['for'].split()[0]}: {each['why']}" for each in told[name]) for name in told}
    # One process of each server may be everybody's, which needs no reason.
    unexplained = [
        name
        for name, count in processes.items()
        if len(told.get(name, ())) != count or sum(not each["why"] for each in told[name]) > 1
    ]
    found.more = {"reasons": reasons, "left": left}
    found.checks.append(
        Check("status gives every process and its reason", not unexplained, ", ".join(unexplained) or "all of them")
    )
    found.checks.append(_nothing_left(left))
    return found


async def first_list(bench: Bench) -> Measured:
    """Seconds from the start of a client's process to its first list."""
    found = Measured()
    for side, clients in bench.sides:
        async with open_stand(side, bench.folder / f"first-{side.name}", _quiet(bench.servers)) as stand:
            stand.write_config()
            cold = await _listed(stand, 0)
            await warmed(stand.clients[0], bench.servers)
            apart = []
            for number in range(1, clients):
                apart.append(await _listed(stand, number))
            for client in stand.clients[1:]:
                await stand.leave(client)
            await anyio.sleep(SETTLE_SECONDS)
            at_once = list[float]()

            async def start(number: int, stand: Stand = stand, into: list[float] = at_once) -> None:
                into.append(await _listed(stand, number))

            async with anyio.create_task_group() as tasks:
                for number in range(clients):
                    tasks.start_soon(start, number)
            row: dict[str, Any] = {
                "side": side.name,
                "clients": clients,
                "first, cold": cold,
                "second": apart[0] if apart else None,
                "further, p50": median(apart) if apart else None,
                "further, max": max(apart, default=None),
                "at once, p50": median(at_once),
                "at once, last": max(at_once),
            }
            found.rows.append(row)
            found.more[side.name] = {"apart": apart, "at once": at_once}
            await stand.end()
    row = found.rows[-1]
    found.target("first list of the second client, s", row["second"], FIRST_LIST_SECONDS)
    found.target("first list of every further client, s", row["further, max"], FIRST_LIST_SECONDS)
    found.target("first list of all at once, the last, s", row["at once, last"], LAST_OF_ALL_SECONDS)
    return found


async def _listed(stand: Stand, number: int) -> float:
    client = await stand.start(_place(stand, number))
    await client.open()
    tools = (await client.result("tools/list"))["tools"]
    if not any(tool["name"] == "search_tools" for tool in tools):
        raise AssertionError(f"the first list has no search_tools: {[tool['name'] for tool in tools]}")
    return client.age


async def calls(bench: Bench) -> Measured:
    """The same calls in turns on both sides, the payload of each checked."""
    found = Measured()
    taken: dict[tuple[str, int], list[float]] = {}
    before = open_stand(bench.before, bench.folder / "calls-before", _quiet(1))
    after = open_stand(bench.after, bench.folder / "calls-after", _quiet(1))
    async with before as one, after as other:
        clients = []
        for stand in (one, other):
            stand.write_config()
            client = await stand.open(_place(stand, 0))
            await warmed(client, 1)
            clients.append((stand.side.name, client))
        for size, samples in ((SMALL, bench.samples), (LARGE, max(5, bench.samples // 10))):
            for turn in range(WARM_UP_CALLS + samples):
                for name, client in clients if turn % 2 else clients[::-1]:
                    seconds = await _checked(client, "s0__fill", size)
                    if turn >= WARM_UP_CALLS:
                        taken.setdefault((name, size), []).append(seconds * 1000)
        await one.end()
        await other.end()
    for (name, size), values in taken.items():
        figures = summary(values)
        found.rows.append({"side": name, "bytes": size, "p50 ms": figures["p50"], "p95 ms": figures["p95"]})
    names = [name for name, _ in clients]
    added = median(taken[names[1], SMALL]) - median(taken[names[0], SMALL])
    found.target("what the bridge adds to a small call, p50, ms", added, BRIDGE_MS)
    found.more = {"added to a large call, p50, ms": median(taken[names[1], LARGE]) - median(taken[names[0], LARGE])}
    return found


async def demo(bench: Bench) -> Measured:
    """Three clients in front of the three servers of `pml demo`."""
    found = Measured()
    for side, _ in bench.sides:
        async with open_stand(
            side, bench.folder / f"demo-{side.name}", lambda folder: demo_servers(folder / "work")
        ) as stand:
            stand.write_config()
            for number in range(DEMO_CLIENTS):
                client = await stand.open(_place(stand, number))
                await warmed(client, len(stand.servers))
                listed = await _call(client, "files__list_directory", path="projects")
                if "garden" not in listed:
                    raise AssertionError(f"files__list_directory: {listed[:200]}")
            await anyio.sleep(SETTLE_SECONDS)
            everything = list(stand.processes())
            found.rows.append(
                {
                    "side": side.name,
                    "processes": len(everything),
                    "MiB (RSS)": total(everything, own_mib),
                    "MiB (PSS)": total(everything, proportional_mib),
                }
            )
            await stand.end()
    one, other = found.rows
    found.more = {"PSS, after / before": other["MiB (PSS)"] / one["MiB (PSS)"]}
    found.target("memory, after / before", other["MiB (RSS)"] / one["MiB (RSS)"], DEMO_RATIO)
    return found


async def storm(bench: Bench) -> Measured:
    """All kinds of calls from all clients at once."""
    return _of(await check_storm(bench.after, bench.before, bench.plan, bench.folder / "storm"))


async def kills(bench: Bench) -> Measured:
    """The same under kills."""
    return _of(await check_kills(bench.after, bench.plan, bench.folder / "kills"))


PARTS: Mapping[str, Callable[[Bench], Awaitable[Measured]]] = {
    "shared": shared,
    "mixed": mixed,
    "first": first_list,
    "calls": calls,
    "demo": demo,
    "storm": storm,
    "kills": kills,
}


def _of(report: Report) -> Measured:
    return Measured(checks=report.checks, more=report.figures)


def _quiet(count: int) -> Callable[[Path], Mapping[str, Mapping[str, Any]]]:
    """Servers that are never made to ask."""
    return lambda folder: {f"s{number}": scripted(folder, f"s{number}") for number in range(count)}


def _place(stand: Stand, number: int) -> Place:
    folder = stand.folder / f"project{number}"
    folder.mkdir(exist_ok=True)
    return Place(f"c{number}", folder)


class _Answering:
    """Answers in its own name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "roots/list":
            return {"roots": [{"uri": f"file:///{self._name}"}]}
        return {"action": "accept", "content": {"answer": f"{self._name} says {params.get('message')}"}}

    def told(self, method: str, params: dict[str, Any]) -> None:
        return


async def _checked(client: MachineClient, name: str, size: int) -> float:
    """Seconds of a call that has a right answer of this size."""
    nonce = os.urandom(8).hex()
    begun = time.perf_counter()
    message = await client.request("tools/call", {"name": name, "arguments": {"nonce": nonce, "size": size}})
    seconds = time.perf_counter() - begun
    _right(_text(message), nonce.ljust(size, "x"))
    return seconds


async def _call(client: MachineClient, name: str, **arguments: Any) -> str:
    return _text(await client.request("tools/call", {"name": name, "arguments": arguments}))


def _text(message: Mapping[str, Any]) -> str:
    try:
        return str(message["result"]["content"][0]["text"])
    except LookupError as error:
        raise AssertionError(f"no text: {json.dumps(message)[:500]}") from error


def _right(text: str, expected: str) -> None:
    if text != expected:
        raise AssertionError(f"{text[:300]!r} instead of {expected[:300]!r}")


def _nothing_left(left: Sequence[str]) -> Check:
    return Check("nothing is left after the last client", not left, "; ".join(left[:5]) or "nothing")


def show(part: str, measured: Measured) -> None:
    """Print one part."""
    print(f"\n== {part}")
    if measured.rows:
        print(table(measured.rows))
    for key, value in measured.more.items():
        print(f"{key}: {json.dumps(value)[:600]}")
    for check in measured.checks:
        print(f"{'met   ' if check.holds else 'MISSED'}  {check.what}: {check.found}", flush=True)


async def run(arguments: argparse.Namespace) -> bool:
    """Measure, print, save; whether every target is met."""
    plan = Plan(
        clients=arguments.clients,
        calls=arguments.calls,
        gateway_kills=arguments.kills,
        bridge_kills=arguments.kills,
        seed=arguments.seed,
    )
    reports: dict[str, Any] = {}
    holds = True
    with tempfile.TemporaryDirectory(prefix="machine-") as name:
        bench = Bench(
            before=alone(arguments.before),
            after=attaching(),
            clients=arguments.clients,
            clients_before=arguments.clients_before or arguments.clients,
            servers=arguments.servers,
            samples=arguments.samples,
            plan=plan,
            folder=Path(name),
        )
        for part in arguments.part:
            try:
                measured = await PARTS[part](bench)
            except (AssertionError, TimeoutError, ExceptionGroup) as error:
                measured = Measured(checks=[Check("it runs to its end", False, repr(error)[:500])])
            show(part, measured)
            reports[part] = asdict(measured)
            holds = holds and all(check.holds for check in measured.checks)
    if arguments.save:
        settings = {key: str(value) for key, value in vars(arguments).items() if key != "save"}
        print(save("machine", settings, {"holds": holds, "parts": reports}), file=sys.stderr)
    return holds


def main() -> None:
    """Parse and run."""
    plan = Plan()
    parser = argparse.ArgumentParser(
        description="What do many clients on one machine take, and is each served its own?"
    )
    parser.add_argument("--clients", type=int, default=plan.clients)
    parser.add_argument("--clients-before", type=int, help="fewer where a gateway for each does not fit")
    parser.add_argument("--servers", type=int, default=10)
    parser.add_argument("--samples", type=int, default=500, help="small calls on each side; a tenth of large ones")
    parser.add_argument("--calls", type=int, default=plan.calls, help="of the storm")
    parser.add_argument("--kills", type=int, default=plan.gateway_kills, help="of gateways, and as many of bridges")
    parser.add_argument("--seed", type=int, default=plan.seed)
    parser.add_argument("--before", type=Path, metavar="VENV", help="another version, as it is installed there")
    parser.add_argument("--part", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results")
    sys.exit(0 if anyio.run(run, parser.parse_args()) else 1)


if __name__ == "__main__":
    main()
