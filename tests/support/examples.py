"""How often a property test tries."""

from __future__ import annotations

from hypothesis import settings

HEAVY = "heavy"
"""The profile in which every property is tried this many times as often; `-m heavy` loads it."""

TIMES = 8

QUICK = "quick"
"""The profile of the other stages."""

USUAL = settings.get_profile("default").max_examples


def profile(times: float, name: str = "times", *, derandomize: bool = False) -> str:
    """The name of a profile in which every property is tried so many times as often."""
    settings.register_profile(
        name,
        max_examples=int(USUAL * times),
        print_blob=True,
        derandomize=derandomize,
        # The time of an example says more about the machine than about the code; every test has a limit as it is.
        deadline=None,
    )
    return name


# A stage that passed once passes again; looking for new examples is what `benchmarks.run_fuzz` is for.
profile(0.25, QUICK, derandomize=True)
profile(TIMES, HEAVY, derandomize=True)


def examples(usual: int) -> int:
    """So many examples, many times as many in the heavy profile, and a few in the quick one."""
    return max(usual * settings().max_examples // USUAL, 1)
