"""What is known of one MCP client: its files, the shape of its entries, its variables."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class TomlEditError(ValueError):
    """The change cannot be made in this layout."""


class Scope(StrEnum):
    """For whom a file counts."""

    USER = "user"
    PROJECT = "project"
    LOCAL = "local"


class System(StrEnum):
    """The operating systems that place files differently."""

    LINUX = "linux"
    MACOS = "macos"
    WINDOWS = "windows"


class FileFormat(StrEnum):
    """How a file is written; JSON is read with comments and trailing commas, as most clients do."""

    JSON = "json"
    TOML = "toml"


class Variables(StrEnum):
    """How a client writes a variable inside a value."""

    NONE = "none"
    BRACED = "braced"
    """`${X}` and `${X:-default}`."""
    DOLLAR = "dollar"
    """As braced, and `$X`."""
    PREFIXED = "prefixed"
    """`${env:X}`, `${input:x}`, `${workspaceFolder}`, `${userHome}`."""
    ANY = "any"
    """All of these but `$X`, and opencode's `{env:X}`: pasted text, of which the client is not known."""


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
    """An older place that is still read, and never written."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a client writes a server.

    `bare_url` is the transport of an entry with `url` and no `type`, where that is not left to the URL.
    """

    http_url: str = "url"
    bare_url: Literal["http", "sse"] | None = None
    stdio_type: str | None = None
    http_type: str | None = None
    headers: str = "headers"
    speaks_http: bool = True
    extra: tuple[tuple[str, str], ...] = ()
    """Further members of every entry."""


@dataclass(frozen=True, slots=True)
class ToolNames:
    """How a client names tools for its model: `{server}` in `prefix` is the name of the entry.

    `longest` is for prefix and name together; `otherwise` says what becomes of longer ones. A prefix is cut to
    `longest_prefix`.
    """

    prefix: str
    longest: int
    otherwise: str
    longest_prefix: int | None = None

    def room(self, entry: str) -> int:
        """How long a name may be that the entry's server lists."""
        return self.longest - len(self.before(entry))

    def before(self, entry: str) -> str:
        """What the client puts before the names of an entry's server."""
        return self.prefix.format(server=entry)[: self.longest_prefix]


@dataclass(frozen=True, slots=True)
class KnownClient:
    """An MCP client.

    `defers` says how the client itself keeps tools out of the context, if it does; `pin_key` is the member of an
    entry that turns this off for one server. `names` says how it names tools, where that is known.
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
    """What makes the client read its file again."""
    names: ToolNames | None = None
    announced: str = ""
    """How the name begins that it tells servers, in small letters and with hyphens; by default `name`."""

    def is_called(self, name: str) -> bool:
        """Whether a client that introduced itself by this name is one of these."""
        return name.lower().replace(" ", "-").startswith(self.announced or self.name)
