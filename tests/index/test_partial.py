"""An index that awaits vectors finds tools by words and by the vectors so far, on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pml_gateway.index.cache import EmbeddingCache
from pml_gateway.index.lexical import share
from pml_gateway.index.meaning import estimated
from pml_gateway.index.search import WORDS_WEIGHT, ToolIndex
from pml_gateway.index.text import ToolDocument, dense_text
from tests.index.catalogs import catalog
from tests.index.fakes import HashedWords

TOOLS = catalog(60)
QUERIES = ("create an account of the chess", "share the ticket item7", "list_invoice", "nothing of all this")


def known(folder: Path, tools: Sequence[ToolDocument]) -> ToolIndex:
    """An index of all tools with the vectors of some."""
    cache, embedder = EmbeddingCache(folder), HashedWords()
    cache.encode(embedder, [dense_text(each) for each in tools])
    embedder.encoded.clear()
    index = ToolIndex.build(TOOLS, None).with_known_vectors(embedder, cache)
    assert not [text for text in embedder.encoded if text in {dense_text(each) for each in TOOLS}]
    return index


def test_with_every_vector_it_answers_as_the_complete_one(tmp_path: Path) -> None:
    index, complete = known(tmp_path, TOOLS), ToolIndex.build(TOOLS, HashedWords())
    assert index.lacking == []
    for query in QUERIES:
        assert index.search(query, limit=10) == complete.search(query, limit=10)


def test_without_any_vector_it_answers_as_one_of_words(tmp_path: Path) -> None:
    index, words = known(tmp_path, ()), ToolIndex.build(TOOLS, None)
    assert len(index.lacking) == len(TOOLS)
    for query in QUERIES:
        assert index.search(query, limit=10) == words.search(query, limit=10)


def test_a_tool_is_found_by_its_words_whether_or_not_its_vector_is_there(tmp_path: Path) -> None:
    index = known(tmp_path, TOOLS[::2])
    assert index.lacking == list(range(1, len(TOOLS), 2))
    for at in (6, 7):
        hits = index.search(TOOLS[at].description, limit=3).hits
        assert TOOLS[at].key in [hit.key for hit in hits]
        assert all(0 <= hit.score <= 1 for hit in hits)


def test_what_is_not_allowed_leaves_no_trace(tmp_path: Path) -> None:
    index = known(tmp_path, TOOLS[::2])
    allowed = np.arange(len(TOOLS)) < 20
    for query in QUERIES:
        assert all(hit.position < 20 for hit in index.search(query, limit=30, allowed=allowed).hits)


@pytest.mark.parametrize("words", [0.0, 5.0, 20.0, 60.0])
def test_an_unknown_cosine_counts_between_none_and_the_best(words: float) -> None:
    cosines = np.asarray([0.0, np.nan, 0.9], dtype=np.float32)
    units = np.full(3, words, dtype=np.float32)
    none, unknown, best = (estimated(cosines, units) + WORDS_WEIGHT * units * share(units)).tolist()
    assert none < unknown < best


def test_examples_that_are_stored_are_there_at_once_and_others_are_awaited(tmp_path: Path) -> None:
    tools = [replace(each, examples=(f"somebody wants {each.name}",)) for each in TOOLS[:30]]
    tools += TOOLS[30:]
    cache, embedder = EmbeddingCache(tmp_path), HashedWords()
    cache.encode_examples(embedder, [each.examples for each in tools[:10]])
    before = len(embedder.encoded)
    cache.encode(embedder, [dense_text(each) for each in tools[:20]])
    index = ToolIndex.build(tools, None)
    assert index.lacking_examples == list(range(30))
    index = index.with_known_vectors(embedder, cache)
    assert index.lacking == list(range(20, 60))
    assert index.lacking_examples == list(range(10, 30))
    assert not [text for text in embedder.encoded[before:] if text.startswith("somebody")]
