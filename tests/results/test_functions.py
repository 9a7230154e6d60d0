"""The functions of paths and transforms: what each gives, and that none takes more than it may."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.config.settings import LimitSettings
from pml_gateway.errors import BudgetExceededError, InvalidInputError
from pml_gateway.processes.budget import RequestBudget, spending
from pml_gateway.processes.workers import open_workers
from pml_gateway.results.functions import FUNCTIONS, LanguageFunctions, arity_of
from pml_gateway.results.paths import select
from tests.support.examples import examples

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6)


def found(path: str, value: Any) -> Any:
    return anyio.run(select, path, value)


@pytest.mark.parametrize(
    ("path", "value", "selected"),
    [
        ("lines(@)", "a\nb\r\nc\n", ["a", "b", "c"]),
        ("lines(@)", "", []),
        ("lines(@)", "a\n\nb\u2028c", ["a", "", "b\u2028c"]),
        ("split(@, ', ')", "a, b, c", ["a", "b", "c"]),
        ("trim(@)", "  a b\n", "a b"),
        ("lines(@)[?match(@, 'ERR')] | [0]", "ok\nERR 7\nok", "ERR 7"),
        ("match(@, 'v(\\d+)\\.(\\d+)')[1]", "at v12.3", "12"),
        ("match(@, '(a)|(b)')", "b", ["b", None, "b"]),
        ("match(@, 'nothing')", "b", None),
        ("from_json(@).a[0]", 'x{"a": [1]}'[1:], 1),
        ("from_json(@)", [1], [1]),
        ("lines(@)[*].from_json(@).n", '{"n": 1}\n{"n": 2}\n', [1, 2]),
        ("to_json(@)", {"a": ["é"]}, '{"a":["é"]}'),
        ("from_csv(@)[?to_number(n) > 1].name", 'name,n\na,1\n\n"b, c",2\n', ["b, c"]),
        ("from_csv(@)", "\ufeffa;b\r\n1;2\r\n3\r\n", [{"a": "1", "b": "2"}, {"a": "3", "b": None}]),
        ("from_csv(@)", "a\tb\n1\t2", [{"a": "1", "b": "2"}]),
        ("from_csv(@)", "", []),
    ],
)
def test_text_becomes_values(path: str, value: Any, selected: Any) -> None:
    assert found(path, value) == selected


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("from_json(@)", "{nope", "no JSON"),
        ("from_json(@)", "NaN", "NaN is no JSON"),
        ("from_csv(@)", "a,a\n1,2", "two columns that are called 'a'"),
        ("from_csv(@)", "a,b\n1,2,3", "3 cells in row 2, and 2 columns"),
        ("from_csv(@)", 'a,b\n"1', "no table"),
        ("split(@, '')", "a", "separator that is not empty"),
        ("match(@, '(')", "a", "no regular expression"),
        ("lines(@)", {"a": 1}, "lines()"),
    ],
)
def test_text_that_holds_something_else_is_told(path: str, value: Any, said: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        found(path, value)
    assert said in str(caught.value)


def test_every_function_is_in_the_one_table_with_its_arguments() -> None:
    assert set(FUNCTIONS) == set(LanguageFunctions.FUNCTION_TABLE)
    for name, function in FUNCTIONS.items():
        assert function.call.startswith(f"{name}(")
        least, is_open = arity_of(name)
        written = function.call[len(name) + 1 : -1].split(", ")
        assert written[-1] == "..." if is_open else len(written) == least


@settings(max_examples=examples(100))
@given(JSON)
def test_any_value_survives_as_json_text(value: Any) -> None:
    assert json.dumps(found("from_json(to_json(@))", [value])) == json.dumps([value])


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(CELLS, CELLS), max_size=5))
def test_any_table_is_read_as_it_was_written(rows: list[tuple[str, str]]) -> None:
    written = io.StringIO(newline="")
    csv.writer(written, quoting=csv.QUOTE_ALL).writerows([("a", "b"), *rows])
    assert found("from_csv(@)", written.getvalue()) == [{"a": a, "b": b} for a, b in rows]


@settings(max_examples=examples(100))
@given(st.text(max_size=40), st.text(min_size=1, max_size=3))
def test_any_text_is_its_parts_joined(text: str, separator: str) -> None:
    assert found("join(s, split(t, s))", {"t": text, "s": separator}) == text


def test_a_pattern_that_takes_for_ever_is_ended() -> None:
    async def searched() -> None:
        async with open_workers() as workers:
            with spending(RequestBudget(LimitSettings(request_steps=50_000), workers=workers)):
                await select("match(@, '(a|aa)+$')", "a" * 5000 + "b")

    with pytest.raises(BudgetExceededError) as caught:
        anyio.run(searched)
    assert caught.value.details["setting"] == "limits.request_steps"


def test_no_more_lines_are_made_than_a_request_may_build() -> None:
    async def read(path: str) -> None:
        with spending(RequestBudget(LimitSettings(request_parts=20_000))):
            await select(path, "a,\n" * 30_000)

    for path in ("lines(@)", "split(@, ',')", "from_csv(@)"):
        with pytest.raises(BudgetExceededError):
            anyio.run(read, path)
