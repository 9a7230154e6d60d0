"""Edits of TOML text: tables are removed, added or restored as they were; every other byte stays.

tomlkit parses the layout. The text is edited piece by piece instead of through tomlkit's own edits, which attach the
comment above a header to the table before it and insert new tables between others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Any

import tomlkit
from tomlkit.container import Container
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AoT, Item, Table

from pml_gateway.clients.jsonc import BOM
from pml_gateway.clients.model import TomlEditError

MAX_COMPARED = 4_000
"""Maximum number of pieces in a text that is compared; difflib takes seconds beyond that."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A header, a pair, a comment or a blank line, with its line ending, and the path it writes to, if any."""

    text: str
    path: tuple[str, ...] | None
    is_header: bool = False


def set_table(text: str, path: Sequence[str], name: str, value: Mapping[str, Any]) -> str:
    """Return `text` with the table `name` below `path`, replacing an existing one, or at the end.

    Raises:
        TomlEditError: the parent is an inline table, or the layout cannot be parsed.
    """
    text = remove_tables(text, path, {name})
    eol = "\r\n" if "\r\n" in text else "\n"
    gap = "" if not text else eol if text.endswith("\n") else eol * 2
    return text + gap + eol.join([f"[{'.'.join(_key(step) for step in (*path, name))}]", *_pairs(value)]) + eol


def remove_tables(text: str, path: Sequence[str], names: Collection[str]) -> str:
    """Return `text` without the members `names` of the table at `path`; comments inside them go, later ones stay.

    Raises:
        TomlEditError: the parent is an inline table, or the layout cannot be parsed.
    """
    pieces = _pieces(text)
    _refuse_inline(pieces, path)
    gone = [run for name in names for run in _runs(pieces, (*path, name))]
    return "".join(piece.text for at, piece in enumerate(pieces) if not any(start <= at < end for start, end in gone))


def written_as(text: str, path: Sequence[str], name: str, other: str) -> str:
    """Return `text` with the table `name` written as in `other`, at its first position in `text`; both have it.

    Raises:
        TomlEditError: the layout of one of the two cannot be parsed.
    """
    pieces, theirs = _pieces(text), _pieces(other)
    written = "".join(piece.text for run in _runs(theirs, (*path, name)) for piece in theirs[slice(*run)])
    runs = _runs(pieces, (*path, name))
    kept = (at for at in range(len(pieces)) if at == runs[0][0] or not any(start <= at < end for start, end in runs))
    return "".join(written if at == runs[0][0] else pieces[at].text for at in kept)


def put_back(text: str, path: Sequence[str], name: str, original: str) -> str:
    """Return `text` with the table `name` as in `original`: its bytes, next to the same neighbours.

    Raises:
        TomlEditError: the layout of one of the two cannot be parsed, or one is too long.
    """
    eol = "\r\n" if "\r\n" in text else "\n"
    before = _pieces(original)
    for start, end in _runs(before, (*path, name)):
        pieces = _pieces(text)
        if max(len(before), len(pieces)) > MAX_COMPARED:
            raise TomlEditError("it is too long to look for the place of a table")
        at = _place(pieces, before, start, end)
        run = "".join(piece.text for piece in before[start:end])
        ahead = "".join(piece.text for piece in pieces[:at])
        if ahead.strip(BOM) and not ahead.endswith("\n"):
            ahead += eol
        behind = "".join(piece.text for piece in pieces[at:])
        text = ahead + (run if run.endswith("\n") or not behind else run + eol) + behind
    return text


def _place(pieces: Sequence[_Piece], before: Sequence[_Piece], start: int, end: int) -> int:
    """Return the position in `pieces` for the run from `start` to `end` of `before`."""
    matcher = SequenceMatcher(None, [piece.text for piece in before], [piece.text for piece in pieces], autojunk=False)
    now = {mine + i: other + i for mine, other, size in matcher.get_matching_blocks() for i in range(size)}
    if start - 1 in now:
        at = now[start - 1] + 1
    elif end in now:
        at = now[end]
    else:
        at = next((now[index] + 1 for index in range(start - 1, -1, -1) if index in now), len(pieces))
    if not before[start].is_header:
        return at
    # A header would take over the pairs below it.
    for index in range(at, len(pieces)):
        if pieces[index].is_header:
            break
        if pieces[index].path is not None:
            at = index + 1
    return at


