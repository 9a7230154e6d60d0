"""`pml upstreams`, `pml refresh`: how the servers are, their logs, logins, and asking them anew."""

from __future__ import annotations

import sys
import threading
import time
import webbrowser
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import typer

from pml_gateway.cli.completion import server_names
from pml_gateway.cli.context import Command, ConfigOption, JsonOption
from pml_gateway.cli.local import endpoint_of
from pml_gateway.cli.output import ExitCode, fail, note, print_json, print_json_line, say, warn
from pml_gateway.cli.status import look
from pml_gateway.config.problems import server_entry
from pml_gateway.config.servers import Transport
from pml_gateway.config.settings import LogSettings
from pml_gateway.errors import GatewayError, InvalidInputError, UpstreamAuthError, UsageError
from pml_gateway.owner.operations import PROBE, RECONNECT, REFRESH
from pml_gateway.telemetry.logs import configure

if TYPE_CHECKING:
    from pml_gateway.config.servers import UpstreamDefinition
    from pml_gateway.processes.child_log import LogReader
    from pml_gateway.reports.status import ProcessStatus
    from pml_gateway.types import JsonObject
    from pml_gateway.upstreams.auth.callback import Callback

REFRESH_SECONDS = 40.0
"""Time limit in seconds for a gateway to list all of its servers again."""

upstreams_app = typer.Typer(name="upstreams", no_args_is_help=False)


