"""Turns measured values into the figures that are reported. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear interpolation between closest ranks; `percent` from 0 to 100."""
    if not values:
        raise ValueError("no values were measured")
    if not 0 <= percent <= 100:
        raise ValueError(f"percent must be from 0 to 100, got {percent}")
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low, high = math.floor(position), math.ceil(position)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def median(values: Sequence[float]) -> float:
    """The middle value."""
    return percentile(values, 50)


def summary(values: Sequence[float]) -> dict[str, float]:
    """Count, median, 95th percentile and extremes of one series."""
    return {
        "count": len(values),
        "p50": median(values),
        "p95": percentile(values, 95),
        "min": min(values),
        "max": max(values),
    }


def round_ratio(values: Sequence[float], base: Sequence[float]) -> float:
    """Median of the ratios within each round.

    Rounds run interleaved, so a machine that slows down for a while slows both sides of a pair alike.
    """
    if len(values) != len(base):
        raise ValueError(f"{len(values)} rounds cannot be compared with {len(base)}")
    return median([value / other for value, other in zip(values, base, strict=True)])


def ratios(series: Mapping[str, Sequence[float]], base: str) -> dict[str, float]:
    """Each series against the one named `base`, where it was measured."""
    if base not in series:
        return {}
    return {name: round_ratio(values, series[base]) for name, values in series.items()}


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """The names starting with another one each turn, so that none always runs first."""
    shift = turn % len(names) if names else 0
    return [*names[shift:], *names[:shift]]
