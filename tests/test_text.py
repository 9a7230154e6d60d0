"""Numbers with their nouns, and what no reader sees."""

from __future__ import annotations

import json
import math
import unicodedata

import jmespath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pml_gateway.text import as_field, counted, escaped, escaped_json, plural_of, shown_score


@pytest.mark.parametrize(
    ("number", "shown"), [(0, "0 searches"), (1, "1 search"), (2, "2 searches"), (1234, "1,234 searches")]
)
def test_the_noun_has_the_form_that_belongs_to_the_number(number: int, shown: str) -> None:
    assert counted(number, "search", "searches") == shown


def test_an_s_makes_a_plural_unless_another_is_given() -> None:
    assert [counted(number, "call") for number in (1, 3)] == ["1 call", "3 calls"]
    assert [plural_of(number, "is", "are") for number in (1, 3)] == ["is", "are"]


@pytest.mark.parametrize("threshold", [each / 100 for each in range(1, 101)])
def test_a_score_below_a_threshold_does_not_read_as_if_it_reached_it(threshold: float) -> None:
    assert shown_score(threshold) == f"{threshold:.2f}"
    for score in (math.nextafter(threshold, 0), threshold - 0.004, threshold - 0.009):
        assert shown_score(score) == f"{threshold - 0.01:.2f}"


@given(st.text(max_size=8) | st.sampled_from(["id", "größe", 'a"b', "a\\b", "a\nb", "2", "", "\ud800"]))
def test_every_key_can_be_written_as_a_field_of_a_path(key: str) -> None:
    assert jmespath.search(as_field(key), {key: "found"}) == "found"
    assert as_field("_id2") == "_id2"


SEEN_IN_TEXT = set("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd")
"""Signs that embrace numbers in Arabic, Syriac and Kaithi: formatting by category, and seen."""

IGNORABLE = [
    *"\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0",
    *map(chr, (*range(0xE0000, 0xE1000), *range(0xFE00, 0xFE0E), 0x2065, *range(0xFFF0, 0xFFF9))),
]


def unseen(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character not in SEEN_IN_TEXT


def test_whatever_no_reader_sees_is_shown_as_an_escape() -> None:
    hidden = [*filter(unseen, map(chr, range(0x110000))), *IGNORABLE]
    for character in hidden:
        shown = escaped(f"a{character}b")
        assert character not in shown
        assert shown == f"a{character.encode('unicode_escape').decode()}b"
        assert json.loads(written := escaped_json([character])) == [character]
        assert character not in written


def test_what_is_seen_stays_as_it_is() -> None:
    for text in ("naïve 東京 שלום العربية", "12\u00a0000\u202f€", "⚠\ufe0f 1\ufe0f\u20e3", "a\u0301", "\u0600"):
        assert escaped(text) == text
        assert json.loads(escaped_json(text)) == text


def test_a_style_of_emoji_is_one_character_and_no_message() -> None:
    assert escaped("x\ufe0f\ufe0e\ufe0f") == "x\ufe0f\\ufe0e\\ufe0f"


def test_named_characters_are_left_alone() -> None:
    assert escaped("a\tb\nc\r", but="\n\t") == "a\tb\nc\\r"


@given(st.recursive(st.none() | st.booleans() | st.text(), lambda inner: st.dictionaries(st.text(), inner, max_size=3)))
def test_escaped_json_is_the_same_value_and_can_always_be_encoded(value: object) -> None:
    for indent in (None, 2):
        text = escaped_json(value, indent=indent)
        assert json.loads(text) == value
        text.encode()
        assert not [character for character in text if unseen(character) and character != "\n"]
