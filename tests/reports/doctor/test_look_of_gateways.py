"""What `pml add` says of a server that a running gateway tries: never before its list is known."""

from __future__ import annotations

from typing import Any

import pytest

from pml_gateway.reports.doctor.first_look import look_of

pytestmark = pytest.mark.field("D3")

ROW: dict[str, Any] = {
    "server": "up",
    "state": "ready",
    "tools": 0,
    "listed": None,
    "held_back": 0,
    "auth": {"state": "not_needed"},
    "error": None,
}


@pytest.mark.parametrize(
    ("row", "count"),
    [
        ({}, None),
        ({"listed": 9}, None),
        ({"listed": 9, "tools": 9}, 9),
        ({"listed": 0}, 0),
        ({"listed": 9, "tools": 7, "held_back": 2}, 7),
        ({"listed": 9, "tools": 0, "held_back": 9}, 0),
        ({"tools": 9}, None),
        ({"state": "connecting", "tools": 9, "listed": 9}, None),
    ],
)
def test_a_server_works_once_the_gateway_has_taken_its_list_over(row: dict[str, Any], count: int | None) -> None:
    look = look_of("up", {**ROW, **row})
    assert (None if look is None else look.count) == count


def test_what_is_held_back_is_said() -> None:
    look = look_of("up", {**ROW, "listed": 9, "tools": 7, "held_back": 2})
    assert look is not None
    assert look.hint == "2 definitions held back until you accept them: pml trust"
    look = look_of("up", {**ROW, "listed": 9, "tools": 9, "flagged": 1})
    assert look is not None
    assert look.hint == "1 definition may be an attack: pml trust"
