"""What examples say of a query is what their vectors say, whatever else is in the index."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.index.embedder import Embeddings
from pml_gateway.index.search import all_examples
from pml_gateway.index.vectors import EncodedExamples, Examples, ExampleVectors
from tests.index.fakes import HashedWords
from tests.index.tools import tool
from tests.support.examples import examples

DIMENSION = 48
CLOSE = 0.01

COUNTS = st.lists(st.integers(0, 16), min_size=1, max_size=30)


def vectors(counts: list[int], seed: int) -> list[Embeddings]:
    """For each tool, so many vectors of length 1 that have something in common."""
    draw = np.random.default_rng(seed)
    drawn = [draw.standard_normal((count, DIMENSION)) + draw.standard_normal(DIMENSION) for count in counts]
    return [(each / np.linalg.norm(each, axis=1, keepdims=True)).astype(np.float32) for each in drawn]


def index(tools: list[Embeddings]) -> ExampleVectors:
    """Of these tools."""

    def encode(examples: Examples) -> list[EncodedExamples]:
        return [EncodedExamples.of(tools[int(texts[0])]) for texts in examples]

    return ExampleVectors([(f"{at}",) * len(each) for at, each in enumerate(tools)], encode, DIMENSION)


@settings(max_examples=examples(60))
@given(counts=COUNTS, seed=st.integers(0, 99))
def test_evidence_is_that_of_the_vectors(counts: list[int], seed: int) -> None:
    tools, (queries,) = vectors(counts, seed), vectors([3], seed + 1)
    found = index(tools).similarity(queries, np.arange(len(tools)))
    assert index(tools).counts.tolist() == counts
    for (number, query), (at, own) in product(enumerate(queries), enumerate(tools)):
        if not len(own):
            assert np.isnan(found.mean[number, at])
            assert np.isnan(found.best[number, at])
            assert found.which[number, at] == -1
            continue
        cosines = own @ query
        assert found.mean[number, at] == pytest.approx(cosines.mean(), abs=CLOSE)
        assert found.best[number, at] == pytest.approx(cosines.max(), abs=CLOSE)
        assert cosines[found.which[number, at]] == pytest.approx(cosines.max(), abs=CLOSE)


@settings(max_examples=examples(60))
@given(counts=COUNTS, seed=st.integers(0, 99), data=st.data())
def test_evidence_is_the_same_to_the_bit_whatever_else_there_is(
    counts: list[int], seed: int, data: st.DataObject
) -> None:
    tools, (queries,) = vectors(counts, seed), vectors([3], seed + 1)
    chosen = data.draw(st.lists(st.integers(0, len(tools) - 1), min_size=1, unique=True))
    whole = index(tools).similarity(queries, np.asarray(chosen))
    alone = index([tools[at] for at in chosen]).similarity(queries[1:2], np.arange(len(chosen)))
    assert whole.mean[1].tobytes() == alone.mean.tobytes()
    assert whole.best[1].tobytes() == alone.best.tobytes()
    assert whole.which[1].tolist() == alone.which[0].tolist()


@settings(max_examples=examples(60))
@given(counts=COUNTS, seed=st.integers(0, 99), count=st.integers(0, 40), data=st.data())
def test_as_many_tools_as_are_wanted_or_allowed_are_found_and_never_a_hidden_one(
    counts: list[int], seed: int, count: int, data: st.DataObject
) -> None:
    tools, (query,) = vectors(counts, seed), vectors([1], seed + 1)
    mask = np.asarray(data.draw(st.lists(st.booleans(), min_size=len(tools), max_size=len(tools))))
    found = index(tools).nearest(query[0], count, mask)
    possible = np.flatnonzero(mask & (np.asarray(counts) > 0))
    assert len(set(found.tolist())) == len(found) == min(count, len(possible))
    means = np.asarray([each.mean(axis=0) @ query[0] if len(each) else -1 for each in tools])
    assert set(found.tolist()) <= set(possible.tolist())
    best_left_out = max((means[at] for at in possible if at not in found), default=-1)
    assert all(means[at] >= best_left_out - 2 * CLOSE for at in found)


def built(*examples: tuple[str, ...]) -> ExampleVectors:
    tools = [replace(tool(f"files__tool_{at}"), examples=texts) for at, texts in enumerate(examples)]
    return all_examples(tools, HashedWords(), None)


def test_the_example_that_was_meant_is_named() -> None:
    examples = built(("put a file into the folder", "upload my notes"), (), ("rain tomorrow", "will it be sunny"))
    queries = HashedWords().encode(["will it be sunny in the mountains"])
    assert examples.similarity(queries, np.arange(3)).which.tolist() == [[0, -1, 1]]
    assert examples.nearest(queries[0], 1).tolist() == [2]


def test_without_any_example_nothing_is_found() -> None:
    examples = built((), ())
    queries = HashedWords().encode(["anything"])
    assert not examples
    assert examples.nearest(queries[0], 5).tolist() == []
    assert examples.counts.tolist() == [0, 0]


def test_what_is_not_to_be_had_is_left_out_and_the_rest_is_as_before() -> None:
    tools, (query,) = vectors([3, 0, 4, 5], 1), vectors([1], 2)

    def encode(examples: Examples) -> list[EncodedExamples | None]:
        return [None if texts[0] == "2" else EncodedExamples.of(tools[int(texts[0])]) for texts in examples]

    part = ExampleVectors([(f"{at}",) * len(each) for at, each in enumerate(tools)], encode, DIMENSION)
    assert part.counts.tolist() == [3, 0, 0, 5]
    assert sorted(part.nearest(query[0], 10).tolist()) == [0, 3]
    whole = index(tools).similarity(query, np.array([0, 3]))
    assert part.similarity(query, np.array([0, 3])).mean.tobytes() == whole.mean.tobytes()
