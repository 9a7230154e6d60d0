"""A budget of tokens shortens an answer or leaves it as it is, whatever the results."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.exposure.token_count import count_tokens
from pml_gateway.policy.principal import LOCAL
from pml_gateway.results.content import Content
from pml_gateway.results.store import ResultStore
from pml_gateway.results.stored import Source, StoredResult
from pml_gateway.workflow.outcome import StepOutcome
from pml_gateway.workflow.plan import Step
from pml_gateway.workflow.report import workflow_answer
from tests.results.stores import opened
from tests.results.test_store import JSON
from tests.support.examples import examples
from tests.workflow.stand import Stand, data, run_of

THRESHOLD = 400


class Storing(Stand):
    """A stand that keeps results as the gateway does; without a store, it keeps none."""

    store: ResultStore | None = None

    async def keep(
        self, step: Step, outcome: StepOutcome, made_from: frozenset[str], *, over: int | None
    ) -> StoredResult | None:
        if self.store is None:
            return None
        source = Source(None, step.id)
        return await self.store.put(LOCAL, Content("json", outcome.value), source=source, over=over)


async def answer_of(folder: Path, values: Sequence[Any], *, keeps: bool, own: int | None, **request: Any) -> str:
    """The answer of steps with these results; every handle, which has more or fewer tokens by chance, is the same."""
    results = iter(values)

    async def give(_: Any) -> dict[str, Any]:
        return data(next(results))

    async with opened(folder) as store:
        stand = Storing({"give": give}, threshold=THRESHOLD)
        stand.store = store if keeps else None
        own_limit = {} if own is None else {"max_tokens": own}
        steps = [{"tool": "give", "arguments": {"n": n}, **own_limit} for n in range(len(values))]
        answer = await workflow_answer(await run_of(steps, stand, **request), stand, [])
    text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
    return re.sub(r"ref_[A-Za-z0-9_-]{22}", "ref_4kJw9s0dQ2mV7xZbN1cTfA", text)


RESULTS = st.one_of(
    JSON,
    st.text(min_size=60, max_size=400),
    st.integers(1, 900).map(lambda words: "word " * words),
    st.integers(1, 200).map(lambda rows: [{"id": row, "name": f"row {row}"} for row in range(rows)]),
)


@settings(max_examples=examples(60))
@given(
    values=st.lists(RESULTS, min_size=1, max_size=6),
    budget=st.integers(1, 2500),
    own=st.none() | st.integers(1, 300),
    keeps=st.booleans(),
)
def test_an_answer_with_a_budget_is_never_longer_than_without(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any], budget: int, own: int | None, keeps: bool
) -> None:
    folder = tmp_path_factory.getbasetemp()

    async def both() -> tuple[str, str]:
        usual = await answer_of(folder, values, keeps=keeps, own=None)
        return usual, await answer_of(folder, values, keeps=keeps, own=own, budget={"max_tokens": budget})

    usual, limited = anyio.run(both)
    assert count_tokens(limited) <= count_tokens(usual), limited


@pytest.mark.anyio
async def test_a_small_result_over_its_budget_can_still_be_read(tmp_path: Path) -> None:
    values = ["word " * 150]
    limited = await answer_of(tmp_path, values, keeps=True, own=None, budget={"max_tokens": 20})
    whole = await answer_of(tmp_path, values, keeps=True, own=None)
    assert '"reference":{"ref":' in limited
    assert '"exceeded":[{"limit":"max_tokens","value":20' in limited
    assert count_tokens(limited) < count_tokens(whole) < 200
