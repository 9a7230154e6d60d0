"""`pml trust lint`: attacks in the words of servers, or in definitions of a file."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from pml_gateway.cli.completion import server_names
from pml_gateway.cli.context import Command, ConfigOption, JsonOption
from pml_gateway.cli.output import ExitCode, fail, note, printable, say, wrapped
from pml_gateway.errors import GatewayError, UsageError
from pml_gateway.text import counted, suggestion
from pml_gateway.trust.verdict import Level
from pml_gateway.types import JsonObject

if TYPE_CHECKING:
    from pml_gateway.catalog.manifest import ManifestEntry
    from pml_gateway.trust.lint import Linter
    from pml_gateway.trust.verdict import Peer, Subject, Verdict

MAX_LINE = 8 * 1024 * 1024
"""Bytes of one line; a definition of this size is no definition."""

BATCH = 200
"""Lines that are judged together and printed before the next are read."""

INDENT = " " * 4


@dataclass(frozen=True, slots=True)
class LintCase:
    """One definition to judge, under the id that its verdict is printed with."""

    id: str
    subject: Subject
    peers: tuple[Peer, ...] = ()


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
    try:
        found, total = _print(_cases(target, Command(config, as_json=as_json)), as_json=as_json)
    except GatewayError as error:
        fail(error, as_json=as_json)
    if not as_json:
        attacks, notices = (counted(found[level], level) for level in Level)
        note(f"{counted(total, 'definition')}: {attacks}, {notices}")
    raise typer.Exit(ExitCode.FAILED if found[Level.ATTACK] else ExitCode.OK)


def _cases(target: str | None, command: Command) -> Iterator[LintCase]:
    if target == "-":
        yield from _of_lines(sys.stdin.buffer, "stdin")
    elif target is not None and Path(target).is_file():
        with Path(target).open("rb") as lines:
            yield from _of_lines(lines, target)
    else:
        yield from _of_servers(target, command)


def _of_lines(lines: BinaryIO, name: str) -> Iterator[LintCase]:
    number = 0
    while line := lines.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise UsageError(f"line {number} of {name} is longer than {MAX_LINE:,} bytes", hint="one definition a line")
        if line.strip():
            yield _case(line, number, name)


def _case(line: bytes, number: int, name: str) -> LintCase:
    # The index stack takes a while to import, which `pml --help` never needs.
    from pml_gateway.trust.verdict import Subject, SubjectKind

    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"line {number} of {name} is no JSON: {error}", hint="one JSON object a line") from error
    tool = row.get("tool") if isinstance(row, dict) else None
    if not isinstance(tool, dict):
        raise UsageError(
            f"line {number} of {name} has no `tool`",
            hint='a line is {"id": "...", "server": "...", "tool": {"name": "...", "description": "..."}}',
        )
    before = row.get("before")
    if before is not None and not isinstance(before, dict):
        raise UsageError(f"line {number} of {name}: `before` is no object", hint="the earlier definition, or nothing")
    subject = Subject(SubjectKind.TOOL, str(row.get("server", "")), tool, before)
    return LintCase(str(row.get("id", number)), subject, tuple(_peers(row.get("peers"))))


def _peers(listed: object) -> Iterator[Peer]:
    """Tools of other servers, each `{"server", "tool": {...}}` or `{"server", "name", "description"?}`."""
    from pml_gateway.trust.verdict import peer_of

    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict):
            inner = each.get("tool")
            tool = inner if isinstance(inner, dict) else each
            yield peer_of(str(each.get("server", "")), str(tool.get("name", "")), tool)


def _of_servers(target: str | None, command: Command) -> Iterator[LintCase]:
    from pml_gateway.catalog.manifest import ManifestFile
    from pml_gateway.trust.verdict import peer_of

    settings = command.load().settings
    if target is not None and target not in settings.servers:
        raise UsageError(
            f"{target} is neither a file nor a configured server{suggestion(target, settings.servers)}",
            hint="pml upstreams lists the servers",
        )
    naming = settings.naming
    paths = command.paths
    entries = ManifestFile.of(paths.manifest_dir, command.identity, naming.prefix, naming.max_length).load().entries
    known = {server: entry for server, entry in entries.items() if server in settings.servers}
    wanted = [target] if target is not None else list(settings.servers)
    peers = tuple(
        peer_of(server, str(tool.get("name", "")), tool) for server, entry in known.items() for tool in entry.tools
    )
    for server in wanted:
        if server not in known:
            note(f"{server} has not been listed yet: pml refresh {server}")
            continue
        yield from _of_entry(server, known[server], peers)


def _of_entry(server: str, entry: ManifestEntry, peers: tuple[Peer, ...]) -> Iterator[LintCase]:
    from pml_gateway.trust.verdict import Subject, SubjectKind

    said: list[tuple[SubjectKind, JsonObject]] = [(SubjectKind.TOOL, tool) for tool in entry.tools]
    said += [(SubjectKind.PROMPT, prompt) for prompt in entry.offers.prompts]
    said += [(SubjectKind.RESOURCE, resource) for resource in entry.offers.resources]
    said += [(SubjectKind.TEMPLATE, template) for template in entry.offers.templates]
    if entry.offers.instructions:
        own: JsonObject = {"instructions": entry.offers.instructions, "name": entry.server_name}
        said.append((SubjectKind.INSTRUCTIONS, own))
    for kind, definition in said:
        name = definition.get("name", "") if kind is not SubjectKind.INSTRUCTIONS else "instructions"
        yield LintCase(f"{server}:{name}", Subject(kind, server, definition), peers)


def _print(cases: Iterator[LintCase], *, as_json: bool) -> tuple[Counter[Level], int]:
    from pml_gateway.trust.lint import Linter

    linter = Linter()
    found = Counter[Level]()
    total = 0
    while batch := list(islice(cases, BATCH)):
        for case, verdict in zip(batch, _verdicts(linter, batch), strict=True):
            total += 1
            if verdict.level is not None:
                found[verdict.level] += 1
            if as_json:
                sys.stdout.write(json.dumps(_as_json(case, verdict)) + "\n")
            elif verdict.level is not None:
                _show(case, verdict)
    return found, total


def _verdicts(linter: Linter, batch: list[LintCase]) -> list[Verdict]:
    """Cases with the same peers are of one catalog and judged together; others each for itself."""
    if all(case.peers is batch[0].peers for case in batch):
        return linter.judge([case.subject for case in batch], batch[0].peers)
    return [linter.judge([case.subject], case.peers)[0] for case in batch]


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
