"""One chaos run: a gateway process, faulty upstreams and clients become checks and figures."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from benchmarks.chaos.answers import LOOK
from benchmarks.chaos.faults import disturbances
from benchmarks.chaos.load import RESULT, ROUTES, Call, call, run_clients
from benchmarks.chaos.stand import Stand, open_stand
from benchmarks.chaos.verdict import Check, check_calls, check_growth, check_journals, check_memory
from benchmarks.client import Era, open_client
from benchmarks.figures import Figures, figures, tasks
from benchmarks.processes import Running, running, stop

START_SECONDS = 120
POLL_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Plan:
    """How much happens, and what is demanded; without `late_seconds` and `memory_growth` these are told only."""

    calls: int = 5000
    upstreams: int = 20
    clients: int = 8
    seed: int = 1
    every: int = 20
    call_timeout: float = 3.0
    late_seconds: float | None = 2.0
    least_results: float = 0.5
    memory_growth: float | None = 0.10
    recover_seconds: float = 120.0
    settle_seconds: float = 60.0
    cap_seconds: float = 1800.0


@dataclass(slots=True)
class Report:
    """What a run found."""

    checks: list[Check] = field(default_factory=list)
    figures: list[dict[str, object]] = field(default_factory=list)
    outcomes: list[dict[str, object]] = field(default_factory=list)
    counts: dict[str, Any] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether everything that must hold does."""
        return all(check.holds for check in self.checks)

    def look(self, when: str, seen: Figures) -> Figures:
        """Keep figures of a moment."""
        self.figures.append(seen.row(when))
        return seen


