"""Pages of what waits for the owner: calls to approve, definitions that are held back, and servers in need."""

from __future__ import annotations

import json
from html import escape
from typing import Any

import anyio.to_thread

from pml_gateway.console.request import PageRequest
from pml_gateway.console.source import GatewaySource
from pml_gateway.errors import ConfigurationError, GatewayError
from pml_gateway.owner.approvals import found_approval
from pml_gateway.storage.shared_documents import open_documents
from pml_gateway.text import escaped_json
from pml_gateway.trust.pins_file import PinsFile
from pml_gateway.trust.review import Case, cases, meant
from pml_gateway.types import JsonObject

DECISIONS = 10
"""Decisions on one page: each is shown whole before it is made."""

MAX_SHOWN = 12_000
"""Characters of one decision on the page of all; a longer one is decided on its own page."""


async def waiting(request: PageRequest) -> JsonObject:
    """Return the calls and definitions that wait for a decision, and the servers that need something else."""
    source = request.source
    status = await source.status()
    asked, known, problems = list[JsonObject](), list[Case](), list[str]()
    try:
        asked = [_asked(each) for each in await source.approvals()]
    except GatewayError as error:
        problems.append(f"The calls that wait are not known: {error}")
    try:
        known = await anyio.to_thread.run_sync(known_cases, source)
    except ConfigurationError as error:
        problems.append(f"The definitions that wait are not known: {error}")
    waits = [_held(each) for each in known if each.is_waiting]
    needs = [row for row in status["servers"] if row["needs"] and row["needs"]["command"] != "pml trust"]
    return {"rows": request.page([*asked, *waits], DECISIONS), "needs": needs, "problem": " ".join(problems)}


async def approval(request: PageRequest) -> JsonObject:
    """Return one approval with all of its arguments."""
    found = await found_approval(request.source.paths, request.text("id"))
    return {"row": _asked(found) | {"is_long": False}}


async def held(request: PageRequest) -> JsonObject:
    """Return one definition that waits, with all of its changes."""
    known = await anyio.to_thread.run_sync(known_cases, request.source)
    return {"row": _held(meant(known, request.text("name"))) | {"is_long": False}}


def pins_file(source: GatewaySource) -> PinsFile:
    """Return the file of the pins that decisions are written to. Blocking.

    Raises:
        ConfigurationError: the configuration does not load.
    """
    documents = open_documents(source.load().settings.storage)
    return PinsFile(source.paths.pins_dir, source.identity, documents=documents)


def known_cases(source: GatewaySource) -> list[Case]:
    """Return the definitions that `pml trust` knows of. Blocking.

    Raises:
        ConfigurationError: the configuration does not load.
    """
    return cases(PinsFile(source.paths.pins_dir, source.identity).load(), source.load().settings.servers)


def _asked(found: JsonObject) -> JsonObject:
    """Return an approval as pages show it."""
    calls = [
        {
            **call,
            "text": escaped_json(call["arguments"], indent=2),
            "differs": [
                {"where": where, "before": _json(before), "after": _json(after)}
                for where, before, after in call.get("differs", ())
            ],
        }
        for call in found["calls"]
    ]
    return {**found, "kind": "approval", "calls": calls, "is_long": _length(calls) > MAX_SHOWN}


def _json(value: Any) -> str | None:
    return None if value is None else escaped_json(value)


def _held(case: Case) -> JsonObject:
    """Return a definition that waits as pages show it."""
    findings = case.verdict.findings if case.verdict is not None else ()
    row: JsonObject = {
        "kind": "held",
        "exact": case.exact,
        "source": case.source,
        "server": case.server,
        "state": case.state.value,
        "why": case.why,
        "can_be_accepted": bool(case.digest),
        "is_new": case.before is None,
        "findings": [
            {"where": each.where or "the whole", "classes": list(each.classes), "why": each.why, "text": each.text}
            for each in findings
        ],
        "changes": [
            {
                "where": each.where,
                "before": each.before,
                "after": each.after,
                "words": list(each.words) if each.is_text else None,
            }
            for each in case.changes
        ],
    }
    return {**row, "is_long": _length(row) > MAX_SHOWN}


def _length(value: object) -> int:
    """Return the characters that a value takes in a page."""
    return len(escape(json.dumps(value, ensure_ascii=False)))
