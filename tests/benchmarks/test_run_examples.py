"""What `run_examples` says of examples is what search found with them, without them, and with half of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.labelled_sets import LabelledSet
from benchmarks.run_examples import Measured, labelled_sets, markdown, means
from pml_gateway.index.cache import EmbeddingCache
from pml_gateway.index.evaluation import LabelledQuery
from pml_gateway.index.models import load_embedder
from tests.index.fakes import HashedWords

ROWS = {
    f"s:{name}": {"id": f"s:{name}", "name": name, "description": said}
    for name, said in (("one", "red apples"), ("two", "green pears"), ("three", "blue plums"), ("four", "black figs"))
}
EXAMPLES = {
    "s:one": ("pie for Anna",),
    "s:two": ("jam for Ben",),
    "s:three": ("cake, Cleo",),
    "s:four": ("tart, Dora",),
}
QUERIES = tuple(LabelledQuery(texts[0], (frozenset({key}),)) for key, texts in EXAMPLES.items())
FRUIT = LabelledSet("fruit", ROWS, QUERIES)


def test_examples_that_say_what_is_asked_find_everything(tmp_path: Path) -> None:
    row = Measured(FRUIT, EXAMPLES, HashedWords(), EmbeddingCache(tmp_path)).row({"x": {"id": "x", "name": "pie"}})
    assert (row["tools"], row["with_examples"], row["queries"], row["distracted"]["tools"]) == (4, 4, 4, 5)
    assert row["none"]["recall@1"] < row["half"]["recall@1"] < row["all"]["recall@1"] == 1
    assert row["distracted"]["all"]["recall@1"] == 1
    assert row["half, known"]["after"]["recall@1"] == 1
    report = {"model": "m", "draws": 5, "sets": {"fruit": row}, "means": means({"fruit": row})}
    assert means({"a": row, "b": row})["half"] == pytest.approx(row["half"])
    assert "| fruit | 4 of 4 |" in markdown(report)


@pytest.mark.slow
def test_near_duplicates_are_told_apart_by_examples_and_lists_keep_their_promise(tmp_path: Path) -> None:
    [(labelled, examples)] = [each for each in labelled_sets(None) if each[0].name == "cloud"]
    row = Measured(labelled, examples, load_embedder("builtin"), EmbeddingCache(tmp_path)).row({})
    assert row["all"]["recall@1"] >= 0.93
    assert row["half"]["ndcg@10"] > row["none"]["ndcg@10"] + (row["all"]["ndcg@10"] - row["none"]["ndcg@10"]) / 4
    unknown = row["half, unknown"]
    assert unknown["after"]["recall@1"] >= unknown["before"]["recall@1"] - 0.02
    for score, promised in ((0.5, 0.96), (0.6, 0.92), (0.7, 0.87)):
        assert all(row[part][f"coverage@{score}"] >= promised for part in ("none", "half", "all"))
