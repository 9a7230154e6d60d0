"""`pml upstreams`, `pml refresh`: how the servers are, their logs, logins, and asking them anew."""

from __future__ import annotations

import sys
import threading
import time
import webbrowser
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import typer

from pml_gateway.cli.completion import server_names
from pml_gateway.cli.context import Command, ConfigOption, JsonOption, command_gateway
from pml_gateway.cli.local import endpoint_of
from pml_gateway.cli.machine import whose
from pml_gateway.cli.output import ExitCode, fail, note, print_json, print_json_line, print_table, say, warn
from pml_gateway.cli.status import reported
from pml_gateway.config.servers import Transport
from pml_gateway.config.settings import LogSettings, Settings
from pml_gateway.errors import GatewayError, InvalidInputError, UpstreamAuthError, UsageError
from pml_gateway.telemetry.logs import configure
from pml_gateway.text import counted, plural_of, some_of, span, suggestion

if TYPE_CHECKING:
    from pml_gateway.config.servers import UpstreamDefinition
    from pml_gateway.processes.child_log import LogReader
    from pml_gateway.types import JsonObject
    from pml_gateway.upstreams.auth.callback import Callback

REFRESH_SECONDS = 40.0
"""Time limit in seconds for a gateway to list all of its servers again."""

upstreams_app = typer.Typer(name="upstreams", no_args_is_help=False)


