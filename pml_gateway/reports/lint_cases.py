"""Definitions that the lint judges on demand: lines of a file, or everything that servers listed last."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from pml_gateway.catalog.manifest import ManifestEntry
from pml_gateway.catalog.skills import frontmatter_of
from pml_gateway.errors import UsageError
from pml_gateway.trust.lint import Linter
from pml_gateway.trust.verdict import Peer, Subject, SubjectKind, Verdict, peer_of
from pml_gateway.types import JsonObject

MAX_LINE = 8 * 1024 * 1024
"""Bytes of one line; a definition of this size is no definition."""


@dataclass(frozen=True, slots=True)
class LintCase:
    """One definition to judge, under the id that its verdict is printed with."""

    id: str
    subject: Subject
    peers: tuple[Peer, ...] = ()


def cases_of_lines(lines: BinaryIO, name: str) -> Iterator[LintCase]:
    """Yield the definition of each line of a file.

    Raises:
        UsageError: a line is no definition.
    """
    number = 0
    while line := lines.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise UsageError(f"line {number} of {name} is longer than {MAX_LINE:,} bytes", hint="one definition a line")
        if line.strip():
            yield _case(line, number, name)


def _case(line: bytes, number: int, name: str) -> LintCase:
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
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict):
            inner = each.get("tool")
            tool = inner if isinstance(inner, dict) else each
            yield peer_of(str(each.get("server", "")), str(tool.get("name", "")), tool)


def cases_of_servers(listed: Mapping[str, ManifestEntry], wanted: Sequence[str]) -> Iterator[LintCase]:
    """Yield everything that the wanted servers said last, each of them among all that are listed."""
    peers = tuple(
        peer_of(server, str(tool.get("name", "")), tool) for server, entry in listed.items() for tool in entry.tools
    )
    for server in wanted:
        entry = listed[server]
        said: list[tuple[SubjectKind, JsonObject]] = [(SubjectKind.TOOL, tool) for tool in entry.tools]
        said += [(SubjectKind.PROMPT, prompt) for prompt in entry.offers.prompts]
        said += [(SubjectKind.RESOURCE, resource) for resource in entry.offers.resources]
        said += [(SubjectKind.TEMPLATE, template) for template in entry.offers.templates]
        said += [(SubjectKind.SKILL, frontmatter_of(skill)) for skill in entry.offers.skills]
        if entry.offers.instructions:
            own: JsonObject = {"instructions": entry.offers.instructions, "name": entry.server_name}
            said.append((SubjectKind.INSTRUCTIONS, own))
        for kind, definition in said:
            name = definition.get("name", "") if kind is not SubjectKind.INSTRUCTIONS else "instructions"
            yield LintCase(f"{server}:{name}", Subject(kind, server, definition), peers)


def judge_cases(linter: Linter, batch: Sequence[LintCase]) -> list[Verdict]:
    """Return the verdicts; cases with the same peers are of one catalog and judged together."""
    if all(case.peers is batch[0].peers for case in batch):
        return linter.judge([case.subject for case in batch], batch[0].peers)
    return [linter.judge([case.subject], case.peers)[0] for case in batch]
