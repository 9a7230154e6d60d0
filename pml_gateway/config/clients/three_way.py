"""Two edits of one text become one text with both, where they do not touch each other."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

MAX_CHANGED_LINES = 5_000
"""difflib takes seconds beyond; the caller has another way."""

Change = tuple[int, int, Sequence[str]]
"""Lines of the base that are replaced, and what by."""


def merged(base: str, ours: str, theirs: str) -> str | None:
    """`base` with both edits; None where they overlap, or are too large to compare."""
    lines = base.splitlines(keepends=True)
    first = _changes(lines, ours.splitlines(keepends=True))
    second = _changes(lines, theirs.splitlines(keepends=True))
    if first is None or second is None:
        return None
    if any(_overlap(mine, other) for mine in first for other in second):
        return None
    for start, end, replacement in sorted([*first, *second], key=lambda change: change[:2], reverse=True):
        lines[start:end] = replacement
    return "".join(lines)


def _overlap(mine: Change, other: Change) -> bool:
    """Whether both change a line, or add some at one place, where either could come first."""
    return mine[:2] == other[:2] or (mine[0] < other[1] and other[0] < mine[1])


def _changes(before: Sequence[str], after: Sequence[str]) -> list[Change] | None:
    same = 0
    while same < min(len(before), len(after)) and before[same] == after[same]:
        same += 1
    tail = 0
    while tail < min(len(before), len(after)) - same and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    middle, new = before[same : len(before) - tail], after[same : len(after) - tail]
    if max(len(middle), len(new)) > MAX_CHANGED_LINES:
        return None
    matcher = SequenceMatcher(None, middle, new, autojunk=False)
    return [
        (same + start, same + end, new[new_start:new_end])
        for kind, start, end, new_start, new_end in matcher.get_opcodes()
        if kind != "equal"
    ]
