"""Connecting a client's file to the gateway, and restoring it byte for byte."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pml_gateway.clients.backups import Backup, ClientBackups, all_backups
from pml_gateway.clients.block import ClientFileError
from pml_gateway.clients.discover import PROJECTS, ClientFile, of_project, read_place, with_text
from pml_gateway.clients.jsonc import BOM
from pml_gateway.clients.model import KnownClient, Scope
from pml_gateway.clients.own import (
    ENTRY_NAME,
    OWN_VARIABLES,
    ConnectionKind,
    OwnEntry,
    own_kind,
    own_places,
    places_of,
)
from pml_gateway.clients.places import Surroundings
from pml_gateway.clients.show import masked_diff
from pml_gateway.clients.translate import covers, differing_secrets, same_server, translated
from pml_gateway.clients.variables import EntryOrigin
from pml_gateway.config.settings import HttpSettings, Settings
from pml_gateway.errors import ConfigurationError
from pml_gateway.files import OWNER_ONLY, locked, usual_mode, write_atomically
from pml_gateway.paths import PROJECT_NAME, Paths
from pml_gateway.storage import kinds
from pml_gateway.storage.documents import model_document

How = Literal["connected", "already", "restored", "undone", "replaced", "nothing"]


class ConnectedFile(BaseModel):
    """The record of one edit of one file: our own entry, if any was added, and the servers `removed`.

    `backup` holds the bytes that undoing it restores (None: there was no file), `after` the hash of the written text.
    """

    model_config = ConfigDict(frozen=True)

    client: str
    kind: ConnectionKind | None
    entry_name: str
    entry: dict[str, Any]
    removed: tuple[str, ...]
    backup: Path | None
    after: str

    @property
    def own_entries(self) -> dict[str, dict[str, Any]]:
        """Return the entry that was added, by its name; empty if servers were only removed."""
        return {self.entry_name: self.entry} if self.entry_name else {}


class _Record(BaseModel):
    version: int = 1
    connections: dict[str, ConnectedFile] = Field(default_factory=dict)


class ConnectedFiles:
    """The record of all edits, one per file and block."""

    def __init__(self, paths: Paths) -> None:
        self.path = paths.connections_file
        self._document = model_document(kinds.CONNECTIONS, self.path, _Record)
        self.backups = ClientBackups(paths)

    def get(self, file: ClientFile) -> ConnectedFile | None:
        """Return the recorded edit of `file`; None if there is none.

        Raises:
            ConfigurationError: the record is damaged.
        """
        return self._read().connections.get(_identity(file))

    def put(self, file: ClientFile, connection: ConnectedFile) -> None:
        """Record an edit."""
        record = self._read()
        record.connections[_identity(file)] = connection
        self._document.write(record)

    def take_back(self, file: ClientFile, known: ConnectedFile | None, backup: Path | None) -> None:
        """Undo the record of an edit that was not written: restore the record `known`, and delete the backup."""
        # If the disk refuses this as well, both stay, which is harmless: undoing an edit that was not made changes
        # nothing.
        with suppress(OSError):
            if self.get(file) != known:
                if known is None:
                    self.drop(file)
                else:
                    self.put(file, known)
            if backup is not None:
                self.backups.remove([backup])

    def projects(self, path: Path) -> tuple[str, ...]:
        """Return the folders of the projects whose servers were removed from the file at `path`."""
        start = f"{_target(path)}|{PROJECTS}|"
        keys = (key.removeprefix(start) for key in self._read().connections if key.startswith(start))
        return tuple(key.rpartition("|")[0] for key in keys)

    def others(self, client: KnownClient, files: Iterable[ClientFile]) -> list[Path]:
        """Return other connected files of this client, which belong to projects other than the current one."""
        known = {_identity(file) for file in files}
        connections = self._read().connections
        left = (key for key, each in connections.items() if each.client == client.name and key not in known)
        return [Path(key.split("|")[0]) for key in left]

    def drop(self, file: ClientFile) -> None:
        """Delete the record of an edit that was undone."""
        record = self._read()
        if record.connections.pop(_identity(file), None) is not None:
            self._document.write(record)

    def back_up(self, file: ClientFile, text: str | None) -> Path | None:
        """Back up a text of `file`; do nothing if it is None."""
        return None if text is None else self.backups.keep(file.client.name, file.scope, file.path, text)

    def needed(self) -> dict[Path, Path]:
        """Return the backups that undo a connection, each with its file."""
        connections = self._read().connections
        return {each.backup: Path(key.split("|")[0]) for key, each in connections.items() if each.backup is not None}

    def give_up(self, backups: Collection[Path]) -> None:
        """Delete the connections that these backups would undo; `pml disconnect` then removes only our entry."""
        with self._document.locked():
            record = self._read()
            left = {key: each for key, each in record.connections.items() if each.backup not in backups}
            if left != record.connections:
                record.connections = left
                self._document.write(record)

    def _read(self) -> _Record:
        return self._document.require(f"move it away; the backups of your clients' files are in {self.backups.folder}")


def backups_here(paths: Paths, folder: Path) -> list[Backup]:
    """Return every backup of this home and of the project in `folder`."""
    return all_backups(paths, ConnectedFiles(paths).needed(), [paths.config_file, folder / PROJECT_NAME])


def text_hash(text: str) -> str:
    """Return the SHA-256 of a file's text."""
    return hashlib.sha256(text.encode()).hexdigest()


