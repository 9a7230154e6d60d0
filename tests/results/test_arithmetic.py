"""Arithmetic in paths: what it gives, how its operators bind, and that only numbers are calculated with."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.errors import InvalidInputError
from pml_gateway.results.paths import select
from tests.support.examples import examples

VALUE: dict[str, Any] = {
    "n": 7,
    "m": 2,
    "s": "12",
    "none": None,
    "no": False,
    "list": [1, 2],
    "object": {"a": 1},
    "first-name": "Ada",
    "not": 3,
    "and": 4,
    "large": 9007199254740993,
    "rows": [{"p": 2, "q": 3, "ok": True}, {"p": 5, "q": 1.5, "ok": False}],
}


def found(path: str, value: Any = None) -> Any:
    return anyio.run(select, path, VALUE if value is None else value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("n + m * 2", 11),
        ("large * 1.0", 9007199254740993),
        ("large + 0.0", 9007199254740993),
        ("large - 1.0", 9007199254740992),
        ("large / 3", 3002399751580331),
        ("123456789012345678 / 2", 61728394506172839),
        ("9007199254740993 * 3 / 3", 9007199254740993),
        ("sum([large, `2.0`])", 9007199254740995),
        ("sum([`0.5`, `0.5`])", 1),
        ("avg([large, large])", 9007199254740993),
        ("avg([n, m])", 4.5),
        ("avg(`[]`)", None),
        ("to_number('1e400a') == null", True),
        ("to_number(' 12 ')", 12),
        ("to_number('-1.5e2')", -150.0),
        ("to_number('9007199254740993')", 9007199254740993),
        ("[to_number('nan'), to_number('inf'), to_number('-Infinity')]", [None, None, None]),
        ("[to_number('1_000'), to_number('１２'), to_number('0x1f'), to_number('1,5'), to_number('')]", [None] * 5),
        ("(n + m) * 2", 18),
        ("2 - 3 - 4", -5),
        ("12 / 3 / 2", 2),
        ("n - 1", 6),
        ("n-1", 6),
        ("n -1", 6),
        ("n - -1", 8),
        ("-n + 1", -6),
        ("- -n", 7),
        ("-(n + m)", -9),
        ("n * -m", -14),
        ("n / m", 3.5),
        ("8 / m", 4),
        ("1.5 * 2", 3),
        ("large + 1", 9007199254740994),
        ("n + 1 == 8 && m * 2 <= 4", True),
        ("n > m + 4", True),
        ("n > 5 and m > 5 or n == 7", True),
        ("n > 5 AND NOT m > 5", True),
        ("not n > 5", False),
        ("not (n > 5 and m > 5)", True),
        ("not no", True),
        ("!rows[1].ok", True),
        ("!rows[0].ok", False),
        ("rows[?p * q > 6].p", [5]),
        ("rows[?not ok].q", [1.5]),
        ("rows[?p == 2 or q < 2] | length(@)", 2),
        ("map(&p * q, rows)", [6, 7.5]),
        ("rows[*].(p * q)", [6, 7.5]),
        ("sum(rows[*].(p * q)) / length(rows)", 6.75),
        ("sort_by(rows, &-p)[*].p", [5, 2]),
        ("rows[-1].p - rows[0].p", 3),
        ("{total: n * m, twice: [2 * n, 1], ok: true}", {"total": 14, "twice": [14, 1], "ok": True}),
        ("not_null(none, 0) + 1", 1),
        ("to_number(s) * 2", 24),
        ("@['first-name']", "Ada"),
        ('object["a"] + 1', 2),
        ("rows[0]['p'] * 2", 4),
        ("rows[?@['p'] > 2]['q']", [1.5]),
    ],
)
def test_it_is_calculated_as_everybody_expects(path: str, value: Any) -> None:
    assert found(path) == value
    assert type(found(path)) is type(value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("rows[*].p", [2, 5]),
        ("rows[-2:].p", [2, 5]),
        ("rows[-1].q", 1.5),
        ("object.*", [1]),
        ("*|[0]", 7),
        ("not", 3),
        ("not && n", 7),
        ("object.not", None),
        ('"first-name"', "Ada"),
        ("rows[*].{not: p, or: q} | [0]", {"not": 2, "or": 3}),
        ("rows[0].[p, q]", [2, 3]),
        ("['a', 'b']", ["a", "b"]),
        ("[n]", [7]),
        ("n || ['a']", 7),
        ("[s, 'a'] | ['b']", ["b"]),
        ("none || n && m", 2),
        ("`-1`", -1),
        ("'a - b'", "a - b"),
        ('"and"', 4),
    ],
)
def test_what_is_standard_stays_as_it_is(path: str, value: Any) -> None:
    if value is None:
        with pytest.raises(InvalidInputError, match="finds nothing"):
            found(path)
    else:
        assert found(path) == value


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("n / 0", "the divisor is 0"),
        ("n / (m - 2)", "the divisor is 0"),
        ("rows[*].(p / q) | [0] / object.b", "object.b is null"),
        ("none + 1", "not_null(none, 0)"),
        ("nope.deeper * 2", "nope.deeper is null"),
        ("rows[0].p + rows[0].z", "rows[0].z is null"),
        ("-nope", "nope is null"),
        ("s + 1", "to_number(s)"),
        ("'a' + 'b'", "join('', [a, b])"),
        ("no + 1", "no is a boolean"),
        ("object * 2", "object is an object"),
        ("rows[*].p * 2", "map(&@ * 2, items)"),
        ("list + 1", "sum(list)"),
        ("1e308 * 10", "too large"),
        ("sum([`1e308`, `1e308`])", "the result of + is too large"),
        ("avg([`1e308`, `1e308`])", "too large"),
        ("n > 1e999", "too large"),
        ("n < `1e999`", "too large"),
        ("contains(`[1, [-1e999]]`, n)", "too large"),
        ("to_number('1e400')", "too large"),
        ("to_number('-1e999')", "too large"),
        (f"to_number('{'9' * 900}')", "too large"),
        ("from_json('[1e999]')", "too large"),
        ("large * 0.5", "9007199254740993 is beyond 2^53"),
        ("large / 2", "would lose digits"),
        ("1.5 + large", "would lose digits"),
        ("sum([large, `0.5`])", "would lose digits"),
        ("avg([large, m])", "would lose digits"),
        ("null + 1", "null is null"),
        ("true * 2", "true is a boolean"),
        ("abs(none)", "abs() takes number, and is given null"),
        ("sum([n, none])", "sum() takes array of number, and is given null"),
        ("join('', [s, no])", "join() takes array of string, and is given boolean"),
        ("rows[?p > '3']", "to_number()"),
        ("s >= 5", "s is a text"),
        ("1 < n < 9", "a > 1 && a < 5"),
        (
            "first-name",
            """write '"first-name"' instead of "first-name" for the name, and first - name for the difference""",
        ),
        ("rows[?unit-price > 1]", "unit - price"),
        ("n +", "no JMESPath"),
        ("* 2", "no JMESPath"),
        ("n ** 2", "no JMESPath"),
        ("n m", "no JMESPath"),
        ("+".join(["n"] * 300), "nested too deeply"),
        ("-" * 600 + "n", "nested too deeply"),
    ],
)
def test_what_has_no_result_is_told_with_what_to_write(path: str, said: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        found(path)
    assert said in str(caught.value)


def test_products_of_large_numbers_end_at_once() -> None:
    with pytest.raises(InvalidInputError, match="too large"):
        found(" * ".join(["n"] * 190), {"n": 10**4000})


NUMBERS = st.integers(0, 99).map(str) | st.integers(0, 99).map(lambda cents: f"{cents / 4:.2f}")
TERMS = st.recursive(
    NUMBERS,
    lambda inner: (
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/"]), inner).map(" ".join)
        | inner.map(lambda text: f"({text})")
        | inner.map(lambda text: f"-{text}" if text[0] not in "-0123456789" else f"- {text}")
    ),
    max_leaves=12,
)


@settings(max_examples=examples(300))
@given(TERMS)
def test_operators_bind_as_they_do_in_python(text: str) -> None:
    try:
        expected = eval(text)  # numbers, signs and brackets only
    except ZeroDivisionError:
        with pytest.raises(InvalidInputError, match="is 0"):
            found(text)
    else:
        assert found(text) == expected
