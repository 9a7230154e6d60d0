"""`pml clients`, `pml connect`, `pml disconnect`: which clients use the gateway, and making them do so or not."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pml_gateway.cli.completion import client_names, known_client_names
from pml_gateway.cli.output import ExitCode, fail, note, print_diff, print_json, print_table, refuse_unasked, warn
from pml_gateway.clients.connect import ClientEdit, ConnectedFiles, apply, connected, disconnected
from pml_gateway.clients.discover import ClientFile, ClientStatus, client_files, client_status, known_client, read_place
from pml_gateway.clients.known import CLIENT_NAMES
from pml_gateway.clients.model import KnownClient, Scope
from pml_gateway.clients.own import OwnEntry, http_entry, own_kind, stdio_entry
from pml_gateway.clients.places import Surroundings
from pml_gateway.config.advice import hindrances
from pml_gateway.config.load import load_settings
from pml_gateway.config.settings import Settings
from pml_gateway.errors import ConfigurationError, UsageError
from pml_gateway.paths import Paths
from pml_gateway.text import counted
from pml_gateway.types import ExposureMode

ClientArgument = Annotated[
    str, typer.Argument(metavar="CLIENT", help=", ".join(CLIENT_NAMES), autocompletion=known_client_names)
]
ScopeOption = Annotated[
    Scope | None, typer.Option("--scope", help="Which file of the client. [default: the user's, else the project's]")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the change, write nothing.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def clients(
    show_all: Annotated[bool, typer.Option("--all", help="Also files that are not there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the MCP clients, their files, and whether they use the gateway.

    `direct` clients start their servers themselves, `connected` ones have the gateway, `both` have it beside others.

    Example: pml clients
    """
    try:
        settings = load_settings().settings
    except ConfigurationError as error:
        fail(error, as_json=as_json)
    surroundings = Surroundings.here(Path.cwd())
    found = [client_status(file, settings.http) for file in client_files(surroundings)]
    if as_json:
        print_json({"clients": [_status_object(status) for status in found]})
    else:
        _show(found, show_all=show_all)
        for status in found:
            if status.is_pinned is not None and status.is_pinned is not _pins(settings):
                note(f"{status.file.path}: run `pml connect {status.file.client.name}` again, for the mode has changed")
    if any(status.state == "broken" for status in found):
        raise typer.Exit(ExitCode.CONFIGURATION)


