"""Which tools a search finds, in which order and with which score."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.index.embedder import Embedder
from pml_gateway.index.search import SearchResult, ToolIndex
from pml_gateway.types import Ranking
from tests.index.fakes import HashedWords
from tests.index.tools import OFFICE, tool
from tests.support.examples import examples


@pytest.fixture(params=["hashed words", "no model"])
def embedder(request: pytest.FixtureRequest) -> Embedder | None:
    return HashedWords() if request.param == "hashed words" else None


@pytest.fixture
def office(embedder: Embedder | None) -> ToolIndex:
    return ToolIndex.build(OFFICE, embedder)


def keys(result: SearchResult) -> list[str]:
    return [hit.key for hit in result.hits]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("send an email to Anna", "mail__send_message"),
        ("read a file", "files__read_file"),
        ("will it rain in this city", "weather__forecast"),
        ("an appointment with three attendees", "calendar__create-event"),
        ("write file", "files__writeFile"),
        ("event create", "calendar__create-event"),
    ],
)
def test_the_tool_sharing_the_telling_words_ranks_first(office: ToolIndex, query: str, expected: str) -> None:
    assert office.search(query, limit=3).hits[0].key == expected


def test_hits_carry_positions_into_the_documents_and_fall_in_score(office: ToolIndex) -> None:
    hits = office.search("read the contents of a file", limit=7).hits
    assert [office.documents[hit.position].key for hit in hits] == [hit.key for hit in hits]
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert all(0 <= hit.score < 1 for hit in hits)


@pytest.mark.parametrize("name", ["files__read_file", "read_file", "files:read_file", " Files:READ_FILE "])
def test_an_exact_name_ranks_first_with_score_one(office: ToolIndex, name: str) -> None:
    first, second = office.search(name, limit=2).hits
    assert (first.key, first.score) == ("files__read_file", 1.0)
    assert second.score < 1


def test_an_exact_name_shared_by_two_servers_lists_both_in_key_order(embedder: Embedder | None) -> None:
    index = ToolIndex.build([*OFFICE, tool("zip__search"), tool("art__search")], embedder)
    hits = index.search("search", limit=5).hits
    assert [(hit.key, hit.score) for hit in hits[:2]] == [("art__search", 1.0), ("zip__search", 1.0)]
    assert keys(index.search("search", limit=1)) == ["art__search"]


def test_an_exact_name_that_is_not_allowed_is_not_found(office: ToolIndex) -> None:
    allowed = np.array([document.key != "files__read_file" for document in OFFICE])
    hits = office.search("files__read_file", limit=7, allowed=allowed).hits
    assert all(hit.key != "files__read_file" and hit.score < 1 for hit in hits)


def test_without_a_model_the_result_says_that_it_is_lexical() -> None:
    without = ToolIndex.build(OFFICE, None)
    assert without.search("send email", limit=1, ranking=Ranking.FUSED).ranking is Ranking.LEXICAL
    assert without.search("", limit=1).ranking is Ranking.LEXICAL


@pytest.mark.parametrize("ranking", list(Ranking))
def test_the_result_names_the_ranking_that_was_asked_for(ranking: Ranking) -> None:
    result = ToolIndex.build(OFFICE, HashedWords()).search("send an email", limit=2, ranking=ranking)
    assert result.ranking is ranking
    assert result.hits[0].key == "mail__send_message"


def test_the_lexical_ranking_asks_nothing_of_the_model() -> None:
    embedder = HashedWords()
    index = ToolIndex.build(OFFICE, embedder)
    embedder.encoded.clear()
    index.search("send an email", limit=2, ranking=Ranking.LEXICAL)
    assert embedder.encoded == []


def test_a_query_without_a_known_word_finds_nothing_lexically() -> None:
    assert keys(ToolIndex.build(OFFICE, None).search("zyzzyva", limit=5)) == []


@pytest.mark.parametrize("query", ["", "   ", "\n\t", "\u3000"])
def test_an_empty_query_finds_nothing(office: ToolIndex, query: str) -> None:
    assert office.search(query, limit=5).hits == ()


@pytest.mark.parametrize("limit", [0, -1])
def test_no_hits_are_given_when_none_are_wanted(office: ToolIndex, limit: int) -> None:
    assert office.search("read_file", limit=limit).hits == ()


def test_an_empty_catalog_finds_nothing(embedder: Embedder | None) -> None:
    assert ToolIndex.build([], embedder).search("read a file", limit=5).hits == ()


def test_a_very_long_query_still_finds_its_tool(office: ToolIndex) -> None:
    assert office.search("send an email " * 800, limit=1).hits[0].key == "mail__send_message"


def test_tools_with_the_same_text_are_all_found_in_key_order(embedder: Embedder | None) -> None:
    twins = [replace(OFFICE[0], key=f"mail__send_message_{number}") for number in (3, 2)]
    found = keys(ToolIndex.build([*twins, *OFFICE], embedder).search("recipients of an email", limit=9))
    assert found[:3] == ["mail__send_message", "mail__send_message_2", "mail__send_message_3"]


def test_words_of_unspaced_scripts_are_matched() -> None:
    index = ToolIndex.build([tool("a__one", "ファイルを読み込む"), tool("b__two", "メールを送信する")], None)
    assert keys(index.search("メールの送信", limit=1)) == ["b__two"]


def test_concurrent_searches_agree_with_single_ones(shipped: Embedder) -> None:
    index = ToolIndex.build(OFFICE, shipped)
    queries = [f"{document.description} now" for document in OFFICE] * 4
    with ThreadPoolExecutor(8) as threads:
        concurrent = list(threads.map(lambda query: index.search(query, limit=5), queries))
    assert concurrent == [index.search(query, limit=5) for query in queries]


@settings(max_examples=examples(60))
@given(st.text(max_size=200))
def test_any_text_can_be_searched_for_and_described(text: str) -> None:
    index = ToolIndex.build([*OFFICE, tool("any__text", text, title=text, parameters=(text,))], HashedWords(16))
    for ranking in Ranking:
        hits = index.search(text, limit=20, ranking=ranking).hits
        assert len({hit.position for hit in hits}) == len(hits) <= len(index.documents)
        assert all(0 <= hit.score <= 1 for hit in hits)


@pytest.mark.parametrize("text", ["\ud800 lone", "a\x00b", "🛠️" * 300, "x" * 10_000])
def test_odd_text_is_searched_with_the_shipped_model(shipped: Embedder, text: str) -> None:
    index = ToolIndex.build([*OFFICE, tool("any__text", text)], shipped)
    assert len(index.search(text, limit=8).hits) == 8
