"""What `run_requests` says of requests is what search found with them, without them, and with half of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.labelled_sets import LabelledSet
from benchmarks.run_requests import Measured, markdown, means
from pml_gateway.index import EmbeddingCache
from pml_gateway.index.evaluation import LabelledQuery
from tests.index.fakes import HashedWords

ROWS = {
    f"s:{name}": {"id": f"s:{name}", "name": name, "description": said}
    for name, said in (("one", "red apples"), ("two", "green pears"), ("three", "blue plums"), ("four", "black figs"))
}
REQUESTS = {
    "s:one": ("pie for Anna",),
    "s:two": ("jam for Ben",),
    "s:three": ("cake, Cleo",),
    "s:four": ("tart, Dora",),
}
QUERIES = tuple(LabelledQuery(texts[0], (frozenset({key}),)) for key, texts in REQUESTS.items())
FRUIT = LabelledSet("fruit", ROWS, QUERIES)


def test_requests_that_say_what_is_asked_find_everything(tmp_path: Path) -> None:
    row = Measured(FRUIT, REQUESTS, HashedWords(), EmbeddingCache(tmp_path)).row({"x": {"id": "x", "name": "pie"}})
    assert (row["tools"], row["with_requests"], row["queries"], row["distracted"]["tools"]) == (4, 4, 4, 5)
    assert row["none"]["recall@1"] < row["half"]["recall@1"] < row["all"]["recall@1"] == 1
    assert row["distracted"]["all"]["recall@1"] == 1
    assert row["half, known"]["after"]["recall@1"] == 1
    report = {"model": "m", "draws": 5, "sets": {"fruit": row}, "means": means({"fruit": row})}
    assert means({"a": row, "b": row})["half"] == pytest.approx(row["half"])
    assert "| fruit | 4 of 4 |" in markdown(report)
