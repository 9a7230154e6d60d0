"""The functions of paths and transforms: JMESPath's own, and additional ones that parse text."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from types import MappingProxyType
from typing import Any, TypeVar

from jmespath.functions import Functions

from pml_gateway.results.numbers import MAX_EXACT, Number, checked_number, is_number, operated, read_number

MAX_PATTERN = 1000
"""Maximum number of characters of a regular expression."""

_SEPARATORS = (",", ";", "\t")

MAX_DIGITS = 15
"""Most digits of a fraction that every reader of JSON keeps as it is written."""

_WORDS: Mapping[str, bool | None] = MappingProxyType(
    {
        **{"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False},
        **{"null": None, "NULL": None, "": None},
    }
)
"""Cells that are a boolean or null; nobody is called null, and `Null` may be a name."""

_PLAIN_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?", re.ASCII)
_DIGIT = re.compile(r"\d")

ENDLESS = frozenset({"match"})
"""Functions that may run forever on some inputs; they are only called in a process that can be terminated."""

Check = Callable[[int], None]
"""A check that raises if building this many parts would exceed the limit."""

Cell = str | int | float | bool | None

Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Function:
    """One function as the documentation and messages describe it: its call and its result."""

    call: str
    gives: str


FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        "lines": Function("lines(text)", "the lines of a text, without their ends"),
        "split": Function("split(text, separator)", "the parts of a text between the separators"),
        "trim": Function("trim(text)", "the text without space around it"),
        "match": Function(
            "match(text, pattern)",
            "the first match of a regular expression, `[all of it, group 1, ...]`; null where there is none",
        ),
        "from_json": Function("from_json(text)", "the value that a JSON text holds; what is no text stays as it is"),
        "to_json": Function("to_json(value)", "the value as JSON text; a text in quotes"),
        "from_csv": Function(
            "from_csv(text)",
            "the rows of a table whose first line names the columns (`,`, `;` or tab), as objects; "
            "[which cells are numbers](#tables)",
        ),
        "to_string": Function("to_string(value)", "a text as it is, anything else as JSON text"),
        "to_number": Function("to_number(value)", "the number that a text holds; null where it holds none"),
        "to_array": Function("to_array(value)", "a list as it is, anything else as a list of it"),
        "type": Function("type(value)", "`string`, `number`, `boolean`, `array`, `object` or `null`"),
        "length": Function("length(value)", "how many characters, items or fields there are"),
        "contains": Function("contains(list or text, wanted)", "whether the item or the text is in it"),
        "starts_with": Function("starts_with(text, beginning)", "whether it begins so"),
        "ends_with": Function("ends_with(text, end)", "whether it ends so"),
        "join": Function("join(separator, texts)", "the texts as one, with the separator between them"),
        "reverse": Function("reverse(list or text)", "the other way round"),
        "sort": Function("sort(list)", "numbers or texts in order"),
        "sort_by": Function("sort_by(list, &field)", "items in the order of a number or text in each"),
        "max": Function("max(list)", "the largest number or text; null of none"),
        "max_by": Function("max_by(list, &field)", "the item whose number or text is largest"),
        "min": Function("min(list)", "the smallest number or text; null of none"),
        "min_by": Function("min_by(list, &field)", "the item whose number or text is smallest"),
        "sum": Function("sum(numbers)", "their sum"),
        "avg": Function("avg(numbers)", "their mean; null of none"),
        "abs": Function("abs(number)", "the number without its sign"),
        "ceil": Function("ceil(number)", "the next whole number above"),
        "floor": Function("floor(number)", "the next whole number below"),
        "map": Function("map(&expression, list)", "what the expression finds in each item, null included"),
        "not_null": Function("not_null(value, ...)", "the first value that is not null"),
        "keys": Function("keys(object)", "the names of its fields"),
        "values": Function("values(object)", "the values of its fields"),
        "merge": Function("merge(object, ...)", "one object of all fields; the last of a name counts"),
    }
)
"""All functions, in the order of the documentation."""


def _takes(*kinds: str) -> Callable[[Method], Method]:
    """Declare the types of a function's arguments in the library's format; `any` accepts all of them."""

    def with_signature(method: Method) -> Method:
        method.signature = tuple({"types": [] if kind == "any" else [kind]} for kind in kinds)  # type: ignore[attr-defined]
        return method

    return with_signature


class LanguageFunctions(Functions):  # type: ignore[misc]  # the library has no types
    """The library's functions and the gateway's own; `FUNCTION_TABLE` has the argument types of each."""

    def __init__(self, check_length: Check) -> None:
        """Call `check_length` before anything long is built."""
        self._check_length = check_length

    def call_function(self, name: str, arguments: list[Any]) -> Any:
        """Return the value of a call.

        Raises:
            ValueError: it would be a number that is too large.
        """
        value = super().call_function(name, arguments)
        return checked_number(value, f"{name}()") if is_number(value) else value

    @_takes("string")
    def _func_lines(self, text: str) -> list[str]:
        plain = text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n")
        self._check_length(plain.count("\n"))
        return plain.split("\n") if plain else []

    @_takes("string", "string")
    def _func_split(self, text: str, separator: str) -> list[str]:
        if not separator:
            raise ValueError("split() needs a separator that is not empty")
        self._check_length(text.count(separator))
        return text.split(separator)

    @_takes("string")
    def _func_trim(self, text: str) -> str:
        return text.strip()

    @_takes("any")
    def _func_from_json(self, text: Any) -> Any:
        if not isinstance(text, str):
            return text
        try:
            return json.loads(text, parse_constant=_no_constant, parse_float=_float)
        except ValueError as error:
            raise ValueError(f"from_json() got a text that is no JSON: {error}") from None

    @_takes("any")
    def _func_to_number(self, value: Any) -> Number | None:
        if not isinstance(value, str):
            return value if is_number(value) else None
        return read_number(value)

    @_takes("array-number")
    def _func_sum(self, numbers: list[Number]) -> Number:
        whole = sum(each for each in numbers if isinstance(each, int))
        return operated("+", whole, sum(each for each in numbers if isinstance(each, float)))

    @_takes("array-number")
    def _func_avg(self, numbers: list[Number]) -> Number | None:
        return operated("/", self._func_sum(numbers), len(numbers)) if numbers else None

    @_takes("any")
    def _func_to_json(self, value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    @_takes("string")
    def _func_from_csv(self, text: str) -> list[dict[str, Cell]]:
        plain = text.removeprefix("\ufeff").lstrip("\r\n")
        first = plain.split("\n", 1)[0]
        separator = max(_SEPARATORS, key=first.count)
        self._check_length(plain.count(separator) + plain.count("\n"))
        try:
            rows = [row for row in csv.reader(StringIO(plain, newline=""), delimiter=separator, strict=True) if row]
        except csv.Error as error:
            raise ValueError(f"from_csv() got a text that is no table: {error}") from None
        return _table(rows) if rows else []

    @_takes("string", "string")
    def _func_match(self, text: str, pattern: str) -> list[str | None] | None:
        if len(pattern) > MAX_PATTERN:
            raise ValueError(f"match() got a pattern of {len(pattern)} characters; at most {MAX_PATTERN}")
        try:
            found = re.search(pattern, text)
        except (re.error, OverflowError) as error:
            raise ValueError(f"match() got a pattern that is no regular expression: {error}") from None
        return None if found is None else [found[0], *found.groups()]


def arity_of(name: str) -> tuple[int, bool]:
    """Return the number of arguments that a function takes, and whether it takes more."""
    taken = LanguageFunctions.FUNCTION_TABLE[name]["signature"]
    return len(taken), bool(taken and taken[-1].get("variadic"))


def _table(rows: list[list[str]]) -> list[dict[str, Cell]]:
    columns = [name.strip() for name in rows[0]]
    twice = next((name for at, name in enumerate(columns) if name in columns[:at]), None)
    if twice is not None:
        raise ValueError(f"from_csv() got two columns that are called {twice[:60]!r}")
    for number, row in enumerate(rows[1:], start=2):
        if len(row) > len(columns):
            raise ValueError(f"from_csv() got {len(row)} cells in row {number}, and {len(columns)} columns")
    # One code such as 007 makes its whole column text: `zip == '80331'` holds beside 01067 as well.
    codes = {at for row in rows[1:] for at, cell in enumerate(row) if _DIGIT.search(cell) and not _is_number(cell)}
    codes |= {
        at for at in range(len(columns)) if at not in codes and _are_codes(row[at] for row in rows[1:] if at < len(row))
    }
    filled = ([*row, *[""] * (len(columns) - len(row))] for row in rows[1:])
    return [
        {
            name: _cell(cell, may_be_number=at not in codes)
            for at, (name, cell) in enumerate(zip(columns, row, strict=True))
        }
        for row in filled
    ]


def _is_number(text: str) -> bool:
    cell = text.strip()
    if _PLAIN_NUMBER.fullmatch(cell) is None:
        return False
    return len(cell.lstrip("-")) - 1 <= MAX_DIGITS if "." in cell else len(cell) <= 17 and abs(int(cell)) <= MAX_EXACT


def _are_codes(cells: Iterator[str]) -> bool:
    """Return True if numbers differ as texts alone, or seem to be counted on behind the point as in 1.9 and 1.10."""
    numbers = {plain for cell in cells if _DIGIT.search(plain := cell.strip())}
    fractions = [each.partition(".")[2] for each in numbers if "." in each]
    is_counted = any(each.endswith("0") for each in fractions) and len(set(map(len, fractions))) > 1
    return is_counted or len(set(map(float, numbers))) < len(numbers)


def _cell(text: str, *, may_be_number: bool) -> Cell:
    plain = text.strip()
    if plain in _WORDS:
        return _WORDS[plain]
    if not may_be_number or not _is_number(text):
        return text
    return float(plain) if "." in plain else int(plain)


def _float(text: str) -> float:
    return float(checked_number(float(text), text[:40]))


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
