"""Names: turns a query that is the name of a tool, however it is written or mistyped, into that tool."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pml_gateway.index.text import ToolDocument, split_words

MAX_NAME_WORDS = 6
"""A query with more words is a sentence; its unknown words are names of people and places, not slips."""

MIN_WORD = 5
"""One letter in a shorter word often makes another word: nobody who writes `back` means `bank`."""

MIN_NAME = 6
"""Letters and digits of a name that may be mistyped as a whole."""

_TOKEN = re.compile(r"[^\W_]+")

Mask = npt.NDArray[np.bool_]
Known = Callable[[str], bool]


class NameIndex:
    """The names of documents: as they are, squashed to letters and digits, and word by word for slips.

    Every answer depends on the allowed documents only.
    """

    def __init__(self, documents: Sequence[ToolDocument]) -> None:
        self._exact = _positions(
            (folded, at)
            for at, document in enumerate(documents)
            for folded in {
                name.strip().casefold() for name in (document.key, document.name, f"{document.server}:{document.name}")
            }
        )
        self._squashed = _positions(
            (squashed, at)
            for at, document in enumerate(documents)
            for squashed in {squash(document.name), squash(document.server + document.name)}
        )
        self._words = _positions((word, at) for at, document in enumerate(documents) for word in _name_words(document))
        self._slips: defaultdict[str, list[str]] = defaultdict(list)
        for word in self._words.keys() | self._squashed.keys():
            for slip in _with_one_letter_less(word):
                self._slips[slip].append(word)

    def exact(self, query: str, allowed: Mask | None) -> list[int]:
        """Allowed documents whose qualified name, bare name or `server:name` the query is."""
        return _allowed(self._exact.get(query.casefold(), ()), allowed)

    def near(self, query: str, allowed: Mask | None, known: Known) -> list[int]:
        """Allowed documents whose name has the letters and digits of the query: `read file` is `readFile`.

        If there is none and the query has an unknown word, a name may be one slip away.
        """
        if not _is_short(query):
            return []
        name = squash(query)
        found = _allowed(self._squashed.get(name, ()), allowed)
        if found or len(name) < MIN_NAME or all(map(known, _TOKEN.findall(query))):
            return found
        closest = self._closest(name, self._squashed, allowed)
        return _allowed(self._squashed[closest], allowed) if closest else []

    def spelled(self, query: str, allowed: Mask | None, known: Known) -> str:
        """A short query with its unknown words replaced by words of allowed names that are one slip away."""
        if not _is_short(query):
            return query

        def replaced(match: re.Match[str]) -> str:
            word = match.group()
            if len(word) < MIN_WORD or not word.isascii() or not word.isalpha() or known(word):
                return word
            return self._closest(word.casefold(), self._words, allowed) or word

        return _TOKEN.sub(replaced, query)

    def _closest(self, word: str, among: Mapping[str, Sequence[int]], allowed: Mask | None) -> str | None:
        close = {
            candidate
            for slip in _with_one_letter_less(word)
            for candidate in self._slips.get(slip, ())
            if candidate in among and candidate[0] == word[0]
        }
        counted = [(-len(_allowed(among[candidate], allowed)), candidate) for candidate in close]
        return min((found for found in counted if found[0]), default=(0, None))[1]


def squash(name: str) -> str:
    """The letters and digits of a name, in small letters."""
    return "".join(_TOKEN.findall(name)).casefold()


def _name_words(document: ToolDocument) -> set[str]:
    words = f"{split_words(document.server)} {split_words(document.name)}".casefold().split()
    return {word for word in words if len(word) >= MIN_WORD}


def _with_one_letter_less(word: str) -> Iterator[str]:
    """The word, and each way to leave out one of its letters: words one slip apart have one of these in common."""
    yield word
    yield from {word[:at] + word[at + 1 :] for at in range(len(word))}


def _positions(named: Iterable[tuple[str, int]]) -> dict[str, tuple[int, ...]]:
    positions: defaultdict[str, list[int]] = defaultdict(list)
    for name, at in named:
        if name:
            positions[name].append(at)
    return {name: tuple(found) for name, found in positions.items()}


def _allowed(positions: Sequence[int], allowed: Mask | None) -> list[int]:
    return list(positions) if allowed is None else [at for at in positions if allowed[at]]


def _is_short(query: str) -> bool:
    return len(query.split()) <= MAX_NAME_WORDS
