"""Names: finds the tool whose name is the query, in any spelling, even with a typo."""

from __future__ import annotations

import heapq
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from pml_gateway.index.evidence import Evidence, Floats, Mask, Positions, Query
from pml_gateway.index.text import ToolDocument, split_words

MAX_NAME_WORDS = 6
"""Maximum words of a query that can be a name; unknown words of longer ones are people and places, not typos."""

MIN_WORD = 5
"""Minimum letters of a corrected word: one letter turns shorter words into others, such as `back` into `bank`."""

MIN_NAME = 6
"""Minimum letters and digits of a name that is matched as a whole despite a typo."""

SLIPS_LIMIT = 50_000
"""Maximum number of tools for matching whole names despite a typo, with 40 variants of each; with more tools, typos
are corrected by word only."""

MAX_WORDS = 100_000
"""Maximum number of distinct words that typos are corrected to, 12 MB; the names of a million tools have fewer words
that several share."""

_TOKEN = re.compile(r"[^\W_]+")

EXACT, NEAR = np.float32(2), np.float32(1)
"""Strengths of a name as written, and in another spelling."""

Known = Callable[[str], bool]


class NameIndex(Evidence):
    """Evidence by names: as written, squashed to letters and digits, and by word for typos.

    Every answer depends on the allowed documents only, except that beyond the limits above, all documents decide which
    words and names are candidates for corrections.
    """

    def __init__(self, documents: Sequence[ToolDocument], *, slips_limit: int = SLIPS_LIMIT) -> None:
        self._exact = _Table(
            (folded, at)
            for at, document in enumerate(documents)
            for folded in {
                name.strip().casefold() for name in (document.key, document.name, f"{document.server}:{document.name}")
            }
        )
        squashed: set[str] = set()
        self._squashed = _Table(
            (name, at)
            for at, document in enumerate(documents)
            for name in _squashed_names(document, squashed if len(documents) <= slips_limit else set())
        )
        counts: Counter[str] = Counter()
        self._words = _Table(
            (word, at) for at, document in enumerate(documents) for word in _name_words(document, counts)
        )
        self._near_words = _Slips(heapq.nlargest(MAX_WORDS, counts, key=lambda word: (counts[word], word)))
        self._near_names = _Slips(squashed)

    def candidates(self, query: Query) -> list[Positions]:
        """Return the tools whose name is the query, in any spelling."""
        return [np.asarray(found, dtype=np.int64) for found in self._found(query)]

    def at(self, query: Query, positions: Positions) -> Floats:
        """Return EXACT or NEAR for tools whose name is the query, 0 for others; names of steps do not count."""
        strengths = np.zeros((1, len(positions)), dtype=np.float32)
        for found, strength in zip(self._found(query), (EXACT, NEAR), strict=True):
            if found:
                strengths[:, np.isin(positions, found) & (strengths[0] == 0)] = strength
        return strengths

    def _found(self, query: Query) -> tuple[list[int], list[int]]:
        def find() -> tuple[list[int], list[int]]:
            return self.exact(query.asked, query.allowed), self.near(query.texts[0], query.allowed, query.known)

        return query.once(self, find)

    def exact(self, query: str, allowed: Mask | None) -> list[int]:
        """Return the allowed documents whose qualified name, bare name or `server:name` equals the query."""
        return _allowed(self._exact.get(query.casefold()), allowed)

    def near(self, query: str, allowed: Mask | None, known: Known) -> list[int]:
        """Return the allowed documents whose name has the letters and digits of the query: `read file` is `readFile`.

        If there is none and the query has an unknown word, a name with one typo also matches.
        """
        if not _is_short(query):
            return []
        name = squash(query)
        found = _allowed(self._squashed.get(name), allowed)
        if found or len(name) < MIN_NAME or all(map(known, _TOKEN.findall(query))):
            return found
        closest = _closest(name, self._near_names, self._squashed, allowed)
        return _allowed(self._squashed.get(closest), allowed) if closest else []

    def spelled(self, query: str, allowed: Mask | None, known: Known) -> str:
        """Return a short query with its unknown words replaced by words of allowed names that are one typo away."""
        if not _is_short(query):
            return query

        def replaced(match: re.Match[str]) -> str:
            word = match.group()
            if len(word) < MIN_WORD or not word.isascii() or not word.isalpha() or known(word):
                return word
            return _closest(word.casefold(), self._near_words, self._words, allowed) or word

        return _TOKEN.sub(replaced, query)


class _Table:
    """Positions by string, of which only hashes are kept: 12 bytes each instead of 200.

    Python's hash has a new key in every process, so no author of a tool can choose names that collide; by chance, two
    of three million strings do so once in four million catalogs.
    """

    def __init__(self, named: Iterable[tuple[str, int]]) -> None:
        hashes, positions = array("q"), array("i")
        for name, at in named:
            if name:
                hashes.append(hash(name))
                positions.append(at)
        order = np.argsort(np.asarray(hashes, dtype=np.int64), kind="stable")
        self._hashes = np.asarray(hashes, dtype=np.int64)[order]
        self._positions = np.asarray(positions, dtype=np.int32)[order]

    def get(self, name: str) -> npt.NDArray[np.int32]:
        """Return the positions with this name, ascending."""
        wanted = np.int64(hash(name))
        first, end = np.searchsorted(self._hashes, wanted), np.searchsorted(self._hashes, wanted, side="right")
        return self._positions[first:end]


class _Slips:
    """Strings by their variants with one letter left out: two strings one typo apart have a variant in common."""

    def __init__(self, strings: Iterable[str]) -> None:
        self._strings = sorted(strings)
        self._table = _Table(
            (slip, number) for number, string in enumerate(self._strings) for slip in _with_one_letter_less(string)
        )

    def around(self, string: str) -> set[str]:
        """Return the strings one typo away from this one."""
        return {self._strings[at] for slip in _with_one_letter_less(string) for at in self._table.get(slip).tolist()}


def squash(name: str) -> str:
    """Return the letters and digits of a name, in lower case."""
    return "".join(_TOKEN.findall(name)).casefold()


def _closest(word: str, slips: _Slips, among: _Table, allowed: Mask | None) -> str | None:
    """Return the string one typo from `word`, with the same first letter, that the most allowed documents have."""
    close = [candidate for candidate in slips.around(word) if candidate[0] == word[0]]
    counted = [(-len(_allowed(among.get(candidate), allowed)), candidate) for candidate in close]
    return min((found for found in counted if found[0]), default=(0, None))[1]


def _squashed_names(document: ToolDocument, seen: set[str]) -> set[str]:
    """Return both squashed names of a document, and add them to `seen`."""
    names = {squash(document.name), squash(document.server + document.name)} - {""}
    seen |= names
    return names


def _name_words(document: ToolDocument, counts: Counter[str]) -> set[str]:
    """Return the distinct longer words of a document's names, and add them to `counts`."""
    words = f"{split_words(document.server)} {split_words(document.name)}".casefold().split()
    longer = {word for word in words if len(word) >= MIN_WORD}
    counts.update(longer)
    return longer


def _with_one_letter_less(word: str) -> Iterator[str]:
    yield word
    yield from {word[:at] + word[at + 1 :] for at in range(len(word))}


def _allowed(positions: npt.NDArray[np.int32], allowed: Mask | None) -> list[int]:
    found: list[int] = (positions if allowed is None else positions[allowed[positions]]).tolist()
    return found


def _is_short(query: str) -> bool:
    return len(query.split()) <= MAX_NAME_WORDS
