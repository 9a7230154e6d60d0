"""Many clients of one machine: each gets what is its own, and kills of what they share cost no answer."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from benchmarks.machine.run import Plan, check_kills, check_storm
from benchmarks.machine.stand import alone, attaching

LIMIT_SECONDS = 400

# The limit of a run comes first, and its report says more.
pytestmark = [pytest.mark.e2e, pytest.mark.anyio, pytest.mark.timeout(LIMIT_SECONDS + 60)]

SOME = Plan(clients=4, calls=400, gateway_kills=2, bridge_kills=2, usable_seconds=None, seed=6)
"""How soon clients are usable again depends on what else the machine does; the benchmark says it. With this seed,
bridges are killed last, and no new gateway forgets what they left."""

MANY = Plan(clients=12, calls=2000, gateway_kills=6, bridge_kills=6, usable_seconds=None, seed=2)


@pytest.mark.parametrize(
    "plan", [pytest.param(SOME, marks=pytest.mark.slow), pytest.param(MANY, marks=pytest.mark.heavy)]
)
async def test_whatever_clients_send_at_once_each_gets_its_own_and_what_it_would_get_alone(
    tmp_path: Path, plan: Plan
) -> None:
    with anyio.fail_after(LIMIT_SECONDS):
        report = await check_storm(attaching(), alone(), plan, tmp_path)
    assert not report.broken
    for kind in ("questions", "progress", "logs", "references", "references of others tried", "cancelled"):
        assert report.figures[kind], "it was tried"


@pytest.mark.parametrize(
    "plan", [pytest.param(SOME, marks=pytest.mark.slow), pytest.param(MANY, marks=pytest.mark.heavy)]
)
async def test_kills_of_gateways_and_bridges_lose_no_call_repeat_none_and_leave_nothing(
    tmp_path: Path, plan: Plan
) -> None:
    with anyio.fail_after(LIMIT_SECONDS):
        report = await check_kills(attaching(), plan, tmp_path)
    assert not report.broken
