"""`pml config --wizard`: a short interview and the user's own tools lead to a preset, with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pml_gateway.cli.consent import Consent
from pml_gateway.cli.context import Command
from pml_gateway.cli.output import (
    note,
    note_written,
    print_diff,
    print_json,
    print_table,
    say,
    warn,
    wrapped,
)
from pml_gateway.cli.tokens import sample_in_words
from pml_gateway.clients.discover import client_files, known_client
from pml_gateway.clients.known import CLIENT_NAMES
from pml_gateway.clients.places import Surroundings
from pml_gateway.config.edits.edit import FileEdit
from pml_gateway.config.presets import load_preset
from pml_gateway.config.project import DerivedIntent, derive_intent
from pml_gateway.config.trust import TrustStore
from pml_gateway.errors import ConfigurationError
from pml_gateway.owner.operations import PRESET_COSTS
from pml_gateway.reports.recommend import Priority
from pml_gateway.setup.presets import PresetChange
from pml_gateway.text import counted, suggestion
from pml_gateway.types import MODES

if TYPE_CHECKING:
    from pml_gateway.reports.recommend import Recommendation, Situation
    from pml_gateway.reports.token_costs import CatalogCosts


PLAIN_FILE = "mcp-json"
"""Not a client: the name of the file that several of them read."""


def asked_number(question: str, default: int, *, is_asking: bool) -> int:
    """Return a number of at least one."""
    number = max(default, 1)
    while is_asking:
        number = typer.prompt(question, default=number, type=int, err=True)
        if number >= 1:
            break
        warn(f"{number} is less than 1")
        number = max(default, 1)
    return number


def asked_clients(*, is_asking: bool) -> list[str]:
    """Return the clients that have a file here, unless a person says otherwise."""
    files = client_files(Surroundings.here(Path.cwd()))
    found = list(dict.fromkeys(file.client.name for file in files if file.exists and file.client.name != PLAIN_FILE))
    if not is_asking:
        return found
    choices = ", ".join(name for name in CLIENT_NAMES if name != PLAIN_FILE)
    while True:
        text = typer.prompt(f"Which clients ({choices})?", default=", ".join(found) or "none", err=True)
        names = [name for name in text.replace(",", " ").split() if name != "none"]
        try:
            return [known_client(name).name for name in names]
        except ConfigurationError as error:
            warn(str(error))


def read_priority(text: str) -> Priority:
    """Priorities, as typed.

    Raises:
        typer.BadParameter: it is none of the choices.
    """
    choices = [item.value for item in Priority]
    if text not in choices:
        near = suggestion(text, choices)
        raise typer.BadParameter(f"{text!r} is none of {', '.join(choices)}{near}", param_hint="--matters")
    return Priority(text)


def asked_priority(*, is_asking: bool) -> Priority:
    """Ask for the priority; tokens by default."""
    if not is_asking:
        return Priority.TOKENS
    note("tokens: the model reads as little as possible; accuracy: the right tool is listed, ready to call;")
    note("compatibility: clients and agents that never search find their tools listed")
    while True:
        text = typer.prompt("What matters most (tokens, accuracy, compatibility)?", default="tokens", err=True)
        try:
            return read_priority(text.strip().lower())
        except typer.BadParameter as error:
            warn(error.message)


SELECTING = tuple(preset for facts in MODES.values() if facts.reads_intent for preset in facts.presets)
"""The presets that select by intent."""


@dataclass(frozen=True, slots=True)
class GivenAnswers:
    """The answers that flags give; None is asked for, or answered by its default."""

    servers: int | None = None
    clients: Sequence[str] | None = None
    matters: str | None = None
    intent: str | None = None


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Result of the interview."""

    situation: Situation
    chosen: Recommendation
    measured: CatalogCosts
    derived: DerivedIntent | None
    intent: str | None
    """Content of the project file, or None to leave it."""


def run_wizard(command: Command, given: GivenAnswers, *, yes: bool, dry_run: bool) -> None:
    """Ask, count, show, and apply what was chosen after a question."""
    asked = Consent(yes, dry_run, command.as_json)
    is_asking = asked.is_interactive
    outcome = _interview(command, given, is_asking=is_asking)
    file = command.config_file or command.paths.config_file
    change = PresetChange(load_preset(outcome.chosen.preset), file, outcome.intent)
    edits = change.edits(dry_run=True)
    if not command.as_json:
        _show(outcome, edits)
    changed = [str(edit.path) for edit in edits if edit.has_changed]
    is_wanted = bool(changed) and asked.agrees(f"Write {' and '.join(changed)}?")
    if is_wanted:
        edits = change.edits()
    warnings = change.warnings(edits, TrustStore(command.paths.trust_file))
    if command.as_json:
        # Without --yes, what it would choose is the answer.
        print_json(_report(outcome, edits, warnings, is_written=is_wanted))
        return
    for warning in warnings:
        warn(warning)
    for edit in edits:
        if is_wanted and edit.has_changed:
            note_written(edit.path, edit.backup)
    if not changed:
        note(f"{edits[0].path} already says what {outcome.chosen.preset} says")
    elif not is_wanted:
        asked.refuse_if_impossible()
        note("nothing was written")


