"""The block of servers in a client's file, read and written in the file's own format."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from pml_gateway.clients import jsonc
from pml_gateway.clients.jsonc import remove_members, set_member
from pml_gateway.clients.model import FileFormat, TomlEditError


class ClientFileError(ValueError):
    """A client's file that cannot be read or changed as it stands; the message names the line and no value."""


@dataclass(frozen=True, slots=True)
class Block:
    """The part of a file that names servers."""

    file_format: FileFormat
    path: tuple[str, ...]

    def values(self, text: str) -> dict[str, Any]:
        """The whole file.

        Raises:
            ClientFileError: broken text, with its line; or no object of members.
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
        """The entries of the block as written; none where there is no block.

        Raises:
            ClientFileError: broken text, with its line, or a block that is no object.
        """
        return dict(_block(self.values(text), self.path))

    def changed(self, text: str, remove: Collection[str], entries: Mapping[str, Mapping[str, Any]]) -> str:
        """`text` without the servers `remove` and with `entries`; nothing else differs.

        Raises:
            ClientFileError: the text is broken, or its layout leaves the change to a person.
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

    def restored(self, text: str, remove: Collection[str], names: Collection[str], original: str) -> str:
        """`text` without the servers `remove` and with `names` as `original` has them; nothing else differs.

        In TOML they come back with their comments and to their place where the layout allows it.

        Raises:
            ClientFileError: a text is broken, or its layout leaves the change to a person.
        """
        known = self.servers(original)
        plain = self.changed(text, remove, {name: known[name] for name in names})
        if self.file_format is not FileFormat.TOML or not names:
            return plain
        from pml_gateway.clients.toml_edit import put_back, remove_tables

        try:
            text = remove_tables(text, self.path, {*remove, *names})
            for name in names:
                text = put_back(text, self.path, name, original)
            return text if self.values(text) == self.values(plain) else plain
        except (TomlEditError, ClientFileError):
            return plain

    def _edited(self, text: str, gone: Collection[str], entries: Mapping[str, Mapping[str, Any]]) -> str:
        if self.file_format is FileFormat.TOML:
            # tomlkit takes 20 ms to import, which no start of the gateway should wait for.
            from pml_gateway.clients.toml_edit import remove_tables, set_table

            text = remove_tables(text, self.path, gone) if gone else text
            for name, entry in entries.items():
                text = set_table(text, self.path, name, entry)
            return text
        text = remove_members(text, self.path, gone)
        for name, entry in entries.items():
            text = set_member(text, self.path, name, entry)
        return text


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


def _drop_missing(found: dict[str, Any], expected: dict[str, Any], path: Sequence[str]) -> None:
    """A table without members is no table in TOML: what is empty may be missing."""
    if path and path[0] not in found and not expected.get(path[0], {}):
        expected.pop(path[0], None)
