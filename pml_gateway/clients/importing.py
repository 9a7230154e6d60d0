"""The plan of an import: the servers to add from client files, their names, and their secrets."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pml_gateway.clients.block import Block
from pml_gateway.clients.discover import ClientFile, read_named
from pml_gateway.clients.literals import VariableNames, without_literals
from pml_gateway.clients.model import FileFormat, FileLocation, KnownClient, Scope, Variables
from pml_gateway.clients.own import own_kind
from pml_gateway.clients.paste import pasted
from pml_gateway.clients.places import Surroundings
from pml_gateway.clients.removed import RemovedServers, identity
from pml_gateway.clients.translate import covers, differing_secrets, same_server, translated, united
from pml_gateway.clients.variables import EntryOrigin, Translation
from pml_gateway.config.advice import obstacles, variable_users
from pml_gateway.config.commands.packages import kept_state
from pml_gateway.config.settings import Settings
from pml_gateway.errors import ConfigurationError, UsageError
from pml_gateway.secrets.env_file import stored_variables
from pml_gateway.secrets.references import references

Outcome = Literal["added", "merged", "present", "removed", "skipped", "gateway"]

REMOVED = KnownClient("removed", "pml remove", (), variables=Variables.ANY)
"""Origin of servers that `pml remove` took out."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_. -]+")


@dataclass(slots=True)
class ImportedServer:
    """One entry of one file and the outcome of its import; `name` is its name in the gateway."""

    file: ClientFile
    entry_name: str
    name: str
    outcome: Outcome
    definition: dict[str, Any] | None = field(default=None, repr=False)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SecretMove:
    """A credential that was written as plain text: its new variable, its users, and if its value must be stored."""

    variable: str
    used_by: tuple[str, ...]
    is_stored: bool


@dataclass(frozen=True, slots=True)
class MissingVariable:
    """A variable that servers need and that is not set."""

    variable: str
    used_by: tuple[str, ...]
    about: str


@dataclass(slots=True)
class ImportPlan:
    """The plan of an import. `values` are the secrets to store, by variable."""

    servers: list[ImportedServer] = field(default_factory=list)
    secrets: list[SecretMove] = field(default_factory=list)
    missing: list[MissingVariable] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict, repr=False)
    freed: frozenset[str] = frozenset()
    """Stored variables that only replaced servers read, so that their values may change."""

    @property
    def unused(self) -> list[str]:
        """Return the stored variables that nothing reads once servers are replaced."""
        read = {each.name for text in _texts(self.additions) for each in references(text)}
        return sorted(self.freed - read)

    @property
    def additions(self) -> dict[str, dict[str, Any]]:
        """Return the entries to add under `servers:`."""
        return {
            server.name: server.definition
            for server in self.servers
            if server.outcome == "added" and server.definition is not None
        }


def plan_import(
    files: Sequence[ClientFile],
    settings: Settings,
    surroundings: Surroundings,
    *,
    replaced: Collection[str] = (),
    removed: Mapping[str, str] = MappingProxyType({}),
) -> ImportPlan:
    """Plan the import of `files` into `settings`.

    Args:
        files: the files to import.
        settings: the gateway's settings.
        surroundings: the locations of clients' files.
        replaced: servers to remove, with the stored values that only they read.
        removed: identities of servers that must not be imported, each with the name it had.
    """
    environ = surroundings.environ
    stored = dict(stored_variables(environ))
    plan = ImportPlan()
    kept = {name: definition for name, definition in settings.servers.items() if name not in replaced}
    settings, before = settings.model_copy(update={"servers": kept}), settings
    used = variable_users(settings)
    freed = {name for name in variable_users(before) if name in stored and name not in used}
    names = {name: definition.model_dump(mode="json", exclude_defaults=True) for name, definition in kept.items()}
    readable = {name: value for name, value in environ.items() if value} | stored
    assignment = _ServerAssignment(
        plan,
        names,
        frozenset(names),
        readable,
        has_workflows=bool(settings.workflows),
        removed=removed,
    )
    about: dict[str, str] = {}
    for file in files:
        for entry_name, raw in file.entries.items():
            if own_kind(raw, settings.http):
                plan.servers.append(ImportedServer(file, entry_name, "", "gateway"))
                continue
            found = translated(raw, EntryOrigin(file.client, file.scope, surroundings, file.inputs, entry_name))
            about |= {name: text for name, text in found.variables.items() if text or name not in about}
            plan.servers.append(assignment.assigned(file, entry_name, found))
    # The environment's value of a name that other servers read may change, so it cannot be reused.
    taken: dict[str, str | None] = {name: value for name, value in environ.items() if value and name not in freed}
    read = {each.name for text in _texts(names) for each in references(text) if each.default is None}
    taken |= dict.fromkeys({*used, *read} - stored.keys())
    _take_secrets(plan, names, VariableNames({k: v for k, v in stored.items() if k not in freed}, taken), stored)
    plan.freed = frozenset(freed)
    for server in plan.servers:
        if server.outcome == "added":
            server.definition = names[server.name]
            server.problems += _startable(server.name, names[server.name], environ)
            server.notes += _sessions(server.name, names[server.name])
    _find_missing(plan, readable, about)
    return plan


