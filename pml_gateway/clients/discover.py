"""Discovery of the known clients' files on this machine, of their servers, and of how each client gets its tools."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pml_gateway.clients.block import Block, ClientFileError
from pml_gateway.clients.known import CLIENT_NAMES, CLIENTS
from pml_gateway.clients.model import FileFormat, FileLocation, KnownClient, Scope
from pml_gateway.clients.own import ConnectionKind, own_kind, serves_alone
from pml_gateway.clients.places import Surroundings
from pml_gateway.config.settings import HttpSettings
from pml_gateway.errors import ConfigurationError, UsageError
from pml_gateway.regular_files import RefusedFileError, read_regular
from pml_gateway.text import suggestion

MAX_CLIENT_FILE_BYTES = 64 * 1024 * 1024
"""Size limit of a client's file; Claude Code keeps histories next to its servers, which take megabytes."""

SKIPPED = "skipped"
"""The end of the problem text of a file that no client can read either, such as a pipe; other problems are reported."""

PROJECTS = "projects"
"""The key of Claude Code's blocks for each project."""

State = Literal["absent", "empty", "direct", "connected", "both", "broken", "skipped"]


@dataclass(frozen=True, slots=True)
class ClientFile:
    """One file of one client; if it cannot be read, `problem` says why, and its servers are unknown."""

    client: KnownClient
    place: FileLocation
    path: Path
    block: Block
    exists: bool = False
    text: str = field(default="", repr=False)
    entries: Mapping[str, Any] = field(default_factory=dict, repr=False)
    inputs: Mapping[str, str] = field(default_factory=dict, repr=False)
    problem: str = ""
    elsewhere: tuple[str, ...] = ()
    """Other projects for which this file has servers."""
    source: str = ""
    """The source of a text that is not a client's file: `claude mcp add`, or `pasted`."""
    is_copy: bool = False
    """True if the user named a file that no client reads, and `client` is a guess from its form."""

    @property
    def is_skipped(self) -> bool:
        """Return True if the path is not a regular file, such as a pipe, or belongs to another user."""
        return self.problem.endswith(SKIPPED)

    @property
    def scope(self) -> Scope:
        """Return the scope in which the file applies."""
        return self.place.scope

    @property
    def project(self) -> str:
        """Return the project that the block is for, if the file has one block for each project."""
        return self.block.path[1] if self.block.path[:1] == (PROJECTS,) else ""

    @property
    def origin(self) -> str:
        """Return the client, or another source of the servers."""
        return self.source or self.client.name

    @property
    def where(self) -> str:
        """Return the path, and the project if the file has one block for each."""
        return f"{self.path}{f' ({self.project})' if self.project else ''}"

    @property
    def label(self) -> str:
        """Return client and scope, as messages name them."""
        return f"{self.client.title} ({self.scope}{f', {self.project}' if self.project else ''})"


def known_client(name: str) -> KnownClient:
    """Return the client of this name.

    Raises:
        UsageError: there is none; suggests the nearest.
    """
    found = next((client for client in CLIENTS if client.name == name), None)
    if found is None:
        near = suggestion(name, CLIENT_NAMES)
        raise UsageError(f"no client {name!r} is known{near}", hint=f"choose from {', '.join(CLIENT_NAMES)}")
    return found


def client_files(surroundings: Surroundings, names: Collection[str] = CLIENT_NAMES) -> list[ClientFile]:
    """Return every file that one of these clients would read, existing or not, each once."""
    found: list[ClientFile] = []
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for client in CLIENTS:
        for place in client.places if client.name in names else ():
            path = surroundings.path(place)
            identity = (str(path), surroundings.block(place))
            if identity not in seen:
                seen.add(identity)
                found.append(read_place(client, place, surroundings))
    return found


def read_place(client: KnownClient, place: FileLocation, surroundings: Surroundings) -> ClientFile:
    """Read the file of `place`."""
    path = surroundings.path(place)
    block = Block(client.file_format, surroundings.block(place))
    return _read(ClientFile(client, place, path, block))


def read_named(path: Path, surroundings: Surroundings) -> list[ClientFile]:
    """Read a file that the user named, as one of the client it belongs to or resembles; one result per block.

    Raises:
        UsageError: the file does not exist.
        ConfigurationError: it has no servers in any known form.
    """
    path = path.expanduser().absolute()
    if not path.is_file():
        raise UsageError(f"{path} does not exist or is no regular file", hint="name a client's configuration")
    candidates = [(client, place) for client in CLIENTS for place in client.places]
    exact = [item for item in candidates if surroundings.path(item[1]) == path]
    # A copy keeps the last part of its path (`mcp.json`, `config.toml`); otherwise the block decides.
    alike = [item for item in candidates if Path(item[1].path).name == path.name]
    by_format = [item for item in candidates if (item[0].file_format is FileFormat.TOML) == (path.suffix == ".toml")]
    read: list[ClientFile] = []
    for group in (exact, alike, by_format):
        read = [
            _read(
                ClientFile(
                    client,
                    place,
                    path,
                    Block(client.file_format, surroundings.block(place)),
                    is_copy=group is not exact,
                )
            )
            for client, place in group
        ]
        useful = [file for file in read if file.entries]
        if useful:
            first = useful[0]
            return [file for file in useful if file.client is first.client and file.block.path != first.block.path] + [
                first
            ]
        if any(file.problem for file in read):
            return [next(file for file in read if file.problem)]
    raise ConfigurationError(
        f"{path} names no servers",
        hint="it should have mcpServers, servers, context_servers or [mcp_servers], as the client writes it",
    )


