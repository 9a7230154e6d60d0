"""The block of servers in a client's file, read and edited in the file's own format."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence, Set
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from pml_gateway.clients import jsonc
from pml_gateway.clients.jsonc import remove_members, set_member
from pml_gateway.clients.model import FileFormat, TomlEditError
from pml_gateway.config.edits.edit import merged


class ClientFileError(ValueError):
    """A client's file that cannot be read or edited as it is; the message names the line and no value."""


@dataclass(frozen=True, slots=True)
class Block:
    """The part of a file that names servers."""

    file_format: FileFormat
    path: tuple[str, ...]

    def values(self, text: str) -> dict[str, Any]:
        """Parse the whole file.

        Raises:
            ClientFileError: the text is broken (names the line), or is not an object.
        """
        if not text.removeprefix(jsonc.BOM).strip():
            return {}
        try:
            if self.file_format is FileFormat.TOML:
                return tomllib.loads(text.removeprefix(jsonc.BOM).replace("\r\n", "\n"))
            found = jsonc.parse(text)
        except tomllib.TOMLDecodeError as exc:
            raise ClientFileError(f"is broken TOML: {exc}") from None
        except jsonc.JsonTextError as exc:
            raise ClientFileError(f"is broken JSON: {exc}") from None
        if not isinstance(found, dict):
            raise ClientFileError("should hold an object of settings, as {}")
        return found

    def servers(self, text: str) -> dict[str, Any]:
        """Return the entries of the block as written; empty if there is no block.

        Raises:
            ClientFileError: the text is broken (names the line), or the block is not an object.
        """
        return dict(_block(self.values(text), self.path))

    def changed(self, text: str, remove: Collection[str], entries: Mapping[str, Mapping[str, Any]]) -> str:
        """Return `text` without the servers `remove` and with `entries`; nothing else differs.

        Raises:
            ClientFileError: the text is broken, or its layout requires a change by hand.
        """
        before = self.values(text)
        expected = deepcopy(before)
        section = _block(expected, self.path)
        gone = {name for name in remove if name in section}
        if not gone and all(section.get(name) == entry for name, entry in entries.items()):
            return text
        try:
            after = self._edited(text, gone, entries)
            found = self.values(after)
        except (TomlEditError, ClientFileError) as exc:
            raise ClientFileError(f"cannot be edited safely: {exc}") from None
        section = _made(expected, self.path)
        for name in gone:
            del section[name]
        section.update({name: dict(entry) for name, entry in entries.items()})
        if not entries:
            _drop_missing(found, expected, self.path)
        if found != expected:
            raise ClientFileError(f"cannot be edited safely; change {'.'.join(self.path)} by hand")
        return after

    def restored(self, text: str, remove: Set[str], names: Collection[str], original: str, written: str = "") -> str:
        """Return `text` without the servers `remove` and with `names` as `original` has them; nothing else differs.

        `written` is `text` before others edited it, if known: the reversal of the edit is then merged with their
        changes. If both touch the same place, each server is removed separately, or put back after the neighbour it
        had.

        Raises:
            ClientFileError: a text is broken, or its layout requires a change by hand.
        """
        original, written = (_with_line_ends_of(text, each) for each in (original, written))
        known = self.servers(original)
        expected = self.values(text)
        section = _made(expected, self.path)
        for name in remove:
            section.pop(name, None)
        section.update({name: known[name] for name in names})

        def by_merging() -> str | None:
            stayed = self.servers(written).keys() - remove
            before = self.changed(original, known.keys() - {*stayed, *names}, {})
            return self._merged(written, before, self._as_in(written, self.servers(written).keys() & remove, text))

        def by_name() -> str:
            return self._put_back(self._edited(text, remove, {}), names, original)

        if self._says(text, expected):
            return text
        for way in (by_merging, by_name) if written else (by_name,):
            with suppress(TomlEditError, ClientFileError):
                found = way()
                if (
                    found is not None
                    and self._says(found, expected)
                    and jsonc.is_strict(found) >= jsonc.is_strict(text)
                ):
                    return found
        return self.changed(text, remove, {name: known[name] for name in names})

    def _merged(self, written: str, original: str, text: str) -> str | None:
        """Merge the changes from `written` to `original` into `text`; of JSON, only the block is compared."""
        texts = (written, original, text)
        for length in range(len(self.path), -1, -1) if self.file_format is FileFormat.JSON else ():
            spans = [span for each in texts if (span := jsonc.locate(each, self.path[:length])) is not None]
            if len(spans) == len(texts):
                inside = merged(*(each[span.start : span.end] for each, span in zip(texts, spans, strict=True)))
                return None if inside is None else text[: spans[-1].start] + inside + text[spans[-1].end :]
        return merged(written, original, text)

    def _as_in(self, other: str, names: Collection[str], text: str) -> str:
        """Return `text` with the servers `names` written as in `other`, which has them."""
        for name in names:
            if name not in self.servers(text):
                text = self.changed(text, (), {name: self.servers(other)[name]})
            if self.file_format is FileFormat.TOML:
                from pml_gateway.clients.toml_edit import written_as

                text = written_as(text, self.path, name, other)
                continue
            here, there = (jsonc.locate(each, (*self.path, name)) for each in (text, other))
            if here is not None and there is not None:
                text = text[: here.start] + other[there.start : there.end] + text[here.end :]
        return text

    def _put_back(self, text: str, names: Collection[str], original: str) -> str:
        """Return `text` with the servers `names` as in `original`; drop a block that `original` did not have."""
        if self.file_format is FileFormat.TOML:
            from pml_gateway.clients.toml_edit import put_back

            for name in names:
                text = put_back(text, self.path, name, original)
            return text
        for name in names:
            text = jsonc.put_back(text, self.path, name, original)
        for length in range(len(self.path), 0, -1):
            span = jsonc.locate(text, self.path[:length])
            is_new = jsonc.locate(original, self.path[:length]) is None
            if not is_new or span is None or text[span.start + 1 : span.end - 1].strip():
                break
            text = remove_members(text, self.path[: length - 1], {self.path[length - 1]})
        return text

    def _says(self, text: str, expected: Mapping[str, Any]) -> bool:
        """Return True if `text` has the expected values, each server once; an empty block counts as none."""
        found = self.values(text)
        if self.file_format is FileFormat.JSON and (block := jsonc.locate(text, self.path)) is not None:
            names = [member.name for member in jsonc.members(text, block.start)]
            if len(names) > len(set(names)):
                return False
        return _without_empty(found, self.path) == _without_empty(expected, self.path)

    def _edited(self, text: str, gone: Collection[str], entries: Mapping[str, Mapping[str, Any]]) -> str:
        if self.file_format is FileFormat.TOML:
            # Importing tomlkit takes 20 ms, which would slow down every start of the gateway.
            from pml_gateway.clients.toml_edit import remove_tables, set_table

            text = remove_tables(text, self.path, gone) if gone else text
            for name, entry in entries.items():
                text = set_table(text, self.path, name, entry)
            return text
        text = remove_members(text, self.path, gone)
        for name, entry in entries.items():
            text = set_member(text, self.path, name, entry)
        return text


