"""A storm and kills, with their promises as checks: what `run_machine` reports in full and the tests make small."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from benchmarks.chaos.verdict import Check
from benchmarks.machine.kills import run_kills
from benchmarks.machine.residents import places, storm_servers
from benchmarks.machine.stand import Side, open_stand
from benchmarks.machine.storm import Storm, check_executions, grow, open_visits, run_storm

SHOWN = 5
SECTIONS = {"activity": {"record": False}}
"""What is used most is listed in the hybrid mode, and lists are compared."""

SETTLE_SECONDS = 1.0
"""Cancellations reach servers a moment after the storm."""

ALONE_AT_ONCE = 5
"""Clients with a gateway of their own, at a time: each takes eight servers and 250 MB."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much happens."""

    clients: int = 20
    calls: int = 5000
    gateway_kills: int = 20
    bridge_kills: int = 20
    usable_seconds: float | None = 5.0
    seed: int = 1


@dataclass(slots=True)
class Report:
    """What was found."""

    checks: list[Check] = field(default_factory=list)
    figures: dict[str, object] = field(default_factory=dict)

    @property
    def broken(self) -> list[Check]:
        """What does not hold."""
        return [check for check in self.checks if not check.holds]


async def check_storm(side: Side, other: Side, plan: Plan, folder: Path) -> Report:
    """All clients at once on one side; the same calls on the other side must give the same."""
    report = Report()
    async with open_stand(side, folder / side.name, storm_servers) as stand:
        stand.write_config(**SECTIONS)
        storm, visits = await open_visits(stand, await places(stand, plan.clients))
        await run_storm(visits, calls=plan.calls, seed=plan.seed)
        await grow(visits)
        await anyio.sleep(SETTLE_SECONDS)
        found = check_executions(storm, stand.journal())
        unasked = sum(visit.client.unasked for visit in visits)
        report.figures |= {"processes": dict(stand.server_processes()), "gateways": len(stand.gateways())}
        left = await stand.end()
    report.figures |= storm.counts() | {"seconds": round(storm.seconds, 1)}
    report.checks += [
        _nothing("nothing at the wrong client, and nothing lost", _shown(storm)),
        Check("no answer to no request", not unasked, str(unasked)),
        *(_nothing(f"none {what}", against) for what, against in found.items()),
        _nothing("nothing is left after the last client", left),
    ]
    report.figures["faults"] = dict(Counter(kind for kind, _ in storm.faults))
    alone = await _same_calls_apart(other, plan, folder / other.name)
    same = storm.differences(alone)
    report.figures["compared"] = len(storm.done.keys() & alone.done.keys())
    report.checks.append(_nothing(f"answers are those of {' '.join(('pml serve', *other.options))}", same))
    return report


async def check_kills(side: Side, plan: Plan, folder: Path) -> Report:
    """Under load, gateways and bridges are killed."""
    report = Report()
    async with open_stand(side, folder, storm_servers) as stand:
        stand.write_config(**SECTIONS)
        storm, visits = await open_visits(stand, await places(stand, plan.clients))
        kills = await run_kills(stand, visits, gateways=plan.gateway_kills, bridges=plan.bridge_kills, seed=plan.seed)
        await anyio.sleep(SETTLE_SECONDS)
        found = check_executions(storm, stand.journal())
        left = await stand.end()
    slowest = max([*kills.gateways, *kills.bridges], default=0.0)
    report.figures |= storm.counts() | {
        "seconds": round(storm.seconds, 1),
        "gateways killed": len(kills.gateways),
        "bridges killed": len(kills.bridges),
        "usable again after a gateway, s": kills.gateways,
        "usable again after a bridge, s": kills.bridges,
        "faults": dict(Counter(kind for kind, _ in storm.faults)),
    }
    report.checks += [
        _nothing("every call is answered, with a result or a typed error", _shown(storm)),
        *(_nothing(f"none {what}", against) for what, against in found.items()),
        _nothing("every client is usable again", kills.unusable),
        Check("gateways were killed", len(kills.gateways) == plan.gateway_kills, str(len(kills.gateways))),
        Check("in time", plan.usable_seconds is None or slowest <= plan.usable_seconds, f"{slowest:.2f} s at most"),
        _nothing("no session is left of clients that are gone", [f"{k}: {n}" for k, n in kills.left_sessions.items()]),
        _nothing("nothing is left after the last client", left),
    ]
    return report


async def _same_calls_apart(side: Side, plan: Plan, folder: Path) -> Storm:
    """The same errands with a gateway for each client, a few clients at a time."""
    whole = Storm(folder)
    async with open_stand(side, folder, storm_servers) as stand:
        stand.write_config(**SECTIONS)
        everybody = await places(stand, plan.clients)
        per_client = -(-plan.calls // plan.clients)
        for start in range(0, plan.clients, ALONE_AT_ONCE):
            some = everybody[start : start + ALONE_AT_ONCE]
            storm, visits = await open_visits(stand, some)
            await run_storm(visits, calls=per_client * len(some), seed=plan.seed)
            whole.done |= storm.done
            for visit in visits:
                await stand.leave(visit.client)
        await stand.end()
    return whole


def _shown(storm: Storm) -> list[str]:
    """The faults, the rarest kinds first."""
    kinds = Counter(kind for kind, _ in storm.faults)
    return [f"{kind}: {what}" for kind, what in sorted(storm.faults, key=lambda fault: kinds[fault[0]])]


def _nothing(what: str, against: Sequence[str]) -> Check:
    shown = "; ".join([f"{len(against)} against", *against[:SHOWN]])
    return Check(what, not against, shown if against else "none against")
