"""Words: BM25 scores of documents for the words of a query, as evidence."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pml_gateway.index.evidence import Evidence, Floats, Mask, Positions, Query

SATURATION = 1.2
"""BM25 k1: how quickly repeating a word stops counting."""

LENGTH_WEIGHT = 0.6
"""BM25 b: below the usual 0.75, because a long description of a tool is no sign of vagueness."""

MAX_QUERY_TERMS = 128
"""Maximum number of words of a query, to bound its cost; of a longer text, the first words are kept."""

LEXICAL_DOUBT = 40.0
"""BM25 units at which lexical evidence counts half. A common word or two (BM25 of 3) then add almost nothing (0.01),
rare words of a name (30 and more) outweigh most cosines (0.4): paraphrases are ranked by meaning, quoted words by
words."""

REFERENCE_TOOLS = 400
"""Size of the catalog to which BM25 units refer. The same word in the same tool is worth three times as much among
14,000 tools as among 45; unscaled, single words of a paraphrase outweighed its meaning in large catalogs."""

Indices = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Postings:
    """The occurrences of w words in n documents: p (word, document) pairs, ordered by word and then by document."""

    vocabulary: dict[str, int]
    starts: Positions
    """(w + 1,): the pairs of word `i` are those from `starts[i]` to `starts[i + 1]`."""
    owners: Indices
    """(p,) positions of documents."""
    counts: Floats
    """(p,) weighted occurrences."""
    lengths: Floats
    """(n,) sums of the counts of each document."""

    def of(self, word: str) -> tuple[Indices, Floats]:
        """Return the documents that contain a word, ascending, and its count in each."""
        index = self.vocabulary.get(word)
        if index is None:
            return self.owners[:0], self.counts[:0]
        span = slice(self.starts[index], self.starts[index + 1])
        return self.owners[span], self.counts[span]


def count_words(documents: Iterable[Counter[str]]) -> Postings:
    """Return the postings of documents, in their order."""
    vocabulary: dict[str, int] = {}
    # arrays of machine numbers: at 100,000 documents, lists of Python numbers would take hundreds of megabytes
    terms, sizes, counts, lengths = array("i"), array("i"), array("f"), array("f")
    for words in documents:
        terms.extend(vocabulary.setdefault(word, len(vocabulary)) for word in words)
        counts.extend(words.values())
        sizes.append(len(words))
        lengths.append(words.total())
    numbers = np.asarray(terms, dtype=np.int32)
    owners = np.repeat(np.arange(len(sizes), dtype=np.int32), np.asarray(sizes, dtype=np.int32))
    order = np.argsort(numbers, kind="stable")
    starts = np.concatenate(([0], np.cumsum(np.bincount(numbers, minlength=len(vocabulary))))).astype(np.int64)
    return Postings(vocabulary, starts, owners[order], np.asarray(counts, np.float32)[order], np.asarray(lengths))


class LexicalIndex(Evidence):
    """Evidence by words alone: BM25 over weighted word counts; every statistic covers the allowed documents only.

    So a mask gives exactly the scores of an index that was built without the other documents, and no score reveals
    anything about documents that the caller may not see.
    """

    def __init__(self, postings: Postings) -> None:
        self._postings = postings
        self._summed_length = float(postings.lengths.sum(dtype=np.float64))

    def scores(self, terms: Sequence[str], allowed: Mask | None = None) -> Floats:
        """Return BM25 scores (n,) for distinct query stems; 0 without a shared word or outside the mask (n,)."""
        lengths = self._postings.lengths
        values = np.zeros(len(lengths), dtype=np.float32)
        total = len(lengths) if allowed is None else int(np.count_nonzero(allowed))
        if not total or not terms:
            return values
        average = max(self._average_length(total, allowed), 1.0)
        for term in terms[:MAX_QUERY_TERMS]:
            owners, counts = self._postings.of(term)
            frequency = _count(owners, allowed)
            if frequency:
                weight = float(np.log1p((total - frequency + 0.5) / (frequency + 0.5)))
                length = 1 - LENGTH_WEIGHT + LENGTH_WEIGHT * lengths[owners] / average
                values[owners] += weight * (SATURATION + 1) * counts / (counts + SATURATION * length)
        if allowed is not None:
            values[~allowed] = 0
        return values

    def found(self, query: Query) -> Floats:
        """Return the BM25 scores (t, n) of all documents for each text of a query."""
        return query.once(self, lambda: np.stack([self.scores(each, query.allowed) for each in query.tokens]))

    def candidates(self, query: Query) -> list[Positions]:
        return [strongest(scores, count) for scores, count in zip(self.found(query), query.wanted, strict=True)]

    def at(self, query: Query, positions: Positions) -> Floats:
        """Return log(1 + BM25)."""
        logarithms: Floats = np.log1p(self.found(query)[:, positions])
        return logarithms

    def knows(self, terms: Sequence[str], allowed: Mask | None = None) -> bool:
        """Return True if each query stem occurs in an allowed document."""
        return all(_count(self._postings.of(term)[0], allowed) for term in terms)

    def _average_length(self, total: int, allowed: Mask | None) -> float:
        if allowed is None:
            return self._summed_length / total
        # float64 sums of the same lengths in the same order: equal to those of an index of the allowed documents only
        return float(self._postings.lengths[allowed].sum(dtype=np.float64)) / total


class Words(Evidence):
    """Evidence by words next to other evidence: BM25 units that count little while they are few.

    Absolute evidence, unlike ranks or z-scores: it needs no statistics of other tools except their number, so hidden
    tools leave no trace, and a catalog of two tools is scored like one of a thousand.
    """

    def __init__(self, index: LexicalIndex) -> None:
        self._index = index

    def candidates(self, query: Query) -> list[Positions]:
        return self._index.candidates(query)

    def at(self, query: Query, positions: Positions) -> Floats:
        units = self.units(query, positions)
        return units * share(units)

    def units(self, query: Query, positions: Positions) -> Floats:
        """Return BM25 units (t, k), scaled to a catalog of REFERENCE_TOOLS."""
        scale = np.float32(np.log1p(REFERENCE_TOOLS) / np.log1p(max(query.tools, 1)))
        return self._index.found(query)[:, positions] * scale


def share(units: Floats) -> Floats:
    """Return the share of BM25 units (t, k) that counts."""
    return units / (units + np.float32(LEXICAL_DOUBT))


def strongest(scores: Floats, count: int) -> Positions:
    """Return the `count` documents with the highest scores (n,) above 0, ascending, plus all ties with the last one."""
    matching = np.flatnonzero(scores)
    if len(matching) <= count:
        return matching
    values = scores[matching]
    best: Positions = matching[values >= np.partition(values, -count)[-count]]
    return best


def _count(owners: Indices, allowed: Mask | None) -> int:
    return len(owners) if allowed is None else int(np.count_nonzero(allowed[owners]))
