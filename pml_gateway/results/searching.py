"""Searching a stored value as grep does: lines of text, items of a list, values anywhere in an object."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import anyio.to_thread

from pml_gateway.errors import InvalidInputError
from pml_gateway.json_text.pieces import exceeds, measure
from pml_gateway.processes.budget import current_budget
from pml_gateway.processes.workers import Limit, WorkerLimitError, out_of_turn
from pml_gateway.results.content import Content, addressed
from pml_gateway.results.encoding import shown_at_most
from pml_gateway.results.paging import LineRange, member_path
from pml_gateway.results.paths import value_at
from pml_gateway.text import shortened
from pml_gateway.types import JsonObject

MAX_PATTERN = 1000
SECONDS = 2.0
"""Seconds of processor time for one search in a process: a regular expression may backtrack for hours."""

SEARCHED_HERE = 256 * 1024
"""Maximum characters of a plain-text search in a thread, which takes a few milliseconds."""

MAX_COUNTED = 10_000
"""Maximum number of matches counted in one long line."""

DEFAULT_MATCHES = 20
MAX_CONTEXT = 50

MAX_LINE = 300
LINE_BEFORE = 100
"""Characters shown of a line, and how many of them precede the match if the line is longer."""

LONG_LINE = 2000
"""Line length above which every match counts separately: such text has no meaningful lines."""

MAX_ITEM = 2000
"""Maximum characters of an item that is shown whole; of a larger one, only the matching value is shown."""

_SPECIAL = re.compile(r"[|*+?^$\\()\[\]{}]")


@dataclass(frozen=True, slots=True)
class Search:
    """The parameters of a search.

    Args:
        text: matched case-insensitively, anywhere in a line or value; field names are not searched.
        is_regex: True if `text` is a Python regular expression.
        context: lines, items or values to show before and after each match.
        lines: the lines of a text to search.
        offset: matches to skip.
        limit: matches to show.
    """

    text: str
    is_regex: bool = False
    context: int = 0
    lines: LineRange | None = None
    offset: int = 0
    limit: int = DEFAULT_MATCHES


async def matches_of(content: Content, path: str | None, search: Search, budget: int) -> JsonObject:
    """Return the matches of a search with their positions, their total number, and `next_offset` if more follow.

    Args:
        content: the whole value.
        path: JMESPath to the part to search.
        search: the parameters of the search.
        budget: characters of JSON that the answer may take.

    Raises:
        InvalidInputError: the path finds nothing, the pattern is invalid or takes too long, or there is nothing to
            search.
        OverloadedError: no worker became free in time.
    """
    if content.kind == "binary":
        raise InvalidInputError("search: bytes are not searched", hint="offset and limit read them")
    if not search.text or len(search.text) > MAX_PATTERN or "\n" in search.text:
        raise InvalidInputError(
            f"search: one line of 1 to {MAX_PATTERN} characters is needed", hint="lines are searched one by one"
        )
    if path is not None or search.lines is not None:
        value = await value_at(content, path)
    else:
        value = await anyio.to_thread.run_sync(addressed, content)
    if search.lines is not None and not isinstance(value, str):
        raise search.lines.fault(value, path)
    arguments = (value, path, search.text, search.is_regex, search.context, search.offset, search.limit, budget)
    span = (1, None) if search.lines is None else search.lines.of(value.count("\n") + 1)
    return await _searched(search, (*arguments, *span))


async def _searched(search: Search, arguments: tuple[Any, ...]) -> JsonObject:
    request = current_budget()
    try:
        if request.workers is not None and (search.is_regex or exceeds(arguments[0], SEARCHED_HERE)):
            found: JsonObject = await request.workers.in_process(
                search_in_process, *arguments, seconds=SECONDS, quota_key=request.quota_key
            )
        else:
            found = await request.in_thread(partial(search_in_process, *arguments))
    except WorkerLimitError as error:
        if error.limit is Limit.MACHINE:
            raise out_of_turn("the search did not end") from None
        raise InvalidInputError(
            f"search: {shortened(search.text, 120)!r} took more {error.limit} than one search may",
            hint="search without regex or with a simpler expression, or only a part: path, lines",
        ) from None
    except RecursionError:
        raise InvalidInputError("search: the data is nested too deeply", hint="search a part of it: path") from None
    if "fault" in found:
        raise InvalidInputError(
            f"search: {shortened(search.text, 120)!r} is no regular expression: {found['fault']}",
            hint="leave regex out to search for the text itself",
        )
    if not found["matches"] and not search.is_regex and _SPECIAL.search(search.text):
        found["hint"] = 'read as plain text; "regex": true reads it as a regular expression'
    return found


def search_in_process(
    value: Any,
    path: str | None,
    text: str,
    is_regex: bool,
    context: int,
    offset: int,
    limit: int,
    budget: int,
    first: int,
    last: int | None,
) -> JsonObject:
    """Search in a process that can be terminated; take and return plain values. `fault` is the error of the pattern."""
    try:
        pattern = re.compile(text if is_regex else re.escape(text), re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        return {"fault": shortened(str(error), 200)}
    shown = _Shown(context, offset, limit, budget, as_text=not isinstance(value, list))
    if isinstance(value, str):
        units: Iterator[_Unit] = (unit for unit in _lines(value) if first <= unit.number <= (last or unit.number))
    elif isinstance(value, list):
        before = f"{path} | " if path else ""
        units = (_Unit(position, f"{before}[{position}]", item) for position, item in enumerate(value))
    else:
        units = _leaves(value, path)
    for unit in units:
        shown.take(unit, _found(pattern, unit.value))
    return shown.answer()


@dataclass(frozen=True, slots=True)
class _Unit:
    """A line, an item or a value: its number, the location shown before it, and the value itself."""

    number: int
    place: str
    value: Any


@dataclass(frozen=True, slots=True)
class _Match:
    """A match in a unit: the path to a value inside an item, its text, and the positions of the matches."""

    path: str
    text: str
    starts: Iterable[int]


def _lines(text: str, before: str = "") -> Iterator[_Unit]:
    for number, line in enumerate(text.split("\n"), 1):
        yield _Unit(number, f"{before}{number}", line.removesuffix("\r"))


def _leaves(value: Any, path: str | None) -> Iterator[_Unit]:
    """Yield the values in an object, each with its path; multi-line text is split into lines."""
    prefix = f"{path} | " if path else ""
    for number, (place, leaf) in enumerate(_values(value)):
        if isinstance(leaf, str) and "\n" in leaf:
            yield from _lines(leaf, f"{prefix}{place} ")
        else:
            yield _Unit(number, f"{prefix}{place}", leaf)


def _values(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every value that is not a list or object, in order, with its path."""
    pending: list[tuple[str | None, Any]] = [(None, value)]
    while pending:
        path, item = pending.pop()
        if isinstance(item, dict):
            pending += [(member_path(path, key), member) for key, member in reversed(item.items())]
        elif isinstance(item, list):
            pending += [(f"{path or ''}[{at}]", item[at]) for at in range(len(item) - 1, -1, -1)]
        else:
            yield path or "@", item


