"""Connecting a client's file to the gateway, and undoing it to the byte."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pml_gateway.clients.backups import Backup, ClientBackups, all_backups
from pml_gateway.clients.block import ClientFileError
from pml_gateway.clients.discover import ClientFile
from pml_gateway.clients.model import Scope
from pml_gateway.clients.own import ENTRY_NAME, ConnectionKind, OwnEntry, own_kind
from pml_gateway.clients.places import Surroundings
from pml_gateway.clients.show import masked_diff
from pml_gateway.clients.translate import EntryOrigin, covers, translated
from pml_gateway.config.edit import merged
from pml_gateway.config.settings import HttpSettings, Settings
from pml_gateway.errors import ConfigurationError
from pml_gateway.files import OWNER_ONLY, locked, usual_mode, write_atomically
from pml_gateway.paths import PROJECT_NAME, Paths


class ConnectedFile(BaseModel):
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
    connections: dict[str, ConnectedFile] = Field(default_factory=dict)


class ConnectedFiles:
    """The record of all edits, one per file and block."""

    def __init__(self, paths: Paths) -> None:
        self.path = paths.connections_file
        self.backups = ClientBackups(paths)

    def get(self, file: ClientFile) -> ConnectedFile | None:
        """What was done to `file`, if anything was.

        Raises:
            ConfigurationError: the record is damaged.
        """
        return self._read().connections.get(_identity(file))

    def put(self, file: ClientFile, connection: ConnectedFile) -> None:
        """Note an edit."""
        record = self._read()
        record.connections[_identity(file)] = connection
        self._write(record)

    def take_back(self, file: ClientFile, known: ConnectedFile | None, backup: Path | None) -> None:
        """Forget an edit that was not written: what was `known` before counts, and its backup is not needed."""
        # Where the disk refuses this as well, both stay: undoing what was not done changes nothing.
        with suppress(OSError):
            if self.get(file) != known:
                if known is None:
                    self.drop(file)
                else:
                    self.put(file, known)
            if backup is not None:
                self.backups.remove([backup])

    def drop(self, file: ClientFile) -> None:
        """Forget an edit that was undone."""
        record = self._read()
        if record.connections.pop(_identity(file), None) is not None:
            self._write(record)

    def back_up(self, file: ClientFile) -> Path | None:
        """Keep the bytes of `file`."""
        if not file.exists:
            return None
        return self.backups.keep(file.client.name, file.scope, file.path, file.text)

    def needed(self) -> dict[Path, Path]:
        """The backups that undo a connection, each with the file it is of."""
        connections = self._read().connections
        return {each.backup: Path(key.split("|")[0]) for key, each in connections.items() if each.backup is not None}

    def give_up(self, backups: Collection[Path]) -> None:
        """Forget the connections that these backups would undo; `pml disconnect` takes out the gateway's entry then."""
        with locked(self.path):
            record = self._read()
            left = {key: each for key, each in record.connections.items() if each.backup not in backups}
            if left != record.connections:
                record.connections = left
                self._write(record)

    def _read(self) -> _Record:
        if not self.path.exists():
            return _Record()
        try:
            return _Record.model_validate_json(self.path.read_bytes())
        except (ValidationError, OSError) as exc:
            raise ConfigurationError(
                f"{self.path} is damaged",
                hint=f"move it away; the backups of your clients' files are in {self.backups.folder}",
            ) from exc

    def _write(self, record: _Record) -> None:
        write_atomically(self.path, json.dumps(record.model_dump(mode="json"), indent=2) + "\n")


def backups_here(paths: Paths, folder: Path) -> list[Backup]:
    """Every backup of this home, and of the project in `folder`."""
    return all_backups(paths, ConnectedFiles(paths).needed(), [paths.config_file, folder / PROJECT_NAME])


def text_hash(text: str) -> str:
    """The SHA-256 of a file's text."""
    return hashlib.sha256(text.encode()).hexdigest()


def _identity(file: ClientFile) -> str:
    return "|".join((str(file.path.resolve()), *file.block.path))


How = Literal["connected", "already", "restored", "undone", "nothing"]


