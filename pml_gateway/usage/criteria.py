"""What was recorded in a stage becomes whether it is time for the next one, and why not otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pml_gateway.counting import counted
from pml_gateway.usage.history import History, RecordedCall
from pml_gateway.usage.statistics import success_rate


@dataclass(frozen=True, slots=True)
class Criteria:
    """When a stage has shown that it works.

    A week's beginning shows habits (3 days), a hundred calls show one failure in fifty with 87 % probability, and one
    search in five may miss: models search again in other words.
    """

    min_calls: int = 100
    min_days: float = 3.0
    max_miss_rate: float = 0.2
    max_success_drop: float = 0.02


@dataclass(frozen=True, slots=True)
class Standing:
    """How a stage goes: calls since it began, how they came, what searches missed, how many succeeded, and before."""

    calls: int
    days: float
    through_search: int
    searches: int
    missed: int
    success: float | None
    success_before: float | None

    @property
    def miss_rate(self) -> float:
        """The share of searches after which no hit was called."""
        return self.missed / self.searches if self.searches else 0.0


def standing(history: History, since: float | None, now: float) -> Standing:
    """The standing of the stage that began at `since`; without a beginning, of everything recorded."""
    began = since if since is not None else min((call.at for call in history.calls), default=now)
    calls = [call for call in history.calls if call.at >= began]
    before: Sequence[RecordedCall] = [call for call in history.calls if call.at < began]
    searches = [search for search in history.searches if search.at >= began]
    return Standing(
        calls=len(calls),
        days=max(now - began, 0.0) / 86400,
        through_search=sum(call.query is not None for call in calls),
        searches=len(searches),
        missed=sum(search.missed for search in searches),
        success=success_rate(calls),
        success_before=success_rate(before),
    )


def reasons_to_wait(found: Standing, criteria: Criteria) -> list[str]:
    """Every criterion that does not hold yet; none when it is time to move on."""
    reasons = []
    if found.calls < criteria.min_calls:
        reasons.append(
            f"{counted(found.calls, 'call')} in this stage; {counted(criteria.min_calls, 'is', 'are')} wanted"
        )
    if found.days < criteria.min_days:
        reasons.append(f"{found.days:.1f} days in this stage; {criteria.min_days:g} are wanted")
    if found.miss_rate > criteria.max_miss_rate:
        limit = f"at most {criteria.max_miss_rate:.0%}"
        reasons.append(
            f"{found.missed} of {found.searches} searches missed ({found.miss_rate:.0%}); {limit} are wanted"
        )
    # Floats: 1 - 0.98 is a little more than 0.02.
    dropped = round((found.success_before or 0.0) - (found.success or 0.0), 9)
    if found.success is not None and found.success_before is not None and dropped > criteria.max_success_drop:
        reasons.append(f"success fell from {found.success_before:.1%} to {found.success:.1%} in this stage")
    return reasons