def _runs(pieces: Sequence[_Piece], target: tuple[str, ...]) -> list[tuple[int, int]]:
    """Return the ranges that write `target`; comments and blank lines between its pieces belong to them."""
    runs: list[tuple[int, int]] = []
    is_open = False
    for at, piece in enumerate(pieces):
        if piece.path is None:
            continue
        if piece.path[: len(target)] == target:
            runs[-1:] = [(runs[-1][0], at + 1)] if is_open else [*runs[-1:], (at, at + 1)]
            is_open = True
        else:
            is_open = False
    return runs


def _refuse_inline(pieces: Sequence[_Piece], path: Sequence[str]) -> None:
    for piece in pieces:
        if piece.path == tuple(path) and not piece.is_header:
            raise TomlEditError(f"{'.'.join(path)} is written on one line; write each server as a table of its own")


def _pieces(text: str) -> list[_Piece]:
    content = text.removeprefix(BOM)
    try:
        pieces = [piece for piece in _walk(tomlkit.parse(content), (), "") if piece.text]
    except TOMLKitError as exc:
        raise TomlEditError(f"its layout cannot be read: {exc}") from None
    mark = [_Piece(BOM, None)] if content != text else []
    return [*mark, *_in_order(pieces, content)]


def _in_order(pieces: Sequence[_Piece], text: str) -> Iterator[_Piece]:
    """Yield the pieces in their order in `text`: tomlkit moves tables of one parent across an array of tables."""
    if "".join(piece.text for piece in pieces) == text:
        yield from pieces
        return
    starts = [0, *(at for at, piece in enumerate(pieces) if piece.is_header), len(pieces)]
    left = [("".join(piece.text for piece in pieces[start:end]), start, end) for start, end in pairwise(starts)]
    # Longer ones first: one element of an array may be a prefix of another.
    left.sort(key=lambda section: -len(section[0]))
    at = 0
    while left:
        section = next((each for each in left if text.startswith(each[0], at)), None)
        if section is None:
            raise TomlEditError("its tables are arranged in a way that would be lost")
        left.remove(section)
        written, start, end = section
        yield from pieces[start:end]
        at += len(written)
    if at != len(text):
        raise TomlEditError("its tables are arranged in a way that would be lost")


def _walk(container: Container, path: tuple[str, ...], dotted: str) -> Iterator[_Piece]:
    """Yield the pieces in order; `dotted` is the prefix of keys in pairs such as `a.b = 1`."""
    for key, item in container.body:
        if key is None:
            yield from (_Piece(line, None) for line in item.as_string().splitlines(keepends=True))
            continue
        inside = (*path, key.key)
        if isinstance(item, AoT):
            for table in item.body:
                yield _Piece(_line(table, f"[[{table.display_name}]]"), inside, is_header=True)
                yield from _walk(table.value, inside, "")
        elif not isinstance(item, Table):
            yield _Piece(_line(item, f"{dotted}{key.as_string()}{key.sep}{item.as_string()}"), inside)
        elif key.is_dotted():
            yield from _walk(item.value, inside, f"{dotted}{key.as_string()}.")
        else:
            if not item.is_super_table():
                yield _Piece(_line(item, f"[{item.display_name}]"), inside, is_header=True)
            yield from _walk(item.value, inside, "")


def _pairs(values: Mapping[str, Any]) -> Iterator[str]:
    written = tomlkit.inline_table()
    try:
        written.update(values)
    except TOMLKitError as exc:
        raise TomlEditError(f"it cannot be written as TOML: {exc}") from None
    for key, item in written.value.body:
        if key is not None:
            yield f"{key.as_string()} = {item.as_string()}"


def _key(name: str) -> str:
    return tomlkit.key(name).as_string()


def _line(item: Item, written: str) -> str:
    trivia = item.trivia
    return f"{trivia.indent}{written}{trivia.comment_ws}{trivia.comment}{trivia.trail}"
