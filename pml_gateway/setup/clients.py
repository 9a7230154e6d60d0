"""Connections of a client's files: the files that a command is for, the edit of each, and the outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pml_gateway.clients.connect import (
    ClientEdit,
    ConnectedFiles,
    apply,
    connected,
    disconnected,
    files_of,
    served_entries,
    unconnected,
)
from pml_gateway.clients.discover import ClientFile, ClientStatus, known_client, with_text
from pml_gateway.clients.model import KnownClient, Scope
from pml_gateway.clients.own import OwnEntry, http_entry, stdio_entry
from pml_gateway.clients.places import Surroundings
from pml_gateway.config.sets import check_sets
from pml_gateway.config.settings import CALLS_BY_EFFECT, HttpSettings, Settings
from pml_gateway.errors import GatewayError, UsageError
from pml_gateway.exposure.modes import lists_meta_tools
from pml_gateway.exposure.vocabulary import CALL_TOOL
from pml_gateway.local.commands import StuckGatewayError, ask
from pml_gateway.local.endpoint import Endpoint, UnsupportedSystemError
from pml_gateway.owner.operations import STATUS
from pml_gateway.paths import Paths
from pml_gateway.types import ExposureMode, JsonObject

ANSWER_SECONDS = 3.0
"""Time limit in seconds for a running gateway to say how it is."""


@dataclass(frozen=True, slots=True)
class ChosenFiles:
    """The files that a command is for, each with its surroundings, and the options that chose them."""

    client: KnownClient
    files: Sequence[tuple[ClientFile, Surroundings]]
    scope: Scope | None
    all_scopes: bool

    @classmethod
    def of(cls, name: str, scope: Scope | None, all_scopes: bool, connections: ConnectedFiles) -> ChosenFiles:
        """Choose files by the client's name and a scope.

        Raises:
            UsageError: there is no such client, or it has no file for this scope.
        """
        client = known_client(name)
        if scope is not None and all_scopes:
            raise UsageError("--scope and --all-scopes exclude each other", hint="leave one out")
        found = files_of(client, Surroundings.here(Path.cwd()), connections, scope)
        if all_scopes:
            return cls(client, found, scope, all_scopes)
        if not found:
            scopes = ", ".join(dict.fromkeys(place.scope for place in client.places))
            raise UsageError(f"{client.title} has no file for scope {scope}", hint=f"choose from {scopes}")
        return cls(client, found[:1], scope, all_scopes)

    @property
    def option(self) -> str:
        """Return the options that choose these files again."""
        return " --all-scopes" if self.all_scopes else f" --scope {self.scope}" if self.scope else ""

    def served(self, settings: Settings, connections: ConnectedFiles) -> list[Mapping[str, str]]:
        """Return the entries of each file that the gateway serves, with the server of each."""
        return [
            served_entries(unconnected(file, settings.http, around, connections), settings, around)
            for file, around in self.files
        ]

    def disconnecting(self, http: HttpSettings, connections: ConnectedFiles) -> list[ClientEdit]:
        """Return the edit of each file that undoes its connection.

        Raises:
            ConfigurationError: a file's layout requires a change by hand.
        """
        edits: list[ClientEdit] = []
        # The last edit is undone first, so that each file is met as it was left.
        for read, around in reversed(self.files):
            edits.append(disconnected(_as_left(read, edits), http, around, connections))
        return edits


@dataclass(frozen=True, slots=True)
class ReplacedServers:
    """Entries of each file that the gateway serves, and the servers that cannot start now, with the reasons."""

    served: Sequence[Mapping[str, str]] = ()
    unready: Mapping[str, str] = field(default_factory=dict)

    def connecting(
        self,
        chosen: ChosenFiles,
        own: OwnEntry,
        settings: Settings,
        connections: ConnectedFiles,
        *,
        take_all: bool,
    ) -> list[ClientEdit]:
        """Return the edit of each file; only the first gets an entry, which the client's other files share.

        Raises:
            ConfigurationError: a file's layout requires a change by hand.
        """
        edits: list[ClientEdit] = []
        for at, (read, around) in enumerate(chosen.files):
            served = dict(self.served[at]) if self.served else {}
            waiting = {} if take_all else {name: each for name, each in served.items() if each in self.unready}
            file = _as_left(read, edits)
            edits.append(
                connected(
                    file,
                    unconnected(file, settings.http, around, connections),
                    None if at else own,
                    settings.http,
                    connections,
                    served={name: each for name, each in served.items() if name not in waiting},
                    waiting={name: self.unready[server] for name, server in waiting.items()},
                )
            )
        return edits

    def warnings(self, edits: Sequence[ClientEdit]) -> list[str]:
        """Return a warning about each server that leaves a file although it is known not to start."""
        return [
            f"{name} goes from the file, but is known not to start as {server}: {self.unready[server]}"
            for edit in edits
            if edit.has_changed
            for name, server in edit.served.items()
            if server in self.unready
        ]


def _as_left(file: ClientFile, edits: Sequence[ClientEdit]) -> ClientFile:
    """Return a file as it is after the edits of its other blocks."""
    for edit in edits:
        if edit.file.path == file.path and edit.has_changed and edit.after is not None:
            file = with_text(file, edit.after)
    return file


def own_entry(
    client: KnownClient,
    settings: Settings,
    *,
    http: bool,
    as_client: str | None,
    sets: Sequence[str],
    write_key: bool,
    calls_by_effect: bool | None = None,
) -> OwnEntry:
    """Return the gateway's entry for a client, over HTTP or stdio.

    Args:
        client: the client.
        settings: those of the gateway.
        http: connect by URL.
        as_client: the entry of `clients:` whose key it uses.
        sets: the sets that it is started with.
        write_key: write the key itself where the client reads no variables.
        calls_by_effect: whether this client gets the tools that call up to an effect; None: as its entry has it.

    Raises:
        ConfigurationError: the entry cannot be written for this client.
        UsageError: there is no such entry of `clients:`, or this client cannot get these tools.
    """
    pin = pins(settings)
    if calls_by_effect and (reason := why_no_calls_by_effect(settings, http=http)):
        raise UsageError(f"--calls-by-effect has no effect: {reason}", hint="pml docs meta-tools says more")
    check_sets(sets, settings)
    if http and sets:
        raise UsageError("--set is for stdio", hint="over HTTP, sets belong to a key: clients.<name>.sets")
    if http:
        return http_entry(client, settings, client_key=as_client, write_key=write_key, pin=pin)
    meta_tools = None if calls_by_effect is None else with_calls_by_effect(settings) if calls_by_effect else ()
    return stdio_entry(client, pin=pin, meta_tools=meta_tools, sets=sets)


def with_calls_by_effect(settings: Settings) -> tuple[str, ...]:
    """Return the meta-tools with the three that call tools up to an effect in the place of `call_tool`."""
    names = settings.gateway.meta_tools
    return tuple(each for name in names for each in (CALLS_BY_EFFECT if name == CALL_TOOL else (name,)))


def why_no_calls_by_effect(settings: Settings, *, http: bool) -> str:
    """Return the reason why one client cannot get the tools that call up to an effect; empty if it can."""
    gateway = settings.gateway
    if http:
        return "over HTTP, gateway.meta_tools of the configuration counts for all clients"
    if not CALLS_BY_EFFECT.keys().isdisjoint(gateway.meta_tools):
        return "gateway.meta_tools names such tools already"
    if CALL_TOOL not in gateway.meta_tools:
        return "gateway.meta_tools does not name call_tool, in whose place they come"
    if gateway.style == "namespaces":
        return "with gateway.style: namespaces no client has call_tool"
    if not lists_meta_tools(gateway.tools_exposure, gateway):
        return f"in the mode {gateway.tools_exposure} no client has call_tool"
    return ""


def pins(settings: Settings) -> bool:
    """Return True if clients should load the gateway's list at once; in full_proxy they should defer it."""
    return settings.gateway.tools_exposure is not ExposureMode.FULL_PROXY


