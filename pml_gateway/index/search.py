"""The tool index: finds the tools that serve an intent, best first, by meaning and by words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import assert_never

import numpy as np
import numpy.typing as npt

from pml_gateway.index.cache import EmbeddingCache
from pml_gateway.index.calibration import LEXICAL_CURVE, CalibratedEmbedder, Calibration, Curve, shipped_calibration
from pml_gateway.index.clauses import combine, interleaved, split_clauses, with_server_evidence
from pml_gateway.index.embedder import Embedder, Embeddings, embed_query
from pml_gateway.index.lexical import LexicalIndex, count_words, strongest
from pml_gateway.index.names import NameIndex
from pml_gateway.index.request_vectors import RequestVectors, encoded
from pml_gateway.index.text import (
    MAX_QUERY_CHARACTERS,
    ToolDocument,
    dense_text,
    lexical_tokens,
    query_tokens,
    well_formed,
)
from pml_gateway.index.vectors import Mask, Positions, VectorIndex
from pml_gateway.index.verbs import LEXICAL_SCALE, actions_of, in_words_of_tools, losses
from pml_gateway.index.wording import UNKNOWN_SHARE, in_words_of_answers, unknown_words
from pml_gateway.types import Ranking

LEXICAL_WEIGHT = 0.03
"""Cosine gained per BM25 unit once the evidence is strong."""

LEXICAL_DOUBT = 40.0
"""BM25 units at which lexical evidence counts half. A common word or two (BM25 of 3) then add almost nothing (0.01),
rare words of a name (30 and more) outweigh most cosines (0.4): paraphrases are ranked by meaning, quoted words by
words."""

REFERENCE_TOOLS = 400
"""Size of the catalog to which the BM25 units of the two constants refer. The same word in the same tool is worth three
times as much among 14,000 tools as among 45; unscaled, single words of a paraphrase outweighed its meaning in large
catalogs."""

UNKNOWN_COSINE, UNKNOWN_GAIN, MAX_UNKNOWN = np.float32(0.07), np.float32(1.9), np.float32(0.75)
"""Estimate of an unknown cosine from matching words: the base, the gain by lexical share, and the maximum. Fitted to
11,000 candidates of 490 queries over four labelled sets, in which words explain a third of the variance; the gain is a
quarter above the mean, because among several candidates with a vector the luckiest one counts."""

Floats = npt.NDArray[np.float32]


def fuse(cosines: Floats, lexical: Floats, tools: int) -> Floats:
    """Return raw strengths (n,) from cosines on the shipped model's scale and BM25 values (n,), among `tools` tools.

    Absolute evidence, unlike ranks or z-scores: it needs no statistics of other tools except their number, so hidden
    tools leave no trace, and a catalog of two tools is scored like one of a thousand. A cosine that is not known yet
    (NaN) counts as much as the average of tools with the same words, so that a tool neither gains nor loses by it.
    """
    scaled = lexical * np.float32(np.log1p(REFERENCE_TOOLS) / np.log1p(max(tools, 1)))
    share = scaled / (scaled + np.float32(LEXICAL_DOUBT))
    unknown = np.isnan(cosines)
    if unknown.any():
        cosines = np.where(unknown, np.minimum(UNKNOWN_COSINE + UNKNOWN_GAIN * share, MAX_UNKNOWN), cosines)
    fused: Floats = cosines + np.float32(LEXICAL_WEIGHT) * scaled * share
    return fused


OWN_WEIGHT, MEAN_WEIGHT, BEST_WEIGHT = np.float32(0.3), np.float32(0.3), np.float32(0.5)
"""Weights of a tool's own text, of the mean of its requests, and of the nearest of all these. Their sum is above one,
because more texts give more certainty. Fitted with requests for half of the tools, to the odds of the right one among
all; with the nearest request instead of the nearest of all, a tool whose own text matches the query falls behind."""

COMPARED = 50
"""Number of tools nearest to a query by their own texts, from which the usual gain by requests is estimated. With 20,
the right tools are too large a part."""

DOUBTED = 4
"""Number of imaginary tools with a gain of zero in that estimate: if almost no tools have requests, those that do keep
their gain."""

LUCK = np.float32(0.015)
"""Added to the usual gain, because among several wrong tools with requests the luckiest one counts. Without it, tools
without requests lose .04 recall@1 if others have some; with .03, requests are worth a third less."""


def with_request_evidence(cosines: Floats, mean: Floats, best: Floats) -> Floats:
    """Return the cosines (n,) of tools, adjusted by the mean and best cosines of their requests (n,), NaN if none.

    The similarity of requests depends on the model and on the wording of the query, so only the gain above the usual
    one for this query counts. A tool without requests counts as usual: it keeps its cosine, and neither gains nor loses
    by the requests of others.
    """
    told = ~np.isnan(cosines + mean)
    nearest_of_all = np.fmax(cosines, best)
    more = (OWN_WEIGHT - 1) * cosines + MEAN_WEIGHT * mean + BEST_WEIGHT * nearest_of_all
    compared = np.argsort(-cosines, kind="stable")[:COMPARED]
    added = more[compared[told[compared]]]
    usual = (added + LUCK).sum() / np.float32(len(added) + DOUBTED)
    changed: Floats = np.where(told, cosines + more - usual, cosines)
    return changed


NEAR_COSINE = 0.2
"""Minimum cosine of a single word and the nearest tool for the word to be known: `folder`, `photo` and `mortgage` have
.3 and more if a tool deals with such things, `issue`, `email` and `pizza` .1 if none does. With .25, three in a hundred
of our own requests count as unknown although a tool serves them."""

MIN_CANDIDATES = 200
"""Minimum number of candidates from each half; a tool beyond the first 200 of both halves is never the best."""

CLAUSE_CANDIDATES = 50
"""Number of candidates for each step of a request with several steps."""

ENCODED_AT_ONCE = 1_000
"""Number of tools between two pauses of a build, about 3 s."""

EXACT_SCORE = 1.0
NEAR_SCORE = 0.999
"""Score of a name in another spelling; also the highest score that evidence alone can reach."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A found tool, its position in the index, and its calibrated score: 0 to 1, 1.0 only for an exact name."""

    position: int
    key: str
    score: float


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Hits, best first, and the ranking actually used: lexical if there is no model."""

    hits: tuple[Hit, ...]
    ranking: Ranking
    unknown: tuple[str, ...] = ()
    """Subject words of the query that no tool knows; they lower all scores, unless the query names a tool."""


@dataclass(frozen=True, slots=True)
class _DenseHalf:
    embedder: Embedder
    vectors: VectorIndex
    calibration: Calibration
    requests: RequestVectors

    def cosines(self, vectors: Sequence[Floats], positions: Positions) -> list[Floats]:
        """Return cosines (k,) of the tools at `positions` with each query (dimension,), on the scale of the curves."""
        scaled = self.calibration.cosines
        own = [scaled(self.vectors.similarities(vector, positions)) for vector in vectors]
        if not self.requests:
            return own
        said = self.requests.evidence(np.stack(vectors), positions)
        return [
            with_request_evidence(near, scaled(mean), scaled(best))
            for near, mean, best in zip(own, said.mean, said.best, strict=True)
        ]


class ToolIndex:
    """An immutable index over tool documents; searches may run in several threads at once."""

    def __init__(self, documents: tuple[ToolDocument, ...], lexical: LexicalIndex, dense: _DenseHalf | None) -> None:
        self.documents = documents
        self.encoded: Mask | None = None
        """Mask (n,) of the documents that have a vector, while vectors are missing; None if none is missing."""
        self._lexical = lexical
        self._dense = dense
        self._names = NameIndex(documents)
        numbers: dict[str, int] = {}
        servers = [numbers.setdefault(document.server, len(numbers)) for document in documents]
        self._servers = np.asarray(servers, dtype=np.int64)
        self._actions = np.asarray([actions_of(document) for document in documents], dtype=np.int64)

    @classmethod
    def build(
        cls,
        documents: Sequence[ToolDocument],
        embedder: Embedder | None,
        cache: EmbeddingCache | None = None,
        *,
        pause: Callable[[], None] = lambda: None,
        requests: RequestVectors | None = None,
    ) -> ToolIndex:
        """Index documents.

        Args:
            documents: the tools.
            embedder: without one, every search is lexical.
            cache: with one, only new texts are encoded.
            pause: called every few seconds while texts are encoded; what it raises stops the build.
            requests: the vectors of the requests of tools; None encodes them.
        """
        lexical = LexicalIndex(count_words(map(lexical_tokens, documents)))
        if embedder is None:
            return cls(tuple(documents), lexical, None)
        vectors = VectorIndex(_encoded(documents, embedder, cache, pause))
        if requests is None:
            requests = all_requests(documents, embedder, cache, pause)
        return cls(tuple(documents), lexical, _DenseHalf(embedder, vectors, _calibration(embedder), requests))

    @property
    def lacking(self) -> list[int]:
        """Return the positions of the documents whose vectors are missing."""
        return [] if self.encoded is None else np.flatnonzero(~self.encoded).tolist()

    @property
    def requests(self) -> RequestVectors | None:
        """Return the vectors of requests so far; None without a model."""
        return None if self._dense is None else self._dense.requests

    @property
    def lacking_requests(self) -> list[int]:
        """Return the positions of the documents whose request vectors are missing."""
        known = [0] * len(self.documents) if self.requests is None else self.requests.counts.tolist()
        return [at for at, each in enumerate(self.documents) if each.requests and not known[at]]

    def with_requests(self, requests: RequestVectors) -> ToolIndex:
        """Return a copy with these vectors of requests; without a model, they are ignored."""
        after = copy(self)
        after._dense = None if self._dense is None else replace(self._dense, requests=requests)
        return after

    def awaiting_vectors(self) -> ToolIndex:
        """Return a copy whose vectors all count as missing: it answers from words until they are computed."""
        after = copy(self)
        after.encoded = np.zeros(len(self.documents), dtype=np.bool_)
        return after

    def with_known_vectors(self, embedder: Embedder, cache: EmbeddingCache) -> ToolIndex:
        """Return a copy with the vectors that are stored already; the others count as missing, and none is computed."""
        embeddings, positions = cache.stored(embedder, [dense_text(each) for each in self.documents])
        if not len(positions):
            return self.awaiting_vectors()
        known = np.zeros(len(self.documents), dtype=np.bool_)
        known[positions] = True
        after = copy(self)
        after.encoded = None if known.all() else known
        vectors = VectorIndex(embeddings, positions, len(self.documents))
        requests = requests_so_far(self.documents, embedder, cache)
        after._dense = _DenseHalf(embedder, vectors, _calibration(embedder), requests)
        return after

    def search(
        self, query: str, *, limit: int, allowed: Mask | None = None, ranking: Ranking = Ranking.FUSED
    ) -> SearchResult:
        """Find the tools that serve an intent.

        Args:
            query: any text; a tool's qualified name, bare name or `server:name` puts that tool first, and next any
                other way of writing its name. In up to six words, slips in words of names are corrected.
            limit: hits wanted at most.
            allowed: mask (n,) over positions; all others are treated as if they were not in the index.
            ranking: the evidence to use; without a model it is lexical whatever is asked for.
        """
        used = Ranking.LEXICAL if self._dense is None else ranking
        if allowed is not None and allowed.all():
            allowed = None  # a mask costs time, at any size
        text = well_formed(query[:MAX_QUERY_CHARACTERS]).strip()
        if not text or limit <= 0 or not self.documents:
            return SearchResult((), used)
        named = dict.fromkeys(sorted(self._names.exact(text, allowed), key=self._key), EXACT_SCORE)

        def known(word: str) -> bool:
            return self._lexical.knows(query_tokens(word), allowed)

        def has_meaning(words: Sequence[str]) -> bool:
            return self._is_near(words, allowed, used)

        spelled = self._names.spelled(text, allowed, known)
        positions, raw = self.strengths(spelled, max(limit, MIN_CANDIDATES), allowed, used)
        ranks = sorted(range(len(positions)), key=lambda at: (-raw[at], self._key(int(positions[at]))))
        scores = dict(zip(positions.tolist(), self._curve(used).scores(raw).tolist(), strict=True))
        near = self._names.near(spelled, allowed, known)
        for at in sorted(near, key=lambda at: (-scores.get(at, 0.0), self._key(at))):
            named.setdefault(at, NEAR_SCORE)
        unknown = () if named else unknown_words(spelled, known, has_meaning)
        if unknown:
            scores = {at: UNKNOWN_SHARE * score for at, score in scores.items()}
        ranked = named | {at: scores[at] for at in positions[ranks].tolist() if at not in named}
        hits = [Hit(at, self.documents[at].key, score) for at, score in list(ranked.items())[:limit]]
        return SearchResult(tuple(hits), used, unknown)

    def matching_requests(self, query: str, keys: Iterable[str]) -> dict[str, str]:
        """Return, by key, the request of each tool nearest to a query or one of its steps, for tools with requests."""
        wanted = set(keys)
        at = np.asarray([at for at, each in enumerate(self.documents) if each.key in wanted], dtype=np.int64)
        if self._dense is None or not self._dense.requests or not len(at):
            return {}
        text = well_formed(query[:MAX_QUERY_CHARACTERS]).strip()
        texts = [in_words_of_tools(in_words_of_answers(part)) for part in (text, *split_clauses(text))]
        said = self._dense.requests.evidence(np.stack([embed_query(self._dense.embedder, part) for part in texts]), at)
        nearest = np.argmax(np.nan_to_num(said.best, nan=-1.0), axis=0)
        which = said.which[nearest, np.arange(len(at))].tolist()
        documents = [self.documents[position] for position in at.tolist()]
        return {each.key: each.requests[number] for each, number in zip(documents, which, strict=True) if number >= 0}

    def strengths(self, query: str, count: int, allowed: Mask | None, ranking: Ranking) -> tuple[Positions, Floats]:
        """Return positions (n,) of at least the `count` strongest candidates, unordered, and raw strengths (n,)."""
        clauses = () if ranking is Ranking.DENSE else split_clauses(query)
        requests = [in_words_of_tools(in_words_of_answers(text)) for text in (query, *clauses)]
        counts = (count, *(CLAUSE_CANDIDATES for _ in clauses))
        words = [self._words(text, allowed, ranking) for text in requests]
        positions = _union(strongest(found, wanted) for found, wanted in zip(words, counts, strict=True))
        if self._dense is None or ranking is Ranking.LEXICAL:
            evidence = np.stack([np.log1p(found[positions]) for found in words])
            scale = LEXICAL_SCALE
        else:
            dense = self._dense
            vectors = [embed_query(dense.embedder, text) for text in requests]
            nearest = (
                half.nearest(vector, wanted, allowed)
                for vector, wanted in zip(vectors, counts, strict=True)
                for half in (dense.vectors, dense.requests)
            )
            positions = _union((positions, *nearest))
            # all cosines are computed in one way: bit for bit the same, no matter what else is in the index
            cosines = dense.cosines(vectors, positions)
            tools = len(self.documents) if allowed is None else int(np.count_nonzero(allowed))
            evidence = np.stack(
                [fuse(near, found[positions], tools) for near, found in zip(cosines, words, strict=True)]
            )
            scale = 0.0 if ranking is Ranking.DENSE else 1.0
        if scale:
            lost = scale * losses(clauses or (query,), self._actions[positions])
            evidence -= np.vstack((lost.min(axis=0), lost)) if clauses else lost
        whole, steps = evidence[0], evidence[1:]
        if not clauses or not len(positions):
            return positions, whole
        strengths = with_server_evidence(combine(whole, steps), self._servers[positions])
        return positions, interleaved(strengths, whole, steps, clauses)

    def _is_near(self, words: Sequence[str], allowed: Mask | None, ranking: Ranking) -> bool:
        """Return True if a tool may be near to one of these words by its meaning, or while vectors are missing."""
        if self._dense is None or self.encoded is not None or ranking is Ranking.LEXICAL:
            return True
        vectors, calibration = self._dense.vectors, self._dense.calibration
        for word in words:
            vector = embed_query(self._dense.embedder, word)
            cosines = vectors.similarities(vector, vectors.nearest(vector, 1, allowed))
            if calibration.cosines(cosines).max(initial=0.0) > NEAR_COSINE:
                return True
        return False

    def _words(self, text: str, allowed: Mask | None, ranking: Ranking) -> Floats:
        return self._lexical.scores(() if ranking is Ranking.DENSE else query_tokens(text), allowed)

    def _curve(self, ranking: Ranking) -> Curve:
        if self._dense is None:
            return LEXICAL_CURVE
        match ranking:
            case Ranking.FUSED:
                return self._dense.calibration.fused
            case Ranking.DENSE:
                return self._dense.calibration.dense
            case Ranking.LEXICAL:
                return LEXICAL_CURVE
            case _:
                assert_never(ranking)

    def _key(self, position: int) -> str:
        return self.documents[position].key


def all_requests(
    documents: Sequence[ToolDocument],
    embedder: Embedder,
    cache: EmbeddingCache | None,
    pause: Callable[[], None] = lambda: None,
) -> RequestVectors:
    """Return the vectors of the requests of documents, computed if the cache lacks them."""
    encode = partial(encoded, embedder) if cache is None else partial(cache.encode_requests, embedder)
    return RequestVectors([document.requests for document in documents], encode, embedder.dimension, pause)


def requests_so_far(documents: Sequence[ToolDocument], embedder: Embedder, cache: EmbeddingCache) -> RequestVectors:
    """Return the vectors of requests that are in the cache; none is computed."""
    stored = partial(cache.stored_requests, embedder)
    return RequestVectors([document.requests for document in documents], stored, embedder.dimension)


def _encoded(
    documents: Sequence[ToolDocument], embedder: Embedder, cache: EmbeddingCache | None, pause: Callable[[], None]
) -> Embeddings:
    encode = embedder.encode if cache is None else partial(cache.encode, embedder)
    vectors = np.empty((len(documents), embedder.dimension), dtype=np.float32)
    for start in range(0, len(documents), ENCODED_AT_ONCE):
        pause()
        part = slice(start, start + ENCODED_AT_ONCE)
        vectors[part] = encode([dense_text(document) for document in documents[part]])
    return vectors


def _calibration(embedder: Embedder) -> Calibration:
    return (
        embedder.calibration
        if isinstance(embedder, CalibratedEmbedder)
        else shipped_calibration().transferred(embedder)
    )


def _union(parts: Iterable[Positions]) -> Positions:
    positions: Positions = np.unique(np.concatenate(list(parts)))
    return positions
