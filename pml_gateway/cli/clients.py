"""`pml clients`, `pml connect`, `pml disconnect`: which clients use the gateway, and making them do so or not."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from pml_gateway.cli.completion import client_names, known_client_names
from pml_gateway.cli.consent import YesOption
from pml_gateway.cli.context import Command
from pml_gateway.cli.local import StartOption, endpoint_of, start_now
from pml_gateway.cli.output import (
    ExitCode,
    fail,
    messages,
    note,
    print_diff,
    print_json,
    print_table,
    refuse_unasked,
    warn,
)
from pml_gateway.clients.connect import (
    ClientEdit,
    ConnectedFile,
    ConnectedFiles,
    apply,
    connected,
    disconnected,
    files_of,
    of_other_projects,
    served_entries,
    unconnected,
)
from pml_gateway.clients.discover import (
    ClientFile,
    ClientStatus,
    client_files,
    client_status,
    known_client,
    with_text,
)
from pml_gateway.clients.known import CLIENT_NAMES
from pml_gateway.clients.model import KnownClient, Scope
from pml_gateway.clients.own import OwnEntry, http_entry, own_kind, places_of, stdio_entry
from pml_gateway.clients.places import Surroundings
from pml_gateway.config.load import load_settings
from pml_gateway.config.settings import Settings
from pml_gateway.errors import ConfigurationError, GatewayError, UsageError
from pml_gateway.local.commands import StuckGatewayError, ask
from pml_gateway.paths import Paths
from pml_gateway.text import counted, some_of
from pml_gateway.types import ExposureMode

ANSWER_SECONDS = 3.0

ClientArgument = Annotated[
    str, typer.Argument(metavar="CLIENT", help=", ".join(CLIENT_NAMES), autocompletion=known_client_names)
]
ScopeOption = Annotated[
    Scope | None, typer.Option("--scope", help="Which file of the client. [default: the user's, else the project's]")
]
AllScopesOption = Annotated[
    bool, typer.Option("--all-scopes", help="Every file of the client: the user's, each project's own, this project's.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the change, write nothing.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def clients(
    show_all: Annotated[bool, typer.Option("--all", help="Also files that are not there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the MCP clients, their files, and whether they use the gateway.

    `direct` clients start their servers themselves, `connected` ones have the gateway, `both` have it beside others.
    Those connected over stdio share one gateway; NOW says how many sessions of each are attached to it.

    Example: pml clients
    """
    try:
        settings = load_settings().settings
        connections = ConnectedFiles(Paths.from_environ())
        files = client_files(Surroundings.here(Path.cwd()))
        files += [other for file in files for other in of_other_projects(file, connections)]
        files.sort(key=lambda file: CLIENT_NAMES.index(file.client.name))
        found = [(client_status(file, settings.http), connections.get(file)) for file in files]
    except ConfigurationError as error:
        fail(error, as_json=as_json)
    sharing = _Sharing.found(Command(as_json=as_json), settings)
    if as_json:
        rows = [_status_object(status, known, sharing) for status, known in found]
        without = sharing.without_file([status for status, _ in found])
        print_json({"gateway": sharing.pid, "clients": rows, "without_file": without})
    else:
        _show(found, sharing, show_all=show_all)
        for status, _ in found:
            if does := status.odd_loading(pins=_pins(settings)):
                name, scope = status.file.client.name, status.file.scope
                wanted = "loaded" if _pins(settings) else "deferred"
                note(f"{name} ({scope}) {does}; `pml connect {name}` again to have them {wanted}")
    if any(status.state == "broken" for status, _ in found):
        raise typer.Exit(ExitCode.CONFIGURATION)


@dataclass(frozen=True, slots=True)
class _Sharing:
    """The gateway that clients over stdio share, where they do: its process, and the names of those attached to it."""

    is_wanted: bool
    pid: int | None = None
    attached: tuple[str, ...] = ()
    is_stuck: bool = False

    @classmethod
    def found(cls, command: Command, settings: Settings) -> _Sharing:
        """As it is now."""
        try:
            machine = ask(endpoint_of(command), "status", ANSWER_SECONDS, awaits_start=False)
        except StuckGatewayError as error:
            return cls(settings.local.attach, error.process or None, is_stuck=True)
        except GatewayError:
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


