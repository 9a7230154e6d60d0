"""What holds for vectors in full and in half precision: nothing hidden is found, and nothing is missing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.index.embedder import Embeddings
from pml_gateway.index.lexical import strongest
from pml_gateway.index.search import ToolIndex
from pml_gateway.index.vectors import VectorIndex
from pml_gateway.types import Ranking
from tests.index.catalogs import NOUNS, TOPICS, VERBS, catalog
from tests.index.fakes import HashedWords
from tests.support.examples import examples

SIZE = 3_000
CATALOG = catalog(SIZE)
QUERIES = tuple(f"{VERBS[at % 10]} a {NOUNS[at // 3 % 10]} of the {TOPICS[at // 7 % 10]}" for at in range(30))
HALVES = np.arange(0, SIZE, 2)


@pytest.fixture(scope="module")
def half_precision() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pml_gateway.index.vectors.FULL_PRECISION_LIMIT", 100)
        yield


@pytest.fixture(scope="module")
def rows() -> Embeddings:
    """Vectors in groups, as the tools of many similar servers have them."""
    draw = np.random.default_rng(3)
    centres = draw.standard_normal((60, 24))
    vectors = centres[draw.integers(0, 60, SIZE)] + 0.6 * draw.standard_normal((SIZE, 24))
    normal: Embeddings = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return normal


@pytest.fixture(scope="module", params=["all", "every second"])
def index(rows: Embeddings, request: pytest.FixtureRequest, half_precision: None) -> VectorIndex:
    return VectorIndex(rows) if request.param == "all" else VectorIndex(rows[HALVES], HALVES, SIZE)


def known(index: VectorIndex) -> list[int]:
    """The documents that have a vector."""
    cosines = index.similarities(np.ones(24, dtype=np.float32), np.arange(SIZE))
    return np.flatnonzero(~np.isnan(cosines)).tolist()


@pytest.mark.parametrize("allowed_share", [1.0, 0.9, 0.3, 0.02])
def test_the_nearest_in_half_precision_are_those_in_full(
    index: VectorIndex, rows: Embeddings, allowed_share: float
) -> None:
    mask = np.random.default_rng(5).random(SIZE) < allowed_share
    possible = np.asarray([at for at in known(index) if mask[at]])
    shares = []
    for query in rows[::50]:
        expected = possible[np.argsort(-(rows[possible] @ query))[:10]].tolist()
        shares.append(len(set(index.nearest(query, 10, mask).tolist()) & set(expected)) / len(expected))
    assert np.mean(shares) >= 0.98


@settings(max_examples=examples(60))
@given(
    share=st.sampled_from((0.0, 0.0005, 0.01, 0.3, 0.8, 1.0)),
    seed=st.integers(0, 1_000),
    count=st.sampled_from((0, 1, 10, 700, 5_000)),
)
def test_as_many_as_wanted_or_allowed_are_found_and_never_a_hidden_one(
    index: VectorIndex, rows: Embeddings, share: float, seed: int, count: int
) -> None:
    draw = np.random.default_rng(seed)
    mask = draw.random(SIZE) < share
    found = index.nearest(rows[draw.integers(SIZE)], count, mask)
    assert len(set(found.tolist())) == len(found) == min(count, np.count_nonzero(mask[known(index)]))
    assert mask[found].all()


def test_a_tool_is_found_by_its_own_vector(index: VectorIndex, rows: Embeddings) -> None:
    assert [index.nearest(rows[at], 1).tolist() for at in (0, 100, 2_998)] == [[0], [100], [2_998]]


def test_similarities_are_those_of_the_vectors_and_unknown_without_one(index: VectorIndex, rows: Embeddings) -> None:
    positions = np.array([4, 2_000, 100, 98, 3])
    similarities = index.similarities(rows[7], positions)
    assert similarities[:4] == pytest.approx(rows[positions[:4]] @ rows[7], abs=1e-3)
    assert np.isnan(similarities[4]) == (3 not in known(index))


def test_similarities_in_half_precision_do_not_depend_on_other_vectors(half_precision: None, rows: Embeddings) -> None:
    whole, part = VectorIndex(rows), VectorIndex(rows[1_000:1_500])
    query = rows[7]
    of_whole, of_part = whole.similarities(query, np.arange(1_000, 1_500)), part.similarities(query, np.arange(500))
    assert of_whole.tobytes() == of_part.tobytes()


@pytest.fixture(scope="module")
def large(half_precision: None) -> ToolIndex:
    return ToolIndex.build(CATALOG, HashedWords(48))


@pytest.fixture(scope="module")
def exact() -> ToolIndex:
    return ToolIndex.build(CATALOG, HashedWords(48))


@pytest.mark.parametrize("ranking", list(Ranking))
def test_a_large_index_puts_the_same_tool_first_as_an_exact_one(
    exact: ToolIndex, large: ToolIndex, ranking: Ranking
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


def test_the_strongest_by_words_are_found_with_all_that_tie_with_the_last() -> None:
    scores = np.array([0, 3, 1, 2, 0, 2, 5], dtype=np.float32)
    assert strongest(scores, 1).tolist() == [6]
    assert strongest(scores, 3).tolist() == [1, 3, 5, 6]
    assert strongest(scores, 20).tolist() == [1, 2, 3, 5, 6]


def test_a_build_that_is_stopped_raises_what_stopped_it() -> None:
    class StoppedError(Exception):
        pass

    pauses: list[int] = []

    def stop() -> None:
        pauses.append(1)
        if len(pauses) == 2:
            raise StoppedError

    embedder = HashedWords(48)
    with pytest.raises(StoppedError):
        ToolIndex.build(CATALOG, embedder, pause=stop)
    assert 0 < len(embedder.encoded) < SIZE
