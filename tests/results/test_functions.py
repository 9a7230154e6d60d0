"""The functions of paths and transforms: what each gives, and that none takes more than it may."""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal
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
CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6) | st.text(
    "0123456789.-+e ", min_size=1, max_size=20
)


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
        ("from_csv(@)[?n > 1].name", 'name,n\na,1\n\n"b, c",2\n', ["b, c"]),
        ("from_csv(@)[?to_number(n) > 1].name", "name,n\na,1\nb,2\n", ["b"]),
        ("from_csv(@)", "\ufeffa;b\r\n1;2\r\n3\r\n", [{"a": 1, "b": 2}, {"a": 3, "b": None}]),
        ("from_csv(@)", "a\tb\n1\t2", [{"a": 1, "b": 2}]),
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


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("0", 0),
        ("-12", -12),
        (" 7 ", 7),
        ("3.50", 3.5),
        ("0.05", 0.05),
        ("9007199254740992", 2**53),
        ("true", True),
        ("FALSE", False),
        ("null", None),
        ("NULL", None),
        ("", None),
        *(
            (text, text)
            for text in (
                *(
                    "007",
                    "00",
                    "-01",
                    "+5",
                    "+49 171 5550",
                    "0171 5550",
                    "1e5",
                    "1E5",
                    "0x10",
                    ".5",
                    "5.",
                    "1_000",
                    "٣",
                ),
                *("9007199254740993", "-9007199254740993", "12345678901234567890", "0.12345678901234567"),
                *(
                    "2026-11-29",
                    "29.11.2026",
                    "09:30",
                    "1.2.3",
                    "1,5",
                    "5 %",
                    "$5",
                    "NaN",
                    "Infinity",
                    "inf",
                    "--1",
                    "1-2",
                ),
                *("yes", "None", "Null", "tRue", "n/a", "-", "nan", "12a", "1 2"),
            )
        ),
    ],
)
def test_a_cell_is_a_number_a_boolean_or_null_only_if_nothing_is_lost(cell: str, value: Any) -> None:
    for written in (cell, f'"{cell}"'):
        [row] = found("from_csv(@)", f"a;b\n{written};x\n")
        assert row == {"a": value, "b": "x"}
        assert type(row["a"]) is type(value)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (["01067", "80331"], ["01067", "80331"]),
        (["+491715550", "5550"], ["+491715550", "5550"]),
        (["12", "12a"], ["12", "12a"]),
        (["1.9", "1.10", "1.10.1"], ["1.9", "1.10", "1.10.1"]),
        (["1.1", "1.10", "3.10"], ["1.1", "1.10", "3.10"]),
        (["3.9", "3.10"], ["3.9", "3.10"]),
        (["1", "1.0"], ["1", "1.0"]),
        (["12.00", " 12"], ["12.00", " 12"]),
        (["-0", "0"], ["-0", "0"]),
        (["3.50", "12.00", "3.50", "7"], [3.5, 12.0, 3.5, 7]),
        (["0.5", "2.25"], [0.5, 2.25]),
        (["1", "n/a", "", "null", "2.5"], [1, "n/a", None, None, 2.5]),
    ],
)
def test_codes_in_a_column_stay_comparable(column: list[str], values: list[Any]) -> None:
    rows = found("from_csv(@)", "name,code\n" + "".join(f"x,{cell}\n" for cell in column))
    assert [row["code"] for row in rows] == values


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(CELLS, CELLS), max_size=5))
def test_any_table_is_read_as_it_was_written(rows: list[tuple[str, str]]) -> None:
    written = io.StringIO(newline="")
    csv.writer(written, quoting=csv.QUOTE_ALL).writerows([("a", "b"), *rows])
    read = found("from_csv(@)", written.getvalue())
    for (first, second), row in zip(rows, read, strict=True):
        for cell, value in ((first, row["a"]), (second, row["b"])):
            if isinstance(value, str):
                assert value == cell
            elif isinstance(value, bool) or value is None:
                assert cell.strip().lower() == json.dumps(value) or not cell.strip()
            else:
                assert Decimal(cell.strip()) == Decimal(json.dumps(value))


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