def connect(
    client: ClientArgument,
    http: Annotated[
        bool, typer.Option("--http", help="By URL, to `pml serve --http`, instead of starting it.")
    ] = False,
    scope: ScopeOption = None,
    keep: Annotated[
        bool, typer.Option("--keep/--replace-servers", help="Leave the servers that the gateway serves in place.")
    ] = False,
    as_client: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="NAME",
            help="With --http: the entry of `clients:` whose key it uses.",
            autocompletion=client_names,
        ),
    ] = None,
    write_key: Annotated[
        bool, typer.Option("--write-key", help="Write the key itself where the client reads no variables.")
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Point a client at the gateway.

    Adds the gateway to the client's file and takes out the servers that the gateway serves, which would be there twice.
    Everything else in the file stays as it is, and `pml disconnect` brings back every byte.

    Example: pml connect claude-code --dry-run
    """
    try:
        known, file, surroundings = _file(client, scope)
        settings = load_settings().settings
        if not settings.servers:
            raise ConfigurationError("the gateway has no servers yet", hint="run `pml init` first")
        own = _entry(known, settings, http=http, as_client=as_client, write_key=write_key)
        connections = ConnectedFiles(Paths.from_environ())
        edit = connected(file, own, settings, surroundings, connections, keep_servers=keep)
        warnings = _warnings(edit, settings, surroundings)
        outcome = _carry_out(edit, connections, dry_run=dry_run, yes=yes, as_json=as_json, warnings=warnings)
    except ConfigurationError as error:
        fail(error, as_json=as_json)
    if as_json:
        print_json({**_edit_object(edit, outcome), "warnings": warnings})
    else:
        _say_connected(edit, outcome, _pins(settings), is_asked_to_keep=keep, over_http=http, scope=scope)
        _say_other_scopes(known, file, settings, surroundings)
    if outcome.is_unasked:
        refuse_unasked(as_json=as_json)


def _warnings(edit: ClientEdit, settings: Settings, surroundings: Surroundings) -> list[str]:
    """Servers that leave the client's file although the gateway could not start them as it is now."""
    if not edit.has_changed:
        return []
    return [
        f"{name} goes from the file, but the gateway cannot start it as {server}: {obstacle}"
        for name, server in edit.served.items()
        for obstacle in hindrances(settings, server, surroundings.environ)
    ]


def _say_connected(
    edit: ClientEdit,
    outcome: _Outcome,
    is_pinned: bool,
    *,
    is_asked_to_keep: bool,
    over_http: bool,
    scope: Scope | None,
) -> None:
    file, known = edit.file, edit.file.client
    if edit.removed and outcome.is_written:
        note(f"served by the gateway from now on: {', '.join(edit.removed)}")
    if edit.kept and not is_asked_to_keep:
        note(f"left as they are, since the gateway does not serve them: {', '.join(edit.kept)}")
    if edit.how == "already":
        note(f"{file.label} is connected already: {file.path}")
    if not outcome.is_written:
        return
    note(f"wrote {file.path}{f' (the bytes before are in {outcome.backup})' if outcome.backup else ''}")
    if known.restart:
        note(f"{known.title}: {known.restart}")
    if known.pin_key and is_pinned:
        note(f"{known.title} {known.defers}; the gateway's entry has it")
    if over_http:
        note("start the gateway: pml serve --http")
    note(f"undo: pml disconnect {known.name}{f' --scope {scope}' if scope else ''}")


def disconnect(
    client: ClientArgument,
    scope: ScopeOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Undo `pml connect`: the client's file is again what it was, byte for byte.

    If the file was changed since, only what `pml connect` did is undone.

    Example: pml disconnect claude-code
    """
    try:
        known, file, _ = _file(client, scope)
        connections = ConnectedFiles(Paths.from_environ())
        edit = disconnected(file, load_settings().settings.http, connections)
        outcome = _carry_out(edit, connections, dry_run=dry_run, yes=yes, as_json=as_json)
    except ConfigurationError as error:
        fail(error, as_json=as_json)
    if as_json:
        print_json(_edit_object(edit, outcome))
    else:
        _say_disconnected(known, file, edit, outcome)
    if outcome.is_unasked:
        refuse_unasked(as_json=as_json)


def _say_disconnected(known: KnownClient, file: ClientFile, edit: ClientEdit, outcome: _Outcome) -> None:
    for name in edit.conflicts:
        warn(f"{name} is there with another definition by now, which stays")
    if edit.how == "nothing":
        note(f"{file.label} is not connected: {file.path}")
    elif outcome.is_written:
        what = (
            "is again what it was, byte for byte" if edit.how == "restored" else "was changed since; our edit is undone"
        )
        note(f"{file.path} {what}" if edit.after is not None else f"removed {file.path}, which was not there before")
        if known.restart:
            note(f"{known.title}: {known.restart}")


def _file(name: str, scope: Scope | None) -> tuple[KnownClient, ClientFile, Surroundings]:
    client = known_client(name)
    surroundings = Surroundings.here(Path.cwd())
    places = [place for place in client.places if not place.read_only and scope in (None, place.scope)]
    if not places:
        scopes = ", ".join(dict.fromkeys(place.scope for place in client.places))
        raise UsageError(f"{client.title} has no file for scope {scope}", hint=f"choose from {scopes}")
    return client, read_place(client, places[0], surroundings), surroundings


def _entry(client: KnownClient, settings: Settings, *, http: bool, as_client: str | None, write_key: bool) -> OwnEntry:
    pin = _pins(settings)
    if http:
        return http_entry(client, settings, client_key=as_client, write_key=write_key, pin=pin)
    return stdio_entry(client, pin=pin)


def _pins(settings: Settings) -> bool:
    """Whether clients should load what the gateway lists at once; of everything, what they defer is what they save."""
    return settings.gateway.tools_exposure is not ExposureMode.FULL_PROXY


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of an edit; `is_unasked` where it was to be made, without leave and with nobody to ask."""

    is_written: bool = False
    backup: Path | None = None
    is_unasked: bool = False


def _carry_out(
    edit: ClientEdit,
    connections: ConnectedFiles,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    warnings: Sequence[str] = (),
) -> _Outcome:
    """Show the edit and what speaks against it, and make it if that is wanted."""
    if not edit.has_changed:
        return _Outcome()
    if not as_json:
        if not edit.file.exists:
            note(f"{edit.file.path} is not there yet and will be made:")
        print_diff(edit.diff)
        for warning in warnings:
            warn(warning)
    if not dry_run and not yes and (as_json or not sys.stdin.isatty()):
        return _Outcome(is_unasked=True)
    if dry_run or not (yes or typer.confirm(f"Write {edit.file.path}?", default=True)):
        if not as_json:
            note("nothing was written")
        return _Outcome()
    return _Outcome(is_written=True, backup=apply(edit, connections))


def _say_other_scopes(client: KnownClient, file: ClientFile, settings: Settings, surroundings: Surroundings) -> None:
    for other in client_files(surroundings, [client.name]):
        others = [raw for raw in other.entries.values() if not own_kind(raw, settings.http)]
        if others and other.block.path != file.block.path:
            more = counted(len(others), "more server is", "more servers are")
            note(f"{more} in scope {other.scope} ({other.path})")


def _show(found: Sequence[ClientStatus], *, show_all: bool) -> None:
    listed = [
        status
        for status in found
        if show_all or (status.state != "absent" and (status.state != "empty" or status.file.scope is Scope.USER))
    ]
    if not listed:
        note("no client has a file here; pml clients --all lists the places")
        return
    print_table(
        ("CLIENT", "SCOPE", "STATE", "SERVERS", "FILE"),
        [
            (status.file.client.name, status.file.scope, _state(status), status.servers or "", _short(status.file.path))
            for status in listed
        ],
    )
    for status in listed:
        if status.problem:
            warn(f"{status.file.path}: {status.problem}")


def _state(status: ClientStatus) -> str:
    match status.state:
        case "absent":
            return "no file"
        case "empty":
            return "no servers"
        case "connected":
            return f"connected ({status.kind})"
        case "both":
            return f"both ({status.kind})"
        case other:
            return other


def _short(path: Path) -> str:
    home = str(Path.home())
    return f"~{str(path)[len(home) :]}" if str(path).startswith(home + os.sep) else str(path)


def _status_object(status: ClientStatus) -> dict[str, object]:
    file = status.file
    return {
        "client": file.client.name,
        "title": file.client.title,
        "scope": file.scope,
        "file": str(file.path),
        "exists": file.exists,
        "servers": status.servers,
        "state": status.state,
        "transport": status.kind,
        "defers_tools": bool(file.client.defers),
        "problem": status.problem or None,
    }


def _edit_object(edit: ClientEdit, outcome: _Outcome) -> dict[str, object]:
    return {
        "client": edit.file.client.name,
        "scope": edit.file.scope,
        "file": str(edit.file.path),
        "result": edit.how,
        "written": outcome.is_written,
        "backup": str(outcome.backup) if outcome.backup else None,
        "removed": edit.removed,
        "kept": edit.kept,
        "conflicts": edit.conflicts,
        "diff": edit.diff if edit.has_changed else "",
    }
