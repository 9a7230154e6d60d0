"""Servers that were removed from the gateway, recorded so that `pml init` does not import them again."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from pml_gateway.errors import ConfigurationError
from pml_gateway.files import locked, write_atomically
from pml_gateway.secrets.judgement import MASK, masked

_REFERENCE = re.compile(r"\$\{(?:env|file):[^{}]*\}")


class _Record(BaseModel):
    removed: dict[str, str] = Field(default_factory=dict)
    """Identities of removed servers, each with the name it had."""
    definitions: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Definitions to restore if no client has the server any more, by identity; earlier versions did not keep them."""


class RemovedServers:
    """The record of removed servers; a damaged one counts as empty, since it only saves a question."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> Mapping[str, str]:
        """Return the identities of removed servers, each with the name it had."""
        return self._read().removed

    def definitions(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the definitions of removed servers, by the name each had."""
        record = self._read()
        return {record.removed[key]: each for key, each in record.definitions.items() if key in record.removed}

    def _read(self) -> _Record:
        try:
            return _Record.model_validate_json(self._path.read_bytes())
        except (OSError, ValidationError):
            return _Record()

    def change(self, *, removed: Mapping[str, Mapping[str, Any]], added: Iterable[Mapping[str, Any]]) -> None:
        """Delete the records of servers that were `added`, and record those that were `removed`.

        Raises:
            ConfigurationError: the record cannot be written.
        """
        try:
            with locked(self._path):
                before = self._read()
                gone = set(map(identity, added))
                new = {identity(definition): (name, dict(definition)) for name, definition in removed.items()}
                names = {key: name for key, name in before.removed.items() if key not in gone}
                definitions = {key: each for key, each in before.definitions.items() if key not in gone}
                after = _Record(
                    removed=names | {key: name for key, (name, _) in new.items()},
                    definitions=definitions | {key: definition for key, (_, definition) in new.items()},
                )
                if after != before:
                    write_atomically(self._path, after.model_dump_json(indent=2) + "\n")
        except OSError as exc:
            raise ConfigurationError(f"{self._path} cannot be written: {exc.strerror}", hint="check its owner") from exc


def identity(definition: Mapping[str, Any]) -> str:
    """Return a hash that identifies the program or address of a server, regardless of its credentials."""
    shown = masked({key: definition[key] for key in ("command", "args", "url") if definition.get(key)})
    names = {key: sorted(definition.get(key) or ()) for key in ("env", "headers")}
    text = _REFERENCE.sub(MASK, json.dumps([shown, names], sort_keys=True))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
