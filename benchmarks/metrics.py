"""Turns measured values into the figures that are reported. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

Item = TypeVar("Item")


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


def sign_test_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Where the median of all such values lies, whatever their distribution; None for too few values to say it.

    Each value is above the true median as a coin falls, so that the interval goes from the k-th smallest to the k-th
    largest, with the largest k for which fewer than k heads, or tails, are rare enough.
    """
    count, ordered = len(values), sorted(values)
    outside, k = 0.0, 0
    while k < count / 2:
        outside += 2 * math.comb(count, k) / 2**count
        if outside > 1 - confidence:
            break
        k += 1
    return (ordered[k - 1], ordered[-k]) if k else None


def rotated(names: Sequence[Item], turn: int) -> list[Item]:
    """The names starting with another one each turn, so that none always runs first."""
    shift = turn % len(names) if names else 0
    return [*names[shift:], *names[:shift]]
