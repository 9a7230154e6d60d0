"""What a decision and a record cost a call, and how long a filter takes among many records.

    python -m benchmarks.run_activity [--rows 1000000] [--save]

The cost is that of one access of a gateway with a server in memory: the time on the event loop, and the processor time
of the thread that masks, measures and writes. `decision_us` is the time of rules and limits, here nine rules about
other tools, one with a condition over the arguments, and four limits. The filters are those of `pml activity`, each in
a connection of its own; the median of several counts. Rows are spread over 30 days, 20 clients, 500 tools of 25
servers.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import anyio

from benchmarks.harness import table
from benchmarks.results import save
from pml_gateway.activity.accesses import AccessFilter, read_access, read_accesses
from pml_gateway.activity.database import activity_tables
from pml_gateway.activity.recorder import AccessRow, insert_accesses
from pml_gateway.gateway.call import Access
from pml_gateway.storage.tables import Connection
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import serving

CONFIG = "/home/somebody/.pml/config.yaml"
CLIENTS, SERVERS, TOOLS = 20, 25, 500
DAYS = 30
BATCH = 20_000
ROUNDS = 7
CALLS, AT_ONCE = 20_000, 2_000
DECISIONS = 2_000
LISTED = 50
RULES = [
    *({"match": {"tool": f"other{number}:*", "effect": "destructive"}, "do": "deny"} for number in range(9)),
    {"match": {"tool": "up:*", "where": "repository == 'not/this'"}, "do": "deny"},
]
LIMITS = {
    "calls_per_minute": 10**6,
    "calls_per_day": 10**9,
    "calls_at_once": 1000,
    "same_call": {"times": 10**6},
}
DECIDED = {"rules": RULES, "limits": LIMITS}
ARGUMENTS = {"repository": "somebody/project", "title": "The list is empty", "labels": ["bug", "ui"], "body": "x" * 400}


def rows(times: list[float], config: str = CONFIG) -> list[AccessRow]:
    """Rows that began at these times."""
    draw = random.Random(times[0])
    made = []
    for at in times:
        used = int(TOOLS * draw.random() ** 2)
        server, name = f"server{used % SERVERS}", f"tool_{used}"
        code = draw.choices(("OK", "TIMEOUT", "NOT_FOUND", "INVALID_INPUT"), (90, 3, 4, 3))[0]
        made.append(
            AccessRow(
                at,
                config,
                f"client{int(CLIENTS * draw.random() ** 2)}",
                "tools/call",
                server,
                name,
                f"{server}__{name}",
                "read",
                code,
                refused=code == "NOT_FOUND",
                request=f"{draw.getrandbits(128):032x}",
                mode="hybrid",
                stage="hybrid_balanced",
                seconds=0.2,
                server_seconds=0.19,
                sends=1,
                given=120,
                answered=900,
                kept="keys",
                arguments='{"query":24,"limit":4}',
                counts=True,
            )
        )
    return made


def fill(path: Path, count: int, config: str = CONFIG) -> float:
    """Write so many rows; return the seconds."""
    tables, began = activity_tables(path), time.perf_counter()
    step = DAYS * 86400 / count
    start = time.time() - DAYS * 86400

    def write(connection: Connection, first: int) -> None:
        times = [start + number * step for number in range(first, min(first + BATCH, count))]
        insert_accesses(connection, rows(times, config))

    for first in range(0, count, BATCH):
        tables.change(lambda connection, first=first: write(connection, first))  # type: ignore[misc]
    tables.close()
    return time.perf_counter() - began


def timed(work: Callable[[], object]) -> float:
    """The median seconds of some rounds."""
    taken = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return median(taken)


def filters(path: Path, last: int) -> dict[str, float]:
    """The seconds of each filter."""
    everything = AccessFilter(CONFIG)
    wanted = {
        "the latest": everything,
        "a busy client": replace(everything, client="client0"),
        "a quiet client": replace(everything, client=f"client{CLIENTS - 1}"),
        "an unknown client": replace(everything, client="nobody"),
        "a tool": replace(everything, tool="server0__tool_475"),
        "a pattern of tools": replace(everything, tool="server7__*"),
        "a server": replace(everything, server="server3"),
        "refused": replace(everything, outcome="refused"),
        "failed": replace(everything, outcome="failed"),
        "a code": replace(everything, outcome="timeout"),
        "a client and a tool": replace(everything, client="client19", tool="server0__tool_475"),
        "a client since an hour": replace(everything, client="client0", since=time.time() - 3600),
        "followed": replace(everything, after=last - 5),
    }
    found = {name: timed(lambda each=each: read_accesses(path, each, LISTED)) for name, each in wanted.items()}  # type: ignore[misc]
    return {**found, "one with its request": timed(lambda: read_access(path, last // 2))}


async def cost(folder: Path, sections: dict[str, Any]) -> dict[str, float]:
    """Microseconds of one access on the event loop and of processor time in all, and of the decision about it."""
    seen: list[Access] = []
    looking = tool("look", properties={key: {} for key in ARGUMENTS})
    async with serving(folder, {"up": ScriptedServer([looking])}, **sections) as served:
        events = served.gateway.events
        events.subscribe(Access, seen.append)
        await served.call("up__look", ARGUMENTS)
        shared, [access] = served.gateway.shared, seen
        on_loop, began = 0.0, time.process_time()
        for _ in range(0, CALLS, AT_ONCE):
            at = time.perf_counter()
            for _ in range(AT_ONCE):
                events.publish(access)
            on_loop += time.perf_counter() - at
            shared.activity.flush(60)
            shared.audit.flush()
            seen.clear()
        record = {"on_loop_us": on_loop / CALLS * 1e6, "processor_us": (time.process_time() - began) / CALLS * 1e6}
        began = time.process_time()
        for _ in range(DECISIONS):
            async with access.attempt.held:
                for decider in served.gateway.deciders:
                    assert await decider(access.attempt) is None
        decision = (time.process_time() - began) / DECISIONS * 1e6
        return {**record, "decision_us": decision, "together_us": record["processor_us"] + decision}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        costs = {
            "off": anyio.run(cost, folder / "off", {"activity": {"record": False}}),
            "activity": anyio.run(cost, folder / "activity", {}),
            "activity, rules, limits": anyio.run(cost, folder / "rules", DECIDED),
            "activity, values": anyio.run(cost, folder / "values", {"activity": {"arguments": "masked"}}),
            "activity and audit": anyio.run(cost, folder / "audit", {"audit": {"path": "a.jsonl"}}),
        }
        print(table([{"record": what, **each} for what, each in costs.items()]))
        path = folder / "activity.db"
        written = fill(path, given.rows)
        size = path.stat().st_size
        print(f"\n{given.rows:,} rows: {written / given.rows * 1e6:.0f} µs and {size / given.rows:.0f} bytes each\n")
        found = filters(path, given.rows)
        print(table([{"filter": what, "ms": seconds * 1000} for what, seconds in found.items()]))
    if given.save:
        measured = {"cost": costs, "bytes_a_row": size / given.rows, "filters": found}
        save("activity", {"rows": given.rows, "listed": LISTED}, measured)


if __name__ == "__main__":
    main()
