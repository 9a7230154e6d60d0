"""Helpers for messages: numbers with nouns (`1 call`), shortened and escaped texts, suggestions."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rapidfuzz import process
from rapidfuzz.distance import Indel

_SENTENCE_END = re.compile(r"(?<=[.!?])\s|\n\s*\n")

LIKENESS = 0.6
"""Share of letters in common, in order, from which a known name is taken for the one that was meant."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W_A-Za-z0-9]+")

MAX_COMPARED = 200
"""Characters of a name that are compared; a longer one is no slip, and likeness takes the product of both lengths."""


def utc(at: float | None = None) -> str:
    """Return a moment, by default now, as RFC 3339 in UTC with milliseconds."""
    moment = time.time() if at is None else at
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(moment))}.{int(moment % 1 * 1000):03d}Z"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return the number with the noun in the form that belongs to it; `plural` where that is not the noun with an s."""
    return f"{number:,} {plural_of(number, noun, plural)}"


def plural_of(number: int, noun: str, plural: str = "") -> str:
    """Return the form of `noun` that belongs to the number."""
    if number == 1:
        return noun
    return plural or f"{noun}s"


def span(seconds: float) -> str:
    """Return a length of time as people say it: `90 s`, `5 min`, `3 h`, `2 d`."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def shown_score(score: float) -> str:
    """Return two digits of a score, rounded down, so that one below a threshold does not read as if it reached it."""
    nearest_score = float(f"{score:.2f}")
    return f"{nearest_score - 0.01 if nearest_score > score else nearest_score:.2f}"


def some_of(names: Sequence[str], limit: int = 3) -> str:
    """Return the first of several names, and how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"{', '.join(names[:limit])}{more}"


def quoted(name: str) -> str:
    """Return a name as it is typed in a command."""
    is_plain = all(character.isalnum() or character in "-_.@/:" for character in name)
    return name if is_plain else repr(name)


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters of the text."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def as_field(key: str) -> str:
    """Return a key of an object as it is written in a JMESPath expression."""
    return key if key.isidentifier() and key.isascii() else json.dumps(key, ensure_ascii=False)


def first_sentence(description: str, limit: int = 160) -> str:
    """Return the first sentence of a description on one line, shortened at a word to `limit` characters."""
    sentence = " ".join(_SENTENCE_END.split(description.strip(), maxsplit=1)[0].split())
    if len(sentence) <= limit:
        return sentence
    return sentence[: limit - 1].rsplit(" ", 1)[0].rstrip(",;:") + "…"


_UNSEEN = (
    # Controls (C0, DEL, C1), and everything that separates, joins, directs, fills or tags without being seen.
    "\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u2800\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_STYLES = "\ufe0e\ufe0f"
"""Text or emoji: one behind a character that is seen belongs to it, more of them could spell something."""

_TO_ESCAPE = re.compile(f"[{_UNSEEN}]|(?<=[{_UNSEEN}{_STYLES}])[{_STYLES}]")


def escaped(text: str, but: str = "") -> str:
    """Escape whatever a terminal would obey or no reader sees, except the characters of `but`."""
    if text.isascii() and text.isprintable():
        return text
    return _TO_ESCAPE.sub(lambda found: found[0] if found[0] in but else _escape(found[0]), text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def escaped_json(value: Any, indent: int | None = None, default: Callable[[Any], Any] | None = None) -> str:
    """Return the value as JSON that says the same, and of which everything is seen and can be encoded."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=default)
    if text.isascii() and text.isprintable():
        return text
    # Between strings are line ends only; json.dumps escapes those within, so that each match stands in a string.
    return _TO_ESCAPE.sub(lambda found: found[0] if found[0] == "\n" else json.dumps(found[0])[1:-1], text)


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
    """Return the name as it is compared."""
    return name[:MAX_COMPARED].lower().replace("-", "_")


def words_of(name: str) -> tuple[str, ...]:
    """Return the words of a name without case and separators: `listIssues` has those of `LIST-ISSUES`."""
    return tuple(word.casefold() for word in _WORD.findall(name[:MAX_COMPARED]))


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text that lists them."""
    return frozenset(text.split())


def did_you_mean(names: Iterable[str]) -> str:
    """`did you mean a, b?`, or nothing where there are no names."""
    listed = ", ".join(names)
    return f"did you mean {listed}?" if listed else ""


def suggestion(name: object, known: Iterable[str], *, likeness: float = LIKENESS) -> str:
    """`; did you mean X?` for the end of a message, or nothing where no known name is near."""
    meant = did_you_mean(nearest(name, known, likeness=likeness))
    return f"; {meant}" if meant else ""
