"""How often a property test tries."""

from __future__ import annotations

from hypothesis import settings

HEAVY = "heavy"
"""The profile in which every property is tried this many times as often; `-m heavy` loads it."""

TIMES = 8

settings.register_profile(HEAVY, max_examples=settings.get_profile("default").max_examples * TIMES, print_blob=True)


def examples(usual: int) -> int:
    """So many examples, and many times as many in the heavy profile."""
    return usual * settings().max_examples // settings.get_profile("default").max_examples
