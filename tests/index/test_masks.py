"""Tools that a caller may not see leave no trace in what that caller finds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.index.embedder import Embedder
from pml_gateway.index.lexical import LexicalIndex, count_words
from pml_gateway.index.search import ToolIndex
from pml_gateway.index.text import lexical_tokens, query_tokens
from pml_gateway.index.vectors import VectorIndex
from pml_gateway.types import Ranking
from tests.index.fakes import HashedWords
from tests.index.tools import OFFICE, labelled_tools
from tests.support.examples import examples

WORDS = ("send", "read", "file", "email", "search_inbox", "city", "contents", "sql", "unknown", "forecst", "mesage")
STEPS = ("read the contents of a file", "send an email to the recipients", "predict rain for the city", "run the query")


def visible(index: ToolIndex, query: str, ranking: Ranking, mask: np.typing.NDArray[np.bool_] | None = None) -> object:
    result = index.search(query, limit=10, allowed=mask, ranking=ranking)
    return [(hit.key, hit.score) for hit in result.hits], result.ranking


@settings(max_examples=examples(80))
@given(
    mask=st.lists(st.booleans(), min_size=len(OFFICE), max_size=len(OFFICE)),
    query=st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)
    | st.lists(st.sampled_from(STEPS), min_size=2, max_size=4).map(", and then ".join),
    ranking=st.sampled_from(Ranking),
)
def test_a_masked_search_equals_one_without_the_hidden_tools(mask: list[bool], query: str, ranking: Ranking) -> None:
    embedder = HashedWords(32)
    allowed_only = [document for document, allowed in zip(OFFICE, mask, strict=True) if allowed]
    masked = visible(ToolIndex.build(OFFICE, embedder), query, ranking, np.array(mask))
    assert masked == visible(ToolIndex.build(allowed_only, embedder), query, ranking)


@settings(max_examples=examples(20))
@given(
    mask=st.lists(st.booleans(), min_size=len(OFFICE), max_size=len(OFFICE)),
    asked=st.lists(st.integers(0, 3), min_size=len(OFFICE), max_size=len(OFFICE)),
    query=st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)
    | st.lists(st.sampled_from(STEPS), min_size=2, max_size=4).map(", and then ".join),
    ranking=st.sampled_from(Ranking),
)
def test_examples_of_hidden_tools_leave_no_trace(
    mask: list[bool], asked: list[int], query: str, ranking: Ranking
) -> None:
    tools = [replace(each, examples=STEPS[:count]) for each, count in zip(OFFICE, asked, strict=True)]
    embedder = HashedWords(32)
    allowed_only = [each for each, allowed in zip(tools, mask, strict=True) if allowed]
    masked = visible(ToolIndex.build(tools, embedder), query, ranking, np.array(mask))
    assert masked == visible(ToolIndex.build(allowed_only, embedder), query, ranking)


@pytest.mark.parametrize("ranking", list(Ranking))
def test_a_masked_search_of_the_shipped_model_equals_one_without_the_hidden_tools(
    shipped: Embedder, ranking: Ranking
) -> None:
    tools, intents = labelled_tools()
    mask = np.arange(len(tools)) % 3 != 0
    whole = ToolIndex.build(tools, shipped)
    part = ToolIndex.build([document for document, allowed in zip(tools, mask, strict=True) if allowed], shipped)
    for query, _ in intents[::5]:
        assert visible(whole, query, ranking, mask) == visible(part, query, ranking)


def test_a_hidden_tool_with_a_rare_word_does_not_change_lexical_scores() -> None:
    words = [lexical_tokens(document) for document in OFFICE]
    terms = query_tokens("execute the email statement")
    mask = np.array([document.server != "database" for document in OFFICE])
    visible_words = [counts for counts, allowed in zip(words, mask, strict=True) if allowed]
    masked = LexicalIndex(count_words(words)).scores(terms, mask)
    alone = LexicalIndex(count_words(visible_words)).scores(terms)
    assert masked[mask].tolist() == alone.tolist()
    assert not masked[~mask].any()


def test_nothing_is_found_when_nothing_is_allowed() -> None:
    index = ToolIndex.build(OFFICE, HashedWords())
    assert index.search("read_file", limit=5, allowed=np.zeros(len(OFFICE), dtype=bool)).hits == ()


def test_a_mask_is_applied_before_the_best_are_cut() -> None:
    rows = HashedWords().encode([f"word{number} common" for number in range(300)])
    mask = np.zeros(300, dtype=bool)
    mask[[7, 150, 299]] = True
    assert sorted(VectorIndex(rows).nearest(rows[0], 3, mask).tolist()) == [7, 150, 299]
