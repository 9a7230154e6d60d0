"""Connecting a client's file to the gateway, and undoing it to the byte."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pml_gateway.clients.backups import Backup, ClientBackups, all_backups
from pml_gateway.clients.block import ClientFileError
from pml_gateway.clients.discover import PROJECTS, ClientFile, of_project, read_place, with_text
from pml_gateway.clients.jsonc import BOM
from pml_gateway.clients.model import KnownClient, Scope
from pml_gateway.clients.own import ENTRY_NAME, ConnectionKind, OwnEntry, own_kind, own_places, places_of
from pml_gateway.clients.places import Surroundings
from pml_gateway.clients.show import masked_diff
from pml_gateway.clients.translate import covers, differing_secrets, same_server, translated
from pml_gateway.clients.variables import EntryOrigin
from pml_gateway.config.settings import HttpSettings, Settings
from pml_gateway.errors import ConfigurationError
from pml_gateway.files import OWNER_ONLY, locked, usual_mode, write_atomically
from pml_gateway.paths import PROJECT_NAME, Paths


class ConnectedFile(BaseModel):
    """One edit of one file: our own entry, if it got one, in the place of the servers `removed`.

    `backup` holds the bytes that undoing it leads back to (None: there was no file), `after` the hash of what was
    written.
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
        """The entry that was added, by its name; none where only servers were taken out."""
        return {self.entry_name: self.entry} if self.entry_name else {}


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

    def projects(self, path: Path) -> tuple[str, ...]:
        """The projects for which servers were taken out of the file at `path`, by their folders."""
        start = f"{_target(path)}|{PROJECTS}|"
        keys = (key.removeprefix(start) for key in self._read().connections if key.startswith(start))
        return tuple(key.rpartition("|")[0] for key in keys)

    def others(self, client: KnownClient, files: Iterable[ClientFile]) -> list[Path]:
        """Files of a client that are connected beside these: those of projects that nobody stands in now."""
        known = {_identity(file) for file in files}
        connections = self._read().connections
        left = (key for key, each in connections.items() if each.client == client.name and key not in known)
        return [Path(key.split("|")[0]) for key in left]

    def drop(self, file: ClientFile) -> None:
        """Forget an edit that was undone."""
        record = self._read()
        if record.connections.pop(_identity(file), None) is not None:
            self._write(record)

    def back_up(self, file: ClientFile, text: str | None) -> Path | None:
        """Keep a text of `file`."""
        return None if text is None else self.backups.keep(file.client.name, file.scope, file.path, text)

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
    return "|".join((str(_target(file.path)), *file.block.path))


def _target(path: Path) -> Path:
    """What a link leads to; one that leads back to itself stands for itself."""
    return Path(os.path.realpath(path))


How = Literal["connected", "already", "restored", "undone", "replaced", "nothing"]


@dataclass(frozen=True, slots=True)
class ClientEdit:
    """A change of a client's file; `after` is None where the file goes, since there was none before `connect`.

    `before` is what a backup keeps, and undoing it leads back to (None: no file). `kept` are servers of the file that
    stay beside the gateway; `waiting` those of them that it has, with the reason why it cannot start them; `served`
    says by which server of the gateway each removed one is replaced. `conflicts` are entries that somebody made
    something else of, and `lost` ones that nobody can bring back. A file that is `replaced` was deleted, or is broken
    and is moved aside.
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
        """Whether there is something to write."""
        return self.how not in ("already", "nothing")

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to undo, and to be remembered."""
        return self.how == "nothing" and self.connection is not None

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


def files_of(
    client: KnownClient, surroundings: Surroundings, connections: ConnectedFiles
) -> list[tuple[ClientFile, Surroundings]]:
    """Every file of a client that can be connected, and its blocks for every project, each with its surroundings."""
    found: list[tuple[ClientFile, Surroundings]] = []
    for place in client.places:
        if not place.read_only:
            file = read_place(client, place, surroundings)
            found.append((file, surroundings))
            for other in of_other_projects(file, connections):
                found.append((other, replace(surroundings, project=Path(other.project))))
    return found


def of_other_projects(file: ClientFile, connections: ConnectedFiles) -> list[ClientFile]:
    """The blocks that a file has for other projects, with those that are empty since servers were taken out."""
    if not file.project:
        return []
    projects = dict.fromkeys((*file.elsewhere, *connections.projects(file.path)))
    return [of_project(file, project) for project in projects if project != file.project]


def served_entries(file: ClientFile, settings: Settings, surroundings: Surroundings) -> dict[str, str]:
    """The entries of `file` that the gateway has as well, and as which server: they would be there twice."""
    # The one of the same name is meant before others that say the same, and a disabled one after all others.
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
    """What pointing `file` at the gateway changes.

    Args:
        file: the client's file.
        base: the same, `unconnected`: connecting again starts from there.
        own: the entry to write; None only takes servers out.
        http: where the gateway serves.
        connections: the record of all edits.
        served: the entries to take out, and which server of the gateway serves each.
        waiting: entries that the gateway has and cannot start, with the reason; they stay.

    Raises:
        ConfigurationError: the file's layout leaves the change to a person.
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
    """`file` as it would be if it had never been connected, with everything that others changed since.

    Raises:
        ConfigurationError: the file is broken, or its layout leaves the change to a person.
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
    """What undoing `connect` changes: everything to the byte, or our edit alone if the file changed since.

    Raises:
        ConfigurationError: the file is broken and nothing is known of it, or its layout leaves the change to a person.
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
    """A file without our edit: what came back, and what somebody had added anew, with another definition."""

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
    """`file` without our edit, though others changed it since; our own entries `keeps` of `before` come back too."""
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
    """Whether both say the same of a server, however they write it."""
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
    """Write the edit, whole or not at all; returns where the bytes from before are, as long as they are needed.

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
                raise ConfigurationError(f"{file.path} was changed by somebody else just now", hint="run it again")
            known = connections.get(file)
            backup = connections.back_up(file, edit.before)
            try:
                if edit.connection is not None and edit.how == "connected":
                    # Noted first: without the note, what an interrupted run wrote could not be undone.
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
    """Write what was there before `connect`; a broken file stays beside it, under another name, which is returned."""
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
    # Files of a project are shared; they hold nothing secret of ours.
    return usual_mode()


def _original(file: ClientFile, known: ConnectedFile) -> ClientFile | None:
    """The file as it was before it was connected; None where its backup is lost."""
    if known.backup is None:
        return replace(file, text="", entries={}, inputs={}, exists=False, problem="")
    try:
        return with_text(file, known.backup.read_bytes().decode())
    except (OSError, UnicodeDecodeError, ClientFileError):
        return None


def _own_now(file: ClientFile, known: ConnectedFile, http: HttpSettings) -> Iterator[str]:
    """Our entries in a file: those that lead to this gateway, and the one that was written."""
    yield from _own_names(file, http, places_of(known.entry))
    if known.entry_name and file.entries.get(known.entry_name) == known.entry:
        yield known.entry_name


def _own_names(file: ClientFile, http: HttpSettings, places: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The entries that lead to a gateway, or to the one whose home and configuration lie at `places`."""
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
