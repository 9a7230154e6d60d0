"""Difficulty: turns tools and what searches missed into the tools that are hard to find, and why."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from pml_gateway.index.evaluation import Outcome
from pml_gateway.index.names import squash
from pml_gateway.index.text import UNSPACED, ToolDocument

FOUND_WITHIN = 5
"""Hits of one `search_tools` answer by default; a tool beyond them is as good as absent."""

FEW_WORDS = 4
"""`Get the user` says as little as the name does."""

RIVALS_NAMED = 3


@dataclass(frozen=True, slots=True)
class HardTool:
    """A tool that queries did not find or hardly can, how often, and what stands in its way."""

    key: str
    missed: int
    asked: int
    reasons: tuple[str, ...]


def hard_tools(documents: Sequence[ToolDocument], outcomes: Sequence[Outcome]) -> list[HardTool]:
    """The tools missed at least once or with a text to find them by that is at fault, the most missed first."""
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
    reasons = {document.key: _faults(document, twins.get(document.key, ())) for document in documents}
    for key in missed:
        if key not in known:
            reasons[key] = ("no such tool in the catalog",)
        elif not twins.get(key):
            rivals = _listed([rival for rival, _ in ahead[key].most_common()])
            reasons[key] = (*reasons[key], f"found instead: {rivals}" if rivals else "nothing was found")
    hard = [HardTool(key, missed[key], asked[key], why) for key, why in reasons.items() if why or missed[key]]
    return sorted(hard, key=lambda tool: (-tool.missed, tool.key))


def _faults(document: ToolDocument, twins: Sequence[str]) -> tuple[str, ...]:
    """What is wrong with the text of a tool, whether or not a query met it."""
    faults: list[str] = []
    words = len(document.description.split())
    if not words:
        faults.append("it has no description")
    elif words < FEW_WORDS and not UNSPACED.search(document.description):
        faults.append(f"its description has {words} word{'s' if words > 1 else ''}: say what it does to what, and when")
    if twins:
        same = "the same description" if words else "the same name and no description either"
        faults.append(f"duplicate: {_listed(twins)} {'has' if len(twins) == 1 else 'have'} {same}")
    return tuple(faults)


def _listed(keys: Sequence[str]) -> str:
    more = len(keys) - RIVALS_NAMED
    return ", ".join(keys[:RIVALS_NAMED]) + (f" and {more} more" if more > 0 else "")


def _twins(documents: Sequence[ToolDocument]) -> dict[str, list[str]]:
    """The tools that say the same as each; without a description the name speaks."""
    alike: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for document in documents:
        described = " ".join(document.description.split()).casefold()
        alike[described, "" if described else squash(document.name)].append(document.key)
    return {key: [other for other in keys if other != key] for keys in alike.values() if len(keys) > 1 for key in keys}
