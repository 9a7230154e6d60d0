"""Used tools with their calls and tokens become the whitelist that keeps enough calls listed at the least tokens."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from pml_gateway.usage.history import ToolKey

_ROUNDING = 1e-9
"""A share of calls is a decimal fraction, which a float meets only nearly: 0.95 * 600 must ask for 570 calls."""


@dataclass(frozen=True, slots=True)
class UsedTool:
    """A tool that was called, and what its definition costs in a list."""

    key: ToolKey
    calls: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Whitelist:
    """Tools by name, the calls that find their tool listed, and the tokens that lists grow by."""

    tools: tuple[ToolKey, ...]
    calls: int
    tokens: int


def cheapest_whitelist(used: Sequence[UsedTool], keep: float, fixed: Collection[ToolKey] = ()) -> Whitelist:
    """The whitelist of least tokens that keeps at least `keep` (0 to 1) of all calls listed; exact.

    Args:
        used: every tool that was called, with at least one call each.
        keep: the share of calls.
        fixed: tools that are whitelisted already and stay.

    Leaving tools out is a 0/1 knapsack: the most tokens that can go while the calls that go with them stay within what
    may be lost. The table has a row per tool and a column per call that may be lost. Of equally cheap whitelists it
    gives one that keeps the most calls.
    """
    tools = sorted(used, key=lambda tool: tool.key)
    total = sum(tool.calls for tool in tools)
    may_lose = total - min(total, math.ceil(keep * total - _ROUNDING))
    loose = [tool for tool in tools if tool.key not in fixed and tool.calls <= may_lose]
    saved = np.zeros(may_lose + 1, dtype=np.int64)
    rows = []
    for tool in loose:
        with_it = saved[: may_lose + 1 - tool.calls] + tool.tokens
        better = with_it > saved[tool.calls :]
        saved[tool.calls :] = np.where(better, with_it, saved[tool.calls :])
        rows.append(np.packbits(better))
    column = int(np.argmax(saved == saved[-1]))
    left_out = set()
    for tool, row in zip(reversed(loose), reversed(rows), strict=True):
        place = column - tool.calls
        if place >= 0 and np.unpackbits(row, count=may_lose + 1 - tool.calls)[place]:
            left_out.add(tool.key)
            column = place
    kept = [tool for tool in tools if tool.key not in left_out]
    return Whitelist(
        tuple(tool.key for tool in kept), sum(tool.calls for tool in kept), sum(tool.tokens for tool in kept)
    )
