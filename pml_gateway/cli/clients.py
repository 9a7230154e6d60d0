"""`pml clients`, `pml connect`, `pml disconnect`: which clients use the gateway, and making them do so or not."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from pml_gateway.cli.completion import client_names, known_client_names, set_names
from pml_gateway.cli.consent import Consent, YesOption
from pml_gateway.cli.context import Command, JsonOption
from pml_gateway.cli.local import StartOption, start_now
from pml_gateway.cli.output import (
    ExitCode,
    messages,
    note,
    print_diff,
    print_json,
    print_table,
    short_path,
    warn,
)
from pml_gateway.clients.connect import (
    ClientEdit,
    ConnectedFile,
    ConnectedFiles,
    files_of,
    of_other_projects,
    served_entries,
)
from pml_gateway.clients.discover import (
    ClientFile,
    ClientStatus,
    client_files,
    client_status,
    known_client,
)
from pml_gateway.clients.known import CLIENT_NAMES
from pml_gateway.clients.model import Scope
from pml_gateway.clients.own import calls_by_effect_in, own_kind, places_of
from pml_gateway.clients.places import Surroundings
from pml_gateway.config.load import load_settings
from pml_gateway.config.settings import Settings
from pml_gateway.errors import ConfigurationError
from pml_gateway.owner.operations import STATUS
from pml_gateway.paths import Paths
from pml_gateway.setup.clients import (
    ANSWER_SECONDS,
    ChosenFiles,
    EditOutcome,
    GatewaySharing,
    ReplacedServers,
    own_entry,
    pins,
    why_no_calls_by_effect,
    write_edits,
)
from pml_gateway.text import counted, some_of
from pml_gateway.types import JsonObject

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


def clients(
    show_all: Annotated[bool, typer.Option("--all", help="Also files that are not there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the MCP clients, their files, and whether they use the gateway.

    `direct` clients start their servers themselves, `connected` ones have the gateway, `both` have it beside others.
    Those connected over stdio share one gateway; NOW says how many sessions of each are attached to it.

    Example: pml clients
    """
    settings = load_settings().settings
    connections = ConnectedFiles(Paths.from_environ())
    files = client_files(Surroundings.here(Path.cwd()))
    files += [other for file in files for other in of_other_projects(file, connections)]
    files.sort(key=lambda file: CLIENT_NAMES.index(file.client.name))
    found = [(client_status(file, settings.http), connections.get(file)) for file in files]
    command = Command(as_json=as_json)
    sharing = GatewaySharing.found(command.paths, command.identity, settings)
    if as_json:
        rows = [_status_object(status, known, sharing) for status, known in found]
        without = sharing.without_file([status for status, _ in found])
        print_json({"gateway": sharing.pid, "clients": rows, "without_file": without})
    else:
        _show(found, sharing, show_all=show_all)
        for status, _ in found:
            if does := status.odd_loading(pins=pins(settings)):
                name, scope = status.file.client.name, status.file.scope
                wanted = "loaded" if pins(settings) else "deferred"
                note(f"{name} ({scope}) {does}; `pml connect {name}` again to have them {wanted}")
    if any(status.state == "broken" for status, _ in found):
        raise typer.Exit(ExitCode.CONFIGURATION)


