"""What messages share: numbers with their nouns (`1 call`, `1,234 entries`), texts made shorter, what was meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from rapidfuzz import process
from rapidfuzz.distance import Indel

_SENTENCE_END = re.compile(r"(?<=[.!?])\s|\n\s*\n")

LIKENESS = 0.6
"""Share of letters in common, in order, from which a known name is taken for the one that was meant."""

MAX_COMPARED = 200
"""Characters of a name that are compared; a longer one is no slip, and likeness takes the product of both lengths."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """The number with the noun in the form that belongs to it; `plural` where that is not the noun with an s."""
    return f"{number:,} {plural_of(number, noun, plural)}"


def plural_of(number: int, noun: str, plural: str = "") -> str:
    """The form of `noun` that belongs to the number."""
    if number == 1:
        return noun
    return plural or f"{noun}s"


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters of the text."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def first_sentence(description: str, limit: int = 160) -> str:
    """The first sentence of a description on one line, shortened at a word if it is longer than `limit` characters."""
    sentence = " ".join(_SENTENCE_END.split(description.strip(), maxsplit=1)[0].split())
    if len(sentence) <= limit:
        return sentence
    return sentence[: limit - 1].rsplit(" ", 1)[0].rstrip(",;:") + "…"


def nearest(name: object, known: Iterable[str], *, count: int = 1, likeness: float = LIKENESS) -> list[str]:
    """Up to `count` of the known names that are most like `name`, best first; case and hyphens make no difference."""
    spellings = {each: folded(each) for each in known}
    return list(likenesses(folded(str(name)), spellings, count=count, likeness=likeness))


def likenesses(
    spelled: str, spellings: Mapping[str, str], *, count: int = 1, likeness: float = LIKENESS
) -> dict[str, float]:
    """`nearest` for many names, whose spellings are kept: how like each of the nearest is, from `likeness` to 1."""
    found = process.extract(spelled, spellings, scorer=Indel.normalized_similarity, score_cutoff=likeness, limit=count)
    return {name: score for _, score, name in found}


def folded(name: str) -> str:
    """The name as it is compared."""
    return name[:MAX_COMPARED].lower().replace("-", "_")


def did_you_mean(names: Iterable[str]) -> str:
    """`did you mean a, b?`, or nothing where there are no names."""
    listed = ", ".join(names)
    return f"did you mean {listed}?" if listed else ""


def suggestion(name: object, known: Iterable[str], *, likeness: float = LIKENESS) -> str:
    """`; did you mean X?` for the end of a message, or nothing where no known name is near."""
    meant = did_you_mean(nearest(name, known, likeness=likeness))
    return f"; {meant}" if meant else ""