def _identity(file: ClientFile) -> str:
    return "|".join((str(_target(file.path)), *file.block.path))


def _target(path: Path) -> Path:
    """Resolve symbolic links; a link that leads back to itself resolves to itself."""
    return Path(os.path.realpath(path))


@dataclass(frozen=True, slots=True)
class ClientEdit:
    """A change of a client's file; `after` is None if the file is deleted, because it did not exist before `connect`.

    `before` is the text that the backup holds and undoing restores (None: no file). `kept` are servers of the file that
    stay next to the gateway; `waiting` are those of them that the gateway also has but cannot start, with the reason;
    `served` maps each removed server to the gateway's server that replaces it. `conflicts` are entries that were
    changed by hand since, and `lost` entries that cannot be restored. A file that is `replaced` was deleted, or is
    broken and is moved aside.
    """

    file: ClientFile
    how: How
    after: str | None
    before: str | None = None
    connection: ConnectedFile | None = None
    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    secret: str = ""
    served: Mapping[str, str] = field(default_factory=dict)
    waiting: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_changed(self) -> bool:
        """Return True if there is something to write."""
        return self.how not in ("already", "nothing")

    @property
    def is_over(self) -> bool:
        """Return True if there is nothing left to undo, so that the record can be deleted."""
        return self.how == "nothing" and self.connection is not None

    @property
    def diff(self) -> str:
        """Return the change as a unified diff, with credentials masked."""
        texts = [text.removeprefix("\ufeff") for text in (self.file.text, self.after or "")]
        secrets = [self.secret] if self.secret else []
        return masked_diff(str(self.file.path), texts[0], texts[1], self.file.block, secrets, self._plain)

    @property
    def _plain(self) -> frozenset[str]:
        """Return the strings that `pml connect` wrote into a stdio entry: paths and names, which are not secret."""
        entry = self.connection.entry if self.connection is not None and self.connection.kind == "stdio" else {}
        variables = {name: text for name, text in entry.get("env", {}).items() if name in OWN_VARIABLES}
        return frozenset(_texts({**entry, "env": variables}))


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            yield from (text for item in value.values() for text in _texts(item))
        case list():
            yield from (text for item in value for text in _texts(item))


def files_of(
    client: KnownClient, surroundings: Surroundings, connections: ConnectedFiles, scope: Scope | None = None
) -> list[tuple[ClientFile, Surroundings]]:
    """Return every file of a client that can be connected, with its blocks for every project, each once.

    In the home folder, a file of the user can be that of the project as well.
    """
    found: dict[str, tuple[ClientFile, Surroundings]] = {}
    for place in client.places:
        if not place.read_only and scope in (None, place.scope):
            file = read_place(client, place, surroundings)
            found.setdefault(_identity(file), (file, surroundings))
            for other in of_other_projects(file, connections):
                found.setdefault(_identity(other), (other, replace(surroundings, project=Path(other.project))))
    return list(found.values())


def of_other_projects(file: ClientFile, connections: ConnectedFiles) -> list[ClientFile]:
    """Return the file's blocks for other projects, including those left empty when servers were removed."""
    if not file.project:
        return []
    projects = dict.fromkeys((*file.elsewhere, *connections.projects(file.path)))
    return [of_project(file, project) for project in projects if project != file.project]


def served_entries(file: ClientFile, settings: Settings, surroundings: Surroundings) -> dict[str, str]:
    """Return the entries of `file` that the gateway also has, each with the name of the gateway's server."""
    # A server of the same name takes precedence over equal ones, and enabled servers over disabled ones.
    servers = sorted(settings.servers.items(), key=lambda item: not item[1].enabled)
    had = {server: definition.model_dump(mode="json", exclude_defaults=True) for server, definition in servers}
    found = {}
    for name, raw in file.entries.items():
        entry = translated(raw, EntryOrigin(file.client, file.scope, surroundings, file.inputs, name)).definition
        if entry is None:
            continue
        for server in ([name] if name in had else []) + list(had):
            is_other_key = server == name and differing_secrets(had[server], entry, surroundings.environ) is not None
            if is_other_key or covers(had[server], entry, surroundings.environ):
                found[name] = server
                break
    return found


