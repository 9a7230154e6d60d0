"""What lists cost is said alike everywhere, as it was measured last, and the meta-tools cost what is said."""

from __future__ import annotations

import pytest

from benchmarks.run_tokens import DATA, measured
from benchmarks.token_figures import REPOSITORY, meta_tool_tokens, saved, written

WRITE = "run: python -m benchmarks.run_tokens --write"


def test_every_figure_is_that_of_the_last_measurement() -> None:
    differing = [str(file.relative_to(REPOSITORY)) for file, text in written(saved()) if file.read_text() != text]
    assert differing == [], WRITE


def test_the_meta_tools_cost_what_was_measured() -> None:
    assert (saved().meta_tools, saved().few) == meta_tool_tokens(), WRITE


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "dev" / "distractors.jsonl").exists(), reason="the data sets are not here")
def test_lists_cost_what_was_measured() -> None:
    last = saved()
    assert measured(last.tools, last.intents) == last, WRITE
