"""What JSON in UTF-8 cannot carry is taken out of a result, and a large result keeps the event loop free."""

from __future__ import annotations

from typing import Any

import pytest

from pml_gateway.results.answers import carried

pytestmark = [pytest.mark.anyio, pytest.mark.field("A8")]

ROWS = [{"a": number, "b": "text"} for number in range(5000)]


@pytest.mark.parametrize(
    "sound", [{}, {"a": [1, 1.5, None, True, "\u00fc", {"\U0001f600": "x"}]}, {"a": "x" * 1_000_000}, {"r": ROWS}]
)
async def test_a_result_that_can_be_carried_is_the_same_object(sound: dict[str, Any]) -> None:
    assert await carried(sound) is sound


@pytest.mark.parametrize("filled", [{}, {"fill": "x" * 1_000_000}, {"fill": ROWS}], ids=["small", "text", "rows"])
@pytest.mark.parametrize(
    ("broken", "mended"),
    [
        ("cut \ud83d", "cut ?"),
        (["a", {"b": "\udc00\u00fc"}], ["a", {"b": "?\u00fc"}]),
        ({"\ud800": 1}, {"?": 1}),
        ([float("nan"), float("-inf"), 1.5], [None, None, 1.5]),
    ],
)
async def test_what_cannot_be_carried_is_replaced_and_the_rest_stays(
    filled: dict[str, Any], broken: object, mended: object
) -> None:
    assert await carried({**filled, "x": broken}) == {**filled, "x": mended}
