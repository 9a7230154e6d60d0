"""`pml status`: the gateways that run, and each server in a line, at once."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live
from rich.text import Text

from pml_gateway.cli.context import Command, ConfigOption, JsonOption
from pml_gateway.cli.local import endpoint_of
from pml_gateway.cli.output import (
    ExitCode,
    answers,
    note,
    print_json,
    print_json_line,
    say,
    say_wrapped,
    tell,
    warn,
)
from pml_gateway.config.findings import in_brief
from pml_gateway.config.settings import LogSettings
from pml_gateway.errors import ConfigurationError, GatewayError
from pml_gateway.local.commands import StuckGatewayError, ask
from pml_gateway.local.serving_processes import ServingProcesses, status_as_json
from pml_gateway.owner.operations import STATUS
from pml_gateway.telemetry import logs

if TYPE_CHECKING:
    from pml_gateway.reports.status import ProcessStatus
    from pml_gateway.types import JsonObject

ANSWER_SECONDS = 3.0
"""Time limit in seconds for a gateway to answer, such as one stopped in a debugger."""

WATCH_SECONDS = 1.0


def status(
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Follow it until Ctrl-C, with what waits, calls and tokens; with --json a line a change."
        ),
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
        found = command.run(partial(look, command))
        if as_json:
            print_json(status_as_json(found))
        else:
            _show(command, found)
        raise typer.Exit(_exit_code(found))
    # The overview takes 0.2 s to import.
    from pml_gateway.console.overview import overview_of
    from pml_gateway.console.recent import RecentFigures
    from pml_gateway.console.watch import lasting
    from pml_gateway.owner.approvals import asked_approvals

    figures = RecentFigures(command.paths.activity_file, command.identity)

    async def look_at_all() -> tuple[ServingProcesses, JsonObject]:
        found = await look(command)
        approvals: list[JsonObject] = []
        # Where they are not known now, everything else is still shown.
        with suppress(GatewayError):
            approvals, _ = await asked_approvals(command.paths)
        return found, await overview_of(status_as_json(found), approvals, figures)

    told: object = None
    with suppress(KeyboardInterrupt), ExitStack() as shown:
        live = (
            shown.enter_context(Live(console=answers(), auto_refresh=False))
            if sys.stdout.isatty() and not as_json
            else None
        )
        while True:
            found, overview = command.run(look_at_all)
            if as_json:
                if (now := lasting(overview)) != told:
                    told = now
                    print_json_line(overview)
            elif live is not None:
                live.update(Text(_as_text(command, found, overview)), refresh=True)
            else:
                say(time.strftime("--- %Y-%m-%d %H:%M:%S"))
                _show(command, found, overview)
            time.sleep(WATCH_SECONDS)


async def look(command: Command) -> ServingProcesses:
    """Return the status of every process that serves; without one, the last known state of the servers."""
    import anyio.to_thread

    from pml_gateway.owner.sockets import ask_gateways
    from pml_gateway.reports.status import last_known, with_disabled

    errors: list[str] = []
    running: list[ProcessStatus] = []
    socket, machine = "", None
    stuck: StuckGatewayError | None = None
    try:
        endpoint = endpoint_of(command)
        socket = endpoint.socket
        asked = partial(ask, endpoint, STATUS, ANSWER_SECONDS, awaits_start=False)
        machine = await anyio.to_thread.run_sync(asked)
        if machine is None and endpoint.was_killed:
            errors.append("the gateway that `pml up` started was killed; pml up, or the next client, starts it again")
    except StuckGatewayError as error:
        stuck = error
    except GatewayError as error:
        errors.append(str(error))
    if machine is not None:
        running.append(machine)
    if command.config_file is None:
        answers = await ask_gateways(command.paths, STATUS, ANSWER_SECONDS, without=socket)
        running += answers.results
        errors += answers.errors
    reports = [report for report in running if report["gateways"]]
    logs.configure(LogSettings(level="error"))
    broken: ConfigurationError | None = None
    warnings: list[str] = []
    try:
        loaded = await anyio.to_thread.run_sync(command.load)
        settings, warnings = loaded.settings, in_brief(loaded.warnings)
        if not reports:
            reports = [await last_known(settings, command.paths, command.identity)]
        reports = with_disabled(reports, settings)
    except ConfigurationError as error:
        if reports:
            what = (
                "until it is fixed, connected clients are served by the previous configuration, and others are refused"
            )
            errors.append(f"{error.message}; {what}")
        else:
            broken = error
    return ServingProcesses(machine, reports, errors, stuck, broken, warnings)


def _exit_code(found: ServingProcesses) -> ExitCode:
    if found.broken is not None:
        return ExitCode.CONFIGURATION
    return ExitCode.FAILED if found.stuck is not None else ExitCode.OK


def _as_text(command: Command, found: ServingProcesses, overview: JsonObject) -> str:
    """Return the shown status as a text."""
    with redirect_stdout(StringIO()) as text, redirect_stderr(text):
        _show(command, found, overview)
    return text.getvalue().rstrip()


def _storage_of(report: ProcessStatus) -> tuple[str | None, frozenset[str]] | None:
    """Return what a gateway says of its storage: whether it fails, and the ids of its replicas; None without one."""
    if "storage" not in report:
        return None
    return report["storage"]["failure"], frozenset(each["id"] for each in report["storage"]["replicas"])


def _show(command: Command, found: ServingProcesses, overview: JsonObject | None = None) -> None:
    """Print the status, problems first: a watched terminal has no room for the rest."""
    # The reports take 0.2 s to import.
    from pml_gateway.cli.status_tables import (
        show_clients_and_servers,
        show_gateway,
        show_machine,
        show_overview,
        show_servers,
    )

    for text in (*found.errors, *found.warnings):
        warn(text)
    if found.machine is not None:
        show_machine(found.machine)
    if found.stuck is not None:
        say_wrapped(str(found.stuck))
    told = set() if found.machine is None else {_storage_of(found.machine)}
    for report in found.reports:
        if report["pid"] is not None and not _is_of(found.machine, report):
            show_gateway(report, command.identity, lists_replicas=_storage_of(report) not in told)
            told.add(_storage_of(report))
    if found.machine is None and not any(report["pid"] is not None for report in found.reports):
        none_runs = [] if found.stuck is not None else [f"no gateway runs with {command.paths.home}"]
        last_known = [] if found.broken is not None else ["its servers as they were last known:"]
        say("; ".join([*none_runs, *last_known]))
    if overview is not None:
        show_overview(overview)
    if found.broken is not None:
        tell(found.broken)
    else:
        say()
        show_servers(found.reports)
    if found.machine is not None:
        show_clients_and_servers(found.machine)
    if found.broken is None and found.reports and found.reports[0]["pid"] is None:
        note("pml upstreams --probe starts the servers and looks")


def _is_of(machine: ProcessStatus | None, report: ProcessStatus) -> bool:
    """Return True if the report is of this machine's gateway process."""
    return machine is not None and report["pid"] == machine["pid"]
