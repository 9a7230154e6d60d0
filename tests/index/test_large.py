"""What holds for the index of a large catalog: nothing hidden is found, nothing is missing, and little is computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.index import ToolDocument, ToolIndex
from pml_gateway.index.embedder import Embeddings
from pml_gateway.index.large import both_halves, go_on
from pml_gateway.index.lexical import LexicalIndex, count_words, rearranged
from pml_gateway.index.names import NameIndex
from pml_gateway.index.text import lexical_tokens, query_tokens
from pml_gateway.index.vectors import ClusteredVectors, Clusters, ExactVectors, Mask
from pml_gateway.types import Ranking
from tests.index.catalogs import NOUNS, TOPICS, VERBS, catalog, edited
from tests.index.fakes import HashedWords
from tests.support.examples import examples

SIZE = 3_000
CATALOG = catalog(SIZE)
POSTINGS = count_words(map(lexical_tokens, CATALOG))
QUERIES = tuple(f"{VERBS[at % 10]} a {NOUNS[at // 3 % 10]} of the {TOPICS[at // 7 % 10]}" for at in range(30))


@pytest.fixture(scope="module")
def embedder() -> HashedWords:
    return HashedWords(48)


@pytest.fixture(scope="module")
def large(embedder: HashedWords) -> ToolIndex:
    return ToolIndex.build(CATALOG, embedder, exact_limit=100)


@pytest.fixture(scope="module")
def exact(embedder: HashedWords) -> ToolIndex:
    return ToolIndex.build(CATALOG, embedder)


@pytest.fixture(scope="module")
def rows() -> Embeddings:
    """Vectors in groups, as the tools of many similar servers have them."""
    draw = np.random.default_rng(3)
    centres = draw.standard_normal((60, 24))
    vectors = centres[draw.integers(0, 60, SIZE)] + 0.6 * draw.standard_normal((SIZE, 24))
    normal: Embeddings = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return normal


@pytest.fixture(scope="module")
def clusters(rows: Embeddings) -> Clusters:
    return Clusters.place(rows[:-100].astype(np.float16), go_on)


def changed(clusters: Clusters, rows: Embeddings) -> tuple[ClusteredVectors, Embeddings]:
    """An index in which 100 tools have gone since and 100 have come, and all of its vectors in order."""
    gone = np.arange(0, 2_000, 20)
    positions = np.arange(len(clusters), dtype=np.int64)
    positions[gone] = -1
    alive = positions >= 0
    positions[alive] = np.arange(np.count_nonzero(alive)) + 100
    current = np.concatenate((rows[-100:], rows[:-100][alive]))
    return ClusteredVectors(clusters, positions, rows[-100:], np.arange(100)), current


@pytest.mark.parametrize("allowed_share", [1.0, 0.9, 0.3, 0.02])
def test_most_of_the_nearest_are_found_whatever_share_is_allowed(
    clusters: Clusters, rows: Embeddings, allowed_share: float
) -> None:
    index, current = changed(clusters, rows)
    scan = ExactVectors(current)
    mask = np.random.default_rng(5).random(len(current)) < allowed_share
    shares = []
    for query in current[::50]:
        expected = scan.nearest(query, 10, mask).tolist()
        shares.append(len(set(index.nearest(query, 10, mask).tolist()) & set(expected)) / len(expected))
    assert np.mean(shares) >= 0.95


@settings(max_examples=examples(60))
@given(
    share=st.sampled_from((0.0, 0.0005, 0.01, 0.3, 0.8, 1.0)),
    seed=st.integers(0, 1_000),
    count=st.sampled_from((1, 10, 700, 5_000)),
)
def test_as_many_as_wanted_or_allowed_are_found_and_never_a_hidden_one(
    clusters: Clusters, rows: Embeddings, share: float, seed: int, count: int
) -> None:
    index, current = changed(clusters, rows)
    draw = np.random.default_rng(seed)
    mask = draw.random(len(current)) < share
    found = index.nearest(current[draw.integers(len(current))], count, mask)
    assert len(set(found.tolist())) == len(found) == min(count, np.count_nonzero(mask))
    assert mask[found].all()


def test_a_tool_that_came_or_moved_is_found_by_its_own_vector(clusters: Clusters, rows: Embeddings) -> None:
    index, current = changed(clusters, rows)
    found = [index.nearest(current[at], 1).tolist() for at in (0, 99, 100, 150, len(current) - 1)]
    assert found == [[0], [99], [100], [150], [len(current) - 1]]


def test_rearranged_clusters_find_what_clusters_with_changes_find(clusters: Clusters, rows: Embeddings) -> None:
    index, current = changed(clusters, rows)
    moved = index._positions
    tidy = clusters.rearranged(moved, rows[-100:], np.arange(100))
    assert len(tidy) == len(current)
    fresh = ClusteredVectors(tidy, np.arange(len(current)), rows[:0], np.arange(0))
    same = [
        len(set(fresh.nearest(query, 10).tolist()) & set(index.nearest(query, 10).tolist())) for query in current[::60]
    ]
    assert np.mean(same) >= 9.5


def test_similarities_are_those_of_the_vectors(clusters: Clusters, rows: Embeddings) -> None:
    index, current = changed(clusters, rows)
    positions = np.array([3, 2_000, 101, 99])
    assert index.similarities(current[7], positions) == pytest.approx(current[positions] @ current[7], abs=1e-3)


@settings(max_examples=examples(60))
@given(
    terms=st.lists(
        st.sampled_from((*VERBS, *NOUNS, *TOPICS, "item17", "item2999", "unknown")), min_size=1, unique=True
    ),
    share=st.sampled_from((0.001, 0.2, 0.9, None)),
)
def test_words_of_a_large_catalog_score_as_those_of_a_small_one(terms: list[str], share: float | None) -> None:
    mask = None if share is None else np.random.default_rng(1).random(SIZE) < share
    words = query_tokens(" ".join(terms))
    large = LexicalIndex(POSTINGS, exact_limit=0).match(words, mask)
    exact = LexicalIndex(POSTINGS).scores(words, mask)
    with pytest.MonkeyPatch.context() as patch:
        # a few hundred more candidates than are scored otherwise: what is left out is then ruled out for certain
        patch.setattr("pml_gateway.index.lexical.CANDIDATES_SCORED", SIZE)
        found = large.strongest(50)
    assert mask is None or mask[found].all()
    assert large.at(np.arange(SIZE)) == pytest.approx(exact, rel=1e-5)
    strongest = np.sort(exact)[::-1][: min(50, np.count_nonzero(exact))]
    assert np.sort(exact[found])[::-1] == pytest.approx(strongest, rel=1e-5)


def test_enough_candidates_are_found_by_a_rare_word_beside_a_common_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pml_gateway.index.lexical.POSTINGS_READ", 10)
    index = LexicalIndex(POSTINGS, exact_limit=0)
    found = index.match(query_tokens("read item17")).strongest(50)
    assert 17 in found
    assert len(found) == 50


def test_postings_of_a_changed_catalog_are_those_of_one_counted_anew() -> None:
    before = catalog(200)
    after = [edited(before[5]), *before[90:], *catalog(30, seed=8), *before[:80:3]]
    moved = np.array([after.index(document) if document in after else -1 for document in before])
    places = np.setdiff1d(np.arange(len(after)), moved)
    fresh = count_words(lexical_tokens(after[at]) for at in places)
    made = LexicalIndex(rearranged(count_words(map(lexical_tokens, before)), moved, fresh, places))
    counted = LexicalIndex(count_words(map(lexical_tokens, after)))
    for query in QUERIES:
        words = query_tokens(f"{query} paging item5 item100")
        assert made.scores(words).tolist() == counted.scores(words).tolist()


@pytest.mark.parametrize("ranking", list(Ranking))
def test_a_large_index_puts_the_same_tool_first_as_an_exact_one(
    large: ToolIndex, exact: ToolIndex, ranking: Ranking
) -> None:
    mask = np.arange(SIZE) % 3 != 0
    for allowed in (None, mask):
        firsts = [
            (large.search(query, limit=1, allowed=allowed, ranking=ranking).hits, query)
            for query in (f"{query} item{at * 97}" for at, query in enumerate(QUERIES))
        ]
        expected = [exact.search(query, limit=1, allowed=allowed, ranking=ranking).hits for _, query in firsts]
        same = [mine[0].key == theirs[0].key for (mine, _), theirs in zip(firsts, expected, strict=True)]
        assert np.mean(same) >= 0.9
        assert allowed is None or all(mask[hits[0].position] for hits, _ in firsts)


@pytest.mark.parametrize("ranking", list(Ranking))
@pytest.mark.parametrize("visible", [3, 40, 1_500])
def test_a_masked_search_of_a_large_index_finds_as_many_tools_as_are_asked_for(
    large: ToolIndex, ranking: Ranking, visible: int
) -> None:
    mask = np.zeros(SIZE, dtype=bool)
    mask[np.random.default_rng(2).choice(SIZE, visible, replace=False)] = True
    for query in QUERIES[:5]:
        hits = large.search(query, limit=5, allowed=mask, ranking=ranking).hits
        assert all(mask[hit.position] for hit in hits)
        assert ranking is Ranking.LEXICAL or len(hits) == min(5, visible)


def names_of(documents: Sequence[ToolDocument], query: str, allowed: Mask | None = None) -> list[str]:
    index = NameIndex(documents, slips_limit=10)
    spelled = index.spelled(query, allowed, lambda word: False)
    return [documents[at].key for at in index.near(spelled, allowed, lambda word: False)]


def test_words_of_names_are_corrected_in_a_large_catalog_too() -> None:
    documents = [each for each in CATALOG if each.key.endswith("_17")]
    (wanted,) = (document for document in documents if document.key == CATALOG[17].key)
    verb, noun, number = wanted.name.split("_")
    mistyped = f"{verb} {noun[:2]}{noun[3:]} {number}"
    assert names_of(CATALOG, mistyped) == [wanted.key]
    assert names_of(CATALOG, mistyped, np.array([document is not wanted for document in CATALOG])) == []


def test_a_build_that_is_stopped_raises_what_stopped_it(embedder: HashedWords) -> None:
    class StoppedError(Exception):
        pass

    pauses: list[int] = []

    def stop() -> None:
        pauses.append(1)
        if len(pauses) == 4:
            raise StoppedError

    with pytest.raises(StoppedError):
        both_halves(CATALOG, embedder, None, None, pause=stop)