@dataclass(slots=True)
class _ServerAssignment:
    """Assignment of entries, one by one, to the servers in `names`; those in `before` were there at the start."""

    plan: ImportPlan
    names: dict[str, dict[str, Any]]
    before: frozenset[str]
    environ: Mapping[str, str]
    has_workflows: bool
    removed: Mapping[str, str] = field(default_factory=dict)

    def assigned(self, file: ClientFile, entry_name: str, found: Translation) -> ImportedServer:
        """Return the outcome for the entry; add it to `names` if it is new."""
        server = ImportedServer(file, entry_name, "", "skipped", notes=found.notes, problems=found.problems)
        definition = found.definition
        if definition is None:
            return server
        twin = self._twin(file, entry_name, definition)
        if twin is None and (name := self.removed.get(identity(definition))) is not None:
            server.outcome, server.name = "removed", name
            server.notes = [f"was taken out as {name!r}; pml init --removed brings it back"]
            return server
        if twin is None:
            server.name, server.outcome = self._name(server), "added"
            self.names[server.name] = definition
            return server
        server.name, server.outcome = twin, "present" if twin in self.before else "merged"
        if twin in self.before and (keys := differing_secrets(self.names[twin], definition, self.environ)):
            server.notes.append(_other_key(twin, self.names[twin], keys))
        if server.outcome == "merged":
            self.names[twin] = united(self.names[twin], definition)
        return server

    def _twin(self, file: ClientFile, entry_name: str, definition: Mapping[str, Any]) -> str | None:
        """Return the existing server that the entry is equal to, if any."""
        for name, known in self.names.items():
            if same_server(known, definition, self.environ):
                return name
        # One client may specify more of a server than another; two entries in one file are two servers.
        own_file = {other.name for other in self.plan.servers if other.file is file}
        for name, known in self.names.items():
            if name in self.before:
                is_meant = name in (entry_name, safe_name(entry_name))
                is_twin = is_meant and differing_secrets(known, definition, self.environ) is not None
            else:
                is_twin = covers(known, definition, self.environ) or covers(definition, known, self.environ)
            if is_twin and name not in own_file:
                return name
        return None

    def _name(self, server: ImportedServer) -> str:
        """Return a name that no other server has; note the reason if it is not the entry's own."""
        entry_name = server.entry_name
        wish = safe_name(entry_name)
        if wish != entry_name:
            server.notes.append(f"is named {wish!r}; tool names give characters of {entry_name!r} another meaning")
        if wish == "workflows" and self.has_workflows:
            wish = "workflows-server"
            server.notes.append(f"is named {wish!r}; the configuration's workflows have the name 'workflows'")
        if wish not in self.names:
            return wish
        name = _free(f"{wish}-{server.file.client.name}", self.names)
        server.notes.append(f"is named {name!r}; another server, with another definition, is {wish!r}")
        return name


