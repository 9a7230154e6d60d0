"""What is demanded of replicas, and what speaks against it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.cluster.client import CONNECTION, RESULT, UNTYPED, Exchange
from benchmarks.cluster.load import LATE, WRONG, Load, Turn
from benchmarks.cluster.turns import IDEMPOTENT, PENDING

SHOWN = 12
EXPECTED = frozenset({RESULT, PENDING, "FORBIDDEN", "-32800", "CANCELLED"})
"""Outcomes of requests in turns that end well: a call that waits for its approval, is denied or given up."""

LEAST_SHARE = 0.2
"""Of the requests of 2026-07-28, at each of three replicas."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that must hold, with what was measured."""

    row: str
    what: str
    target: str
    measured: str
    holds: bool

    def shown(self) -> dict[str, object]:
        """Return a line of the printed table."""
        return {
            "row": self.row,
            "what": self.what,
            "target": self.target,
            "measured": self.measured[:150],
            "holds": "yes" if self.holds else "NO",
        }


def none_of(row: str, what: str, against: Sequence[object]) -> Finding:
    """Return the finding that nothing speaks against."""
    shown = "; ".join(str(each)[:300] for each in against[:SHOWN])
    return Finding(row, what, "0", f"{len(against)}: {shown}" if against else "0", not against)


def executions(row: str, load: Load, begun: Mapping[str, int]) -> list[Finding]:
    """Compare what clients were told with what servers wrote down."""
    tools = load.book.tools
    twice = [call for call, count in begun.items() if count > 1 and call in tools]
    return [
        none_of(row, "calls lost: answered and not executed", sorted(load.book.answered - begun.keys())),
        none_of(row, "calls executed twice", [call for call in twice if tools[call] not in IDEMPOTENT]),
        Finding(
            row,
            "idempotent calls executed twice",
            "told",
            str(sum(tools[call] in IDEMPOTENT for call in twice)),
            True,
        ),
        none_of(row, "denied calls executed", sorted(load.book.never & begun.keys())),
    ]


def answers(row: str, turns: Iterable[Turn], exchanges: Iterable[Exchange]) -> list[Finding]:
    """Return the findings about wrong, late and untyped answers."""
    turns = list(turns)
    return [
        none_of(row, "wrong answers", [turn for turn in turns if turn.outcome == WRONG and not _is_foreign(turn)]),
        none_of(row, "answers of other clients", [turn for turn in turns if _is_foreign(turn)]),
        none_of(row, "calls without an end", [turn for turn in turns if turn.outcome == LATE]),
        none_of(row, "errors without a code", [each for each in exchanges if each.outcome == UNTYPED]),
    ]


def _is_foreign(turn: Turn) -> bool:
    return turn.outcome == WRONG and "got an answer with" in turn.text


def equal_answers(row: str, expected: Load, found: Load) -> list[Finding]:
    """Compare all answers with those of one gateway to the same requests."""
    wanted, seen = _by_turn(expected), _by_turn(found)
    different = [
        f"{turn} {_kind(expected, turn)}: {_first_difference(wanted[turn], seen.get(turn, []))}"
        for turn in wanted
        if wanted[turn] != seen.get(turn, [])
    ]
    compared = sum(map(len, wanted.values()))
    return [
        Finding(row, "answers compared with those of one gateway", "told", f"{compared:,}", True),
        none_of(row, "turns with other answers than from one gateway", different),
    ]


def _by_turn(load: Load) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for each in load.exchanges:
        if each.answer is not None:
            found[each.turn].append((each.outcome, each.answer))
    return found


def _kind(load: Load, turn_id: str) -> str:
    return next(f"{turn.kind} {turn.era}" for turn in load.turns if turn.id == turn_id)


def _first_difference(wanted: Sequence[tuple[str, str]], seen: Sequence[tuple[str, str]]) -> str:
    for one, other in zip(wanted, seen, strict=False):
        if one[0] != other[0]:
            return f"{other[0]} instead of {one[0]}"
        if one != other:
            pairs = zip(one[1], other[1], strict=False)
            at = next((at for at, (left, right) in enumerate(pairs) if left != right), 0)
            return f"…{other[1][max(at - 30, 0) : at + 60]}… instead of …{one[1][max(at - 30, 0) : at + 60]}…"
    return f"{len(seen)} answers instead of {len(wanted)}"


def spread(row: str, load: Load, replicas: Sequence[str], era: str) -> Finding:
    """Return the finding that every replica served its share of the requests of an era."""
    counts = Counter(each.replica for each in load.exchanges if each.era == era and each.replica != "-")
    least = min((counts[name] for name in replicas), default=0) / max(counts.total(), 1)
    told = ", ".join(f"{name} {counts[name]:,}" for name in replicas)
    target = LEAST_SHARE * 3 / len(replicas)
    return Finding(row, f"requests of {era} by replica", f"each >= {target:.0%}", told, least >= target)


def connection_errors(row: str, exchanges: Iterable[Exchange], windows: Mapping[str, tuple[float, float]]) -> Finding:
    """Return the finding that connections broke only for requests that ran while a replica was killed.

    Args:
        row: the row.
        exchanges: all requests.
        windows: for each fault in which connections may break, when it began and was noticed by the load balancer.
    """
    broken = [each for each in exchanges if each.outcome == CONNECTION]
    allowed = dict.fromkeys(windows, 0)
    other = []
    for each in broken:
        for name, (start, end) in windows.items():
            if each.begun <= end and each.begun + each.seconds >= start:
                allowed[name] += 1
                break
        else:
            other.append(each)
    told = ", ".join(f"{count} at {name}" for name, count in allowed.items()) or "none"
    if other:
        told = f"{len(other)} at other times: {other[0]}"
    return Finding(row, "connection errors", f"only at {', '.join(windows) or 'no time'}", told, not other)
