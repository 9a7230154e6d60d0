"""The model of an MCP client: its files, the shape of its entries, its variables."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class TomlEditError(ValueError):
    """The change cannot be made in this layout."""


class Scope(StrEnum):
    """The users and projects that a file applies to."""

    USER = "user"
    PROJECT = "project"
    LOCAL = "local"


class System(StrEnum):
    """The operating systems that differ in file locations."""

    LINUX = "linux"
    MACOS = "macos"
    WINDOWS = "windows"


class FileFormat(StrEnum):
    """The format of a file; JSON is read with comments and trailing commas, as most clients do."""

    JSON = "json"
    TOML = "toml"


class Variables(StrEnum):
    """The syntax of variables in a client's values."""

    NONE = "none"
    BRACED = "braced"
    """`${X}` and `${X:-default}`."""
    DOLLAR = "dollar"
    """Like braced, and also `$X`."""
    PREFIXED = "prefixed"
    """`${env:X}`, `${input:x}`, `${workspaceFolder}`, `${userHome}`."""
    ANY = "any"
    """All of these except `$X`, and opencode's `{env:X}`: for pasted text whose client is unknown."""


@dataclass(frozen=True, slots=True)
class FileLocation:
    """One file of a client.

    `path` starts with a root that `places.py` fills in: `{home}`, `{apps}`, `{xdg}`, `{project}`, `{claude}`,
    `{codex}`. `block` leads to the servers; a step `{project}` is the project's folder.
    """

    scope: Scope
    path: str
    block: tuple[str, ...]
    read_only: bool = False
    """An older location that is still read, but never written."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The form of a client's server entries.

    `bare_url` is the transport of an entry with `url` and no `type`; None if the URL decides.
    """

    http_url: str = "url"
    bare_url: Literal["http", "sse"] | None = None
    stdio_type: str | None = None
    http_type: str | None = None
    headers: str = "headers"
    speaks_http: bool = True
    extra: tuple[tuple[str, str], ...] = ()
    """Additional members of every entry."""


@dataclass(frozen=True, slots=True)
class ToolNames:
    """The way a client names tools for its model: `{server}` in `prefix` is the name of the entry.

    `longest` is the maximum length of prefix and name together; `otherwise` describes the client's treatment of longer
    ones. A prefix is truncated to `longest_prefix`.
    """

    prefix: str
    longest: int
    otherwise: str
    longest_prefix: int | None = None

    def room(self, entry: str) -> int:
        """Return the maximum length of the tool names that the entry's server lists."""
        return self.longest - len(self.before(entry))

    def before(self, entry: str) -> str:
        """Return the prefix of the tool names of an entry's server."""
        return self.prefix.format(server=entry)[: self.longest_prefix]


@dataclass(frozen=True, slots=True)
class KnownClient:
    """An MCP client.

    `defers` describes how the client itself keeps tools out of the context, if it does; `pin_key` is the member of an
    entry that turns this off for one server. `names` describes its tool names, if known.
    """

    name: str
    title: str
    places: tuple[FileLocation, ...]
    file_format: FileFormat = FileFormat.JSON
    shape: Shape = Shape()
    variables: Variables = Variables.NONE
    defers: str = ""
    pin_key: str = ""
    restart: str = ""
    """Instructions to make the client read its file again."""
    names: ToolNames | None = None
    allowing: str = ""
    """Instructions to let it call one tool without asking, if it can; `{server}` is the name of the entry."""
    announced: str = ""
    """The beginning of the name that it sends to servers, in lower case and with hyphens; by default `name`."""

    def is_called(self, name: str) -> bool:
        """Return True if a client that sends this name is one of these."""
        return name.lower().replace(" ", "-").startswith(self.announced or self.name)
