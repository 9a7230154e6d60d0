"""Difficulty: turns what searches missed into the tools that are hard to find, and why."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from pml_gateway.index.evaluation import Outcome
from pml_gateway.index.names import squash
from pml_gateway.index.text import ToolDocument

FOUND_WITHIN = 5
"""Hits of one `search_tools` answer by default; a tool beyond them is as good as absent."""

FEW_WORDS = 4
"""`Get the user` says as little as the name does."""

RIVALS_NAMED = 3


@dataclass(frozen=True, slots=True)
class HardTool:
    """A tool that queries for it did not find, how often, and what stands in its way."""

    key: str
    missed: int
    asked: int
    reasons: tuple[str, ...]


def hard_tools(documents: Sequence[ToolDocument], outcomes: Sequence[Outcome]) -> list[HardTool]:
    """The tools missed at least once, the most missed first."""
    known = {document.key: document for document in documents}
    twins = _twins(documents)
    missed: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    ahead: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        found = [key for key, _ in outcome.scored[:FOUND_WITHIN]]
        for group in outcome.query.groups:
            asked.update(group)
            if group.isdisjoint(found):
                missed.update(group)
                for key in group:
                    ahead[key].update(found)
    return [
        HardTool(key, count, asked[key], _reasons(known.get(key), twins.get(key, ()), ahead[key]))
        for key, count in sorted(missed.items(), key=lambda item: (-item[1], item[0]))
    ]


def _reasons(document: ToolDocument | None, twins: Sequence[str], ahead: Counter[str]) -> tuple[str, ...]:
    if document is None:
        return ("no such tool in the catalog",)
    reasons: list[str] = []
    words = len(document.description.split())
    if not words:
        reasons.append("it has no description")
    elif words < FEW_WORDS:
        reasons.append(
            f"its description has {words} word{'s' if words > 1 else ''}: say what it does to what, and when"
        )
    if twins:
        reasons.append(f"{', '.join(twins[:RIVALS_NAMED])} has the same name and description")
    elif ahead:
        reasons.append(f"found instead: {', '.join(key for key, _ in ahead.most_common(RIVALS_NAMED))}")
    return tuple(reasons)


def _twins(documents: Sequence[ToolDocument]) -> dict[str, list[str]]:
    alike: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for document in documents:
        alike[squash(document.name), " ".join(document.description.split()).casefold()].append(document.key)
    return {key: [other for other in keys if other != key] for keys in alike.values() if len(keys) > 1 for key in keys}