def connect(
    client: ClientArgument,
    http: Annotated[bool, typer.Option("--http", help="By URL, to `pml up --http`, instead of starting it.")] = False,
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
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Have it see only what this set or role gives; several together.", autocompletion=set_names
        ),
    ] = None,
    write_key: Annotated[
        bool, typer.Option("--write-key", help="Write the key itself where the client reads no variables.")
    ] = False,
    calls_by_effect: Annotated[
        bool | None,
        typer.Option(
            "--calls-by-effect/--call-tool",
            help="Give this client call_tool_read, _write and _destructive in the place of call_tool. [default: ask]",
            show_default=False,
        ),
    ] = None,
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

    On a terminal it then offers tools for calls by their effect, of which the client can allow some without asking.

    Example: pml connect claude-code --dry-run
    """
    command, asked = Command(as_json=as_json), Consent(yes, dry_run, as_json)
    settings = load_settings().settings
    if not settings.servers:
        known_client(client)
        raise ConfigurationError("the gateway has no servers yet", hint="run `pml init` first")
    connections = ConnectedFiles(command.paths)
    chosen = ChosenFiles.of(client, scope, all_scopes, connections)
    listening = _listening(command) if http else ()
    if listening and settings.http.port not in listening:
        # Where several listen, the one that the settings name is meant.
        settings = settings.model_copy(update={"http": settings.http.model_copy(update={"port": listening[0]})})
    own = partial(
        own_entry, chosen.client, settings, http=http, as_client=as_client, sets=sets or (), write_key=write_key
    )
    replaced = ReplacedServers() if keep else _replaced(chosen, command, settings, connections)
    edits = replaced.connecting(chosen, own(calls_by_effect=calls_by_effect), settings, connections, take_all=take_all)
    warnings = replaced.warnings(edits) if take_all else []
    outcomes = _carry_out(edits, connections, asked, warnings)
    is_connected = all(outcome.is_written or outcome.edit.how == "already" for outcome in outcomes[:1])
    offers = asked.is_interactive and is_connected
    if offers and calls_by_effect is None and _can_offer_calls(outcomes[0].edit, settings, http=http):
        note(CALLS_OFFER.format(client=chosen.client.title))
        fresh = ChosenFiles.of(client, scope, all_scopes, connections)
        with_calls = replaced.connecting(fresh, own(calls_by_effect=True), settings, connections, take_all=take_all)
        found = _carry_out(with_calls, connections, asked, is_wanted=False)
        outcomes = [new if new.is_written else old for new, old in zip(found, outcomes, strict=True)]
    if as_json:
        print_json({**_report(chosen, outcomes), "warnings": warnings})
    else:
        for outcome in outcomes:
            _say_connected(outcome, is_asked_to_keep=keep)
        is_served = http and bool(listening)
        shares = settings.local.attach
        _say_next(chosen, outcomes, is_pinned=pins(settings), over_http=http, is_served=is_served, shares=shares)
        if not all_scopes:
            _say_other_scopes(chosen, settings, connections)
    if any(outcome.is_written for outcome in outcomes) and not http and (start or not as_json):
        start_now(command, start, may_ask=not yes and sys.stdin.isatty())
    if any(edit.has_changed for edit in edits):
        asked.refuse_if_impossible()


CALLS_OFFER = (
    "{client} can allow tools by name. In the place of call_tool, which does everything, it can have call_tool_read, "
    "call_tool_write and call_tool_destructive, and run the first without asking you:"
)


def _can_offer_calls(edit: ClientEdit, settings: Settings, *, http: bool) -> bool:
    is_there = edit.connection is not None and calls_by_effect_in(edit.connection.entry)
    return bool(edit.file.client.allowing) and not is_there and not why_no_calls_by_effect(settings, http=http)


def _replaced(
    chosen: ChosenFiles, command: Command, settings: Settings, connections: ConnectedFiles
) -> ReplacedServers:
    served = chosen.served(settings, connections)
    servers = dict.fromkeys(server for each in served for server in each.values())
    if not servers:
        return ReplacedServers()
    # The server stack takes 0.7 s to import, which a client without servers never needs.
    from pml_gateway.setup.readiness import unready

    environ = chosen.files[0][1].environ
    with messages().status("looking which servers can start"):
        found = command.run(lambda: unready(settings, servers, command.paths, command.identity, environ))
    return ReplacedServers(served, found)


def _say_connected(outcome: EditOutcome, *, is_asked_to_keep: bool) -> None:
    edit = outcome.edit
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
    chosen: ChosenFiles,
    outcomes: Sequence[EditOutcome],
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
    connection = outcomes[0].edit.connection
    if client.allowing and connection is not None and calls_by_effect_in(connection.entry):
        note(f"to let {client.title} read without asking: {client.allowing.format(server=connection.entry_name)}")
    if client.restart:
        note(f"{client.title}: {client.restart}")
    if client.pin_key and is_pinned:
        note(f"{client.title} {client.defers}; the gateway's entry has it")
    if over_http and not is_served:
        note("start the gateway: pml up --http")
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
    connections, asked = ConnectedFiles(Paths.from_environ()), Consent(yes, dry_run, as_json)
    chosen = ChosenFiles.of(client, scope, all_scopes, connections)
    http = load_settings().settings.http
    edits = chosen.disconnecting(http, connections)
    outcomes = _carry_out(edits, connections, asked)
    if as_json:
        print_json(_report(chosen, outcomes))
    else:
        for outcome in outcomes:
            _say_disconnected(outcome)
        if all(edit.how == "nothing" for edit in edits):
            (first, _), *_ = chosen.files
            note(f"{chosen.client.title if all_scopes else first.label} is not connected: {first.path}")
            for name, raw in first.entries.items():
                if own_kind(raw, http):
                    places = " ".join(f"{key}={text}" for key, text in places_of(raw).items())
                    note(f"{name} leads to a gateway elsewhere, which undoes it: {places or 'without PML_HOME'}")
        if chosen.client.restart and any(outcome.is_written for outcome in outcomes):
            note(f"{chosen.client.title}: {chosen.client.restart}")
        undone = {edit.file.where for edit in edits if edit.has_changed or edit.is_over} if dry_run else set[str]()
        _say_still_connected(chosen, connections, undone)
    if any(edit.has_changed for edit in edits):
        asked.refuse_if_impossible()


def _say_disconnected(outcome: EditOutcome) -> None:
    edit, file = outcome.edit, outcome.edit.file
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


def _say_still_connected(chosen: ChosenFiles, connections: ConnectedFiles, undone: Collection[str]) -> None:
    """Name the files of the client that `pml connect` edited as well, except those that a dry run would undo."""
    files = files_of(chosen.client, Surroundings.here(Path.cwd()), connections)
    left = [file for file, _ in files if connections.get(file) is not None and file.where not in undone]
    if left and not chosen.all_scopes:
        scopes = ", ".join(file.label for file in left)
        note(f"still connected: {scopes}; pml disconnect {chosen.client.name} --all-scopes undoes all")
    for path in connections.others(chosen.client, (file for file, _ in files)):
        note(f"still connected: {path}; run this again in its project")


def _listening(command: Command) -> Sequence[int]:
    """Return the ports on which gateways of this configuration listen now."""
    from pml_gateway.owner.sockets import ask_gateways

    reports = command.run(lambda: ask_gateways(command.paths, STATUS, ANSWER_SECONDS)).results
    urls = [report["url"] for report in reports if report["config"] == command.identity]
    return [port for url in urls if url and (port := urlsplit(url).port) is not None]


def _carry_out(
    edits: Sequence[ClientEdit],
    connections: ConnectedFiles,
    asked: Consent,
    warnings: Sequence[str] = (),
    *,
    is_wanted: bool = True,
) -> list[EditOutcome]:
    """Show the edits and what speaks against them, and make them if that is wanted: `is_wanted` is the default."""
    changes = [edit for edit in edits if edit.has_changed]
    if not asked.as_json:
        for edit in changes:
            if not edit.file.exists:
                note(f"{edit.file.path} is not there yet and will be made:")
            print_diff(edit.diff)
        for warning in [*warnings, *(_misfortune(edit) for edit in changes if edit.how == "replaced")]:
            warn(warning)
    # Overwriting a decision of the user's is never the default.
    is_plain = is_wanted and all(edit.how != "replaced" for edit in changes)
    question = f"Write {', '.join(dict.fromkeys(str(edit.file.path) for edit in changes))}?"
    if asked.dry_run or (changes and not asked.agrees(question, default=is_plain)):
        if changes and not asked.as_json and not asked.is_impossible:
            note("nothing was written")
        return [EditOutcome(edit) for edit in edits]
    return write_edits(edits, connections)


def _misfortune(edit: ClientEdit) -> str:
    if not edit.file.exists:
        return f"{edit.file.path} was deleted since `pml connect`; what it was before comes back"
    back = "what it was before `pml connect` comes back" if edit.after is not None else "there was none before"
    return f"{edit.file.path} {edit.file.problem}; it is moved aside, and {back}"


def _say_other_scopes(chosen: ChosenFiles, settings: Settings, connections: ConnectedFiles) -> None:
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


def _show(
    found: Sequence[tuple[ClientStatus, ConnectedFile | None]], sharing: GatewaySharing, *, show_all: bool
) -> None:
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


def _say_without_file(others: Mapping[str, int], sharing: GatewaySharing) -> None:
    """Name the other attached clients: connected by hand, or with a file in another project."""
    if others:
        names = some_of([name if number == 1 else f"{name} ({number})" for name, number in others.items()])
        sessions = counted(sum(others.values()), "session shares", "sessions share")
        note(f"{sessions} the gateway of this machine (process {sharing.pid}) without a file here: {names}")


def _say_shared(over_stdio: Sequence[ClientStatus], sharing: GatewaySharing) -> None:
    """Name the gateway that clients over stdio use."""
    if any(map(sharing.shares, over_stdio)):
        which = f"process {sharing.pid}" if sharing.pid is not None else "which the first of them starts"
        now = ", which does not answer" if sharing.is_stuck else "; NOW counts their sessions"
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
    return short_path(file.path) + (f" ({short_path(Path(file.project))})" if file.project else "")


def _status_object(status: ClientStatus, known: ConnectedFile | None, sharing: GatewaySharing) -> dict[str, object]:
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


def _report(chosen: ChosenFiles, outcomes: Sequence[EditOutcome]) -> JsonObject:
    """One edit as itself; those of all scopes as a list, in the order in which they were made."""
    found = [outcome.as_json() for outcome in outcomes]
    return {"client": chosen.client.name, "edits": found} if chosen.all_scopes else found[0]