@dataclass(frozen=True, slots=True)
class ClientEdit:
    """A change of a client's file; `after` is None where the file goes, since there was none before `connect`.

    `kept` are servers of the file that stay beside the gateway; `conflicts` removed ones that somebody added anew;
    `served` says by which server of the gateway each removed one is replaced.
    """

    file: ClientFile
    how: How
    after: str | None
    connection: ConnectedFile | None = None
    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    secret: str = ""
    served: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_changed(self) -> bool:
        """Whether there is something to write."""
        return self.how not in ("already", "nothing")

    @property
    def diff(self) -> str:
        """The change as a unified diff, with credentials masked."""
        texts = [text.removeprefix("\ufeff") for text in (self.file.text, self.after or "")]
        secrets = [self.secret] if self.secret else []
        return masked_diff(str(self.file.path), texts[0], texts[1], self.file.block, secrets, self._plain)

    @property
    def _plain(self) -> frozenset[str]:
        """The texts of our own entry that starts the gateway: where it and its files lie, and no secret."""
        entry = self.connection.entry if self.connection is not None and self.connection.kind == "stdio" else {}
        return frozenset(_texts(entry))


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            yield from (text for item in value.values() for text in _texts(item))
        case list():
            yield from (text for item in value for text in _texts(item))


def served_entries(file: ClientFile, settings: Settings, surroundings: Surroundings) -> dict[str, str]:
    """The entries of `file` that the gateway serves as well, and as which server: they would be there twice."""
    served = {
        server: definition.model_dump(mode="json", exclude_defaults=True)
        for server, definition in settings.servers.items()
        if definition.enabled
    }
    found = {}
    for name, raw in file.entries.items():
        entry = translated(raw, EntryOrigin(file.client, file.scope, surroundings, file.inputs)).definition
        if entry is None:
            continue
        for server, known in served.items():
            if covers(known, entry, surroundings.environ):
                found[name] = server
                break
    return found


def connected(
    file: ClientFile,
    own: OwnEntry,
    settings: Settings,
    surroundings: Surroundings,
    connections: ConnectedFiles,
    *,
    keep_servers: bool,
) -> ClientEdit:
    """What pointing `file` at the gateway changes.

    Raises:
        ConfigurationError: the file is broken, or its layout leaves the change to a person.
    """
    _refuse_broken(file)
    known = connections.get(file)
    base = file
    if known is not None and known.is_exact and known.after == text_hash(file.text):
        # Another way to connect: start again from what was there before.
        base = _original(file, known)
    elif known is not None and not _own_names(file, settings.http):
        known = None
    name = next(iter(_own_names(base, settings.http)), None) or _free_name(base)
    served = {} if keep_servers else served_entries(base, settings, surroundings)
    removed = tuple(served)
    kept = tuple(other for other in base.entries if other not in removed and other != name)
    after = _changed(base, removed, {name: own.values})
    if after == file.text:
        return ClientEdit(file, "already", after, known, removed, kept, secret=own.secret, served=served)
    is_exact = known is None or base is not file
    connection = ConnectedFile(
        client=file.client.name,
        kind=own.kind,
        entry_name=name,
        entry=own.values,
        removed=removed if known is None or is_exact else tuple(dict.fromkeys((*known.removed, *removed))),
        backup=known.backup if known is not None else None,
        after=text_hash(after),
        is_exact=is_exact,
    )
    return ClientEdit(file, "connected", after, connection, removed, kept, secret=own.secret, served=served)


def disconnected(file: ClientFile, http: HttpSettings, connections: ConnectedFiles) -> ClientEdit:
    """What undoing `connect` changes: everything to the byte, or our edit alone if the file changed since.

    Raises:
        ConfigurationError: the file is broken, or its layout leaves the change to a person.
    """
    known = connections.get(file)
    if not file.exists and not file.problem:
        return ClientEdit(file, "nothing", None, known)
    own = set(_own_names(file, http))
    if known is None:
        if not own:
            _refuse_broken(file)
            return ClientEdit(file, "nothing", file.text)
        return ClientEdit(file, "undone", _changed(file, tuple(own), {}))
    before = _original(file, known)
    if known.is_exact and known.after == text_hash(file.text):
        left = _own_names(before, http)
        after = _changed(before, left, {}) if left else before.text
        return ClientEdit(file, "restored", after if known.backup is not None else None, known, known.removed)
    _refuse_broken(file)
    own |= {known.entry_name} if file.entries.get(known.entry_name) == known.entry else set()
    back = [name for name in known.removed if name in before.entries]
    conflicts = tuple(name for name in back if name in file.entries and name not in own)
    missing = tuple(name for name in back if name not in conflicts)
    with _nothing_written(file):
        after = file.block.restored(file.text, own - set(missing), missing, before.text)
    return ClientEdit(file, "undone", _as_before(file, before, known, after), known, missing, (), conflicts)


