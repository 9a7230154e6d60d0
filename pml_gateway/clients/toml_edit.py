"""Edits of a TOML text that change one table's members and leave the rest as it is."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_TOKEN = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\r\n]|\\.)*"|\'[^\'\r\n]*\'|#[^\r\n]*|\r\n|\n|.', re.DOTALL
)
_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


class TomlEditError(ValueError):
    """The change cannot be made in this layout."""


@dataclass(frozen=True, slots=True)
class _Statement:
    """A header or a pair, from its first character to the end of its line, and the path it writes to."""

    start: int
    end: int
    path: tuple[str, ...]


def set_table(text: str, path: Sequence[str], name: str, value: Mapping[str, Any]) -> str:
    """`text` with the table `name` below `path`, in place of what stood there, or at the end.

    Raises:
        TomlEditError: the parent is written on one line.
    """
    _refuse_inline(text, path)
    text = remove_tables(text, path, {name})
    eol = "\r\n" if "\r\n" in text else "\n"
    gap = "" if not text else eol if text.endswith("\n") else eol * 2
    lines = [f"[{'.'.join(_key(step) for step in (*path, name))}]"]
    lines += [f"{_key(key)} = {_value(item)}" for key, item in value.items()]
    return text + gap + eol.join(lines) + eol


def remove_tables(text: str, path: Sequence[str], names: Collection[str]) -> str:
    """`text` without everything written to the members `names` of the table at `path`; comments between stay.

    Raises:
        TomlEditError: the members stand in a table on one line.
    """
    targets = [(*path, name) for name in names]
    found = [
        statement for statement in _statements(text) if any(_is_below(statement.path, target) for target in targets)
    ]
    if not found:
        if any(name in _at(tomllib.loads(text.removeprefix("\ufeff")), path) for name in names):
            _refuse_inline(text, path)
        return text
    for statement in reversed(found):
        text = text[: statement.start] + text[statement.end :]
    return text


def _is_below(path: tuple[str, ...], target: tuple[str, ...]) -> bool:
    return path[: len(target)] == target


def _refuse_inline(text: str, path: Sequence[str]) -> None:
    for statement in _statements(text):
        if statement.path == tuple(path) and not text.startswith("[", statement.start):
            raise TomlEditError(f"{'.'.join(path)} is written on one line; write each server as a table of its own")


def _at(values: Mapping[str, Any], path: Sequence[str]) -> Mapping[str, Any]:
    for step in path:
        section = values.get(step, {})
        values = section if isinstance(section, dict) else {}
    return values


def _statements(text: str) -> Iterator[_Statement]:
    header: tuple[str, ...] = ()
    for start, end in _spans(text):
        written = text[start:end]
        path = _path(written)
        if written.startswith("["):
            header = path
            yield _Statement(start, end, path)
        else:
            yield _Statement(start, end, (*header, *path))


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """The statements of a valid text, each with the end of its line; blank lines and comments are none."""
    depth = 0
    start: int | None = None
    for match in _TOKEN.finditer(text, 1 if text.startswith("\ufeff") else 0):
        token = match[0]
        if token in ("\n", "\r\n"):
            if start is not None and not depth:
                yield start, match.end()
                start = None
        elif token.isspace() or token.startswith("#"):
            continue
        else:
            start = match.start() if start is None else start
            depth += (token in "[{") - (token in "]}")
    if start is not None:
        yield start, len(text)


def _path(statement: str) -> tuple[str, ...]:
    """The keys a statement names: the header's, or those on the left of a pair."""
    values: Any = tomllib.loads(statement)
    path: list[str] = []
    if statement.startswith("["):
        while values:
            if isinstance(values, list):
                values = values[0]
                continue
            ((key, values),) = values.items()
            path.append(key)
        return tuple(path)
    for _ in range(_depth(statement)):
        ((key, values),) = values.items()
        path.append(key)
    return tuple(path)


def _depth(pair: str) -> int:
    """How many keys stand on the left of a pair."""
    dots = 1
    for match in _TOKEN.finditer(pair):
        if match[0] == "=":
            break
        dots += match[0] == "."
    return dots


def _key(key: str) -> str:
    return key if _BARE.match(key) else json.dumps(key, ensure_ascii=False)


def _value(value: Any) -> str:
    match value:
        case Mapping():
            return "{ " + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + " }"
        case list() | tuple():
            return "[" + ", ".join(_value(item) for item in value) + "]"
        case _:
            # A JSON text, number or boolean is TOML as well; DEL alone has to be escaped there.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
