"""The tool index: finds the tools that serve an intent, best first, by meaning and by words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import numpy.typing as npt

from pml_gateway.index.cache import EmbeddingCache
from pml_gateway.index.calibration import LEXICAL_CURVE, CalibratedEmbedder, Calibration, Curve, shipped_calibration
from pml_gateway.index.clauses import CLAUSE_SHARE, combine, interleaved, split_clauses, with_server_evidence
from pml_gateway.index.embedder import Embedder, Embeddings
from pml_gateway.index.evidence import Evidence, Floats, Mask, Positions, Query
from pml_gateway.index.example_queries import ExampleQueries
from pml_gateway.index.lexical import LexicalIndex, Words, count_words
from pml_gateway.index.meaning import Meaning
from pml_gateway.index.names import EXACT, NEAR, Known, NameIndex
from pml_gateway.index.selection import (
    MARGIN,
    MARGIN_SHARE,
    MARGIN_THRESHOLD,
    MAX_JUDGED,
    SAME_VERB_GAIN,
    SPECIFIC_REMOVALS,
    Candidate,
    Cut,
    asked_of,
    effect_words,
    has_verb,
    has_word,
    names_effect,
    object_of,
    object_words,
    undoes,
    wanted_steps,
)
from pml_gateway.index.text import (
    MAX_QUERY_CHARACTERS,
    ToolDocument,
    dense_text,
    lexical_tokens,
    query_tokens,
    well_formed,
)
from pml_gateway.index.vectors import ExampleVectors, VectorIndex, encoded
from pml_gateway.index.verbs import READ, REMOVE, VERBS, Verbs, in_words_of_tools, telling_words
from pml_gateway.index.wording import UNKNOWN_SHARE, in_words_of_answers, unknown_words
from pml_gateway.types import Ranking

MEANING_WEIGHT = EXAMPLES_WEIGHT = VERBS_WEIGHT = 1.0
"""Weights of kinds whose unit is the cosine."""

WORDS_WEIGHT = 0.03
"""Cosine gained per BM25 unit once the evidence is strong."""

VERBS_BY_WORDS_WEIGHT = 3.0
"""Units of log(1 + BM25) worth a cosine of one: between scores of .3 and .9 the two curves span 1.5 and .47."""

MIN_CANDIDATES = 200
"""Minimum number of candidates from each kind; a tool beyond the first 200 of all kinds is never the best."""

CLAUSE_CANDIDATES = 50
"""Number of candidates for each step of a request with several steps."""

ENCODED_AT_ONCE = 1_000
"""Number of tools between two pauses of a build, about 3 s."""

EXACT_SCORE = 1.0
NEAR_SCORE = 0.999
"""Score of a name in another spelling; also the highest score that evidence alone can reach."""

Weighted = tuple[tuple[Evidence, float], ...]
"""Kinds of evidence with their weights."""


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


class ToolIndex:
    """An immutable index over tool documents; searches may run in several threads at once."""

    def __init__(self, documents: Sequence[ToolDocument]) -> None:
        """Index words, names and verbs; `build` adds meaning."""
        self.documents = tuple(documents)
        self.encoded: Mask | None = None
        """Mask (n,) of the documents that have a vector, while vectors are missing; None if none is missing."""
        self._lexical = LexicalIndex(count_words(map(lexical_tokens, documents)))
        self._words = Words(self._lexical)
        self._names = NameIndex(documents)
        self._verbs = Verbs(documents)
        self._meaning: Meaning | None = None
        self._examples: ExampleQueries | None = None
        numbers: dict[str, int] = {}
        servers = [numbers.setdefault(document.server, len(numbers)) for document in documents]
        self._servers = np.asarray(servers, dtype=np.int64)

    @classmethod
    def build(
        cls,
        documents: Sequence[ToolDocument],
        embedder: Embedder | None,
        cache: EmbeddingCache | None = None,
        *,
        pause: Callable[[], None] = lambda: None,
        examples: ExampleVectors | None = None,
    ) -> ToolIndex:
        """Index documents.

        Args:
            documents: the tools.
            embedder: without one, every search is lexical.
            cache: with one, only new texts are encoded.
            pause: called every few seconds while texts are encoded; what it raises stops the build.
            examples: the vectors of the examples of tools; None encodes them.
        """
        index = cls(documents)
        if embedder is None:
            return index
        vectors = VectorIndex(_encoded(documents, embedder, cache, pause))
        if examples is None:
            examples = all_examples(documents, embedder, cache, pause)
        return index._with_meaning(embedder, vectors, examples)

    @property
    def lacking(self) -> list[int]:
        """Return the positions of the documents whose vectors are missing."""
        return [] if self.encoded is None else np.flatnonzero(~self.encoded).tolist()

    @property
    def examples(self) -> ExampleVectors | None:
        """Return the vectors of examples so far; None without a model."""
        return None if self._examples is None else self._examples.vectors

    @property
    def lacking_examples(self) -> list[int]:
        """Return the positions of the documents whose example vectors are missing."""
        known = [0] * len(self.documents) if self.examples is None else self.examples.counts.tolist()
        return [at for at, each in enumerate(self.documents) if each.examples and not known[at]]

    def with_examples(self, examples: ExampleVectors) -> ToolIndex:
        """Return a copy with these vectors of examples; without a model, they are ignored."""
        after = copy(self)
        after._examples = None if self._meaning is None else ExampleQueries(examples, self._meaning)
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
        vectors = VectorIndex(embeddings, positions, len(self.documents))
        after = self._with_meaning(embedder, vectors, examples_so_far(self.documents, embedder, cache))
        after.encoded = None if known.all() else known
        return after

    def _with_meaning(self, embedder: Embedder, vectors: VectorIndex, examples: ExampleVectors) -> ToolIndex:
        after = copy(self)
        after._meaning = Meaning(embedder, vectors, _calibration(embedder), self._words)
        return after.with_examples(examples)

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
        used = Ranking.LEXICAL if self._meaning is None else ranking
        if allowed is not None and allowed.all():
            allowed = None  # a mask costs time, at any size
        text = _cleaned(query)
        if not text or limit <= 0 or not self.documents:
            return SearchResult((), used)

        asked = self._query(text, max(limit, MIN_CANDIDATES), allowed, used, in_names=True)
        positions, raw = self._strengths(asked, used)
        scores = self._ranking(used)[0].scores(raw)
        names = candidates((self._names,), asked)
        more = np.setdiff1d(names, positions) if len(names) else names
        positions, nothing = np.concatenate((positions, more)), np.zeros(len(more), dtype=np.float32)
        [named] = self._names.at(asked, positions)
        unknown = () if len(names) else self._unknown(asked, used)
        share = UNKNOWN_SHARE if unknown else 1.0
        order: npt.NDArray[np.float64] = np.concatenate((raw, nothing)).astype(np.float64)
        found = np.concatenate((scores, nothing)).astype(np.float64) * share
        if len(names):
            kinds = [named == EXACT, named == NEAR]
            order, found = np.select(kinds, [0.0, found], order), np.select(kinds, [EXACT_SCORE, NEAR_SCORE], found)
        keys = [self.documents[at].key for at in positions.tolist()]
        ranked = sorted(
            zip((-named).tolist(), (-order).tolist(), keys, positions.tolist(), found.tolist(), strict=True)
        )
        return SearchResult(tuple(Hit(at, key, score) for _, _, key, at, score in ranked[:limit]), used, unknown)

    def select(
        self, intent: str, *, threshold: float, allowed: Mask | None = None, ranking: Ranking = Ranking.FUSED
    ) -> tuple[Candidate, ...]:
        """Judge the tools that a list could show for an intent: those that fit first, each best first.

        Every step is served: its tools end where their score falls below the threshold, or their strength far below the
        best one's. A tool that removes something fits only if the step says so, and what.
        """
        used = Ranking.LEXICAL if self._meaning is None else ranking
        if allowed is not None and allowed.all():
            allowed = None
        steps = wanted_steps(_cleaned(intent))
        if not steps or not self.documents:
            return ()
        several = steps if len(steps) > 1 else ()
        asked = self._query(", ".join(steps), MIN_CANDIDATES, allowed, used, in_names=True, steps=several)
        evidence = self._ranking(used)[1]
        positions = candidates((self._names, *(kind for kind, _ in evidence)), asked)
        named = self._names.at(asked, positions)[0]
        strengths = weighted_sum(evidence, asked, positions)
        if several:
            strengths = (1 - CLAUSE_SHARE) * strengths[1:] + CLAUSE_SHARE * strengths[0]
        # Who is told or asked of is no subject of a tool.
        is_idiom = in_words_of_answers(steps[0]) != steps[0]
        names_nothing = several or is_idiom or not object_words(steps[0])
        is_unknown = not names_nothing and bool(self._unknown(asked, used))
        judged: dict[int, Candidate] = {}
        for step, row in zip(steps, strengths, strict=True):
            for candidate in self._judged(
                step, asked.known, positions, row, used, threshold, UNKNOWN_SHARE if is_unknown else 1.0
            ):
                known = judged.get(candidate.position)
                if known is None or candidate.rank > known.rank:
                    judged[candidate.position] = candidate
        for at, name in zip(positions.tolist(), named.tolist(), strict=True):
            if name:
                judged[at] = Candidate(at, self.documents[at].key, EXACT_SCORE if name == EXACT else NEAR_SCORE)
        return tuple(sorted(judged.values(), key=lambda each: (each.cut is not None, -each.score, each.key)))

    def _judged(
        self,
        step: str,
        known: Known,
        positions: Positions,
        strengths: Floats,
        ranking: Ranking,
        threshold: float,
        share: float,
    ) -> Iterator[Candidate]:
        """Judge the tools at `positions` (n,) for one step, by their strengths (n,)."""
        curve = self._ranking(ranking)[0]
        unit = VERBS_BY_WORDS_WEIGHT if ranking is Ranking.LEXICAL else VERBS_WEIGHT
        documents = [self.documents[at] for at in positions.tolist()]
        # Reading names takes time, and tells nothing of tools that are too weak in any case.
        may_pass = curve.evidence(strengths) + unit * SAME_VERB_GAIN >= curve.evidence_of(threshold)
        has_gain = [bool(near) and has_verb(step, each) for near, each in zip(may_pass, documents, strict=True)]
        lost = self._verbs.list_losses(step, asked := asked_of(step), positions)
        gains = np.where(has_gain, np.float32(SAME_VERB_GAIN), -lost)
        strengths = (strengths + unit * gains).astype(np.float32)
        scores = share * curve.scores(strengths)
        margin = min(unit * MARGIN, MARGIN_SHARE * float(strengths.max(initial=0.0)))
        margin += curve.evidence_of(MARGIN_THRESHOLD) - curve.evidence_of(threshold)
        server, end = "", -np.inf
        for place in np.argsort(-strengths, kind="stable")[:MAX_JUDGED].tolist():
            at, score, cut = int(positions[place]), float(scores[place]), None
            if score < threshold:
                cut = Cut.THRESHOLD
            elif strengths[place] < end:
                cut = Cut.GAP
            elif not self._has_asked_effect(step, asked, at, server, known):
                cut = Cut.EFFECT
            elif not server:
                server, end = documents[place].server, strengths[place] - margin
            yield Candidate(at, documents[place].key, score, cut)

    def _has_asked_effect(self, step: str, asked: int, position: int, server: str, known: Known) -> bool:
        """Return True if a tool may be listed for a step in view of what it destroys.

        Args:
            step: the step.
            asked: the actions that it asks for.
            position: the tool.
            server: that of the best tool so far. If the step names no object, only its tools may remove anything.
            known: returns True if a tool has a word.
        """
        document, words = self.documents[position], object_words(step)
        effects = effect_words(document)
        if not effects and not document.is_destructive:
            return True
        if effects:
            if not names_effect(step, effects):
                return False
            if not words:
                return server in ("", document.server)
            head = next((word for word in reversed(words) if known(word)), words[-1])
            # `cancel my appointment` may well be `cancel_registration`.
            is_specific = not SPECIFIC_REMOVALS.isdisjoint(effects) and has_verb(step, document)
            is_said = has_word((head,), document) or (is_specific and server in ("", document.server))
        else:
            verb, *others = telling_words(in_words_of_tools(step))
            removes = bool(asked & REMOVE) and not undoes(document)
            if asked == READ or (removes and not has_word((verb,), document)):
                return False
            is_first = not server and not removes
            is_said = is_first or not words or has_word((word for word in others if word not in VERBS), document)
        return is_said or (self._examples is not None and self._examples.acts_on(words, position, object_of(document)))

    def _unknown(self, asked: Query, ranking: Ranking) -> tuple[str, ...]:
        """Return the subject words of a query that no tool knows."""

        def near(words: Sequence[str]) -> bool:
            if self._meaning is None or self.encoded is not None or ranking is Ranking.LEXICAL:
                return True
            return self._meaning.is_near(words, asked.allowed)

        return unknown_words(asked.texts[0], asked.known, near)

    def matching_examples(self, query: str, keys: Iterable[str]) -> dict[str, str]:
        """Return, by key, the example of each tool nearest to a query or one of its steps, for tools with examples."""
        wanted = set(keys)
        at = [at for at, each in enumerate(self.documents) if each.key in wanted]
        if not self._examples or not self._examples.vectors or not at:
            return {}
        asked = self._query(_cleaned(query), 0, None, Ranking.FUSED)
        numbers = self._examples.nearest(asked, np.asarray(at, dtype=np.int64))
        documents = [self.documents[position] for position in at]
        return {each.key: each.examples[number] for each, number in zip(documents, numbers, strict=True) if number >= 0}

    def strengths(self, query: str, count: int, allowed: Mask | None, ranking: Ranking) -> tuple[Positions, Floats]:
        """Return positions (n,) of at least the `count` strongest candidates, unordered, and raw strengths (n,)."""
        return self._strengths(self._query(query, count, allowed, ranking), ranking)

    def _strengths(self, query: Query, ranking: Ranking) -> tuple[Positions, Floats]:
        _, evidence = self._ranking(ranking)
        positions = candidates((kind for kind, _ in evidence), query)
        strengths = weighted_sum(evidence, query, positions)
        whole: Floats = strengths[0]
        steps: Floats = strengths[1:]
        if not steps.size:
            return positions, whole
        combined = with_server_evidence(combine(whole, steps), self._servers[positions])
        return positions, interleaved(combined, whole, steps, query.texts[1:])

    def _ranking(self, ranking: Ranking) -> tuple[Curve, Weighted]:
        """Return the evidence that a ranking sums, and the curve of the sum."""
        if self._meaning is None or self._examples is None or ranking is Ranking.LEXICAL:
            return LEXICAL_CURVE, ((self._lexical, 1.0), (self._verbs, VERBS_BY_WORDS_WEIGHT))
        dense = (self._meaning, MEANING_WEIGHT), (self._examples, EXAMPLES_WEIGHT)
        if ranking is Ranking.DENSE:
            return self._meaning.calibration.dense, dense
        return self._meaning.calibration.fused, (*dense, (self._words, WORDS_WEIGHT), (self._verbs, VERBS_WEIGHT))

    def _query(
        self,
        text: str,
        count: int,
        allowed: Mask | None,
        ranking: Ranking,
        *,
        in_names: bool = False,
        steps: tuple[str, ...] | None = None,
    ) -> Query:
        @cache
        def known(word: str) -> bool:
            return self._lexical.knows(query_tokens(word), allowed)

        whole = self._names.spelled(text, allowed, known) if in_names else text
        if steps is None:
            steps = () if ranking is Ranking.DENSE else split_clauses(whole)
        worded = tuple(in_words_of_tools(in_words_of_answers(each)) for each in (whole, *steps))
        return Query(
            text,
            (whole, *steps),
            worded,
            tuple(() if ranking is Ranking.DENSE else query_tokens(each) for each in worded),
            (count, *(CLAUSE_CANDIDATES for _ in steps)),
            allowed,
            len(self.documents) if allowed is None else int(np.count_nonzero(allowed)),
            known,
        )


def candidates(kinds: Iterable[Evidence], query: Query) -> Positions:
    """Return the positions (k,) of the tools that are candidates by any kind of evidence, ascending."""
    positions: Positions = np.unique(np.concatenate([found for kind in kinds for found in kind.candidates(query)]))
    return positions


def weighted_sum(evidence: Weighted, query: Query, positions: Positions) -> Floats:
    """Return the sum (t, k) of all kinds of evidence for the tools at `positions` (k,)."""
    total = np.zeros((len(query.texts), len(positions)), dtype=np.float32)
    for kind, weight in evidence:
        total += np.float32(weight) * kind.at(query, positions)
    return total


def all_examples(
    documents: Sequence[ToolDocument],
    embedder: Embedder,
    cache: EmbeddingCache | None,
    pause: Callable[[], None] = lambda: None,
) -> ExampleVectors:
    """Return the vectors of the examples of documents, computed if the cache lacks them."""
    encode = partial(encoded, embedder) if cache is None else partial(cache.encode_examples, embedder)
    return ExampleVectors([document.examples for document in documents], encode, embedder.dimension, pause)


def examples_so_far(documents: Sequence[ToolDocument], embedder: Embedder, cache: EmbeddingCache) -> ExampleVectors:
    """Return the vectors of examples that are in the cache; none is computed."""
    stored = partial(cache.stored_examples, embedder)
    return ExampleVectors([document.examples for document in documents], stored, embedder.dimension)


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


def _cleaned(query: str) -> str:
    return well_formed(query[:MAX_QUERY_CHARACTERS]).strip()