def connected(
    file: ClientFile,
    base: ClientFile,
    own: OwnEntry | None,
    http: HttpSettings,
    connections: ConnectedFiles,
    *,
    served: Mapping[str, str],
    waiting: Mapping[str, str],
) -> ClientEdit:
    """Plan how to point `file` at the gateway.

    Args:
        file: the client's file.
        base: the result of `unconnected`, from which a repeated connection starts.
        own: the entry to write; None only removes servers.
        http: the address at which the gateway serves.
        connections: the record of all edits.
        served: the entries to remove, each with the gateway's server that replaces it.
        waiting: entries that the gateway has but cannot start, with the reason; they stay.

    Raises:
        ConfigurationError: the file's layout requires a change by hand.
    """
    known = connections.get(file)
    name = next(iter(_own_names(base, http)), None) or _free_name(base)
    if own is not None:
        own = own.keeping(next((file.entries[each] for each in _own_names(file, http)), None))
    entries = {name: own.values} if own is not None else {}
    removed = tuple(entry for entry in base.entries if entry in served)
    kept = tuple(other for other in base.entries if other not in {*removed, *entries})
    after = _changed(base, removed, entries)
    how: How = "connected"
    if after == file.text:
        how = "already" if own is not None or known is not None else "nothing"
    connection = ConnectedFile(
        client=file.client.name,
        kind=own.kind if own is not None else None,
        entry_name=name if own is not None else "",
        entry=own.values if own is not None else {},
        removed=removed,
        backup=None,
        after=text_hash(after),
    )
    return ClientEdit(
        file,
        how,
        after,
        base.text if base.exists else None,
        connection if how == "connected" else known,
        removed,
        kept,
        secret=own.secret if own is not None else "",
        served={entry: served[entry] for entry in removed},
        waiting=waiting,
    )


def unconnected(
    file: ClientFile, http: HttpSettings, surroundings: Surroundings, connections: ConnectedFiles
) -> ClientFile:
    """Return `file` as if it had never been connected, with all later changes by others.

    Raises:
        ConfigurationError: the file is broken, or its layout requires a change by hand.
    """
    _refuse_broken(file)
    known = connections.get(file)
    if known is None or not file.exists:
        return file
    before = _original(file, known)
    if before is None:
        return file
    if known.after == text_hash(file.text):
        return before
    return with_text(file, _undone(file, before, known, http, surroundings, keeps=_own_names(before, http)).text)


def disconnected(
    file: ClientFile, http: HttpSettings, surroundings: Surroundings, connections: ConnectedFiles
) -> ClientEdit:
    """Plan how to undo `connect`: restore every byte, or revert only our edit if the file has changed since.

    Raises:
        ConfigurationError: the file is broken and has no record, or its layout requires a change by hand.
    """
    known = connections.get(file)
    if known is None:
        _refuse_broken(file)
        own = _own_names(file, http, own_places(surroundings.environ))
        if not own:
            return ClientEdit(file, "nothing", file.text if file.exists else None)
        return ClientEdit(file, "undone", _changed(file, own, {}), file.text)
    before = _original(file, known)
    if file.problem or not file.exists:
        if before is None:
            _refuse_broken(file)
        if before is None or (not before.exists and not file.exists):
            return ClientEdit(file, "nothing", None, connection=known)
        return ClientEdit(file, "replaced", before.text if before.exists else None, None, known, known.removed)
    if before is None:
        own = tuple(_own_now(file, known, http))
        lost = tuple(name for name in known.removed if name not in file.entries)
        return ClientEdit(file, "undone", _changed(file, own, {}), file.text, known, lost=lost)
    if known.after == text_hash(file.text):
        left = _own_names(before, http, places_of(known.entry))
        after = _changed(before, left, {}) if left else before.text
        return ClientEdit(file, "restored", after if before.exists else None, file.text, known, known.removed)
    undone = _undone(file, before, known, http, surroundings)
    is_empty = not before.exists and not undone.text.strip(f"{BOM} \t\r\n{{}}")
    return ClientEdit(
        file,
        "undone" if is_empty or undone.text != file.text else "nothing",
        None if is_empty else undone.text,
        file.text,
        known,
        undone.back,
        conflicts=undone.conflicts,
    )