async def chaos(plan: Plan, log: Path | None = None) -> Report:
    """Run it. Everything happens on loopback and ends with this call."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        async with open_stand(folder, plan.upstreams) as stand:
            report = Report()
            observer = folder / "observer"
            async with running(
                _command(folder, plan, stand), env={"PML_HOME": str(folder / "home")}, log=log
            ) as gateway:
                with anyio.move_on_after(plan.cap_seconds) as cap:
                    await _through(plan, stand, gateway, observer, report)
                report.checks.append(
                    Check("all within the wall-clock limit", not cap.cancelled_caught, f"{plan.cap_seconds:g} s")
                )
                await anyio.to_thread.run_sync(stop, gateway.process)
                code = gateway.process.returncode
                report.checks.append(Check("the gateway ends with exit code 0", code == 0, str(code)))
            left = [
                upstream.upstream_id for upstream in stand.upstreams.values() if not upstream.holder and upstream.pids()
            ]
            report.checks.append(Check("no process is left after the gateway", not left, ", ".join(left) or "none"))
        return report


async def _through(plan: Plan, stand: Stand, gateway: Running, observer: Path, report: Report) -> None:
    url, ids = f"{gateway.origin}/mcp", list(stand.upstreams)

    async def look(when: str) -> Figures:
        return report.look(when, await anyio.to_thread.run_sync(figures, gateway.pid, observer))

    if unusable := await _unusable(url, ids, START_SECONDS, "start"):
        report.checks.append(Check("all upstreams are usable at the start", False, ", ".join(unusable)))
        return
    start = await look("start")
    calls: list[Call] = []
    due = disturbances(plan.seed, ids, calls=plan.calls, every=plan.every)
    early: list[Figures] = []

    def on_done(done: Call) -> None:
        calls.append(done)
        while due and due[0].after_calls <= len(calls):
            stand.disturb(due.pop(0))
        if len(calls) == plan.calls // 5:
            early.append(report.look("after a fifth", figures(gateway.pid, observer)))

    begun = time.monotonic()
    await run_clients(url, ids, clients=plan.clients, calls=plan.calls, seed=plan.seed, on_done=on_done)
    seconds = time.monotonic() - begun
    await look("after")
    stand.put_right()
    begun = time.monotonic()
    unusable = await _unusable(url, ids, plan.recover_seconds, "end")
    recovered = time.monotonic() - begun
    settled = await _settle(gateway.pid, observer, start, plan, slack=plan.upstreams)
    report.look("settled", settled)
    executions = sum((upstream.executions() for upstream in stand.upstreams.values()), Counter[str]())
    alive = {key: len(upstream.pids()) for key, upstream in stand.upstreams.items()}
    several = [f"{key}: {count} processes" for key, count in alive.items() if count != 1]
    limit = None if plan.late_seconds is None else plan.call_timeout + plan.late_seconds
    report.checks += check_calls(calls, plan.calls, limit_seconds=limit, least_results=plan.least_results)
    report.checks += check_journals(calls, executions)
    report.checks.append(
        Check("all upstreams are usable again", not unusable, ", ".join(unusable) or f"after {recovered:.1f} s")
    )
    report.checks.append(Check("one process for each upstream", not several, "; ".join(several) or "none more"))
    report.checks.append(check_growth(start, settled, slack=plan.upstreams))
    if plan.memory_growth is not None and early:
        report.checks.append(check_memory(early[0], settled, limit=plan.memory_growth))
    report.outcomes = _outcomes(calls)
    report.counts = {
        "seconds": round(seconds, 1),
        "disturbances": dict(stand.happened),
        "moods": dict(Counter(done.mood for done in calls)),
        "starts": sum(upstream.starts() for upstream in stand.upstreams.values()),
        "recovered_seconds": round(recovered, 1),
        "tasks": tasks(observer),
    }


async def _unusable(url: str, upstream_ids: Sequence[str], seconds: float, stage: str) -> list[str]:
    """Upstreams that give no right answer within this time, directly and through `call_tool`."""
    left = set(upstream_ids)

    async def until_usable(upstream_id: str) -> None:
        async with open_client(url, Era.STATELESS) as client:
            for route in ROUTES:
                attempt, outcome = 0, ""
                while outcome != RESULT:
                    nonce = f"{stage}-{route}-{attempt}"
                    outcome = (await call(client, upstream_id, LOOK, nonce, route=route, mood="fine")).outcome
                    attempt += 1
                    await anyio.sleep(POLL_SECONDS if outcome != RESULT else 0)
        left.discard(upstream_id)

    with anyio.move_on_after(seconds):
        async with anyio.create_task_group() as group:
            for upstream_id in upstream_ids:
                group.start_soon(until_usable, upstream_id)
    return sorted(left)


async def _settle(pid: int, observer: Path, start: Figures, plan: Plan, *, slack: int) -> Figures:
    """Figures once they are as before, or after the time for it."""
    deadline = time.monotonic() + plan.settle_seconds
    while True:
        seen = await anyio.to_thread.run_sync(figures, pid, observer)
        if check_growth(start, seen, slack=slack).holds or time.monotonic() > deadline:
            return seen
        await anyio.sleep(1)


def _outcomes(calls: Sequence[Call]) -> list[dict[str, object]]:
    rows = []
    for outcome, count in Counter(done.outcome for done in calls).most_common():
        taken = sorted(done.seconds for done in calls if done.outcome == outcome)
        rows.append({"outcome": outcome, "calls": count, "p50_s": taken[len(taken) // 2], "max_s": taken[-1]})
    return rows


def _command(folder: Path, plan: Plan, stand: Stand) -> list[str]:
    settings = {
        "gateway": {"tools_exposure": "full_proxy"},
        # All shorter than by default, or a run would be waiting more than anything else.
        "upstreams": {
            "call_timeout": plan.call_timeout,
            "connect_timeout": 5,
            "refresh_interval": 5,
            "breaker": {"pause": 5},
        },
        "http": {"shutdown_seconds": 8},
        "servers": {upstream_id: upstream.entry() for upstream_id, upstream in stand.upstreams.items()},
    }
    config = folder / "config.yaml"
    config.write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "benchmarks.observed", str(folder / "observer"), "serve", "--http"]
    return [*command, "--port", "0", "--config", str(config)]
