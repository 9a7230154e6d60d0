"""What became of every call, what the upstreams wrote down and what the gateway holds: does everything hold?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.chaos.load import RESULT, UNTYPED, WRONG, Call
from benchmarks.figures import Figures

NEVER_SENT = frozenset({"BUSY", "NOT_FOUND", "INVALID_INPUT", "FORBIDDEN", "RATE_LIMITED"})
SHOWN = 3


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold, and what speaks against it."""

    what: str
    holds: bool
    found: str

    def row(self) -> dict[str, object]:
        """For a table."""
        return {"check": self.what, "holds": "yes" if self.holds else "NO", "found": self.found}


def check_calls(
    calls: Sequence[Call], expected: int, *, limit_seconds: float | None, least_results: float
) -> list[Check]:
    """What clients saw; without a limit, how long it took is told and not judged."""
    outcomes = Counter(call.outcome for call in calls)
    slowest = max((call.seconds for call in calls), default=0.0)
    late = [call for call in calls if limit_seconds is not None and call.seconds > limit_seconds]
    results = outcomes[RESULT] / max(len(calls), 1)
    return [
        Check("every call ended", len(calls) == expected, f"{len(calls):,} of {expected:,}"),
        _none("every failure is a typed error", [call for call in calls if call.outcome == UNTYPED]),
        _none("no answer is wrong", [call for call in calls if call.outcome == WRONG]),
        Check("every call ended before its deadline", not late, f"{len(late)} late, slowest {slowest:.1f} s"),
        # A gateway that answers every call with an error would keep every other promise.
        Check("enough calls have a result", results >= least_results, f"{results:.1%}"),
    ]


def check_journals(calls: Sequence[Call], executions: Mapping[str, int]) -> list[Check]:
    """What upstreams executed, against what clients were told."""
    twice = [call for call in calls if executions.get(call.nonce, 0) > 1]
    denied = [call for call in calls if call.executed == "no" or call.outcome in NEVER_SENT]
    return [
        _none("no call was executed twice", [call for call in twice if not call.is_idempotent]),
        Check("idempotent calls that were executed twice", True, str(sum(call.is_idempotent for call in twice))),
        _none(
            "every result was executed",
            [call for call in calls if call.outcome == RESULT and not _done(call, executions)],
        ),
        _none("nothing was executed that is said not to be", [call for call in denied if _done(call, executions)]),
    ]


def check_growth(start: Figures, settled: Figures, *, slack: int) -> Check:
    """Descriptors, threads and tasks may differ by connections kept for a while; children may not."""
    more = settled.exceeds(start, descriptors=slack, threads=slack, tasks=slack)
    return Check("nothing leaked", not more, "; ".join(more) or "descriptors, threads, tasks and children as before")


def check_memory(early: Figures, settled: Figures, *, limit: float) -> Check:
    """Memory after everything, against that after the first calls."""
    growth = settled.rss_mib / early.rss_mib - 1
    return Check(
        "memory does not grow", growth <= limit, f"{early.rss_mib} MiB became {settled.rss_mib} ({growth:+.1%})"
    )


def _done(call: Call, executions: Mapping[str, int]) -> bool:
    return executions.get(call.nonce, 0) > 0


def _none(what: str, against: Sequence[Call]) -> Check:
    shown = [f"{c.nonce} {c.upstream_id} {c.tool} {c.route} {c.era} {c.mood}: {c.text[:200]}" for c in against[:SHOWN]]
    return Check(what, not against, "; ".join([f"{len(against)} against", *shown]) if against else "none against")
