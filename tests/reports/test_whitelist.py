"""The proposed whitelist is the cheapest one: as good as trying all of them."""

from __future__ import annotations

import itertools
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.reports.replay import UsedTool, cheapest_whitelist
from tests.support.examples import examples

used_tools = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 200)), max_size=9).map(
    lambda pairs: [UsedTool(("up", f"t{place}"), calls, tokens) for place, (calls, tokens) in enumerate(pairs)]
)


@given(used=used_tools, share=st.integers(0, 100), fixed=st.sets(st.integers(0, 8), max_size=3))
@settings(max_examples=examples(300))
def test_no_other_whitelist_keeps_enough_calls_at_fewer_tokens(
    used: list[UsedTool], share: int, fixed: set[int]
) -> None:
    kept = {("up", f"t{place}") for place in fixed}
    found = cheapest_whitelist(used, share / 100, kept)

    needed = math.ceil(share * sum(tool.calls for tool in used) / 100)
    every = [
        chosen
        for size in range(len(used) + 1)
        for chosen in itertools.combinations(used, size)
        if sum(tool.calls for tool in chosen) >= needed and all(tool in chosen for tool in used if tool.key in kept)
    ]
    cheapest = min(sum(tool.tokens for tool in chosen) for chosen in every)
    most = max(
        sum(tool.calls for tool in chosen) for chosen in every if sum(tool.tokens for tool in chosen) == cheapest
    )
    by_key = {tool.key: tool for tool in used}
    assert found.calls == sum(by_key[key].calls for key in found.tools) == most
    assert found.tokens == sum(by_key[key].tokens for key in found.tools) == cheapest
