"""Intervals of 95 %: of shares after Wilson, of means and their ratios by drawing tasks again. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from benchmarks.metrics import percentile

DRAWS = 2_000
Z = 1.959964
"""Of a normal distribution, 95 % lie within so many standard deviations."""

Interval = tuple[float, float]


def wilson(successes: int, trials: int) -> Interval:
    """Where a share lies that was seen in some trials."""
    if not trials:
        return (0.0, 1.0)
    share, weight = successes / trials, Z**2 / trials
    middle = (share + weight / 2) / (1 + weight)
    reach = Z / (1 + weight) * math.sqrt(share * (1 - share) / trials + weight / (4 * trials))
    return (max(0.0, middle - reach), min(1.0, middle + reach))


def bootstrap(groups: int, figure: Callable[[Sequence[int]], float]) -> Interval:
    """Where a figure lies that is made of some groups: `figure` gets the numbers of those that were drawn.

    The same groups give the same interval.
    """
    draw = random.Random(0)
    drawn = [figure(draw.choices(range(groups), k=groups)) for _ in range(DRAWS)]
    return (percentile(drawn, 2.5), percentile(drawn, 97.5))
