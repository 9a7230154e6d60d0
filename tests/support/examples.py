"""How often a property test tries."""

from __future__ import annotations

from hypothesis import settings

HEAVY = "heavy"
"""The profile in which every property is tried this many times as often; `-m heavy` loads it."""

TIMES = 8

USUAL = settings.get_profile("default").max_examples


def profile(times: int, name: str = "times") -> str:
    """The name of a profile in which every property is tried so many times as often."""
    settings.register_profile(name, max_examples=USUAL * times, print_blob=True)
    return name


profile(TIMES, HEAVY)


def examples(usual: int) -> int:
    """So many examples, and many times as many in the heavy profile."""
    return usual * settings().max_examples // USUAL