def _found(pattern: re.Pattern[str], value: Any) -> _Match | None:
    if not isinstance(value, dict | list):
        return _in_leaf(pattern, "", value)
    return next((match for path, leaf in _values(value) if (match := _in_leaf(pattern, path, leaf)) is not None), None)


def _in_leaf(pattern: re.Pattern[str], path: str, leaf: Any) -> _Match | None:
    text = leaf if isinstance(leaf, str) else json.dumps(leaf)
    first = pattern.search(text)
    if first is None:
        return None
    is_long = len(text) > LONG_LINE and not path
    every = (each.start() for each in islice(pattern.finditer(text), MAX_COUNTED))
    return _Match(path, text, every if is_long else (first.start(),))


class _Shown:
    """The matches to show with their context, within the budget; all matches are counted."""

    def __init__(self, context: int, offset: int, limit: int, budget: int, *, as_text: bool) -> None:
        self._context, self._offset, self._limit, self._left = context, offset, limit, budget
        self._as_text = as_text
        self._before: deque[tuple[int, _Unit]] = deque(maxlen=context)
        self._parts: list[Any] = []
        self._units = self._matches = self._given = self._after = 0
        self._latest = 0

    def take(self, unit: _Unit, match: _Match | None) -> None:
        """Add the next unit and its match, if it has one."""
        self._units += 1
        for start in match.starts if match is not None else ():
            self._matches += 1
            if self._offset < self._matches <= self._offset + self._limit and self._left > 0:
                for number, earlier in self._before:
                    self._add(number, _entry(earlier, None, 0, as_text=self._as_text))
                self._add(self._units, _entry(unit, match, start, as_text=self._as_text), is_match=True)
                self._given, self._after = self._given + 1, self._context
        if match is None and self._after > 0:
            self._after -= 1
            self._add(self._units, _entry(unit, None, 0, as_text=self._as_text))
        self._before.append((self._units, unit))

    def answer(self) -> JsonObject:
        """Return the matches as the answer to the search."""
        parts: JsonObject = {"text": "\n".join(self._parts)} if self._as_text else {"items": self._parts}
        is_more = self._matches > self._offset + self._given
        following = {"next_offset": self._offset + self._given} if is_more else {}
        return {"matches": self._matches, "searched": self._units, **parts, "offset": self._offset, **following}

    def _add(self, number: int, entry: Any, *, is_match: bool = False) -> None:
        if not is_match and (number <= self._latest or self._left <= 0):
            return
        if self._as_text and self._context and self._latest and number > self._latest + 1:
            self._parts.append("--")
        self._parts.append(entry)
        self._left -= measure(entry, MAX_ITEM + MAX_LINE)
        self._latest = number


def _entry(unit: _Unit, match: _Match | None, start: int, *, as_text: bool) -> Any:
    """Return a unit as shown: a line with its location, or an item with its index."""
    if as_text:
        text = unit.value if isinstance(unit.value, str) else json.dumps(unit.value)
        place = shortened(unit.place, MAX_LINE)
        return f"{place}-{shortened(text, MAX_LINE)}" if match is None else f"{place}:{_around(text, start)}"
    if match is None:
        return {"index": unit.number, "item": shown_at_most(unit.value, MAX_LINE), "context": True}
    if measure(unit.value, MAX_ITEM) <= MAX_ITEM:
        return {"index": unit.number, "item": unit.value}
    at = f".{match.path}" if match.path and not match.path.startswith("[") else match.path
    return {
        "index": unit.number,
        "path": shortened(f"{unit.place}{at}", MAX_LINE),
        "excerpt": _around(match.text, start),
    }


def _around(text: str, start: int) -> str:
    """Return a line, or if it is too long, the part around a match with the position where that part begins."""
    if len(text) <= MAX_LINE:
        return text
    begin = max(start - LINE_BEFORE, 0)
    part = text[begin : begin + MAX_LINE]
    return f"[character {begin}] {part}{'…' if begin + MAX_LINE < len(text) else ''}"
