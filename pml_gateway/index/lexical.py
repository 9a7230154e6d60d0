"""The lexical index: BM25 scores for the words of a query, over postings ordered by word."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pml_gateway.index.vectors import EXACT_LIMIT, SCANNED_ALLOWED

Indices = npt.NDArray[np.int32]
Offsets = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Postings:
    """Which of n documents holds each of w words, and how often: p pairs, by word and then by document."""

    vocabulary: dict[str, int]
    starts: Offsets
    """(w + 1,): the pairs of word `i` are those from `starts[i]` to `starts[i + 1]`."""
    owners: Indices
    """(p,) documents."""
    counts: Floats
    """(p,) weighted occurrences."""
    lengths: Floats
    """(n,) sums of the counts of each document."""

    def of(self, word: str) -> tuple[Indices, Floats]:
        """The documents that hold a word, ascending, and how often each does."""
        index = self.vocabulary.get(word)
        if index is None:
            return self.owners[:0], self.counts[:0]
        span = slice(self.starts[index], self.starts[index + 1])
        return self.owners[span], self.counts[span]


def count_words(documents: Iterable[Counter[str]]) -> Postings:
    """The postings of documents, in their order."""
    vocabulary: dict[str, int] = {}
    # machine numbers, not Python's: at a million documents the latter would take gigabytes
    terms, sizes, counts, lengths = array("i"), array("i"), array("f"), array("f")
    for words in documents:
        terms.extend(vocabulary.setdefault(word, len(vocabulary)) for word in words)
        counts.extend(words.values())
        sizes.append(len(words))
        lengths.append(words.total())
    owners = np.repeat(np.arange(len(sizes), dtype=np.int32), np.asarray(sizes, dtype=np.int32))
    return _ordered(
        vocabulary, np.asarray(terms, dtype=np.int32), owners, np.asarray(counts, np.float32), np.asarray(lengths)
    )


def rearranged(old: Postings, moved: Offsets, fresh: Postings, places: Offsets) -> Postings:
    """The postings of a changed catalog, without counting the words of documents that stay.

    Args:
        old: postings of the catalog before.
        moved: (n_old,) the new position of each document of `old`, -1 where it is gone.
        fresh: postings of the documents that came.
        places: (n_fresh,) their positions.
    """
    vocabulary = dict(old.vocabulary)
    renumbered = np.asarray([vocabulary.setdefault(word, len(vocabulary)) for word in fresh.vocabulary], dtype=np.int32)
    places_then = moved[old.owners]
    stays = places_then >= 0
    terms = np.concatenate((_terms(old)[stays], renumbered[_terms(fresh)]))
    owners = np.concatenate((places_then[stays], places[fresh.owners]))
    counts = np.concatenate((old.counts[stays], fresh.counts))
    lengths = np.zeros(int(np.count_nonzero(moved >= 0)) + len(places), dtype=np.float32)
    lengths[moved[moved >= 0]] = old.lengths[moved >= 0]
    lengths[places] = fresh.lengths
    return _ordered(vocabulary, terms, owners, counts, lengths)


def _terms(postings: Postings) -> Indices:
    return np.repeat(np.arange(len(postings.starts) - 1, dtype=np.int32), np.diff(postings.starts))


def _ordered(
    vocabulary: dict[str, int], terms: Indices, owners: Indices | Offsets, counts: Floats, lengths: Floats
) -> Postings:
    order = np.argsort((terms.astype(np.int64) << 32) | owners, kind="stable")
    starts = np.concatenate(([0], np.cumsum(np.bincount(terms, minlength=len(vocabulary))))).astype(np.int64)
    return Postings(vocabulary, starts, owners[order].astype(np.int32, copy=False), counts[order], lengths)


SATURATION = 1.2
"""BM25 k1: how quickly repeating a word stops counting."""

LENGTH_WEIGHT = 0.6
"""BM25 b: below the usual 0.75, because a long description of a tool is no sign of vagueness."""

MAX_QUERY_TERMS = 128
"""Bounds the work of one query; the first words of a longer text are kept."""

POSTINGS_READ = 150_000
"""Postings from which the candidates of one query are gathered in a large catalog, about 1.5 ms. Rarer words come
first; those left over are in so many tools that they decide between candidates only, where they count in full."""

CANDIDATES_SCORED = 2_000
"""Candidates of a large catalog that are scored by all words of the query, by their rarer words the best ones."""

Mask = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.int64]


class LexicalIndex:
    """BM25 over weighted word counts; every statistic is taken over the allowed documents only.

    So a mask gives exactly the scores of an index that was built without the other documents, and no score tells
    anything about documents that the caller may not see. Beyond `exact_limit` documents the scores stay as they are
    (up to the rounding of the average length), and the strongest are looked for among the holders of the rarer words.
    """

    def __init__(self, postings: Postings, *, exact_limit: int = EXACT_LIMIT) -> None:
        self._postings = postings
        self._exact = len(postings.lengths) <= exact_limit
        self._summed_length = float(postings.lengths.sum(dtype=np.float64))

    def match(self, terms: Sequence[str], allowed: Mask | None = None) -> Match:
        """The scores of distinct query stems over the allowed documents, mask (n,)."""
        lengths = self._postings.lengths
        total = len(lengths) if allowed is None else int(np.count_nonzero(allowed))
        words: list[_Word] = []
        if total and terms:
            average = max(self._average_length(total, allowed), 1.0)
            found = (self._word(term, total, average, allowed) for term in terms[:MAX_QUERY_TERMS])
            words = [word for word in found if word is not None]
        return Match(tuple(words), lengths, allowed, self._exact)

    def scores(self, terms: Sequence[str], allowed: Mask | None = None) -> Floats:
        """BM25 (n,) for distinct query stems; 0 where no word is shared or the mask `allowed` (n,) is false."""
        return self.match(terms, allowed).scores

    def knows(self, terms: Sequence[str], allowed: Mask | None = None) -> bool:
        """Whether each query stem occurs in an allowed document."""
        return all(_count(self._postings.of(term)[0], allowed) for term in terms)

    def _word(self, term: str, total: int, average: float, allowed: Mask | None) -> _Word | None:
        owners, counts = self._postings.of(term)
        frequency = _count(owners, allowed)
        if not frequency:
            return None
        weight = float(np.log1p((total - frequency + 0.5) / (frequency + 0.5)))
        return _Word(owners, counts, weight, average)

    def _average_length(self, total: int, allowed: Mask | None) -> float:
        if allowed is None:
            return self._summed_length / total
        lengths = self._postings.lengths
        if self._exact:
            # float64 sums of the same lengths in the same order: equal to those of an index of the allowed alone
            return float(lengths[allowed].sum(dtype=np.float64)) / total
        return float(np.dot(lengths, allowed)) / total


@dataclass(frozen=True, slots=True)
class _Word:
    """One word of a query, with the documents that hold it."""

    owners: Indices
    counts: Floats
    weight: float
    average: float

    def gains(self, lengths: Floats, span: slice | npt.NDArray[np.int64] = slice(None)) -> Floats:
        """What the word adds to the scores of its owners (k,), given the lengths of all documents (n,)."""
        counts = self.counts[span]
        length = 1 - LENGTH_WEIGHT + LENGTH_WEIGHT * lengths[self.owners[span]] / self.average
        gains = self.weight * (SATURATION + 1) * counts / (counts + SATURATION * length)
        return gains.astype(np.float32, copy=False)

    @property
    def most(self) -> float:
        """No document gains more by this word."""
        return self.weight * (SATURATION + 1)


@dataclass(frozen=True)
class Match:
    """The BM25 scores of one query, computed as far as they are asked for."""

    words: tuple[_Word, ...]
    lengths: Floats
    allowed: Mask | None
    exact: bool

    @cached_property
    def scores(self) -> Floats:
        """All scores (n,); 0 for documents that are not allowed."""
        values = np.zeros(len(self.lengths), dtype=np.float32)
        for word in self.words:
            values[word.owners] += word.gains(self.lengths)
        if self.allowed is not None:
            values[~self.allowed] = 0
        return values

    def at(self, positions: Positions) -> Floats:
        """The scores (k,) of the documents at `positions` (k,)."""
        if self.exact:
            return self.scores[positions]
        values = np.zeros(len(positions), dtype=np.float32)
        for word in self.words:
            places = np.searchsorted(word.owners, positions.astype(np.int32))
            places[places == len(word.owners)] = 0
            holds = word.owners[places] == positions
            values[holds] += word.gains(self.lengths, places[holds])
        if self.allowed is not None:
            values[~self.allowed[positions]] = 0
        return values

    def strongest(self, count: int) -> Positions:
        """The `count` documents with the highest scores, ascending, and all that tie with the last of them.

        Of a large catalog, at most `count`, and some may be missing whose score comes from common words alone.
        """
        if self.exact:
            return _strongest(np.flatnonzero(self.scores), self.scores, count)
        if not self.words or count <= 0:
            return np.zeros(0, dtype=np.int64)
        candidates = self._candidates(count)
        values = self.at(candidates)
        best = np.argsort(-values, kind="stable")[:count]
        return np.sort(candidates[best[values[best] > 0]])

    def _candidates(self, count: int) -> Positions:
        """Holders of the rarer words, `count` at least, until no other document can come in or enough were read."""
        if self.allowed is not None and np.count_nonzero(self.allowed) <= SCANNED_ALLOWED:
            return np.flatnonzero(self.allowed)
        words = sorted(self.words, key=lambda word: len(word.owners))
        left = sum(word.most for word in words)
        values = np.zeros(len(self.lengths), dtype=np.float32)
        read, certain = 0, 0.0
        for word in words:
            if certain and (certain > left or read + len(word.owners) > POSTINGS_READ):
                break
            values[word.owners] += word.gains(self.lengths)
            read += len(word.owners)
            left -= word.most
            reached = values[word.owners] if self.allowed is None else values[word.owners[self.allowed[word.owners]]]
            if len(reached) >= count:
                certain = max(certain, float(np.partition(reached, -count)[-count]))
        found = np.flatnonzero(values)
        if self.allowed is not None:
            found = found[self.allowed[found]]
        reachable = found[values[found] + np.float32(left) >= certain]
        return _strongest(reachable, values, max(CANDIDATES_SCORED, count))[: max(CANDIDATES_SCORED, count)]


def _strongest(matching: Positions, scores: Floats, count: int) -> Positions:
    if len(matching) <= count:
        return matching
    values = scores[matching]
    strongest: Positions = matching[values >= np.partition(values, -count)[-count]]
    return strongest


def _count(owners: Indices, allowed: Mask | None) -> int:
    return len(owners) if allowed is None else int(np.count_nonzero(allowed[owners]))