def of_project(file: ClientFile, project: str) -> ClientFile:
    """Return the same file with its servers for another project."""
    first, _, last = file.block.path
    other = replace(file, block=Block(file.block.file_format, (first, project, last)))
    return with_text(other, file.text) if file.exists and not file.problem else other


def _read(file: ClientFile) -> ClientFile:
    # Other users may have written into a project's folder.
    content, problem = _content(file.path, is_own=file.place.scope is Scope.PROJECT)
    if content is None:
        return replace(file, problem=problem, exists=bool(problem))
    try:
        text = content.decode()
        return with_text(file, text)
    except UnicodeDecodeError as exc:
        return replace(file, exists=True, problem=f"is not UTF-8 text (byte {exc.start})")
    except ClientFileError as exc:
        return replace(file, exists=True, text=text, problem=str(exc))


def with_text(file: ClientFile, text: str) -> ClientFile:
    """Return the file as if it contained `text`.

    Raises:
        ClientFileError: the text is broken, or has its servers in an unknown form.
    """
    values = file.block.values(text)
    return replace(
        file,
        exists=True,
        text=text,
        entries=file.block.servers(text),
        inputs=dict(asked_inputs(values)),
        problem="",
        elsewhere=tuple(_elsewhere(values, file.block.path)) if file.scope is Scope.LOCAL else (),
    )


def _content(path: Path, *, is_own: bool) -> tuple[bytes | None, str]:
    try:
        if not path.exists():
            # A link to a file that does not exist yet is fine.
            return None, "is a link that leads back to itself" if Path(os.path.realpath(path)).is_symlink() else ""
        content = read_regular(path, MAX_CLIENT_FILE_BYTES + 1, is_own=is_own)
    except RefusedFileError as exc:
        return None, f"is {exc.strerror}; {SKIPPED}"
    except OSError as exc:
        return None, f"cannot be read: {exc.strerror}"
    if len(content) > MAX_CLIENT_FILE_BYTES:
        return None, f"is larger than {MAX_CLIENT_FILE_BYTES} bytes"
    return content, ""


def asked_inputs(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the inputs that VS Code asks the user for: id and description."""
    section = values.get("inputs") or _mcp(values).get("inputs")
    for item in section if isinstance(section, list) else ():
        if isinstance(item, dict) and isinstance(item.get("id"), str):
            yield item["id"], str(item.get("description") or "")


def _mcp(values: Mapping[str, Any]) -> Mapping[str, Any]:
    section = values.get("mcp")
    return section if isinstance(section, dict) else {}


def _elsewhere(values: Mapping[str, Any], block: tuple[str, ...]) -> Iterator[str]:
    projects = values.get(block[0])
    for project, section in projects.items() if isinstance(projects, dict) else ():
        if project != block[1] and isinstance(section, dict) and section.get(block[2]):
            yield project


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """The state of one file.

    `servers` counts the entries other than the gateway's own; `kind` is the client's connection to the gateway;
    `is_pinned` is True if it loads the gateway's tools at once (None: it always does, or is not connected); `is_alone`
    is True if it starts a gateway that no other client uses.
    """

    file: ClientFile
    state: State
    kind: ConnectionKind | None
    servers: int
    problem: str = ""
    is_pinned: bool | None = None
    is_alone: bool = False

    def odd_loading(self, *, pins: bool) -> str:
        """Describe how the client loads the gateway's tools, if `pml connect` would have it otherwise."""
        # A user who wrote --alone wrote the entry by hand, on purpose.
        if self.is_pinned is None or self.is_pinned is pins or self.is_alone:
            return ""
        return "defers the gateway's tools" if pins else "loads all of the gateway's tools at once"


def client_status(file: ClientFile, http: HttpSettings) -> ClientStatus:
    """Return the state of one file."""
    own = {name: kind for name, raw in file.entries.items() if (kind := own_kind(raw, http))}
    kind = next(iter(own.values()), None)
    servers = len(file.entries) - len(own)
    if file.problem:
        return ClientStatus(file, "skipped" if file.is_skipped else "broken", None, 0, file.problem)
    problem = next(filter(None, (_unstartable(file.entries[name]) for name in own)), "")
    if problem:
        return ClientStatus(file, "broken", kind, servers, f"{problem}; run pml connect {file.client.name}")
    if not file.exists:
        return ClientStatus(file, "absent", None, 0)
    if kind is not None:
        pin = file.client.pin_key
        is_pinned = all(file.entries[name].get(pin) is True for name in own) if pin else None
        is_alone = kind == "stdio" and any(serves_alone(file.entries[name]) for name in own)
        state: State = "both" if servers else "connected"
        return ClientStatus(file, state, kind, servers, is_pinned=is_pinned, is_alone=is_alone)
    return ClientStatus(file, "direct" if servers else "empty", None, servers)


def _unstartable(raw: Any) -> str:
    command = raw.get("command")
    command = command.get("path") if isinstance(command, dict) else command
    if not isinstance(command, str) or shutil.which(str(Path(command).expanduser())):
        return ""
    return f"the gateway's command {command} does not exist"