@upstreams_app.callback(invoke_without_command=True)
def upstreams(
    context: typer.Context,
    probe: Annotated[bool, typer.Option("--probe", help="Ask every server now; start a gateway if none runs.")] = False,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", min=1, help="How long --probe waits. [default: the slowest's]"),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show every server: state, login, tools, latency and age, as the running gateways know it.

    Without one it is what was last known; nothing is started for it but with --probe. `pml status` says it shorter.

    Example: pml upstreams --json
    """
    if context.invoked_subcommand is not None:
        return
    if timeout is not None and not probe:
        raise typer.BadParameter("needs --probe", param_hint="--timeout")
    command = Command(config, as_json=as_json)
    if probe:
        _show(*_probed(command, timeout), as_json=as_json)
        return
    found = command.run(partial(look, command))
    if found.broken is not None:
        fail(found.broken, as_json=as_json)
    _show(found.reports, found.errors, as_json=as_json)
    if not as_json and any(report["pid"] is None for report in found.reports):
        note(f"{_why_unasked(command)}: this is what was last known; --probe looks")


def _probed(command: Command, timeout: float | None) -> tuple[list[ProcessStatus], list[str]]:
    """Ask every server now, through every gateway that runs, or the one of the configuration file."""
    from pml_gateway.reports.status import with_disabled

    settings = command.load().settings
    if command.config_file is None:
        reports, errors = command.run(lambda: _refreshed(command, timeout or REFRESH_SECONDS))
        if reports or errors:
            return with_disabled(reports, settings), errors
    return with_disabled([command.ask(PROBE, {"seconds": timeout})], settings), []


def refresh(as_json: JsonOption = False) -> None:
    """Make every running gateway list its servers' tools anew.

    Example: pml refresh
    """
    command = Command(as_json=as_json)
    reports, errors = command.run(lambda: _refreshed(command, REFRESH_SECONDS))
    if reports or errors or as_json:
        _show(reports, errors, as_json=as_json)
    if not reports and not errors:
        note(_why_unasked(command))
        raise typer.Exit(ExitCode.FAILED if endpoint_of(command).living() is None else ExitCode.OK)


def _why_unasked(command: Command) -> str:
    """Say why no gateway tells of its servers: none runs, or the one that does has not opened them."""
    living = endpoint_of(command).living()
    if living is None:
        return f"no gateway runs with {command.paths.home}"
    return f"the gateway of this machine{f' (process {living})' if living else ''} runs and has served no client yet"


async def _refreshed(command: Command, timeout: float) -> tuple[list[ProcessStatus], list[str]]:
    """Return the status of every process that serves after all servers were listed again, and errors of the others."""
    from pml_gateway.owner.sockets import ask_gateways

    answers = await ask_gateways(command.paths, REFRESH, timeout)
    return [each for each in answers.results if each["gateways"]], answers.errors


def _show(reports: list[ProcessStatus], errors: list[str], *, as_json: bool) -> None:
    if as_json:
        print_json({"gateways": reports, "errors": errors})
        return
    # The reports take 0.2 s to import.
    from pml_gateway.cli.status_tables import show_upstreams

    for error in errors:
        warn(error)
    show_upstreams(reports)


LOGIN_SECONDS = 300.0

ServerArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The server's name in `servers:`.", autocompletion=server_names)
]


@upstreams_app.command()
def login(
    name: ServerArgument,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open a browser, or print the address and take the answer.")
    ] = True,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds to wait for the person.")] = LOGIN_SECONDS,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="ORIGIN", help="Let the login go there too: unencrypted, or in your network."),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Log in to a server that asks for it (OAuth). Running gateways use the login at once.

    Example: pml upstreams login linear
    """
    command = Command(config, as_json=as_json)
    report = command.run(lambda: _logged_in(command, name, browser=browser, timeout=timeout, allow=allow or ()))
    if as_json:
        print_json(report)
        return
    until = f" until {report['expires_at']}" if report["expires_at"] and not report["renews"] else ""
    say(f"logged in to {name}{until}", style="green")
    if report["scope"]:
        note(f"scope: {report['scope']}")
    if report["gateways"]:
        note(f"running gateways told: {report['gateways']}")


@upstreams_app.command()
def logout(name: ServerArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Forget the login to a server, and ask its authorization server to take the tokens back.

    Example: pml upstreams logout linear
    """
    command = Command(config, as_json=as_json)
    report = command.run(lambda: _logout(command, name))
    if as_json:
        print_json(report)
    elif report["was_logged_in"]:
        say(f"logged out of {name}" + (", and its tokens were revoked" if report["revoked"] else ""))
    else:
        say(f"there was no login to {name}")


async def _logged_in(command: Command, name: str, *, browser: bool, timeout: float, allow: Sequence[str]) -> JsonObject:
    # The OAuth client takes 0.3 s to import, which `pml --help` never needs.
    from pml_gateway.upstreams.auth.authorization import moment
    from pml_gateway.upstreams.auth.login import log_in
    from pml_gateway.upstreams.auth.logins import LoginStore

    definition = _definition(command, name)
    for origin in allow:
        if not origin.startswith(("https://", "http://")):
            raise UsageError(f"--allow {origin}: no origin", hint="write it as https://HOST or http://HOST:PORT")

    async def show(url: str, callback: Callback) -> None:
        is_open = browser and await anyio.to_thread.run_sync(webbrowser.open, url)
        note("log in with the browser that opens, or at this address:" if is_open else "log in at this address:")
        note(url)
        if not is_open:
            note(f"then wait here, or paste the address you are sent back to ({callback.redirect_uri}?...)")
            _read_answers(callback)

    store, allowed = LoginStore(command.paths.auth_dir), [*allow]
    while True:
        try:
            stored = await log_in(name, definition, store, show, timeout=timeout, allowed=allowed)
            break
        except UpstreamAuthError as error:
            origin = str(error.details.get("login_origin", ""))
            if not origin or origin in allowed or not await _allows(command, error):
                raise
            allowed.append(origin)
    return {
        "server": name,
        "state": "logged_in",
        "expires_at": moment(stored.expires_at),
        "renews": stored.is_renewable,
        "scope": stored.scope,
        "gateways": await _tell_gateways(command, name),
    }


async def _allows(command: Command, error: UpstreamAuthError) -> bool:
    """Ask if a login may go to the address that its server names. Inner addresses need the option."""
    if command.as_json or error.details["is_inner"] or not sys.stdin.isatty():
        return False
    warn(error.message)
    ask = partial(typer.confirm, "Log in there?", default=False, err=True)
    return await anyio.to_thread.run_sync(ask)


async def _logout(command: Command, name: str) -> JsonObject:
    from pml_gateway.upstreams.auth.login import log_out
    from pml_gateway.upstreams.auth.logins import LoginStore

    definition = _definition(command, name)
    was_there, revoked = await log_out(name, definition, LoginStore(command.paths.auth_dir))
    gateways = await _tell_gateways(command, name) if was_there else 0
    return {"server": name, "was_logged_in": was_there, "revoked": revoked, "gateways": gateways}


def _definition(command: Command, name: str) -> UpstreamDefinition:
    configure(LogSettings(level="error"))
    return server_entry(command.load().settings, name)


async def _tell_gateways(command: Command, name: str) -> int:
    from pml_gateway.owner.sockets import ask_gateways

    answers = await ask_gateways(command.paths, RECONNECT, 5, {"server": name})
    return len({answer["pid"] for answer in answers.results})


def _read_answers(callback: Callback) -> None:
    """Take pasted addresses until one is an answer. A daemon thread, because nothing ends a read of a terminal."""
    loop = anyio.lowlevel.current_token()

    def read() -> None:
        for line in sys.stdin:
            if not line.strip():
                continue
            try:
                anyio.from_thread.run_sync(callback.take, line, token=loop)
            except InvalidInputError as error:
                note(f"{error.message}; {error.hint}")
                continue
            except RuntimeError:
                # The login ended meanwhile.
                return
            return

    threading.Thread(target=read, daemon=True, name="answers").start()


FOLLOW_SECONDS = 0.25


@upstreams_app.command()
def logs(
    name: ServerArgument,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last lines.")] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as more is written, until interrupted.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a server wrote to stderr, its secrets masked. About the last megabyte of each server is kept.

    Example: pml upstreams logs github --lines 20
    """
    try:
        reader = _reader(Command(config, as_json=as_json), name)
    except GatewayError as error:
        fail(error, as_json=as_json)
    last = reader.last(lines)
    if as_json and not follow:
        print_json({"server": name, "lines": last})
        return
    if not last and not follow:
        note(f"{name} has written nothing")
    for line in last:
        _print(line, as_json=as_json)
    while follow:
        for line in reader.more():
            _print(line, as_json=as_json)
        time.sleep(FOLLOW_SECONDS)


def _print(line: str, *, as_json: bool) -> None:
    if as_json:
        print_json_line({"line": line})
    else:
        say(line)
        sys.stdout.flush()


def _reader(command: Command, name: str) -> LogReader:
    from pml_gateway.processes.child_log import LogReader, log_path

    definition = server_entry(command.load().settings, name)
    if definition.skills:
        raise InvalidInputError(f"{name} is no server with a log: the gateway reads the folders", hint="pml skills")
    if definition.resolved_transport is not Transport.STDIO:
        raise InvalidInputError(
            f"{name} is reached over {definition.resolved_transport.value}: the gateway does not see its stderr",
            hint="what went wrong there: pml upstreams",
        )
    return LogReader(log_path(command.paths.logs_dir, name), definition)
