"""Numbers with their nouns."""

from __future__ import annotations

import pytest

from pml_gateway.text import counted, plural_of


@pytest.mark.parametrize(
    ("number", "shown"), [(0, "0 searches"), (1, "1 search"), (2, "2 searches"), (1234, "1,234 searches")]
)
def test_the_noun_has_the_form_that_belongs_to_the_number(number: int, shown: str) -> None:
    assert counted(number, "search", "searches") == shown


def test_an_s_makes_a_plural_unless_another_is_given() -> None:
    assert [counted(number, "call") for number in (1, 3)] == ["1 call", "3 calls"]
    assert [plural_of(number, "is", "are") for number in (1, 3)] == ["is", "are"]
