"""A seed becomes what goes wrong: how upstreams behave on single calls, and what befalls their processes meanwhile."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

MOODS = MappingProxyType(
    {
        "fine": 900,
        "slow": 50,
        "fails": 10,
        "noisy": 12,
        "twice": 6,
        "stray": 6,
        "garbled": 3,
        "cut": 3,
        "mute": 3,
        "dies_before": 3,
        "dies_after": 4,
    }
)
"""How often of a thousand calls the upstream behaves so; each that never answers costs a client the whole deadline."""


class Fault(StrEnum):
    """What befalls an upstream's process."""

    KILL = "kill"
    KILL_LAUNCHER = "kill_launcher"
    RESTART = "restart"
    HANG = "hang"
    GARBAGE = "garbage"
    SLOW_START = "slow_start"


_WEIGHTS = MappingProxyType(
    {
        Fault.KILL: 6,
        Fault.KILL_LAUNCHER: 1,
        Fault.RESTART: 4,
        Fault.HANG: 4,
        Fault.GARBAGE: 4,
        Fault.SLOW_START: 2,
    }
)
_SECONDS = MappingProxyType({Fault.HANG: (0.5, 6.0), Fault.SLOW_START: (1.0, 7.0)})
_DOWN_SECONDS = (0.0, 2.0)


@dataclass(frozen=True, slots=True)
class Disturbance:
    """One fault, due once so many calls are done; `seconds` is how long it hangs, starts or stays down."""

    after_calls: int
    upstream_id: str
    fault: Fault
    seconds: float


def disturbances(seed: int, upstream_ids: Sequence[str], *, calls: int, every: int) -> list[Disturbance]:
    """One disturbance for every so many calls, none in the first and last of these stretches."""
    generator = random.Random(f"{seed} faults")
    chosen = []
    for after in range(every, calls - every + 1, every):
        fault = generator.choices(list(_WEIGHTS), weights=list(_WEIGHTS.values()))[0]
        seconds = generator.uniform(*_SECONDS.get(fault, _DOWN_SECONDS))
        chosen.append(Disturbance(after, generator.choice(upstream_ids), fault, round(seconds, 2)))
    return chosen


def mood(generator: random.Random) -> str:
    """How the upstream is to behave on one call."""
    return generator.choices(list(MOODS), weights=list(MOODS.values()))[0]