@dataclass(frozen=True, slots=True)
class EditOutcome:
    """Edit of a file and its outcome."""

    edit: ClientEdit
    is_written: bool = False
    backup: Path | None = None

    def as_json(self) -> JsonObject:
        """Return the outcome as `--json` prints it."""
        edit = self.edit
        return {
            "client": edit.file.client.name,
            "scope": edit.file.scope,
            "file": str(edit.file.path),
            "result": edit.how,
            "written": self.is_written,
            "backup": str(self.backup) if self.backup else None,
            "removed": edit.removed,
            "kept": edit.kept,
            "waiting": dict(edit.waiting),
            "lost": edit.lost,
            "conflicts": edit.conflicts,
            "diff": edit.diff if edit.has_changed else "",
        }


def write_edits(edits: Sequence[ClientEdit], connections: ConnectedFiles) -> list[EditOutcome]:
    """Write edits one after the other: a later edit of a file is one of what an earlier one leaves.

    Raises:
        ConfigurationError: a file changed since it was read, or cannot be written.
    """
    return [
        EditOutcome(edit, is_written=edit.has_changed, backup=apply(edit, connections))
        if edit.has_changed or edit.is_over
        else EditOutcome(edit)
        for edit in edits
    ]


@dataclass(frozen=True, slots=True)
class GatewaySharing:
    """The gateway that clients over stdio share, where they do: its process, and the names of those attached to it."""

    is_wanted: bool
    pid: int | None = None
    attached: tuple[str, ...] = ()
    is_stuck: bool = False

    @classmethod
    def found(cls, paths: Paths, identity: str, settings: Settings) -> GatewaySharing:
        """As it is now."""
        try:
            machine = ask(Endpoint.of(paths.home, identity), STATUS, ANSWER_SECONDS, awaits_start=False)
        except StuckGatewayError as error:
            return cls(settings.local.attach, error.process or None, is_stuck=True)
        except (GatewayError, UnsupportedSystemError):
            # pml status and pml doctor say why.
            machine = None
        if machine is None:
            return cls(settings.local.attach)
        return cls(settings.local.attach, machine["pid"], tuple(each["name"] for each in machine["clients"]))

    def shares(self, status: ClientStatus) -> bool:
        """Return True if the client's file names the gateway."""
        return self.is_wanted and status.kind == "stdio" and not status.is_alone

    def sessions(self, status: ClientStatus) -> int:
        """Return the number of attached sessions of a client."""
        return sum(map(status.file.client.is_called, self.attached)) if self.shares(status) else 0

    def without_file(self, found: Sequence[ClientStatus]) -> Mapping[str, int]:
        """Return the number of attached sessions of other clients, by name."""
        named = [status.file.client for status in found if self.shares(status)]
        others = (name for name in self.attached if not any(client.is_called(name) for client in named))
        return Counter(name or "not known yet" for name in others)