@dataclass(frozen=True, slots=True)
class _Undone:
    """A file without our edit: the restored entries, and entries that were meanwhile added with another definition."""

    text: str
    back: tuple[str, ...]
    conflicts: tuple[str, ...]


def _undone(
    file: ClientFile,
    before: ClientFile,
    known: ConnectedFile,
    http: HttpSettings,
    surroundings: Surroundings,
    keeps: Collection[str] = (),
) -> _Undone:
    """Revert our edit of `file` although others changed it; restore also the entries `keeps` of our own in `before`."""
    own = set(_own_now(file, known, http))
    there = [name for name in known.removed if name in file.entries and name not in own]
    back = tuple(name for name in known.removed if name in before.entries and name not in there)
    conflicts = [name for name in there if not _is_same(file, before, name, surroundings)]
    if known.entry_name in file.entries.keys() - own:
        conflicts.append(known.entry_name)
    try:
        written = file.block.changed(before.text, known.removed, known.own_entries)
    except ClientFileError:
        written = ""
    if known.entry_name and known.entry_name not in file.entries:
        own.add(known.entry_name)
    with _nothing_written(file):
        text = file.block.restored(file.text, own, (*back, *keeps), before.text, written)
    return _Undone(text, back, tuple(conflicts))


def _is_same(file: ClientFile, before: ClientFile, name: str, surroundings: Surroundings) -> bool:
    """Return True if both files define a server equally, even if written differently."""
    if file.entries[name] == before.entries.get(name):
        return True
    now, then = (
        translated(
            each.entries.get(name), EntryOrigin(file.client, file.scope, surroundings, each.inputs, name)
        ).definition
        for each in (file, before)
    )
    return now is not None and then is not None and same_server(now, then, surroundings.environ)


def apply(edit: ClientEdit, connections: ConnectedFiles) -> Path | None:
    """Write the edit completely or not at all; return the backup of the previous bytes while it is needed.

    Raises:
        ConfigurationError: the file changed since it was read, or cannot be written.
    """
    file = edit.file
    target = _target(file.path)
    try:
        with locked(connections.path):
            if edit.how in ("nothing", "replaced"):
                aside = _replace(edit, target) if edit.how == "replaced" else None
                connections.drop(file)
                connections.backups.forget(target, connections.needed())
                return aside
            if (target.read_bytes() if target.exists() else b"") != file.text.encode():
                raise ConfigurationError(f"{file.path} was changed by another program just now", hint="run it again")
            known = connections.get(file)
            backup = connections.back_up(file, edit.before)
            try:
                if edit.connection is not None and edit.how == "connected":
                    # Recorded first: without the record, an interrupted run could not be undone.
                    connections.put(file, edit.connection.model_copy(update={"backup": backup}))
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


def _replace(edit: ClientEdit, target: Path) -> Path | None:
    """Write the text from before `connect`; a broken file is renamed, and its new path returned."""
    aside = None
    mode = _mode(edit.file, target)
    if target.exists():
        names = (f"{target.name}.broken{f'-{number}' if number else ''}" for number in count())
        aside = next(path for name in names if not (path := target.with_name(name)).exists())
        target.rename(aside)
    if edit.after is not None:
        try:
            write_atomically(target, edit.after, mode)
        except OSError:
            if aside is not None:
                aside.rename(target)
            raise
    return aside


def _mode(file: ClientFile, target: Path) -> int:
    if target.is_file():
        return stat.S_IMODE(target.stat().st_mode)
    if file.scope is not Scope.PROJECT:
        return OWNER_ONLY
    # Files of a project are shared; our entry in them holds no secret.
    return usual_mode()


def _original(file: ClientFile, known: ConnectedFile) -> ClientFile | None:
    """Return the file as it was before it was connected; None if its backup is lost."""
    if known.backup is None:
        return replace(file, text="", entries={}, inputs={}, exists=False, problem="")
    try:
        return with_text(file, known.backup.read_bytes().decode())
    except (OSError, UnicodeDecodeError, ClientFileError):
        return None


def _own_now(file: ClientFile, known: ConnectedFile, http: HttpSettings) -> Iterator[str]:
    """Yield our entries in a file: those that lead to this gateway, and the one that was written."""
    yield from _own_names(file, http, places_of(known.entry))
    if known.entry_name and file.entries.get(known.entry_name) == known.entry:
        yield known.entry_name


def _own_names(file: ClientFile, http: HttpSettings, places: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the entries that lead to any gateway, or only to the one with home and configuration at `places`."""
    own = (name for name, raw in file.entries.items() if own_kind(raw, http))
    return tuple(name for name in own if places is None or places_of(file.entries[name]) == places)


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
