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
"""BM25 units at which lexical evidence counts half. A common word or two (BM25 of 3) then add nothing (0.01), rare
words of a name (30 and more) outweigh most cosines (0.4): paraphrases are ranked by meaning, quoted words by words."""

REFERENCE_TOOLS = 400
"""The catalog whose BM25 units the two constants speak of. The same word in the same tool is worth three times as much
among 14,000 tools as among 45; unscaled, single words of a paraphrase outweighed its meaning in large catalogs."""

UNKNOWN_COSINE, UNKNOWN_GAIN, MAX_UNKNOWN = np.float32(0.07), np.float32(1.9), np.float32(0.75)
"""The cosine of a tool whose words match: this much, more the stronger they do, and at most so much. Fitted to 11,000
candidates of 490 queries over four labelled sets, where words explain a third of the variance; the gain is a quarter
above the mean, as of several candidates with a vector the luckiest one counts."""

Floats = npt.NDArray[np.float32]


def fuse(cosines: Floats, lexical: Floats, tools: int) -> Floats:
    """Raw strength (n,) from cosines on the shipped model's scale and BM25 values, both (n,), among so many tools.

    Absolute evidence, unlike ranks or z-scores: it needs no statistics of other tools but their number, so hidden tools
    leave no trace and a catalog of two tools is scored like one of a thousand. A cosine that is not known yet (NaN)
    counts as much as those of tools with the same words on average, so that a tool neither wins nor loses by it.
    """
    scaled = lexical * np.float32(np.log1p(REFERENCE_TOOLS) / np.log1p(max(tools, 1)))
    share = scaled / (scaled + np.float32(LEXICAL_DOUBT))
    unknown = np.isnan(cosines)
    if unknown.any():
        cosines = np.where(unknown, np.minimum(UNKNOWN_COSINE + UNKNOWN_GAIN * share, MAX_UNKNOWN), cosines)
    fused: Floats = cosines + np.float32(LEXICAL_WEIGHT) * scaled * share
    return fused


OWN_WEIGHT, MEAN_WEIGHT, BEST_WEIGHT = np.float32(0.3), np.float32(0.3), np.float32(0.5)
"""Of a tool's own text, of its requests on average, and of the nearest of all these. Together more than one, because
more texts tell more surely. Fitted where half of the tools have requests, as the odds of the right one among all; with
the nearest request instead of the nearest of all, a tool whose own text is what is asked for falls behind."""

COMPARED = 50
"""Tools nearest to a query by their own texts that tell what requests add to it usually. With 20 of them, the right
tools are too large a part."""

DOUBTED = 4
"""Tools counted in for which requests add nothing: where next to none have any, what these add is theirs alone."""

LUCK = np.float32(0.015)
"""Added to the usual, because of several wrong tools with requests the luckiest one counts. Without it, tools that have
none lose .04 recall@1 where the others have some; with .03, requests are worth a third less to those."""


def with_request_evidence(cosines: Floats, mean: Floats, best: Floats) -> Floats:
    """Cosines (n,) of tools, changed by those of their requests on average and at best (n,), NaN where there are none.

    How near requests are depends on the model and on how a query is put, so what counts is how much more they tell than
    is usual for this query. A tool without requests is taken for a usual one: it keeps its cosine, and neither wins nor
    loses by what the others have.
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
"""Of a single word and the tool nearest to it: `folder`, `photo` and `mortgage` have .3 and more where a tool deals
with such things, `issue`, `email` and `pizza` .1 where none does. With .25, three in a hundred of our own requests are
about something unknown though they are served."""

MIN_CANDIDATES = 200
"""Candidates that each half proposes at least; what neither half has among its first 200 never comes out on top."""

CLAUSE_CANDIDATES = 50
"""Candidates of each step of a request that has several."""

ENCODED_AT_ONCE = 1_000
"""Tools between two pauses of a build, about 3 s."""

EXACT_SCORE = 1.0
NEAR_SCORE = 0.999
"""Of a name that is written or spelled another way; the highest score that evidence alone can reach."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One tool found, with its position in the index and its calibrated score: 0 to 1, 1.0 only for an exact name."""

    position: int
    key: str
    score: float


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Hits, best first, and the evidence that really ordered them: lexical when there is no model."""

    hits: tuple[Hit, ...]
    ranking: Ranking
    unknown: tuple[str, ...] = ()
    """Words that say what the query is about and that no tool knows; scores are lower by them, except of names."""


@dataclass(frozen=True, slots=True)
class _DenseHalf:
    embedder: Embedder
    vectors: VectorIndex
    calibration: Calibration
    requests: RequestVectors

    def cosines(self, vectors: Sequence[Floats], positions: Positions) -> list[Floats]:
        """How near the tools at `positions` (k,) are to each query (dimension,), on the scale of the curves."""
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
        """(n,) which documents have a vector, while those of others are awaited."""
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
        """The positions of the documents whose vectors are awaited."""
        return [] if self.encoded is None else np.flatnonzero(~self.encoded).tolist()

    @property
    def requests(self) -> RequestVectors | None:
        """The vectors of requests so far; None without a model."""
        return None if self._dense is None else self._dense.requests

    @property
    def lacking_requests(self) -> list[int]:
        """The positions of the documents that have requests whose vectors are awaited."""
        known = [0] * len(self.documents) if self.requests is None else self.requests.counts.tolist()
        return [at for at, each in enumerate(self.documents) if each.requests and not known[at]]

    def with_requests(self, requests: RequestVectors) -> ToolIndex:
        """This index, if it has a model, with these vectors of requests."""
        after = copy(self)
        after._dense = None if self._dense is None else replace(self._dense, requests=requests)
        return after

    def awaiting_vectors(self) -> ToolIndex:
        """This index, which answers from words until vectors are there."""
        after = copy(self)
        after.encoded = np.zeros(len(self.documents), dtype=np.bool_)
        return after

    def with_known_vectors(self, embedder: Embedder, cache: EmbeddingCache) -> ToolIndex:
        """This index with the vectors that are stored already; it awaits the others, and computes none."""
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
            allowed = None  # reading less than all costs more, at any size
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
        """Of each of these tools, by its key, the request nearest to a query or one of its steps; of those with any."""
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
        """Positions (n,) of at least the `count` strongest candidates, in no order, and their raw strengths (n,)."""
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
            # one way to compute all of them: bit for bit the same whatever else is in the index
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
        """Return True if a tool may be near to one of these words by its meaning, also while vectors are awaited."""
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
