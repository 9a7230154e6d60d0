"""`pml status`: the gateways that run, and each server in a line, at once."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live
from rich.text import Text

from pml_gateway.cli.context import Command, ConfigOption, JsonOption
from pml_gateway.cli.local import endpoint_of
from pml_gateway.cli.machine import show_clients_and_servers, show_machine, version_of, whose
from pml_gateway.cli.output import (
    ExitCode,
    answers,
    note,
    print_json,
    print_json_line,
    print_table,
    say,
    say_wrapped,
    tell,
    warn,
    whole,
)
from pml_gateway.config.settings import LogSettings
from pml_gateway.errors import ConfigurationError, GatewayError
from pml_gateway.local.commands import StuckGatewayError, ask
from pml_gateway.telemetry import logs
from pml_gateway.text import counted, quoted, some_of, span

if TYPE_CHECKING:
    from pml_gateway.reports.status import Need
    from pml_gateway.types import JsonObject

ANSWER_SECONDS = 3.0
"""Time limit in seconds for a gateway to answer, such as one stopped in a debugger."""


WATCH_SECONDS = 2.0


def status(
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it anew every 2 seconds until Ctrl-C; with --json a line each time.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the gateways that run and every server in a line; problems come first, with the command that fixes them.

    Of the gateway that this machine's clients share, its clients and the processes of its servers follow.
    Nothing is started or connected for it. Without a running gateway it is what was last known.

    Example: pml status --watch
    """
    command = Command(config, as_json=as_json)
    if not watch:
        found = _look(command)
        if as_json:
            print_json(_as_json(found))
        else:
            _show(command, found)
        raise typer.Exit(_exit_code(found))
    with suppress(KeyboardInterrupt), ExitStack() as shown:
        live = (
            shown.enter_context(Live(console=answers(), auto_refresh=False))
            if sys.stdout.isatty() and not as_json
            else None
        )
        while True:
            found = _look(command)
            if as_json:
                print_json_line(_as_json(found))
            elif live is not None:
                live.update(Text(_as_text(command, found)), refresh=True)
            else:
                say(time.strftime("--- %Y-%m-%d %H:%M:%S"))
                _show(command, found)
            time.sleep(WATCH_SECONDS)


@dataclass(frozen=True, slots=True)
class _Found:
    """Answers of the gateways: this machine's, all others, and errors of those that did not answer.

    Of one of this machine that is `stuck` nothing else is known; what is `broken` is the configuration, without which
    nothing is known of servers that no gateway has.
    """

    machine: JsonObject | None
    reports: list[JsonObject]
    errors: list[str]
    stuck: StuckGatewayError | None = None
    broken: ConfigurationError | None = None


def _look(command: Command) -> _Found:
    errors: list[str] = []
    machine: JsonObject | None = None
    stuck: StuckGatewayError | None = None
    broken: ConfigurationError | None = None
    try:
        machine = ask(endpoint_of(command), "status", ANSWER_SECONDS, awaits_start=False)
    except StuckGatewayError as error:
        stuck = error
    except GatewayError as error:
        errors.append(str(error))

    async def look() -> list[JsonObject]:
        nonlocal broken
        try:
            return await reported(command)
        except ConfigurationError as error:
            broken = error
            return []

    reports = command.run(look)
    answered = [report for report in reports if "error" not in report]
    errors += [str(report["error"]) for report in reports if "error" in report]
    if any(report["pid"] is not None for report in answered):
        errors += _broken(command)
    return _Found(machine, answered, errors, stuck, broken)


def _exit_code(found: _Found) -> ExitCode:
    if found.broken is not None:
        return ExitCode.CONFIGURATION
    return ExitCode.FAILED if found.stuck is not None else ExitCode.OK


def _broken(command: Command) -> list[str]:
    """Return the errors of an edited configuration; gateways keep the previous one."""
    try:
        command.load()
    except ConfigurationError as error:
        return [
            f"{error.message}; until it is fixed, connected clients are served by the previous configuration, "
            "and others are refused"
        ]
    return []


def _as_text(command: Command, found: _Found) -> str:
    """Return the shown status as a text."""
    with redirect_stdout(StringIO()) as text, redirect_stderr(text):
        _show(command, found)
    return text.getvalue().rstrip()


def _show(command: Command, found: _Found) -> None:
    """Print the status, problems first: a watched terminal has no room for the rest."""
    for error in found.errors:
        warn(error)
    if found.machine is not None:
        show_machine(found.machine)
    if found.stuck is not None:
        say_wrapped(str(found.stuck))
    own = [report for report in found.reports if report["pid"] is not None and not _is_of(found.machine, report)]
    for report in own:
        say_wrapped(_gateway(command, report))
    if found.machine is None and not any(report["pid"] is not None for report in found.reports):
        none_runs = [] if found.stuck is not None else [f"no gateway runs with {command.paths.home}"]
        last_known = [] if found.broken is not None else ["its servers as they were last known:"]
        say("; ".join([*none_runs, *last_known]))
    if found.broken is not None:
        tell(found.broken)
    else:
        say()
        _show_servers(found.reports)
    if found.machine is not None:
        show_clients_and_servers(found.machine)
    if found.broken is None and found.reports and found.reports[0]["pid"] is None:
        note("pml upstreams --probe starts the servers and looks")


