"""Redis's part in the time of a call: one gateway with it and one without, in turns at the same calls."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

import anyio
import redis as redis_client

from benchmarks.client import AnswerError, Client, Era, open_client
from benchmarks.cluster.owner import Owner, owning
from benchmarks.cluster.rows import Plan, RowReport
from benchmarks.cluster.server import NEW
from benchmarks.cluster.stand import Stand, client_key, open_stand
from benchmarks.cluster.turns import ROWS
from benchmarks.cluster.verdict import Finding
from benchmarks.metrics import median, rotated
from benchmarks.peers import plain_text

WITH_SHARED_STATE = 1.10
WITHOUT = 1.05
"""Equal, as far as two series of short turns on one machine can be."""

WARM_UP = 10
ETAG = "pml-gateway/etag"

Call = Callable[[Client, int], Awaitable[None]]
Prepare = Callable[[Client, Owner, str], Awaitable[Call]]


async def _tool(client: Client, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return (await client.request("tools/call", {"name": name, "arguments": dict(arguments)})).result()


async def plain(_: Client, __: Owner, ___: str) -> Call:
    """Calls that need nothing that is shared."""

    async def call(client: Client, number: int) -> None:
        _expect(plain_text(await _tool(client, f"{NEW}__echo", {"text": f"x {number}"})), f"echo x {number}")

    return call


async def etag(client: Client, _: Owner, __: str) -> Call:
    """Calls whose result has not changed."""
    arguments = {"name": f"{NEW}__look", "arguments": {"text": "x"}}
    found = await _tool(client, "call_tool", arguments)
    arguments["if_none_match"] = found["_meta"][ETAG]

    async def call(client: Client, _: int) -> None:
        _expect((await _tool(client, "call_tool", arguments))["structuredContent"].get("unchanged"), True)

    return call


async def reference(client: Client, _: Owner, __: str) -> Call:
    """Calls with a stored result as an argument."""
    rows = await _rows(client)

    async def call(client: Client, number: int) -> None:
        given = {"text": str(number), "rows": rows}
        _expect(plain_text(await _tool(client, f"{NEW}__total", given)), f"{number} x 3")

    return call


async def approval(client: Client, owner: Owner, name: str) -> Call:
    """Calls that the owner has approved."""
    return await _approved(client, owner, name, {})


async def reference_and_approval(client: Client, owner: Owner, name: str) -> Call:
    """Calls with a stored result as an argument that the owner has approved."""
    return await _approved(client, owner, name, {"rows": await _rows(client)})


async def _rows(client: Client) -> dict[str, str]:
    """Return a reference to a few rows of a stored result."""
    arguments = {"name": f"{NEW}__rows", "arguments": {"text": "x", "count": ROWS}}
    ref = (await _tool(client, "call_tool", arguments))["structuredContent"]["ref"]
    return {"$ref": ref, "path": "rows[0:3]"}


async def _approved(client: Client, owner: Owner, name: str, given: Mapping[str, Any]) -> Call:
    result = await _tool(client, f"{NEW}__wipe", {"text": "x", **given})
    # Approved by an earlier case, or asked about now.
    if result.get("isError") and not await owner.answer(name, "approve", 0, scope="tool"):
        raise AnswerError("the owner is not asked")

    async def call(client: Client, number: int) -> None:
        answer = await _tool(client, f"{NEW}__wipe", {"text": f"x {number}", **given})
        _expect(plain_text(answer), f"wipe x {number}")

    return call


CASES: Mapping[str, tuple[Prepare, bool, float]] = MappingProxyType(
    {
        "nothing shared": (plain, False, WITHOUT),
        "a limit": (plain, True, WITH_SHARED_STATE),
        "an etag": (etag, False, WITHOUT),
        "a stored result": (reference, False, WITH_SHARED_STATE),
        "an approval": (approval, False, WITH_SHARED_STATE),
        "all of them": (reference_and_approval, True, WITH_SHARED_STATE),
    }
)
"""The calls, whether their gateways have a limit, and the largest ratio of their times."""


async def cost(plan: Plan, folder: Path) -> RowReport:
    """Measure the time of calls with Redis and without, in both eras."""
    row, report = "cost", RowReport()
    async with AsyncExitStack() as stack:
        stands: dict[tuple[str, bool], Stand] = {}
        for name, shared in (("memory", False), ("redis", True)):
            for limited in (False, True):
                limits: dict[str, Any] = {} if limited else {"limits": {}}
                where = folder / f"{name}-{'limited' if limited else 'free'}"
                stands[name, limited] = await stack.enter_async_context(
                    open_stand(where, clients=len(Era), replicas=1, shared=shared, extra=limits)
                )
        for what, (prepare, limited, limit) in CASES.items():
            for at, era in enumerate(Era):
                sides = {name: stands[name, limited] for name in ("memory", "redis")}
                before = await _commands(sides["redis"])
                series, spent = await _in_turns(sides, era, at, prepare, plan)
                commands = (await _commands(sides["redis"]) - before) / (plan.pairs * plan.turn_calls + WARM_UP)
                ratios = [new / old for new, old in zip(series["redis"], series["memory"], strict=True)]
                ratio = median(ratios)
                told = f"{ratio:.3f} ({median(series['memory']):.2f} ms became {median(series['redis']):.2f})"
                told += f"; CPU {spent['memory']:.2f} ms a call became {spent['redis']:.2f}"
                told += f"; {commands:.1f} commands of Redis"
                report.findings.append(Finding(row, f"{what}, {era.value}", f"<= {limit:.2f}", told, ratio <= limit))
                report.figures[f"{what}, {era.value}"] = {
                    "ratio": ratio,
                    **series,
                    "cpu_ms": spent,
                    "commands": commands,
                }
    return report


async def _in_turns(
    sides: Mapping[str, Stand], era: Era, at: int, prepare: Prepare, plan: Plan
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return the median milliseconds of each turn of each side, and the processor time of a call.

    The side that goes first changes every time.
    """
    series: dict[str, list[float]] = {name: [] for name in sides}
    async with AsyncExitStack() as stack:
        clients, calls = {}, {}
        for name, stand in sides.items():
            who = stand.clients[at]
            headers = {"authorization": f"Bearer {client_key(who)}"}
            # Past the load balancer, which the gateway without Redis does not have.
            url = f"{stand.replicas[0].origin}/mcp"
            clients[name] = await stack.enter_async_context(open_client(url, era, headers))
            owner = await stack.enter_async_context(owning(stand))
            calls[name] = await prepare(clients[name], owner, who)
            for number in range(WARM_UP):
                await calls[name](clients[name], number)
        before = {name: _cpu_seconds(stand) for name, stand in sides.items()}
        for pair in range(plan.pairs):
            for name in rotated(list(sides), pair):
                taken = []
                for number in range(plan.turn_calls):
                    begun = time.perf_counter()
                    await calls[name](clients[name], pair * plan.turn_calls + number)
                    taken.append((time.perf_counter() - begun) * 1000)
                series[name].append(median(taken))
        count = plan.pairs * plan.turn_calls
        spent = {name: (_cpu_seconds(stand) - before[name]) * 1000 / count for name, stand in sides.items()}
    return series, spent


async def _commands(stand: Stand) -> int:
    """Return the number of commands that the Redis server has carried out, those of heartbeats included."""
    assert stand.redis is not None
    url = stand.redis.url

    def ask() -> int:
        with redis_client.Redis.from_url(url) as client:
            return int(client.info("stats")["total_commands_processed"])

    return await anyio.to_thread.run_sync(ask)


def _cpu_seconds(stand: Stand) -> float:
    """Return the processor time of the gateway so far."""
    process = stand.replicas[0].process
    assert process is not None
    fields = Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise AnswerError(f"{str(found)[:200]!r} instead of {str(wanted)[:200]!r}")
