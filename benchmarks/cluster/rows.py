"""The rows of the report: one function for each, which runs what it needs and returns its findings."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx2
import redis as redis_client

from benchmarks.client import AnswerError, Client, Era
from benchmarks.cluster.client import RESULT, EndedError, Exchange
from benchmarks.cluster.load import Load, Turn, run_load
from benchmarks.cluster.server import BEGUN, CANCELLED
from benchmarks.cluster.stand import Replica, Stand, client_key, open_stand
from benchmarks.cluster.survivors import collect, leave_behind
from benchmarks.cluster.turns import MIX, NOT_ASKED, Book
from benchmarks.cluster.verdict import (
    EXPECTED,
    Finding,
    answers,
    connection_errors,
    equal_answers,
    executions,
    none_of,
    spread,
)

OPEN_SECONDS = 1.0
ATTEMPT_SECONDS = 0.3
"""Seconds after which a client that opens a session tries again: its first request may go to a replica that hangs."""

NOTICE_SECONDS = 1.0
"""Seconds in which the load balancer notices that a replica is gone, with room for a busy machine."""

NO_TASK = "-32602"
"""The code with which a task is said not to exist."""

DOWN_SECONDS = 5.0
"""Seconds in which the load balancer notices that a replica stands still: two checks of a second that time out."""

ROOM = 1.05
"""Calls planned for each that is to be made: turns differ in how many they make."""

BACK_SECONDS = 30.0
"""Time for everything to work again after Redis is back; a gateway leaves it alone for eight seconds at most."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of work."""

    calls: int = 5000
    clients: int = 8
    replicas: int = 3
    seed: int = 1
    paused_seconds: float = 20.0
    gone_seconds: float = 60.0
    full_seconds: float = 10.0
    slow_seconds: float = 2.0
    settle_seconds: float = 3.0
    redis_faults: tuple[str, ...] = ("restarted", "restarted empty", "out of memory", "slow", "gone")
    pairs: int = 30
    turn_calls: int = 20


QUICK = Plan(
    calls=160,
    paused_seconds=3.0,
    gone_seconds=3.0,
    full_seconds=2.0,
    settle_seconds=1.0,
    redis_faults=("restarted empty", "out of memory", "gone"),
    pairs=2,
    turn_calls=3,
)


@dataclass
class RowReport:
    """The findings of one row, and figures beside them."""

    findings: list[Finding] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    failed_turns: list[Turn] = field(default_factory=list)
    failed_exchanges: list[Exchange] = field(default_factory=list)

    def keep(self, load: Load) -> None:
        """Keep what failed of a load."""
        self.failed_turns += failed(load.turns)
        self.failed_exchanges += [each for each in load.exchanges if each.outcome not in EXPECTED]


async def mixed(plan: Plan, folder: Path) -> RowReport:
    """Compare the answers of replicas to a mix of calls with those of one gateway to the same calls."""
    row, report = "mixed calls", RowReport()
    async with open_stand(folder / "one", clients=plan.clients, replicas=1, shared=False) as stand:
        expected = await run_load(stand, calls=round(plan.calls * ROOM), seed=plan.seed)
    async with open_stand(folder / "replicas", clients=plan.clients, replicas=plan.replicas, shared=True) as stand:
        found = await run_load(stand, calls=round(plan.calls * ROOM), seed=plan.seed)
        await anyio.sleep(plan.settle_seconds)
        begun, ended = stand.executions(BEGUN), stand.executions(CANCELLED)
        names = [replica.name for replica in stand.replicas]
        report.figures["log"] = stand.said()
    made = len(found.exchanges)
    report.findings = [
        Finding(row, "calls made", f">= {plan.calls:,}", f"{made:,}", made >= plan.calls),
        none_of(row, "turns of one gateway that failed", failed(expected.turns)),
        none_of(row, "turns that failed", failed(found.turns)),
        *equal_answers(row, expected, found),
        *answers(row, found.turns, found.exchanges),
        *executions(row, found, begun),
        none_of(row, "calls given up that went on", sorted((found.book.cancelled & begun.keys()) - ended.keys())),
        *(spread(row, found, names, era.value) for era in Era),
    ]
    report.keep(found)
    report.figures |= {"one gateway": figures(expected), "replicas": figures(found)}
    return report


