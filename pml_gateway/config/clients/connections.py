"""What `pml connect` did to which file, kept so that it can be undone to the byte."""

from __future__ import annotations

import hashlib
import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pml_gateway.config.clients.discover import ClientFile
from pml_gateway.config.clients.own import ConnectionKind
from pml_gateway.config.files import OWNER_ONLY, write_atomically
from pml_gateway.config.paths import Paths
from pml_gateway.errors import ConfigurationError


class Connection(BaseModel):
    """One edit of one file.

    `backup` holds the bytes from before (None: there was no file), `after` the hash of what was written. `is_exact`
    is False once the file was edited twice with changes of somebody else's between.
    """

    model_config = ConfigDict(frozen=True)

    client: str
    kind: ConnectionKind
    entry_name: str
    entry: dict[str, Any]
    removed: tuple[str, ...]
    backup: Path | None
    after: str
    is_exact: bool = True


class _Record(BaseModel):
    version: int = 1
    connections: dict[str, Connection] = Field(default_factory=dict)


class Connections:
    """The record of all edits, one per file and block."""

    def __init__(self, paths: Paths) -> None:
        self.path = paths.connections_file
        self._backups = paths.backups_dir

    def get(self, file: ClientFile) -> Connection | None:
        """What was done to `file`, if anything was.

        Raises:
            ConfigurationError: the record is damaged.
        """
        return self._read().connections.get(_identity(file))

    def put(self, file: ClientFile, connection: Connection) -> None:
        """Note an edit."""
        record = self._read()
        record.connections[_identity(file)] = connection
        self._write(record)

    def drop(self, file: ClientFile) -> None:
        """Forget an edit that was undone."""
        record = self._read()
        if record.connections.pop(_identity(file), None) is not None:
            self._write(record)

    def back_up(self, file: ClientFile) -> Path | None:
        """Keep the bytes of `file`, readable for its owner only, and outside a project that others could see."""
        if not file.exists:
            return None
        self._backups.mkdir(mode=0o700, parents=True, exist_ok=True)
        stem = f"{file.client.name}-{file.scope}-{datetime.now():%Y%m%d-%H%M%S}"
        number = 0
        while True:
            backup = self._backups / f"{stem}{f'-{number}' if number else ''}-{file.path.name.lstrip('.')}"
            try:
                descriptor = os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
            except FileExistsError:
                number += 1
                continue
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(file.text.encode())
                stream.flush()
                os.fsync(stream.fileno())
            return backup

    def _read(self) -> _Record:
        if not self.path.exists():
            return _Record()
        try:
            return _Record.model_validate_json(self.path.read_bytes())
        except (ValidationError, OSError) as exc:
            raise ConfigurationError(
                f"{self.path} is damaged",
                hint=f"move it away; the backups of your clients' files are in {self._backups}",
            ) from exc

    def _write(self, record: _Record) -> None:
        write_atomically(self.path, json.dumps(record.model_dump(mode="json"), indent=2) + "\n")


def text_hash(text: str) -> str:
    """The SHA-256 of a file's text."""
    return hashlib.sha256(text.encode()).hexdigest()


def _identity(file: ClientFile) -> str:
    return "|".join((str(file.path.resolve()), *file.block.path))
