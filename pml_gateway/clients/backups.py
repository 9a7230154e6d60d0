"""Backups of the files that pml changes: what is kept, why, and until when.

The bytes of a client's file are kept until `pml disconnect` has restored them or can no longer need them. The last few
versions of a configuration file are kept next to it; `pml migrate` keeps the versions that it can go back to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from pml_gateway.clients.block import Block
from pml_gateway.clients.model import FileFormat
from pml_gateway.clients.show import masked_diff
from pml_gateway.config.edits.edit import KEPT_BACKUPS, FileEdit, edit_file, file_backups
from pml_gateway.errors import ConfigurationError, UsageError
from pml_gateway.files import OWNER_ONLY, PRIVATE_FOLDER, locked, write_atomically
from pml_gateway.paths import Paths
from pml_gateway.storage import kinds
from pml_gateway.storage.documents import model_document
from pml_gateway.text import suggestion

_NAMED = re.compile(r"(?P<client>[a-z-]+?)-(?:user|project|local)-\d{8}-\d{6}(?:-\d+)?-.+")


class _BackupRecord(BaseModel):
    """Record of a backup: its client and file; `is_of_restore` if a restore made it."""

    model_config = ConfigDict(frozen=True)

    client: str
    file: Path
    is_of_restore: bool = False


class _Index(BaseModel):
    backups: dict[str, _BackupRecord] = Field(default_factory=dict)


class ClientBackups:
    """The backups of clients' files, readable by their owner only, outside of projects that others could see."""

    def __init__(self, paths: Paths) -> None:
        self.folder = paths.backups_dir
        self._index = model_document(kinds.BACKUP_INDEX, self.folder / "index.json", _Index)

    def keep(self, client: str, scope: str, file: Path, content: str | bytes, *, is_of_restore: bool = False) -> Path:
        """Back up the content of `file`; the caller holds the lock of the record of connections."""
        stem = f"{client}-{scope}-{datetime.now():%Y%m%d-%H%M%S}"
        names = (f"{stem}{f'-{number}' if number else ''}-{file.name.lstrip('.')}" for number in count())
        backup = next(path for name in names if not (path := self.folder / name).exists())
        write_atomically(backup, content)
        self.folder.chmod(PRIVATE_FOLDER)
        try:
            kept = self.kept()
            self._write(
                kept | {backup.name: _BackupRecord(client=client, file=file.resolve(), is_of_restore=is_of_restore)}
            )
        except OSError:
            backup.unlink(missing_ok=True)
            raise
        return backup

    def remove(self, backups: Collection[Path]) -> None:
        """Delete these backups and their records."""
        for backup in backups:
            backup.unlink(missing_ok=True)
        gone = {backup.name for backup in backups}
        kept = self.kept()
        if gone & kept.keys():
            self._write({name: item for name, item in kept.items() if name not in gone})

    def forget(self, file: Path, needed: Collection[Path]) -> None:
        """Delete the backups of `file` that are no longer needed."""
        target = file.resolve()
        old = [self.folder / name for name, item in self.kept().items() if item.file == target]
        # If one cannot be deleted, do not fail: the file itself is as it should be, and `pml backups` lists the
        # leftover.
        with suppress(OSError):
            self.remove([backup for backup in old if backup not in needed])

    def files(self) -> list[Path]:
        """Return all backups, including those of versions that kept no index."""
        if not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.iterdir() if _NAMED.fullmatch(path.name) and path.is_file())

    def kept(self) -> dict[str, _BackupRecord]:
        """Return the record of each backup, by name."""
        return self._index.require("move it away; the backups next to it stay").backups

    def _write(self, kept: Mapping[str, _BackupRecord]) -> None:
        if kept:
            self._index.write(_Index(backups=dict(kept)))
        else:
            self._index.delete()


@dataclass(frozen=True, slots=True)
class Backup:
    """One backup: its file (None if unknown), its time, why it is kept, and whether an undo needs it."""

    name: str
    path: Path
    kind: Literal["client", "configuration", "migration"]
    file: Path | None
    client: str
    at: datetime
    size: int
    why: str
    is_needed: bool


def all_backups(paths: Paths, needed: Mapping[Path, Path], configurations: Sequence[Path]) -> list[Backup]:
    """Return every backup, newest first; `needed` maps the backups that undo a connection to their files."""
    found = [*_of_clients(paths, needed), *_of_migrations(paths)]
    for file in dict.fromkeys(path.absolute() for path in configurations):
        why = f"one of the last {KEPT_BACKUPS} texts"
        found += [_backup(path, "configuration", file, "", why, False) for path in file_backups(file)]
    return sorted(found, key=lambda backup: (backup.at, backup.name), reverse=True)


def _of_clients(paths: Paths, needed: Mapping[Path, Path]) -> Iterator[Backup]:
    backups = ClientBackups(paths)
    kept = backups.kept()
    for path in backups.files():
        known = kept.get(path.name)
        file = known.file if known else needed.get(path)
        named = _NAMED.fullmatch(path.name)
        client = known.client if known else named["client"] if named else ""
        is_needed = path in needed and (file is None or file.parent.is_dir())
        if is_needed:
            why = f"pml disconnect {client} needs it"
        elif path in needed:
            why = "the folder of the file is gone"
        else:
            why = "undoes a restore" if known and known.is_of_restore else "nothing needs it"
        yield _backup(path, "client", file, client, why, is_needed)