def _other_key(name: str, known: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Describe a key that differs between gateway and client, and how to adopt the client's."""
    stored = dict.fromkeys(each.name for text in _texts(known) for each in references(text) if each.kind == "env")
    remedy = f"pml secrets set {next(iter(stored))}" if len(stored) == 1 else "pml secrets set"
    return f"has another value for {', '.join(keys)} than the gateway, which keeps its own; to change it: {remedy}"


def safe_name(entry_name: str) -> str:
    """Return a name for a server without characters that are special in patterns and tool names."""
    return _UNSAFE.sub("-", entry_name).strip("-. ") or "server"


def _free(wish: str, taken: Collection[str]) -> str:
    name, number = wish, 2
    while name in taken:
        name, number = f"{wish}-{number}", number + 1
    return name


def _take_secrets(
    plan: ImportPlan, names: dict[str, dict[str, Any]], variables: VariableNames, stored: Mapping[str, str]
) -> None:
    """Replace the literals of every added server; variables that already hold the same value are reused."""
    used: dict[str, list[str]] = {}
    for server in plan.servers:
        if server.outcome != "added":
            continue
        names[server.name], literals = without_literals(server.name, names[server.name], variables)
        for literal in literals:
            if literal.is_missing:
                continue
            used.setdefault(literal.variable, []).append(f"servers.{server.name}.{literal.key}")
            if stored.get(literal.variable) != literal.value:
                plan.values[literal.variable] = literal.value
    plan.secrets = [SecretMove(name, tuple(keys), name in plan.values) for name, keys in used.items()]


def _find_missing(plan: ImportPlan, readable: Mapping[str, str], about: Mapping[str, str]) -> None:
    used: dict[str, list[str]] = {}
    for name, definition in plan.additions.items():
        for text in _texts(definition):
            for reference in references(text):
                is_set = reference.name in readable or reference.name in plan.values
                if reference.kind == "env" and reference.default is None and not is_set:
                    used.setdefault(reference.name, [])
                    used[reference.name] += [name] if name not in used[reference.name] else []
    plan.missing = [MissingVariable(name, tuple(servers), about.get(name, "")) for name, servers in used.items()]
    for server in plan.servers:
        if server.outcome == "added":
            server.problems += [f"{item.variable} is not set" for item in plan.missing if server.name in item.used_by]


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for item in value.values():
                yield from _texts(item)
        case list():
            for item in value:
                yield from _texts(item)


def _sessions(server: str, definition: Mapping[str, Any]) -> Iterator[str]:
    """Note that clients will not share the server, if it is known to keep state for one of them."""
    kept = kept_state(definition.get("command") or "", definition.get("args") or ())
    if kept and "sessions" not in definition:
        yield f"keeps {kept}, so every client gets one of its own; servers.{server}.sessions: shared changes that"


def _startable(server: str, definition: Mapping[str, Any], environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the reasons why the command of a definition cannot start here."""
    command = definition.get("command")
    if not command or references(command) or definition.get("enabled") is False:
        return
    path = (definition.get("env") or {}).get("PATH") or environ.get("PATH")
    folder = definition.get("cwd")
    folder = None if folder and references(folder) else folder
    found = obstacles(command, server=server, folder=folder, path=path)
    yield from (str(replace(obstacle, subject="")) for obstacle in found)


def removed_servers(record: RemovedServers, plan: ImportPlan, settings: Settings, path: Path) -> ClientFile | None:
    """Return the servers that `pml remove` took out and no client has any more, as a file, or None."""
    seen = {each.name or each.entry_name for each in plan.servers}
    entries = {name: each for name, each in record.definitions().items() if name not in seen | settings.servers.keys()}
    if not entries:
        return None
    place, block = FileLocation(Scope.USER, "", ()), Block(FileFormat.JSON, ())
    return ClientFile(REMOVED, place, path, block, exists=True, entries=entries)


def read_source(source: Path, surroundings: Surroundings) -> list[ClientFile]:
    """Return the file of a client, or else one with what `pml add` reads when it is pasted.

    Raises:
        ConfigurationError: it is neither; says what is wrong with it as the file of a client.
    """
    path = source.expanduser().absolute()
    problem: ConfigurationError | None = None
    found: list[ClientFile] = []
    try:
        found = read_named(path, surroundings)
    except ConfigurationError as error:
        problem = error
    if not any(file.entries for file in found):
        with suppress(UsageError, OSError, UnicodeDecodeError):
            return [replace(pasted(path.read_text("utf-8")), path=path, is_copy=True)]
    if problem is not None:
        raise problem
    return found