def apply(edit: ClientEdit, connections: ConnectedFiles) -> Path | None:
    """Write the edit, whole or not at all; returns where the bytes from before are, as long as they are needed.

    Raises:
        ConfigurationError: the file changed since it was read, or cannot be written.
    """
    file = edit.file
    target = file.path.resolve()
    try:
        with locked(connections.path):
            if (target.read_bytes() if target.exists() else b"") != file.text.encode():
                raise ConfigurationError(f"{file.path} was changed by somebody else just now", hint="run it again")
            known = connections.get(file)
            backup = connections.back_up(file)
            try:
                if edit.how == "connected" and edit.connection is not None:
                    # Noted first: without the note, what an interrupted run wrote could not be undone.
                    original = known.backup if known is not None and edit.connection.backup is not None else backup
                    connections.put(file, edit.connection.model_copy(update={"backup": original}))
                if edit.after is None:
                    target.unlink()
                else:
                    write_atomically(target, edit.after, _mode(file, target))
            except OSError:
                connections.take_back(file, known, backup)
                raise
            if edit.how in ("restored", "undone"):
                connections.drop(file)
            needed = connections.needed()
            connections.backups.forget(target, needed)
    except OSError as exc:
        raise ConfigurationError(
            f"{file.path} cannot be written: {exc.strerror}", hint="check its owner and mode"
        ) from exc
    return backup if backup in needed else None


def _mode(file: ClientFile, target: Path) -> int:
    if target.exists():
        return stat.S_IMODE(target.stat().st_mode)
    if file.scope is not Scope.PROJECT:
        return OWNER_ONLY
    # Files of a project are shared; they hold nothing secret of ours.
    return usual_mode()


def _original(file: ClientFile, known: ConnectedFile) -> ClientFile:
    """The file as it was before it was connected."""
    if known.backup is None:
        return replace(file, text="", entries={}, exists=False)
    try:
        text = known.backup.read_bytes().decode()
        return replace(file, text=text, entries=file.block.servers(text))
    except (OSError, UnicodeDecodeError, ClientFileError) as exc:
        raise ConfigurationError(
            f"the backup {known.backup} cannot be read", hint=f"take the entry {known.entry_name!r} out by hand"
        ) from exc


def _as_before(file: ClientFile, before: ClientFile, known: ConnectedFile, after: str) -> str:
    """`after`, or a text that says the same and is nearer to the original: layout and comments come back too."""
    try:
        written = file.block.changed(before.text, known.removed, {known.entry_name: known.entry})
    except ClientFileError:
        return after
    if not known.is_exact or text_hash(written) != known.after:
        return after
    both = merged(written, before.text, file.text)
    if both is None:
        return after
    try:
        return both if _without_empty(file, both) == _without_empty(file, after) else after
    except ClientFileError:
        return after


def _without_empty(file: ClientFile, text: str) -> dict[str, Any]:
    """The values of `text`; an empty block equals none."""
    values = file.block.values(text)
    if not file.block.servers(text):
        section: Any = values
        for step in file.block.path[:-1]:
            section = section.get(step, {})
        section.pop(file.block.path[-1], None)
    return values


def _own_names(file: ClientFile, http: HttpSettings) -> tuple[str, ...]:
    return tuple(name for name, raw in file.entries.items() if own_kind(raw, http))


def _free_name(file: ClientFile) -> str:
    return ENTRY_NAME if ENTRY_NAME not in file.entries else f"{ENTRY_NAME}-gateway"


def _changed(file: ClientFile, remove: Sequence[str], entries: Mapping[str, Mapping[str, Any]]) -> str:
    with _nothing_written(file):
        return file.block.changed(file.text, remove, entries)


@contextmanager
def _nothing_written(file: ClientFile) -> Iterator[None]:
    try:
        yield
    except ClientFileError as exc:
        raise ConfigurationError(f"{file.path} {exc}", hint="nothing was written") from None


def _refuse_broken(file: ClientFile) -> None:
    if file.problem:
        raise ConfigurationError(f"{file.path} {file.problem}", hint="correct it first; nothing was written")
