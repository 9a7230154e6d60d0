"""Recorded calls become the order in which tools fill a list that no intent selects: the most used first."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path

from pml_gateway.errors import GatewayError
from pml_gateway.log import get_logger
from pml_gateway.usage.history import ToolKey, read_daily_counts

logger = get_logger(__name__)

HALF_LIFE_DAYS = 14.0
"""A call counts half after this time. The decay is exponential, so that the order depends on the calls alone and not on
when it is computed: gateways that start at different times give the same list."""


def most_used(path: Path, config: str) -> tuple[ToolKey, ...]:
    """The tools of a configuration, most used first; none where nothing was recorded or can be read."""
    try:
        counts = read_daily_counts(path, config)
    except GatewayError as error:
        logger.warning("lists are filled without usage: %s", error)
        return ()
    return ranked(counts)


def ranked(counts: list[tuple[ToolKey, int, int]]) -> tuple[ToolKey, ...]:
    """Tools by (tool, day, calls), most used first, equal ones by name; days count from the epoch."""
    last = max((day for _, day, _ in counts), default=int(time.time() // 86400))
    weights: dict[ToolKey, float] = defaultdict(float)
    for key, day, calls in counts:
        weights[key] += calls * 0.5 ** ((last - day) / HALF_LIFE_DAYS)
    return tuple(sorted(weights, key=lambda key: (-weights[key], key)))
