"""Servers that were removed from the gateway, recorded so that `pml init` does not import them again."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from pml_gateway.errors import ConfigurationError
from pml_gateway.secrets.judgement import MASK, masked
from pml_gateway.storage import kinds
from pml_gateway.storage.documents import model_document

_REFERENCE = re.compile(r"\$\{(?:env|file):[^{}]*\}")


class _Record(BaseModel):
    removed: dict[str, str] = Field(default_factory=dict)
    """Identities of removed servers, each with the name it had."""
    definitions: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Definitions to restore if no client has the server any more, by identity; earlier versions did not keep them."""


class RemovedServers:
    """The record of removed servers; a damaged one counts as empty, since it only saves a question."""

    def __init__(self, path: Path) -> None:
        self._document = model_document(kinds.REMOVED, path, _Record)

    def names(self) -> Mapping[str, str]:
        """Return the identities of removed servers, each with the name it had."""
        return self._document.read().removed

    def definitions(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the definitions of removed servers, by the name each had."""
        record = self._document.read()
        return {record.removed[key]: each for key, each in record.definitions.items() if key in record.removed}

    def change(self, *, removed: Mapping[str, Mapping[str, Any]], added: Iterable[Mapping[str, Any]]) -> None:
        """Delete the records of servers that were `added`, and record those that were `removed`.

        Raises:
            ConfigurationError: the record cannot be written.
        """
        gone = set(map(identity, added))
        new = {identity(definition): (name, dict(definition)) for name, definition in removed.items()}

        def update(before: _Record) -> _Record:
            names = {key: name for key, name in before.removed.items() if key not in gone}
            definitions = {key: each for key, each in before.definitions.items() if key not in gone}
            return _Record(
                removed=names | {key: name for key, (name, _) in new.items()},
                definitions=definitions | {key: definition for key, (_, definition) in new.items()},
            )

        try:
            self._document.change(update)
        except OSError as exc:
            raise ConfigurationError(
                f"{self._document.path} cannot be written: {exc.strerror}", hint="check its owner"
            ) from exc


def identity(definition: Mapping[str, Any]) -> str:
    """Return a hash that identifies the program or address of a server, regardless of its credentials."""
    shown = masked({key: definition[key] for key in ("command", "args", "url") if definition.get(key)})
    names = {key: sorted(definition.get(key) or ()) for key in ("env", "headers")}
    text = _REFERENCE.sub(MASK, json.dumps([shown, names], sort_keys=True))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
