"""`pml doctor`: what is wrong with a gateway and its surroundings, and the command that puts it right."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pml_gateway.cli.context import Command, ConfigOption, JsonOption
from pml_gateway.cli.local import endpoint_of
from pml_gateway.cli.output import ExitCode, messages, note, print_json, say, wrapped
from pml_gateway.clients.places import Surroundings
from pml_gateway.config.findings import Area, Finding, SettingsCase, Severity, by_area, from_error
from pml_gateway.config.load import load_settings
from pml_gateway.config.settings import LogSettings, Settings
from pml_gateway.errors import ConfigurationError, GatewayError
from pml_gateway.owner.operations import EXAMINE, STATUS
from pml_gateway.telemetry import logs
from pml_gateway.text import counted

if TYPE_CHECKING:
    from pml_gateway.reports.status import Progress
    from pml_gateway.types import JsonObject

ANSWER_SECONDS = 5.0
"""Time limit in seconds for gateways that run to answer."""

MAX_DETAILS = 10
INDENT = " " * 10
STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red", "fixed": "green"}


def doctor(
    fix: Annotated[
        bool,
        typer.Option(
            "--fix",
            help="Put right what is safe: modes of files, dead sockets; asks before it removes anything else.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --fix: do not ask.")] = False,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", min=0.1, help="For all servers. [default: the slowest's own]"),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Look for what is wrong, and say what puts it right.

    Checks configuration, secrets, commands, files, clients, ports and packages. The gateway, which is started if none
    runs, asks every server whether it answers. Exits with 0 (warnings allowed), 1 where something does not work, 78
    where the configuration is wrong.

    Example: pml doctor --fix
    """
    command = Command(config, as_json=as_json)
    # Servers' faults are findings; the log would say them again, in the middle of the report.
    logs.configure(LogSettings(level="error"))
    with messages().status("looking") as shown:
        found, has_servers = command.run(lambda: examined(command, shown.update))
    if has_servers:
        found = by_area([*found, *_of_servers(command, timeout)])
    if fix:
        found = _repaired(found, yes=yes, may_ask=not as_json and sys.stdin.isatty())
    status = _status(found)
    if as_json:
        print_json(_report(found, status))
    else:
        _show(found, fix=fix)
    raise typer.Exit(status)


def _repaired(found: Sequence[Finding], *, yes: bool, may_ask: bool) -> list[Finding]:
    """Return the findings after the repairs that cannot do harm, and those that were agreed to; each question once."""
    answered: dict[str, bool] = {"": True}
    repaired = []
    for finding in found:
        question = finding.question
        if question not in answered:
            answered[question] = yes or (may_ask and typer.confirm(question, default=True, err=True))
        repaired.append(finding.repaired() if answered[question] else finding)
    return repaired


async def examined(command: Command, progress: Progress) -> tuple[list[Finding], bool]:
    """Return what is found without servers, and True if there are servers to examine."""
    # The server stack takes 0.7 s to import, which `pml --help` and `pml config` never need.
    from pml_gateway.owner.sockets import ask_gateways
    from pml_gateway.reports.doctor.cases import MachineCase
    from pml_gateway.reports.doctor.examine import examine

    around = Surroundings.here(Path.cwd())
    answers = await ask_gateways(command.paths, STATUS, ANSWER_SECONDS, removes_dead=False)
    case = MachineCase(
        Settings(),
        around.environ,
        command.paths,
        command.identity,
        around,
        answers.results,
        answers.errors,
        answers.dead,
    )
    load = partial(load_settings, config_file=command.config_file)
    return await examine(case, load, partial(_machine, command), progress)


def _of_servers(command: Command, timeout: float | None) -> Iterable[Finding]:
    """Have the gateway examine its servers, and return its findings."""
    from pml_gateway.reports.doctor.examine import with_repairs

    try:
        return with_repairs(command.ask(EXAMINE, {"seconds": timeout, "folder": str(Path.cwd())}))
    except GatewayError as error:
        return [from_error(Area.SERVERS, error)]


def _machine(command: Command, case: SettingsCase) -> Iterable[Finding]:
    """Check the gateway that clients share."""
    from pml_gateway.local.health import health

    try:
        endpoint = endpoint_of(command)
    except ConfigurationError as error:
        return [Finding(Area.MACHINE, Severity.NOTE, "", error.message)]
    return health(endpoint, case.settings)


def _status(found: Sequence[Finding]) -> ExitCode:
    errors = [finding for finding in found if finding.severity is Severity.ERROR and not finding.is_fixed]
    if any(finding.area is Area.CONFIGURATION for finding in errors):
        return ExitCode.CONFIGURATION
    return ExitCode.FAILED if errors else ExitCode.OK


def _report(found: Sequence[Finding], status: ExitCode) -> JsonObject:
    return {
        "exit_code": int(status),
        "counts": _counts(found),
        "findings": [
            {
                "area": finding.area.value,
                "severity": finding.severity.value,
                "subject": finding.subject or None,
                "what": finding.what,
                "fix": finding.fix or None,
                "details": list(finding.details),
                "can_be_fixed": finding.repair is not None,
                "fixed": finding.is_fixed,
            }
            for finding in found
        ],
    }


def _counts(found: Sequence[Finding]) -> dict[str, int]:
    words = [_word(finding) for finding in found]
    return {word: words.count(word) for word in STYLES}


def _word(finding: Finding) -> str:
    return "fixed" if finding.is_fixed else finding.severity.value


def _show(found: Sequence[Finding], *, fix: bool) -> None:
    area = ""
    for finding in found:
        if finding.area != area:
            area = finding.area
            say(area, style="bold")
        _show_finding(finding)
    counts = _counts(found)
    parts = [
        counted(counts[word], word, "fixed" if word == "fixed" else "")
        for word in ("error", "warning", "note", "fixed")
        if counts[word]
    ]
    say()
    say(", ".join(parts) if parts else "everything is in order", style="bold")
    if not fix and any(finding.repair for finding in found):
        note("pml doctor --fix puts right what is safe")
    elif fix and any(finding.question and not finding.is_fixed for finding in found):
        note("pml doctor --fix --yes does what is asked for otherwise")


def _show_finding(finding: Finding) -> None:
    word = _word(finding)
    what = f"{finding.subject}: {finding.what}" if finding.subject else finding.what
    first, *rest = wrapped(what, reserved=len(INDENT))
    say(f"  {word:<8}{first}", style=STYLES[word] if word != "ok" else "")
    for line in rest:
        say(f"{INDENT}{line}")
    for line in finding.details[:MAX_DETAILS]:
        for part in wrapped(line, reserved=len(INDENT) + 2):
            say(f"{INDENT}| {part}", style="dim")
    if len(finding.details) > MAX_DETAILS:
        say(f"{INDENT}| and {len(finding.details) - MAX_DETAILS} more (--json has them)", style="dim")
    if finding.fix and not finding.is_fixed:
        for position, line in enumerate(wrapped(finding.fix, reserved=len(INDENT) + 5)):
            say(f"{INDENT}{'fix: ' if not position else '     '}{line}")