def _with_line_ends_of(text: str, other: str) -> str:
    """Return `other` with the line endings of `text` if all of them agree: some editors convert them."""
    windows = text.count("\r\n")
    if not windows:
        return other.replace("\r\n", "\n")
    if windows == text.count("\n") and "\r\n" not in other:
        return other.replace("\n", "\r\n")
    return other


def _block(values: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    section: Any = values
    for at, step in enumerate(path):
        section = section.get(step)
        if section is None:
            return {}
        if not isinstance(section, dict):
            raise ClientFileError(f"{'.'.join(path[: at + 1])} should be an object of names and values")
    return dict(section)


def _made(values: dict[str, Any], path: Sequence[str]) -> dict[str, Any]:
    for step in path:
        if not isinstance(values.get(step), dict):
            values[step] = {}
        values = values[step]
    return values


def _without_empty(values: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """Return `values` without empty objects along `path`."""
    if not path or not isinstance(inner := values.get(path[0]), dict):
        return dict(values)
    kept = _without_empty(inner, path[1:])
    return {name: value for name, value in values.items() if name != path[0]} | ({path[0]: kept} if kept else {})


def _drop_missing(found: dict[str, Any], expected: dict[str, Any], path: Sequence[str]) -> None:
    """Drop empty tables from `expected` if they are missing in `found`: TOML may omit empty tables."""
    if path and path[0] not in found and not expected.get(path[0], {}):
        expected.pop(path[0], None)