async def faults(plan: Plan, folder: Path) -> RowReport:
    """Kill, pause and redeploy one replica after the other under load."""
    row, report = "replica faults", RowReport()
    windows: dict[str, tuple[float, float]] = {}
    opened: dict[str, float] = {}
    survived: dict[str, str] = {}
    codes: dict[str, int] = {}
    async with open_stand(folder / "faults", clients=plan.clients, replicas=plan.replicas, shared=True) as stand:
        is_over = False

        async def befall(name: str, replica: Replica, fault: Callable[[], Awaitable[None]]) -> None:
            try:
                left, book = await leave_behind(stand, replica, f"{name}-left")
            except (EndedError, AnswerError, httpx2.HTTPError) as error:
                survived[f"all, {name}"], left, book = str(error)[:300], [], Book()
            start = time.monotonic()
            await fault()
            opened[name] = await seconds_to_open(stand)
            if name == "kill":
                windows[name] = (start, time.monotonic() + NOTICE_SECONDS)
            if name == "pause":
                # Until the load balancer notices, it sends requests to the replica that stands still.
                await anyio.sleep(DOWN_SECONDS)
            for what, fate in (await collect(stand, left, name, book)).items():
                survived[f"{what}, {name}"] = fate
            report.figures[f"collected after {name} s"] = round(time.monotonic() - start, 1)

        async def all_faults() -> None:
            nonlocal is_over
            killed, paused, redeployed = (stand.replicas[at % len(stand.replicas)] for at in range(3))
            await anyio.sleep(plan.settle_seconds)
            await befall("kill", killed, lambda: _send(killed, signal.SIGKILL))
            await killed.ended()
            killed.start()
            await killed.ready()
            await anyio.sleep(plan.settle_seconds)
            begun = time.monotonic()
            await befall("pause", paused, lambda: _send(paused, signal.SIGSTOP))
            await anyio.sleep(max(begun + plan.paused_seconds - time.monotonic(), 0))
            paused.send(signal.SIGCONT)
            await paused.ready()
            await anyio.sleep(plan.settle_seconds)
            await befall("redeploy", redeployed, lambda: _send(redeployed, signal.SIGTERM))
            codes["redeploy"] = await redeployed.ended()
            redeployed.start()
            await redeployed.ready()
            await anyio.sleep(plan.settle_seconds)
            is_over = True

        load = Load()
        async with anyio.create_task_group() as group:
            group.start_soon(all_faults)
            load = await run_load(stand, calls=plan.calls, seed=plan.seed, more=lambda: not is_over)
        after = await run_load(stand, calls=plan.calls // 20, seed=plan.seed + 1, prefix="after-")
        await anyio.sleep(plan.settle_seconds)
        begun_calls = stand.executions(BEGUN)
        report.figures["log"] = stand.said()
    report.findings = [
        Finding(row, "calls made", f">= {plan.calls:,}", f"{len(load.exchanges):,}", len(load.exchanges) >= plan.calls),
        *answers(row, load.turns, load.exchanges),
        connection_errors(row, load.exchanges, windows),
        *executions(row, load, begun_calls),
        *(
            Finding(row, f"new session, {name}", f"<= {OPEN_SECONDS:g} s", f"{took:.2f} s", took <= OPEN_SECONDS)
            for name, took in opened.items()
        ),
        *(
            Finding(row, f"survives: {what}", "is there", fate or "is there", not fate)
            for what, fate in survived.items()
        ),
        Finding(row, "exit code of the redeployed", "0", str(codes.get("redeploy")), codes.get("redeploy") == 0),
        none_of(row, "approvals that the owner is not asked for", [t for t in load.turns if t.outcome == NOT_ASKED]),
        none_of(row, "turns that failed afterwards", failed(after.turns)),
    ]
    report.keep(load)
    report.keep(after)
    report.figures |= {"load": figures(load), "by fault": outcomes_in(load, windows)}
    return report


async def _send(replica: Replica, sent: signal.Signals) -> None:
    replica.send(sent)


async def seconds_to_open(stand: Stand) -> float:
    """Return the seconds in which a new client has a session, however often it has to try."""
    begun = time.monotonic()
    headers = {"authorization": f"Bearer {client_key(stand.spare_clients[0])}"}
    with anyio.fail_after(BACK_SECONDS):
        while True:
            async with httpx2.AsyncClient(timeout=ATTEMPT_SECONDS, trust_env=False) as http:
                client = Client(http, stand.url, Era.HANDSHAKE, dict(headers))
                try:
                    await client.open()
                except (httpx2.HTTPError, AnswerError):
                    await anyio.sleep(0.01)
                    continue
                took = time.monotonic() - begun
                with suppress(httpx2.HTTPError):
                    await client.close()
                return took


Fault = Callable[[Plan, Stand], Awaitable[None]]


async def restarted(plan: Plan, stand: Stand) -> None:
    """Redis is killed, and started with its data."""
    assert stand.redis is not None
    await anyio.to_thread.run_sync(stand.redis.stop)
    await anyio.to_thread.run_sync(stand.redis.start)


async def emptied(plan: Plan, stand: Stand) -> None:
    """Redis is killed, and started without its data."""
    assert stand.redis is not None
    await anyio.to_thread.run_sync(stand.redis.stop)
    stand.redis.forget()
    await anyio.to_thread.run_sync(stand.redis.start)


async def full(plan: Plan, stand: Stand) -> None:
    """Redis has no memory left for a while."""
    await _told(stand, "CONFIG", "SET", "maxmemory", "1")
    await anyio.sleep(plan.full_seconds)
    await _told(stand, "CONFIG", "SET", "maxmemory", "0")


async def slow(plan: Plan, stand: Stand) -> None:
    """Redis answers nothing for some seconds, three times."""
    for _ in range(3):
        await _told(stand, "CLIENT", "PAUSE", str(round(plan.slow_seconds * 1000)), "ALL")
        await anyio.sleep(plan.slow_seconds + 1)


async def gone(plan: Plan, stand: Stand) -> None:
    """Redis is gone for a while, and comes back with its data."""
    assert stand.redis is not None
    await anyio.to_thread.run_sync(stand.redis.stop)
    await anyio.sleep(plan.gone_seconds)
    await anyio.to_thread.run_sync(stand.redis.start)


REDIS_FAULTS: Mapping[str, Fault] = {
    "restarted": restarted,
    "restarted empty": emptied,
    "out of memory": full,
    "slow": slow,
    "gone": gone,
}


async def _told(stand: Stand, *command: str) -> None:
    assert stand.redis is not None
    url = stand.redis.url

    def tell() -> None:
        with redis_client.Redis.from_url(url) as client:
            client.execute_command(*command)

    await anyio.to_thread.run_sync(tell)


async def redis_faults(plan: Plan, folder: Path) -> RowReport:
    """Restart, fill, slow down and remove Redis under load."""
    row, report = "Redis faults", RowReport()
    windows: dict[str, tuple[float, float]] = {}
    back: dict[str, float] = {}
    async with open_stand(folder / "redis-faults", clients=plan.clients, replicas=plan.replicas, shared=True) as stand:
        is_over = False

        async def all_faults() -> None:
            nonlocal is_over
            await anyio.sleep(plan.settle_seconds)
            for number, name in enumerate(plan.redis_faults):
                start = time.monotonic()
                await REDIS_FAULTS[name](plan, stand)
                ended = time.monotonic()
                back[name] = await _back(stand, report, f"back-{number}", ended)
                windows[name] = (start, time.monotonic())
                await anyio.sleep(plan.settle_seconds)
            is_over = True

        async with anyio.create_task_group() as group:
            group.start_soon(all_faults)
            load = await run_load(stand, calls=plan.calls // 5, seed=plan.seed, more=lambda: not is_over, pause=0.05)
        await anyio.sleep(plan.settle_seconds)
        begun = stand.executions(BEGUN)
        report.figures["log"] = stand.said()
    shared = {kind.__name__ for kind, use in MIX.items() if use.shared}
    during = {name: [turn for turn in load.turns if _within(turn, *window)] for name, window in windows.items()}
    quiet = [turn for turn in load.turns if not any(_within(turn, *window) for window in windows.values())]
    report.findings = [
        *answers(row, load.turns, load.exchanges),
        connection_errors(row, load.exchanges, {}),
        *executions(row, load, begun),
        *(
            none_of(
                row,
                f"calls refused that do not need Redis, {name}",
                [turn for turn in failed(turns) if turn.kind not in shared],
            )
            for name, turns in during.items()
        ),
        *(
            Finding(
                row, f"everything works again, {name}", f"<= {BACK_SECONDS:g} s", f"{took:.1f} s", took <= BACK_SECONDS
            )
            for name, took in back.items()
        ),
        *(
            none_of(
                row, f"tasks that run and are not found, {name}", [turn for turn in turns if turn.outcome == NO_TASK]
            )
            for name, turns in during.items()
            if name != "restarted empty"
        ),
        none_of(row, "turns that failed while Redis was well", failed(quiet)),
    ]
    told = {name: dict(Counter(f"{t.kind}: {t.outcome}" for t in failed(turns))) for name, turns in during.items()}
    report.keep(load)
    report.figures |= {"load": figures(load), "failed during": told}
    return report


async def _back(stand: Stand, report: RowReport, prefix: str, since: float) -> float:
    """Return the seconds until a turn of every kind that needs Redis ends well in both eras."""
    kinds = [kind for kind, use in MIX.items() if use.shared]
    attempt = 0
    while time.monotonic() < since + 2 * BACK_SECONDS:
        begun = time.monotonic()
        turns = f"{prefix}.{attempt}-"
        tried = await run_load(stand, seed=attempt, each=kinds, clients=stand.spare_clients, prefix=turns)
        if not failed(tried.turns):
            return begun - since
        report.keep(tried)
        attempt += 1
        await anyio.sleep(0.5)
    return time.monotonic() - since


def _within(turn: Turn, start: float, end: float) -> bool:
    return turn.begun <= end and turn.ended >= start


def failed(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns that did not end well."""
    return [turn for turn in turns if turn.outcome != RESULT]


def outcomes_in(load: Load, windows: Mapping[str, tuple[float, float]]) -> dict[str, dict[str, int]]:
    """Count the outcomes of turns by the fault in which they ran."""
    return {
        name: dict(Counter(turn.outcome for turn in load.turns if _within(turn, *window)))
        for name, window in windows.items()
    }


def figures(load: Load) -> dict[str, Any]:
    """Return the figures of a load."""
    unexpected = {name: count for name, count in load.outcomes.items() if name not in EXPECTED}
    return {
        "seconds": round(load.seconds, 1),
        "requests": len(load.exchanges),
        "requests a second": round(len(load.exchanges) / max(load.seconds, 0.001)),
        "turns": dict(Counter(turn.kind for turn in load.turns)),
        "outcomes": dict(load.outcomes),
        "other outcomes": unexpected,
        "replicas": dict(load.replicas),
        "sessions opened anew": load.reopened,
        "errors of the owner's connections": load.owner_errors,
        "slowest s": round(max((each.seconds for each in load.exchanges), default=0), 1),
    }
