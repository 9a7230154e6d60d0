"""What tools are known to be asked is evidence, on one scale with tools of which nothing is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.index.embedder import Embedder
from pml_gateway.index.example_queries import gains
from pml_gateway.index.search import ToolIndex
from pml_gateway.index.text import ToolDocument
from pml_gateway.types import Ranking
from tests.index.catalogs import catalog
from tests.index.fakes import HashedWords
from tests.index.test_masks import STEPS, WORDS, visible
from tests.index.tools import OFFICE, tool
from tests.support.examples import examples

ASKED = {
    "mail__send_message": ("let Anna know that I am late", "drop the team a line"),
    "files__read_file": ("what does the note say",),
    "database__run_query": ("how many customers signed up", "sum the invoices of May"),
}
KNOWN = tuple(replace(each, examples=ASKED.get(each.key, ())) for each in OFFICE)
QUERIES = ("drop them a line", "read the contents of a file", "sum all invoices, and then predict rain for the city")


def keys(index: ToolIndex, query: str, ranking: Ranking = Ranking.FUSED) -> list[str]:
    return [hit.key for hit in index.search(query, limit=10, ranking=ranking).hits]


@pytest.mark.parametrize("ranking", [Ranking.FUSED, Ranking.DENSE])
def test_a_tool_is_found_by_what_it_is_asked(ranking: Ranking) -> None:
    without, known = ToolIndex.build(OFFICE, HashedWords()), ToolIndex.build(KNOWN, HashedWords())
    assert keys(without, "drop the crew a line", ranking)[0] != "mail__send_message"
    assert keys(known, "drop the crew a line", ranking)[0] == "mail__send_message"


def test_a_tool_far_from_a_query_by_its_own_text_becomes_a_candidate_by_a_example() -> None:
    others = [tool(f"s__tool{at}", f"drop a line {at}") for at in range(400)]
    asked = ToolDocument("z__odd", "z", "odd", "", "Nothing of the sort", (), ("drop the crew a line now",))
    index = ToolIndex.build([*others, asked], HashedWords(512))
    assert keys(index, "drop the crew a line now")[0] == "z__odd"


@settings(max_examples=examples(60))
@given(
    mask=st.lists(st.booleans(), min_size=len(KNOWN), max_size=len(KNOWN)),
    known=st.lists(st.booleans(), min_size=len(KNOWN), max_size=len(KNOWN)),
    query=st.lists(st.sampled_from((*WORDS, "line", "note", "invoices")), min_size=1, max_size=4).map(" ".join)
    | st.lists(st.sampled_from((*STEPS, *QUERIES)), min_size=2, max_size=4).map(", and then ".join),
    ranking=st.sampled_from(Ranking),
)
def test_examples_of_hidden_tools_leave_no_trace(
    mask: list[bool], known: list[bool], query: str, ranking: Ranking
) -> None:
    embedder = HashedWords(32)
    documents = [(asked if told else own) for asked, own, told in zip(KNOWN, OFFICE, known, strict=True)]
    allowed_only = [document for document, allowed in zip(documents, mask, strict=True) if allowed]
    masked = visible(ToolIndex.build(documents, embedder), query, ranking, np.array(mask))
    assert masked == visible(ToolIndex.build(allowed_only, embedder), query, ranking)


def test_examples_of_hidden_tools_leave_no_trace_where_more_are_there_than_are_compared() -> None:
    tools = [replace(each, examples=(f"{each.name} please",) * (at % 3)) for at, each in enumerate(catalog(300))]
    embedder = HashedWords(32)
    mask = np.arange(len(tools)) % 3 != 0
    whole = ToolIndex.build(tools, embedder)
    part = ToolIndex.build([document for document, allowed in zip(tools, mask, strict=True) if allowed], embedder)
    for query in ("create an account of the chess", "share the ticket item7, and then list the invoices"):
        assert visible(whole, query, Ranking.FUSED, mask) == visible(part, query, Ranking.FUSED)


COSINES = st.floats(-0.25, 1, width=32)


@given(rows=st.lists(st.tuples(COSINES, st.none() | st.tuples(COSINES, COSINES)), min_size=1, max_size=80))
def test_a_tool_without_examples_keeps_its_cosine(
    rows: list[tuple[float, tuple[float, float] | None]],
) -> None:
    cosines = np.asarray([own for own, _ in rows], dtype=np.float32)
    mean, best = (
        np.asarray([np.nan if said is None else pick(said) for _, said in rows], dtype=np.float32)
        for pick in (min, max)
    )
    after = cosines + gains(cosines, mean, best)
    unknown = np.isnan(mean)
    assert after[unknown].tolist() == cosines[unknown].tolist()
    assert np.isfinite(after).all()


def test_nearer_examples_count_for_a_tool() -> None:
    cosines = np.full(5, 0.4, dtype=np.float32)
    mean = np.asarray([0.2, 0.3, 0.4, 0.3, np.nan], dtype=np.float32)
    best = np.asarray([0.3, 0.5, 0.6, 0.7, np.nan], dtype=np.float32)
    far, usual, much, nearest, unknown = (cosines + gains(cosines, mean, best)).tolist()
    assert far < usual < min(much, nearest)
    assert far < unknown < min(much, nearest)


def test_a_cosine_that_is_not_known_yet_stays_unknown() -> None:
    some = np.asarray([0.5, np.nan], dtype=np.float32)
    after = some + gains(some, np.asarray([0.5, 0.5], np.float32), np.asarray([0.6, 0.9], np.float32))
    assert np.isnan(after).tolist() == [False, True]


def test_without_examples_nothing_changes_to_the_bit() -> None:
    cosines = np.asarray([0.1, 0.7, np.nan], dtype=np.float32)
    nothing = np.full(3, np.nan, dtype=np.float32)
    assert (cosines + gains(cosines, nothing, nothing)).tobytes() == cosines.tobytes()


def test_the_example_that_matched_is_told() -> None:
    index = ToolIndex.build(KNOWN, HashedWords())
    found = index.matching_examples("drop a line", ["mail__send_message", "weather__forecast", "nobody__knows"])
    assert found == {"mail__send_message": "drop the team a line"}
    steps = "read what the note says, and then sum the invoices of June"
    assert index.matching_examples(steps, ["database__run_query"]) == {"database__run_query": "sum the invoices of May"}


@pytest.mark.parametrize("embedder", [None, HashedWords()])
def test_where_nothing_is_known_no_example_matched(embedder: Embedder | None) -> None:
    assert ToolIndex.build(OFFICE, embedder).matching_examples("drop a line", ["mail__send_message"]) == {}
