"""A short soak: every kind of call, every answer right, and samples to judge by."""

from __future__ import annotations

import anyio
import pytest

from benchmarks.soak import MIX, Plan, Report, soak

LIMIT_SECONDS = 240


def test_growth_counts_from_the_first_sample_after_the_calls_of_the_plan() -> None:
    samples: list[dict[str, object]] = [{"when": str(when), "rss_mib": rss} for when, rss in ((10, 50.0), (22, 100.0))]
    report = Report(samples=[*samples, {"when": "40", "rss_mib": 115.0}])
    assert report.rss(20) == 100.0
    assert report.growth(Plan(first_sample=20)) == pytest.approx(0.15)


@pytest.mark.heavy
@pytest.mark.timeout(LIMIT_SECONDS + 60)  # the limit of the run comes first, and its report says more
@pytest.mark.anyio
async def test_every_kind_of_call_is_answered_rightly() -> None:
    with anyio.fail_after(LIMIT_SECONDS):
        report = await soak(Plan(calls=2000, first_sample=1000, clients=4))
    assert report.done >= 2000
    assert set(report.kinds) == {kind.__name__ for kind in MIX}
    assert len(report.samples) > 5