def connect(
    client: ClientArgument,
    http: Annotated[
        bool, typer.Option("--http", help="By URL, to `pml serve --http`, instead of starting it.")
    ] = False,
    scope: ScopeOption = None,
    all_scopes: AllScopesOption = False,
    keep: Annotated[
        bool, typer.Option("--keep/--replace-servers", help="Leave the servers that the gateway serves in place.")
    ] = False,
    take_all: Annotated[
        bool, typer.Option("--take-all", help="Take out also the servers that are known not to start.")
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
    start: StartOption = None,
    as_json: JsonOption = False,
) -> None:
    """Point a client at the gateway.

    Adds the gateway to the client's file and takes out the servers that the gateway serves, which would be there twice.
    Servers that are known not to start stay in the client: a command, a variable or a login is missing, or a running
    gateway failed to start them. None is started to find out. Everything else in the file stays as it is, and
    `pml disconnect` brings back every byte.

    Example: pml connect claude-code --dry-run
    """
    command = Command(as_json=as_json)
    try:
        settings = load_settings().settings
        if not settings.servers:
            known_client(client)
            raise ConfigurationError("the gateway has no servers yet", hint="run `pml init` first")
        connections = ConnectedFiles(command.paths)
        chosen = _Chosen.of(client, scope, all_scopes, connections)
        listening = _listening(command) if http else ()
        if listening and settings.http.port not in listening:
            # Where several listen, the one that the settings name is meant.
            settings = settings.model_copy(update={"http": settings.http.model_copy(update={"port": listening[0]})})
        own = _entry(chosen.client, settings, http=http, as_client=as_client, write_key=write_key)
        takes = _Takes.none() if keep else _takes(chosen, command, settings, connections)
        edits = _connecting(chosen, own, settings, connections, takes, take_all=take_all)
        warnings = _warnings(edits, takes) if take_all else []
        outcomes = _carry_out(edits, connections, dry_run=dry_run, yes=yes, as_json=as_json, warnings=warnings)
    except ConfigurationError as error:
        fail(error, as_json=as_json)
    if as_json:
        print_json({**_report(chosen, edits, outcomes), "warnings": warnings})
    else:
        for edit, outcome in zip(edits, outcomes, strict=True):
            _say_connected(edit, outcome, is_asked_to_keep=keep)
        is_served = http and bool(listening)
        shares = settings.local.attach
        _say_next(chosen, outcomes, is_pinned=_pins(settings), over_http=http, is_served=is_served, shares=shares)
        if not all_scopes:
            _say_other_scopes(chosen, settings, connections)
    if any(outcome.is_written for outcome in outcomes) and not http and (start or not as_json):
        start_now(command, start, may_ask=not yes and sys.stdin.isatty())
    if any(outcome.is_unasked for outcome in outcomes):
        refuse_unasked(as_json=as_json)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The files that a command is for, each with its surroundings, and the options that chose them."""

    client: KnownClient
    files: Sequence[tuple[ClientFile, Surroundings]]
    scope: Scope | None
    all_scopes: bool

    @classmethod
    def of(cls, name: str, scope: Scope | None, all_scopes: bool, connections: ConnectedFiles) -> _Chosen:
        """By name and scope.

        Raises:
            UsageError: there is no such client, or it has no file for this scope.
        """
        client = known_client(name)
        if scope is not None and all_scopes:
            raise UsageError("--scope and --all-scopes exclude each other", hint="leave one out")
        found = files_of(client, Surroundings.here(Path.cwd()), connections)
        if all_scopes:
            return cls(client, found, scope, all_scopes)
        chosen = [each for each in found if scope in (None, each[0].scope)][:1]
        if not chosen:
            scopes = ", ".join(dict.fromkeys(place.scope for place in client.places))
            raise UsageError(f"{client.title} has no file for scope {scope}", hint=f"choose from {scopes}")
        return cls(client, chosen, scope, all_scopes)

    @property
    def option(self) -> str:
        """Return the options that choose these files again."""
        return " --all-scopes" if self.all_scopes else f" --scope {self.scope}" if self.scope else ""


@dataclass(frozen=True, slots=True)
class _Takes:
    """Return the entries that could be removed from each file, and the servers that cannot start now."""

    served: Sequence[Mapping[str, str]]
    unready: Mapping[str, str]

    @classmethod
    def none(cls) -> _Takes:
        """Nothing."""
        return cls((), {})

    def of(self, at: int, *, is_ready: bool) -> dict[str, str]:
        """Return the entries of a file whose servers are ready, or are not, and the server of each."""
        served = self.served[at] if self.served else {}
        return {name: server for name, server in served.items() if (server not in self.unready) is is_ready}


def _takes(chosen: _Chosen, command: Command, settings: Settings, connections: ConnectedFiles) -> _Takes:
    served = [
        served_entries(unconnected(file, settings.http, around, connections), settings, around)
        for file, around in chosen.files
    ]
    servers = dict.fromkeys(server for each in served for server in each.values())
    if not servers:
        return _Takes.none()
    # The server stack takes 0.7 s to import, which a client without servers never needs.
    from pml_gateway.reports.readiness import unready

    environ = chosen.files[0][1].environ
    with messages().status("looking which servers can start"):
        found = command.run(lambda: unready(settings, servers, command.paths, command.identity, environ))
    return _Takes(served, found)


def _connecting(
    chosen: _Chosen,
    own: OwnEntry,
    settings: Settings,
    connections: ConnectedFiles,
    takes: _Takes,
    *,
    take_all: bool,
) -> list[ClientEdit]:
    """Return the edit of each file; only the first gets an entry, which counts for the client's other files as well."""
    edits: list[ClientEdit] = []
    for at, (read, around) in enumerate(chosen.files):
        file = _as_left(read, edits)
        waiting = {} if take_all else takes.of(at, is_ready=False)
        served = takes.of(at, is_ready=True) | (takes.of(at, is_ready=False) if take_all else {})
        edits.append(
            connected(
                file,
                unconnected(file, settings.http, around, connections),
                None if at else own,
                settings.http,
                connections,
                served=served,
                waiting={name: takes.unready[server] for name, server in waiting.items()},
            )
        )
    return edits


def _as_left(file: ClientFile, edits: Sequence[ClientEdit]) -> ClientFile:
    """`file` after the edits of its other blocks."""
    for edit in edits:
        if edit.file.path == file.path and edit.has_changed and edit.after is not None:
            file = with_text(file, edit.after)
    return file


def _warnings(edits: Sequence[ClientEdit], takes: _Takes) -> list[str]:
    """Servers that leave the client's file although they are known not to start."""
    return [
        f"{name} goes from the file, but is known not to start as {server}: {takes.unready[server]}"
        for edit in edits
        if edit.has_changed
        for name, server in edit.served.items()
        if server in takes.unready
    ]


def _say_connected(edit: ClientEdit, outcome: _Outcome, *, is_asked_to_keep: bool) -> None:
    file, client = edit.file, edit.file.client
    if edit.removed and outcome.is_written:
        note(f"served by the gateway from now on: {', '.join(edit.removed)}")
    if edit.waiting:
        note(f"left in {client.title}, since they are known not to start (--take-all takes them too):")
        for name, reason in edit.waiting.items():
            note(f"  {name}: {reason}")
    kept = [name for name in edit.kept if name not in edit.waiting]
    if kept and not is_asked_to_keep:
        note(f"left as they are, since the gateway does not serve them: {', '.join(kept)}")
    if edit.how == "already":
        note(f"{file.label} is connected already: {file.path}")
    if outcome.is_written:
        note(f"wrote {file.path}{f' (the bytes before are in {outcome.backup})' if outcome.backup else ''}")


def _say_next(
    chosen: _Chosen,
    outcomes: Sequence[_Outcome],
    *,
    is_pinned: bool,
    over_http: bool,
    is_served: bool,
    shares: bool,
) -> None:
    """Print the remaining manual steps after a change."""
    client = chosen.client
    if not any(outcome.is_written for outcome in outcomes):
        return
    if client.restart:
        note(f"{client.title}: {client.restart}")
    if client.pin_key and is_pinned:
        note(f"{client.title} {client.defers}; the gateway's entry has it")
    if over_http and not is_served:
        note("start the gateway: pml serve --http")
    elif shares and not over_http:
        note("it shares one gateway, and the servers behind it, with your other clients: pml docs machine")
    note(f"undo: pml disconnect {client.name}{chosen.option}")


def disconnect(
    client: ClientArgument,
    scope: ScopeOption = None,
    all_scopes: AllScopesOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Undo `pml connect`: the client's file is again what it was, byte for byte.

    If the file was changed since, only what `pml connect` did is undone. If it was deleted or is broken, what it was
    before `pml connect` comes back, and a broken file is kept beside it.

    Example: pml disconnect claude-code
    """
    try:
        connections = ConnectedFiles(Paths.from_environ())
        chosen = _Chosen.of(client, scope, all_scopes, connections)
        http = load_settings().settings.http
        edits: list[ClientEdit] = []
        # The last edit is undone first, so that each file is met as it was left.
        for read, around in reversed(chosen.files):
            edits.append(disconnected(_as_left(read, edits), http, around, connections))
        outcomes = _carry_out(edits, connections, dry_run=dry_run, yes=yes, as_json=as_json)
    except ConfigurationError as error:
        fail(error, as_json=as_json)
    if as_json:
        print_json(_report(chosen, edits, outcomes))
    else:
        for edit, outcome in zip(edits, outcomes, strict=True):
            _say_disconnected(edit, outcome)
        if all(edit.how == "nothing" for edit in edits):
            (first, _), *_ = chosen.files
            note(f"{chosen.client.title if all_scopes else first.label} is not connected: {first.path}")
            for name, raw in first.entries.items():
                if own_kind(raw, http):
                    places = " ".join(f"{key}={text}" for key, text in places_of(raw).items())
                    note(f"{name} leads to a gateway elsewhere, which undoes it: {places or 'without PML_HOME'}")
        if chosen.client.restart and any(outcome.is_written for outcome in outcomes):
            note(f"{chosen.client.title}: {chosen.client.restart}")
        _say_still_connected(chosen, connections)
    if any(outcome.is_unasked for outcome in outcomes):
        refuse_unasked(as_json=as_json)


def _say_disconnected(edit: ClientEdit, outcome: _Outcome) -> None:
    file = edit.file
    for name in edit.conflicts:
        warn(f"{name} is there with another definition by now, which stays")
    if edit.lost:
        names = ", ".join(edit.lost)
        warn(f"the backup of {file.path} is gone, and with it {names}; `pml config show` has their definitions")
    if outcome.is_written:
        match edit.how:
            case "restored" if edit.after is None:
                note(f"removed {file.path}, which was not there before")
            case "restored":
                note(f"{file.path} is again what it was, byte for byte")
            case "replaced":
                kept = f"; the broken file is now {outcome.backup}" if outcome.backup else ""
                note(f"{file.path} is again what it was before `pml connect`{kept}")
            case _:
                note(f"{file.path} was changed since; our edit is undone, and everything else stays")


def _say_still_connected(chosen: _Chosen, connections: ConnectedFiles) -> None:
    """Files of the client that `pml connect` edited as well."""
    files = files_of(chosen.client, Surroundings.here(Path.cwd()), connections)
    left = [file for file, _ in files if connections.get(file) is not None]
    if left and not chosen.all_scopes:
        scopes = ", ".join(file.label for file in left)
        note(f"still connected: {scopes}; pml disconnect {chosen.client.name} --all-scopes undoes all")
    for path in connections.others(chosen.client, (file for file, _ in files)):
        note(f"still connected: {path}; run this again in its project")


def _entry(client: KnownClient, settings: Settings, *, http: bool, as_client: str | None, write_key: bool) -> OwnEntry:
    pin = _pins(settings)
    if http:
        return http_entry(client, settings, client_key=as_client, write_key=write_key, pin=pin)
    return stdio_entry(client, pin=pin)


def _listening(command: Command) -> Sequence[int]:
    """Return the ports on which gateways of this configuration listen now."""
    from pml_gateway.serve.control import ask_gateways

    reports = command.run(lambda: ask_gateways(command.paths, "status", timeout=ANSWER_SECONDS))
    urls = [report["url"] for report in reports if report.get("url") and report.get("config") == command.identity]
    return [port for url in urls if (port := urlsplit(url).port) is not None]


def _pins(settings: Settings) -> bool:
    """Return True if clients should load the gateway's list at once; in full_proxy they should defer it."""
    return settings.gateway.tools_exposure is not ExposureMode.FULL_PROXY


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Outcome of an edit; `is_unasked` if it needed consent and there was no terminal to ask."""

    is_written: bool = False
    backup: Path | None = None
    is_unasked: bool = False


def _carry_out(
    edits: Sequence[ClientEdit],
    connections: ConnectedFiles,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    warnings: Sequence[str] = (),
) -> list[_Outcome]:
    """Show the edits and what speaks against them, and make them if that is wanted."""
    changes = [edit for edit in edits if edit.has_changed]
    if not as_json:
        for edit in changes:
            if not edit.file.exists:
                note(f"{edit.file.path} is not there yet and will be made:")
            print_diff(edit.diff)
        for warning in [*warnings, *(_misfortune(edit) for edit in changes if edit.how == "replaced")]:
            warn(warning)
    if changes and not dry_run and not yes and (as_json or not sys.stdin.isatty()):
        return [_Outcome(is_unasked=edit.has_changed) for edit in edits]
    if dry_run or not (yes or not changes or typer.confirm(_question(changes), default=_is_plain(changes))):
        if changes and not as_json:
            note("nothing was written")
        return [_Outcome() for _ in edits]
    # One after the other: a later edit of a file is one of what an earlier one leaves.
    return [
        _Outcome(is_written=edit.has_changed, backup=apply(edit, connections))
        if edit.has_changed or edit.is_over
        else _Outcome()
        for edit in edits
    ]


def _misfortune(edit: ClientEdit) -> str:
    if not edit.file.exists:
        return f"{edit.file.path} was deleted since `pml connect`; what it was before comes back"
    back = "what it was before `pml connect` comes back" if edit.after is not None else "there was none before"
    return f"{edit.file.path} {edit.file.problem}; it is moved aside, and {back}"


def _question(changes: Sequence[ClientEdit]) -> str:
    paths = dict.fromkeys(str(edit.file.path) for edit in changes)
    return f"Write {', '.join(paths)}?"


def _is_plain(changes: Sequence[ClientEdit]) -> bool:
    """Return True if an edit overwrites no decision of the user's."""
    return all(edit.how != "replaced" for edit in changes)


def _say_other_scopes(chosen: _Chosen, settings: Settings, connections: ConnectedFiles) -> None:
    client = chosen.client
    surroundings = Surroundings.here(Path.cwd())
    is_twice = False
    for other, around in files_of(client, surroundings, connections):
        if other.problem or any(other.path == file.path and other.block == file.block for file, _ in chosen.files):
            continue
        served = served_entries(other, settings, around)
        if served:
            is_twice = True
            are = "is" if len(served) == 1 else "are"
            note(f"{', '.join(served)} {are} still started by {other.label} itself ({other.path})")
    if is_twice:
        note(f"through the gateway as well: pml connect {client.name} --all-scopes")
    for other in client_files(surroundings, [client.name]):
        others = [raw for raw in other.entries.values() if not own_kind(raw, settings.http)]
        if others and other.place.read_only:
            more = counted(len(others), "more server is", "more servers are")
            note(f"{more} in scope {other.scope} ({other.path})")


def _show(found: Sequence[tuple[ClientStatus, ConnectedFile | None]], sharing: _Sharing, *, show_all: bool) -> None:
    listed = [
        (status, known)
        for status, known in found
        if show_all or known or (status.state != "absent" and (status.state != "empty" or _is_users(status.file)))
    ]
    # What is wrong with a file is wrong with all of its blocks.
    listed = [each for each in listed if not (each[0].file.problem and each[0].file.project)]
    others = sharing.without_file([status for status, _ in found])
    if not listed:
        note("no client has a file here; pml clients --all lists the places")
        _say_without_file(others, sharing)
        return
    print_table(
        ("CLIENT", "SCOPE", "STATE", "NOW", "SERVERS", "FILE"),
        [
            (
                status.file.client.name,
                status.file.scope,
                _state(status, known),
                sharing.sessions(status) or "",
                status.servers or "",
                _place(status),
            )
            for status, known in listed
        ],
    )
    _say_shared([status for status, _ in listed if status.kind == "stdio"], sharing)
    _say_without_file(others, sharing)
    for status, _ in listed:
        if status.problem:
            warn(
                f"{status.file.path} {status.problem}"
                if status.file.problem
                else f"{status.file.path}: {status.problem}"
            )


def _say_without_file(others: Mapping[str, int], sharing: _Sharing) -> None:
    """Return the other attached clients: connected by hand, or with a file in another project."""
    if others:
        names = some_of([name if number == 1 else f"{name} ({number})" for name, number in others.items()])
        sessions = counted(sum(others.values()), "session shares", "sessions share")
        note(f"{sessions} the gateway of this machine (process {sharing.pid}) without a file here: {names}")


def _say_shared(over_stdio: Sequence[ClientStatus], sharing: _Sharing) -> None:
    """Return the gateway that they use."""
    if any(map(sharing.shares, over_stdio)):
        which = f"process {sharing.pid}" if sharing.pid is not None else "which the first of them starts"
        now = ", which does not answer" if sharing.is_stuck else "; NOW are its sessions"
        note(f"over stdio they share the gateway of this machine ({which}){now}: pml status")
    for status in over_stdio:
        if not sharing.shares(status):
            why = "--alone" if status.is_alone else "local.attach is false"
            note(f"{status.file.client.name} ({status.file.scope}) starts a gateway of its own ({why})")


def _is_users(file: ClientFile) -> bool:
    return file.scope is Scope.USER


def _state(status: ClientStatus, known: ConnectedFile | None) -> str:
    match status.state:
        case "absent":
            return "no file"
        case "empty" if known is not None:
            return f"taken over ({len(known.removed)})"
        case "empty":
            return "no servers"
        case "connected":
            return f"connected ({status.kind})"
        case "both":
            return f"both ({status.kind})"
        case other:
            return other


def _place(status: ClientStatus) -> str:
    """Return the file, and the project whose servers it names there: one file can have a block for each."""
    file = status.file
    return _short(file.path) + (f" ({_short(Path(file.project))})" if file.project else "")


def _short(path: Path) -> str:
    home = str(Path.home())
    return f"~{str(path)[len(home) :]}" if str(path).startswith(home + os.sep) else str(path)


def _status_object(status: ClientStatus, known: ConnectedFile | None, sharing: _Sharing) -> dict[str, object]:
    file = status.file
    return {
        "client": file.client.name,
        "title": file.client.title,
        "scope": file.scope,
        "file": str(file.path),
        "project": file.project or None,
        "exists": file.exists,
        "servers": status.servers,
        "state": status.state,
        "transport": status.kind,
        "shares_gateway": sharing.shares(status),
        "sessions": sharing.sessions(status),
        "taken_over": known.removed if known is not None else [],
        "defers_tools": bool(file.client.defers),
        "problem": status.problem or None,
    }


def _report(chosen: _Chosen, edits: Sequence[ClientEdit], outcomes: Sequence[_Outcome]) -> dict[str, object]:
    """One edit as itself; those of all scopes as a list, in the order in which they were made."""
    found = [_edit_object(edit, outcome) for edit, outcome in zip(edits, outcomes, strict=True)]
    return {"client": chosen.client.name, "edits": found} if chosen.all_scopes else found[0]


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
        "waiting": dict(edit.waiting),
        "lost": edit.lost,
        "conflicts": edit.conflicts,
        "diff": edit.diff if edit.has_changed else "",
    }