@upstreams_app.callback(invoke_without_command=True)
def upstreams(
    context: typer.Context,
    probe: Annotated[
        bool, typer.Option("--probe", help="Ask every server now; without a running gateway, start them for it.")
    ] = False,
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
    reports = command.run(lambda: _probed(command, timeout) if probe else reported(command))
    _show(reports, as_json=as_json)
    if not as_json and not probe and any(report.get("pid", 0) is None for report in reports):
        note(f"{_why_unasked(command)}: this is what was last known; --probe looks")


async def _probed(command: Command, timeout: float | None) -> list[JsonObject]:
    """Ask every server now, through the running gateways or one for this command."""
    from pml_gateway.reports.status import with_disabled
    from pml_gateway.serve.control import gateway_status, read_logins

    running = [] if command.config_file is not None else await _refreshed(command, timeout or REFRESH_SECONDS)
    if running:
        return with_disabled(running, command.load().settings)
    async with command_gateway(command, connect=True, timeout=timeout) as gateway:
        await read_logins(gateway)
        return with_disabled([{**gateway_status(gateway), "pid": None}], gateway.state.settings)


def refresh(as_json: JsonOption = False) -> None:
    """Make every running gateway list its servers' tools anew.

    Example: pml refresh
    """
    command = Command(as_json=as_json)
    reports = command.run(lambda: _refreshed(command, REFRESH_SECONDS))
    if reports or as_json:
        _show(reports, as_json=as_json)
    if not reports:
        note(_why_unasked(command))
        raise typer.Exit(ExitCode.FAILED if endpoint_of(command).living() is None else ExitCode.OK)


def _why_unasked(command: Command) -> str:
    """Say why no gateway tells of its servers: none runs, or the one that does has not opened them."""
    living = endpoint_of(command).living()
    if living is None:
        return f"no gateway runs with {command.paths.home}"
    return f"the gateway of this machine{f' (process {living})' if living else ''} runs and has served no client yet"


async def _refreshed(command: Command, timeout: float) -> list[JsonObject]:
    """Return the running gateways' reports after they have listed every server again."""
    from pml_gateway.reports.status import by_process
    from pml_gateway.serve.control import ask_gateways

    return by_process(await ask_gateways(command.paths, "refresh", timeout))


def _show(reports: list[JsonObject], *, as_json: bool) -> None:
    if as_json:
        print_json({"gateways": reports})
        return
    for report in reports:
        if "error" in report:
            warn(report["error"])
            continue
        if report["pid"] is not None:
            modes = report["mode"]
            named = [f"{plural_of(modes.count(',') + 1, 'mode')} {modes}"] if modes else []
            parts = [f"gateway {report['pid']}", *named, counted(report["tools"], "tool")]
            say(", ".join(parts), style="bold")
        are_told_apart = any(whose(row) for row in report["upstreams"])
        print_table(
            (
                "server",
                *(["for"] if are_told_apart else ()),
                "state",
                "login",
                "tools",
                "prompts",
                "resources",
                "latency",
                "age",
            ),
            (
                (
                    row["server"],
                    *([some_of(whose(row))] if are_told_apart else ()),
                    _state(row, is_served=report["pid"] is not None),
                    _login(row),
                    row["tools"],
                    *_offered(row),
                    _milliseconds(row),
                    _age(row),
                )
                for row in report["upstreams"]
            ),
        )
        for warning in dict.fromkeys(warning for row in report["upstreams"] for warning in _warnings(row)):
            warn(warning)


def _warnings(row: JsonObject) -> Iterator[str]:
    if row["error"]:
        yield row["error"]
    if row.get("held_back"):
        yield f"{row['server']}: {counted(row['held_back'], 'definition')} held back; pml trust"
    if row.get("flagged"):
        yield f"{row['server']}: {counted(row['flagged'], 'accepted definition')} may be risky; pml trust list"


def _state(row: JsonObject, *, is_served: bool) -> str:
    breaker = row["breaker"]
    is_held_back = breaker["state"] != "closed" and row["state"] != "failed"
    notes = [
        "tools stale" if row["stale"] else "",
        f"calls {breaker['state'].replace('_', ' ')}" if is_held_back else "",
        # Only who goes on tries again.
        f"again in {breaker['retry_after_seconds']:.0f} s" if is_served and "retry_after_seconds" in breaker else "",
    ]
    return ", ".join([row["state"].replace("_", " "), *filter(None, notes)])


def _login(row: JsonObject) -> str:
    auth = row["auth"]
    match auth["state"]:
        case "logged_in" if auth["expires_at"] and not auth["renews"]:
            return f"logged in until {auth['expires_at']}"
        case "logged_in":
            return "logged in"
        case "login_needed":
            return "login needed"
        case "client_credentials":
            return "by client secret"
        case "headers":
            return "by header"
        case _:
            return "not needed"


def _offered(row: JsonObject) -> tuple[object, object]:
    """Gateways of an earlier version do not count what is offered beside tools."""
    return row.get("prompts", ""), row.get("resources", 0) + row.get("templates", 0) if "resources" in row else ""


def _milliseconds(row: JsonObject) -> str:
    return "" if row["latency_seconds"] is None else f"{row['latency_seconds'] * 1000:.0f} ms"


def _age(row: JsonObject) -> str:
    seconds = row["age_seconds"]
    if seconds is None:
        return "never"
    return span(seconds)


LOGIN_SECONDS = 300.0

ServerArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The server's name in `servers:`.", autocompletion=server_names)
]


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
    loaded = command.load()
    return _configured(loaded.settings, name)


def _configured(settings: Settings, name: str) -> UpstreamDefinition:
    if name not in settings.servers:
        raise UsageError(
            f"no server {name!r} is configured{suggestion(name, settings.servers)}",
            hint=f"known are {', '.join(settings.servers)}",
        )
    return settings.servers[name]


async def _tell_gateways(command: Command, name: str) -> int:
    from pml_gateway.serve.control import ask_gateways

    answers = await ask_gateways(command.paths, "reconnect", timeout=5, server=name)
    return len({answer["pid"] for answer in answers if "error" not in answer})


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

    definition = _configured(command.load().settings, name)
    if definition.resolved_transport is not Transport.STDIO:
        raise InvalidInputError(
            f"{name} is reached over {definition.resolved_transport.value}: the gateway does not see its stderr",
            hint="what went wrong there: pml upstreams",
        )
    return LogReader(log_path(command.paths.logs_dir, name), definition)
