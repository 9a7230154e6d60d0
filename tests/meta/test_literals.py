"""Values that a request names become arguments where one parameter fits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pml_gateway.meta.literals import fitting, named_values
from pml_gateway.types import JsonObject

TEXT: JsonObject = {"type": "string"}
NUMBER: JsonObject = {"type": "integer"}
STATE: JsonObject = {"enum": ["open", "closed"]}
LIST: JsonObject = {"type": "array", "items": TEXT}


def inputs(**properties: JsonObject) -> JsonObject:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("write 'it's done' to notes/today.md", ["it's done", "notes/today.md"]),
        ("mail ann@example.com and see https://example.com/a?b=1.", ["ann@example.com", "https://example.com/a?b=1"]),
        ("between 2024-05-01 and the 10th, at most 1,200 or 3.5", ["2024-05-01", 1200, 3.5]),
        ("reservation EH9LP3 under /var/log/app.log", ["EH9LP3", "/var/log/app.log"]),
        ("nothing to see here, really", []),
    ],
)
def test_values_are_found_in_a_request(text: str, expected: list[Any]) -> None:
    assert [each.value for each in named_values(text)] == expected


@pytest.mark.parametrize(
    ("text", "schema", "expected"),
    [
        pytest.param("list the closed issues", inputs(state=STATE), {"state": "closed"}, id="one choice"),
        pytest.param("open or closed ones", inputs(state=STATE), {}, id="two choices"),
        pytest.param("with a length of 10", inputs(length=NUMBER, width=NUMBER), {"length": 10}, id="the word before"),
        pytest.param("make it 10", inputs(length=NUMBER, width=NUMBER), {}, id="two may be meant"),
        pytest.param("make it 10", inputs(length=NUMBER, title=TEXT), {"length": 10}, id="the only number"),
        pytest.param("reply 'Thanks'", inputs(email_id=TEXT, body=TEXT), {"body": "Thanks"}, id="text is no id"),
        pytest.param("call 5551234567", inputs(phone=TEXT, text=TEXT), {"phone": "5551234567"}, id="a phone"),
        pytest.param("read a.txt", inputs(path=TEXT, mode=TEXT), {"path": "a.txt"}, id="a path"),
        pytest.param("invite a@b.co and c@d.co", inputs(emails=LIST), {"emails": ["a@b.co", "c@d.co"]}, id="a list"),
        pytest.param("add 3 and 4", inputs(total=NUMBER), {}, id="two values for one"),
    ],
)
def test_a_value_is_an_argument_where_one_parameter_fits(text: str, schema: JsonObject, expected: JsonObject) -> None:
    assert fitting(text, schema) == expected


@given(st.text(max_size=200) | st.text(alphabet="a1-/.'\"@ 9,", max_size=400))
def test_any_request_can_be_read(text: str) -> None:
    fitting(text, inputs(path=TEXT, count=NUMBER, emails=LIST, kind={"enum": ["a", 1]}))
