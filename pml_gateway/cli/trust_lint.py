"""`pml trust lint`: attacks in the words of servers, or in definitions of a file."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pml_gateway.cli.completion import server_names
from pml_gateway.cli.context import Command, ConfigOption, JsonOption
from pml_gateway.cli.output import ExitCode, note, printable, say, wrapped
from pml_gateway.errors import UsageError
from pml_gateway.text import counted, suggestion
from pml_gateway.trust.verdict import Level
from pml_gateway.types import JsonObject

if TYPE_CHECKING:
    from pml_gateway.reports.lint_cases import LintCase
    from pml_gateway.trust.verdict import Verdict

BATCH = 200
"""Lines that are judged together and printed before the next are read."""

INDENT = " " * 4


def lint(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE|SERVER]",
            help="JSON lines (`-` is stdin), or a server; all of them by default.",
            autocompletion=server_names,
        ),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Judge tool definitions: hidden instructions, exfiltration, orders about other tools, hidden characters.

    A file has a line for each definition: {"id", "server", "tool": {...}, "before"?: {...}, "peers"?: [...]}. Of
    servers it is what they listed last. An attack is held back when it appears in a change; a notice never is.
    Exits with 0 if there is no attack, with 1 otherwise.

    Example: pml trust lint github
    """
    found, total = _print(_cases(target, Command(config, as_json=as_json)), as_json=as_json)
    if not as_json:
        attacks, notices = (counted(found[level], level) for level in Level)
        note(f"{counted(total, 'definition')}: {attacks}, {notices}")
    raise typer.Exit(ExitCode.FAILED if found[Level.ATTACK] else ExitCode.OK)


def _cases(target: str | None, command: Command) -> Iterator[LintCase]:
    # The index stack takes a while to import, which `pml --help` never needs.
    from pml_gateway.reports.lint_cases import cases_of_lines

    if target == "-":
        yield from cases_of_lines(sys.stdin.buffer, "stdin")
    elif target is not None and Path(target).is_file():
        with Path(target).open("rb") as lines:
            yield from cases_of_lines(lines, target)
    else:
        yield from _of_servers(target, command)


def _of_servers(target: str | None, command: Command) -> Iterator[LintCase]:
    from pml_gateway.catalog.manifest import ManifestFile
    from pml_gateway.reports.lint_cases import cases_of_servers

    settings = command.load().settings
    if target is not None and target not in settings.servers:
        raise UsageError(
            f"{target} is neither a file nor a configured server{suggestion(target, settings.servers)}",
            hint="pml upstreams lists the servers",
        )
    file = ManifestFile(command.paths.manifest_dir, command.identity, settings.naming.prefix)
    entries = file.load().entries
    listed = {server: entry for server, entry in entries.items() if server in settings.servers}
    wanted = [target] if target is not None else list(settings.servers)
    for server in wanted:
        if server not in listed:
            note(f"{server} has not been listed yet: pml refresh {server}")
    yield from cases_of_servers(listed, [server for server in wanted if server in listed])


def _print(cases: Iterator[LintCase], *, as_json: bool) -> tuple[Counter[Level], int]:
    from pml_gateway.reports.lint_cases import judge_cases
    from pml_gateway.trust.lint import Linter

    linter = Linter()
    found = Counter[Level]()
    total = 0
    while batch := list(islice(cases, BATCH)):
        for case, verdict in zip(batch, judge_cases(linter, batch), strict=True):
            total += 1
            if verdict.level is not None:
                found[verdict.level] += 1
            if as_json:
                sys.stdout.write(json.dumps(_as_json(case, verdict)) + "\n")
            elif verdict.level is not None:
                _show(case, verdict)
    return found, total


def _as_json(case: LintCase, verdict: Verdict) -> JsonObject:
    return {
        "id": case.id,
        "verdict": "risky" if verdict.is_attack else "ok",
        "level": verdict.level,
        "score": verdict.score,
        "classes": [each.value for each in verdict.classes],
        "reasons": [reason.as_json() for reason in verdict.reasons],
    }


def _show(case: LintCase, verdict: Verdict) -> None:
    style = "red" if verdict.is_attack else "yellow"
    say(f"{verdict.level}: {' '.join(printable(case.id).split())}", style="bold")
    for finding in verdict.findings:
        where = " ".join(printable(finding.where).split())
        say(f"  {', '.join(finding.classes)}{f' in {where}' if where else ''}", style=style)
        for line in wrapped(f"{finding.why}:", reserved=2):
            say(f"  {line}")
        for line in wrapped(finding.text, reserved=len(INDENT)):
            say(f"{INDENT}{line}")