def _interview(command: Command, given: GivenAnswers, *, is_asking: bool) -> _Outcome:
    from pml_gateway.reports.recommend import Situation, recommend

    # Before anything is started: a slip in a flag is told at once.
    given_priority = read_priority(given.matters) if given.matters is not None else None
    clients = [known_client(name).name for name in given.clients] if given.clients is not None else None
    # Warnings about what is configured now are no answer to what should be.
    quiet = replace(command, as_json=True)
    measured = quiet.ask(PRESET_COSTS, {"intent": None})
    servers = given.servers or asked_number("How many servers will there be?", measured["servers"], is_asking=is_asking)
    clients = clients if clients is not None else asked_clients(is_asking=is_asking)
    priority = given_priority or asked_priority(is_asking=is_asking)
    situation = Situation.of(measured, servers, clients, priority)
    chosen = recommend(situation)
    derived, intent = _intent(given, measured, chosen, is_asking=is_asking)
    if intent is not None and intent != measured["intent"]:
        measured = quiet.ask(PRESET_COSTS, {"intent": intent})
    return _Outcome(situation, chosen, measured, derived, intent)


def _intent(
    given: GivenAnswers, measured: CatalogCosts, chosen: Recommendation, *, is_asking: bool
) -> tuple[DerivedIntent | None, str | None]:
    """Return the settings derived from the project, and those to write; configured ones stay."""
    if given.intent is not None:
        return None, " ".join(given.intent.split()) or None
    if chosen.preset not in SELECTING or measured["intent"] is not None:
        return None, None
    derived = derive_intent(Surroundings.here(Path.cwd()).project)
    if derived is None:
        return None, None
    if is_asking:
        note(f"{chosen.preset} selects tools by an intent; {derived.file.name} says of this project:")
        note(f"  {derived.text}")
        if not typer.confirm("Use it as the project's intent?", default=True, err=True):
            return derived, None
    return derived, derived.text


def _show(outcome: _Outcome, edits: Sequence[FileEdit]) -> None:
    measured, situation = outcome.measured, outcome.situation
    print_table(
        ("PRESET", "TOOLS", "TOKENS", "OF THE CONTEXT"),
        (
            (
                f"{cost['preset']}{' *' if cost['preset'] == outcome.chosen.preset else ''}"
                f"{' ~' if cost['is_sampled'] else ''}",
                cost["tools"],
                f"{cost['tokens']:,}",
                f"{cost['tokens'] / situation.context_window:.1%}",
            )
            for cost in measured["presets"]
        ),
    )
    servers = counted(measured["servers"], "server")
    known = f"{measured['known']} of {servers}" if measured["known"] < measured["servers"] else servers
    say(f"tools of {known}, o200k_base tokens of one tools/list; * is chosen", style="dim")
    if measured["intent"]:
        say(f"intent: {measured['intent']}", style="dim")
    elif measured["sample"] is not None:
        say(sample_in_words(measured["sample"]), style="dim")
    if situation.servers != measured["known"]:
        say(
            f"with {counted(situation.servers, 'server')} of this size, "
            f"everything makes {situation.full_tokens:,} tokens",
            style="dim",
        )
    say()
    for line in wrapped(f"{outcome.chosen.preset}: {outcome.chosen.reason}"):
        say(line, style="bold")
    for remark in outcome.chosen.notes:
        for line in wrapped(remark):
            note(line)
    for edit in edits:
        print_diff(edit.diff)


def _report(
    outcome: _Outcome, edits: Sequence[FileEdit], warnings: Sequence[str], *, is_written: bool
) -> dict[str, object]:
    situation = outcome.situation
    return {
        "answers": {
            "servers": situation.servers,
            "clients": [*situation.deferring, *situation.others],
            "matters": situation.priority.value,
        },
        "sample": outcome.measured["sample"],
        "presets": [
            {
                **{key: cost[key] for key in ("preset", "tools", "tokens")},
                "of_context_window": round(cost["tokens"] / situation.context_window, 4),
            }
            for cost in outcome.measured["presets"]
        ],
        "preset": outcome.chosen.preset,
        "reason": outcome.chosen.reason,
        "notes": outcome.chosen.notes,
        "intent": {
            "text": outcome.intent or outcome.measured["intent"],
            "derived_from": str(outcome.derived.file) if outcome.derived is not None else None,
        },
        "written": is_written,
        "files": [
            {
                "file": str(edit.path),
                "changed": edit.has_changed,
                "backup": str(edit.backup) if edit.backup else None,
                "diff": edit.diff,
            }
            for edit in edits
        ],
        "warnings": list(warnings),
    }