def _is_of(machine: JsonObject | None, report: JsonObject) -> bool:
    """Return True if the report is of this machine's gateway process."""
    return machine is not None and report["pid"] == machine["pid"]


async def reported(command: Command) -> list[JsonObject]:
    """Return the running gateways' reports; without one, or for another configuration, the last known state."""
    from pml_gateway.reports.status import by_process, last_known, with_disabled
    from pml_gateway.serve.control import ask_gateways

    running = [] if command.config_file else await ask_gateways(command.paths, "status", timeout=ANSWER_SECONDS)
    if any("error" not in report for report in running):
        with suppress(ConfigurationError):
            return with_disabled(by_process(running), command.load().settings)
        return by_process(running)
    logs.configure(LogSettings(level="error"))
    settings = command.load().settings
    known = await last_known(settings, command.paths, command.identity)
    return with_disabled([*running, known], settings)


def _gateway(command: Command, report: JsonObject) -> str:
    """One running gateway in a line; earlier versions do not say how they are reached."""
    parts = [f"gateway {report['pid']}", version_of(report, "start it anew")]
    if "transport" in report:
        how = "shared over stdio" if report["transport"] == "machine" else report["transport"]
        age, clients = f"for {span(report['age_seconds'])}", counted(report["clients"], "client")
        parts += [report["url"] or how, whole(age), whole(clients)]
        file = report.get("config") or ""
        if Path(file).is_absolute() and file != command.identity:
            parts.append(f"of {file}")
    if report.get("is_ending"):
        parts.append("it ends once its calls are done")
    mode = [f"mode {report['mode']}"] if report["mode"] else []
    return ", ".join([*parts, *mode, whole(counted(report["tools"], "tool"))])


def _show_servers(reports: list[JsonObject]) -> None:
    from pml_gateway.reports.status import DISABLED, in_words

    servers = _servers(reports)
    are_told_apart = any(named for _, _, named in servers)
    columns = ("server", *(["for"] if are_told_apart else ()), "state", "what helps")
    rows = [
        (
            row["server"],
            *([named] if are_told_apart else ()),
            need.what if need else in_words(row),
            need.command if need else f"pml enable {quoted(row['server'])}" if row["state"] == DISABLED else "",
        )
        for row, need, named in servers
    ]
    print_table(columns, rows)


def _servers(reports: list[JsonObject]) -> list[tuple[JsonObject, Need | None, str]]:
    """Each server once for each thing that gateways say of it, those that need something first.

    The gateways are named where not all of them say the same; those of one process by the folders that they serve, or
    the clients.
    """
    from pml_gateway.reports.status import DISABLED, need_of

    found: dict[tuple[str, Need | None], tuple[JsonObject, list[str]]] = {}
    for report in reports:
        for row in report["upstreams"]:
            named = whose(row) or [f"gateway {report['pid']}"]
            found.setdefault((row["server"], need_of(row)), (row, []))[1].extend(named)
    said = [server for server, _ in found]
    listed = [
        (row, need, some_of(named, 1) if said.count(server) > 1 else "")
        for (server, need), (row, named) in found.items()
    ]
    return sorted(listed, key=lambda each: (each[1] is None, each[0]["state"] == DISABLED))


def _stuck(error: StuckGatewayError) -> JsonObject:
    return {"pid": error.process or None, "error": str(error)}


def _as_json(found: _Found) -> JsonObject:
    from pml_gateway.reports.status import need_of

    told = ("pid", "version", "mode", "tools", "transport", "url", "age_seconds", "clients", "is_ending")
    running = [report for report in found.reports if report["pid"] is not None]
    return {
        "machine": found.machine if found.stuck is None else _stuck(found.stuck),
        "gateways": [{key: report.get(key) for key in told} for report in running],
        "errors": [*found.errors, *([str(found.broken)] if found.broken is not None else [])],
        "servers": [
            {
                "server": row["server"],
                "gateway": report["pid"],
                "folders": row.get("folders"),
                "clients": row.get("clients"),
                "state": row["state"],
                "login": row["auth"]["state"],
                "tools": row["tools"],
                "age_seconds": row["age_seconds"],
                "needs": {"what": need.what, "command": need.command} if (need := need_of(row)) else None,
            }
            for report in found.reports
            for row in report["upstreams"]
        ],
    }
