"""Postings: turns the word counts of documents into arrays ordered by word, which are quick to read and to store."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