def _of_migrations(paths: Paths) -> Iterator[Backup]:
    folder = paths.migrations_dir
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        try:
            steps = json.loads(path.read_text(encoding="utf-8"))
            file = Path(steps[-1]["file"]) if steps else None
        except (OSError, ValueError, LookupError, TypeError):
            yield _backup(path, "migration", None, "", "cannot be read", False)
            continue
        if file is not None:
            is_needed = file.exists()
            why = "pml migrate back needs it" if is_needed else "the file is gone"
            yield _backup(path, "migration", file, "", why, is_needed)


def _backup(
    path: Path,
    kind: Literal["client", "configuration", "migration"],
    file: Path | None,
    client: str,
    why: str,
    is_needed: bool,
) -> Backup:
    found = path.stat()
    return Backup(
        path.name, path, kind, file, client, datetime.fromtimestamp(found.st_mtime), found.st_size, why, is_needed
    )


def chosen(backups: Sequence[Backup], name: str) -> Backup:
    """Return the backup with this name or path.

    Raises:
        UsageError: there is none, or it is unknown which file it belongs to.
    """
    found = next((backup for backup in backups if name in (backup.name, str(backup.path))), None)
    if found is None:
        near = suggestion(name, [backup.name for backup in backups])
        raise UsageError(f"no backup {name!r}{near}", hint="pml backups lists them")
    if found.kind == "migration":
        raise UsageError(f"{name} holds the steps of pml migrate", hint="run `pml migrate back`")
    if found.file is None:
        raise UsageError(f"of which file {name} is, is not known", hint=f"copy it by hand: {found.path}")
    return found


@dataclass(frozen=True, slots=True)
class Restore:
    """The change that restoring a backup makes; `write` makes it and returns the backup of the replaced bytes."""

    file: Path
    diff: str
    has_changed: bool
    write: Callable[[], Path | None]


def restore(backup: Backup, paths: Paths) -> Restore:
    """Plan the restoration of a backup to its file.

    Raises:
        ConfigurationError: the backup or the file cannot be read.
    """
    assert backup.file is not None
    file = backup.file
    text = _text(backup.path)
    if backup.kind == "configuration":

        def edited(*, dry_run: bool) -> FileEdit:
            return edit_file(file, lambda _: text, dry_run=dry_run)

        edit = edited(dry_run=True)
        return Restore(file, edit.diff, edit.has_changed, lambda: edited(dry_run=False).backup)
    before = _text(file) if file.exists() else ""
    block = Block(FileFormat.TOML if file.suffix == ".toml" else FileFormat.JSON, ())
    diff = masked_diff(str(file), before.removeprefix("\ufeff"), text.removeprefix("\ufeff"), block)
    return Restore(
        file, diff, before != text or not file.exists(), lambda: _put_back(backup, file, before, text, paths)
    )


def _put_back(backup: Backup, file: Path, before: str, text: str, paths: Paths) -> Path | None:
    backups = ClientBackups(paths)
    try:
        with locked(paths.connections_file):
            there = file.exists()
            if (file.read_bytes() if there else b"") != before.encode():
                raise ConfigurationError(f"{file} was changed by another program just now", hint="run it again")
            mode = file.stat().st_mode & 0o777 if there else OWNER_ONLY
            scope = backup.name.removeprefix(f"{backup.client}-").partition("-")[0]
            kept = backups.keep(backup.client, scope, file, before, is_of_restore=True) if there else None
            try:
                write_atomically(file, text, mode)
            except OSError:
                backups.remove([kept] if kept else [])
                raise
    except OSError as exc:
        raise ConfigurationError(f"{file} cannot be written: {exc.strerror}", hint="check its owner and mode") from exc
    return kept


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigurationError(f"{path} cannot be read", hint="check its owner and mode") from exc


def to_prune(backups: Sequence[Backup], *, everything: bool, before: datetime | None) -> list[Backup]:
    """Return the backups to delete: all, those older than `before` that no undo needs, or those that nothing needs."""
    if everything:
        return [backup for backup in backups if before is None or backup.at < before]
    if before is not None:
        return [backup for backup in backups if not backup.is_needed and backup.at < before]
    return [backup for backup in backups if not backup.is_needed and backup.kind != "configuration"]


def prune(gone: Sequence[Backup], paths: Paths) -> None:
    """Delete these backups.

    Raises:
        ConfigurationError: one cannot be deleted.
    """
    backups = ClientBackups(paths)
    try:
        with locked(paths.connections_file):
            backups.remove([backup.path for backup in gone if backup.kind == "client"])
            for backup in gone:
                backup.path.unlink(missing_ok=True)
    except OSError as exc:
        raise ConfigurationError(
            f"{exc.filename} cannot be removed: {exc.strerror}", hint="check its owner and mode"
        ) from exc
