"""`pml config --wizard`: a short interview and the user's own tools lead to a preset, with the reason."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import typer

from pml_gateway.cli.context import Command, command_gateway, recorded_searches
from pml_gateway.cli.output import fail, note, print_diff, print_json, print_table, refuse_unasked, say, warn, wrapped
from pml_gateway.cli.preset import consequences
from pml_gateway.clients.discover import client_files, known_client
from pml_gateway.clients.known import CLIENT_NAMES, CLIENTS
from pml_gateway.clients.places import Surroundings
from pml_gateway.config.edit import FileEdit, apply_preset, edit_file, set_values
from pml_gateway.config.presets import load_preset
from pml_gateway.config.project import DerivedIntent, derive_intent, find_project_file
from pml_gateway.config.trust import TrustStore
from pml_gateway.errors import ConfigurationError
from pml_gateway.paths import PROJECT_NAME
from pml_gateway.reports.recommend import CONTEXT_WINDOW, Priority
from pml_gateway.text import counted, suggestion
from pml_gateway.types import MODES

if TYPE_CHECKING:
    from pml_gateway.reports.recommend import Recommendation, Situation
    from pml_gateway.reports.token_costs import PresetCost, Sample


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
class _Measured:
    """The user's own numbers, by what is configured now; `costs` are by preset, from the fewest tools to all.

    Of the `servers`, `known` have listed tools that can be counted.
    """

    servers: int
    known: int
    intent: str | None
    search_tokens: int | None
    sample: Sample | None
    costs: Sequence[PresetCost]

    def tokens(self, preset: str) -> int:
        return next(cost.tokens for cost in self.costs if cost.preset == preset)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Result of the interview."""

    situation: Situation
    chosen: Recommendation
    measured: _Measured
    derived: DerivedIntent | None
    intent: str | None
    """Content of the project file, or None to leave it."""


def run_wizard(command: Command, given: GivenAnswers, *, yes: bool, dry_run: bool) -> None:
    """Ask, count, show, and apply what was chosen after a question."""
    is_asking = sys.stdin.isatty() and not (yes or dry_run or command.as_json)
    try:
        outcome = _interview(command, given, is_asking=is_asking)
        edits = _edits(command, outcome, dry_run=True)
        if not command.as_json:
            _show(outcome, edits)
        has_changed = any(edit.has_changed for edit in edits)
        is_wanted = has_changed and not dry_run and (yes or (is_asking and _confirmed(edits)))
        if is_wanted:
            edits = _edits(command, outcome, dry_run=False)
        warnings = _warnings(command, outcome, edits)
    except ConfigurationError as error:
        fail(error, as_json=command.as_json)
    if command.as_json:
        # Without --yes, what it would choose is the answer.
        print_json(_report(outcome, edits, warnings, is_written=is_wanted))
        return
    for warning in warnings:
        warn(warning)
    for edit in edits:
        backup = f" (the text before is in {edit.backup})" if edit.backup else ""
        if is_wanted and edit.has_changed:
            note(f"wrote {edit.path}{backup}")
    if not has_changed:
        note(f"{edits[0].path} already says what {outcome.chosen.preset} says")
    elif not is_wanted:
        if not (dry_run or is_asking):
            refuse_unasked(as_json=False)
        note("nothing was written")


def _interview(command: Command, given: GivenAnswers, *, is_asking: bool) -> _Outcome:
    from pml_gateway.reports.recommend import Situation, recommend

    # Before anything is started: a slip in a flag is told at once.
    given_priority = read_priority(given.matters) if given.matters is not None else None
    clients = [known_client(name).name for name in given.clients] if given.clients is not None else None
    measured = command.run(lambda: _measure(command, None))
    servers = given.servers or asked_number("How many servers will there be?", measured.servers, is_asking=is_asking)
    clients = clients if clients is not None else asked_clients(is_asking=is_asking)
    priority = given_priority or asked_priority(is_asking=is_asking)
    deferring = {client.name for client in CLIENTS if client.defers}
    meta = measured.tokens("meta_only")
    situation = Situation(
        servers=servers,
        # Servers that are yet to come, or did not answer, are taken to be as large as those that are known.
        full_tokens=round(measured.tokens("full_proxy") * servers / max(measured.known, 1)),
        meta_tokens=meta,
        search_tokens=measured.search_tokens,
        context_window=CONTEXT_WINDOW,
        priority=priority,
        deferring=[name for name in clients if name in deferring],
        others=[name for name in clients if name not in deferring],
    )
    chosen = recommend(situation)
    derived, intent = _intent(given, measured, chosen, is_asking=is_asking)
    if intent is not None and intent != measured.intent:
        measured = command.run(lambda: _measure(command, intent))
    return _Outcome(situation, chosen, measured, derived, intent)


async def _measure(command: Command, intent: str | None) -> _Measured:
    from pml_gateway.reports.token_costs import preset_costs, sample_intents, search_costs

    # Warnings about what is configured now are no answer to what should be.
    async with command_gateway(replace(command, as_json=True)) as gateway:
        state = await gateway.wait_for_search(60)
        wanted = intent or state.settings.gateway.intent
        searches = await search_costs(gateway)
        sample = None if wanted else sample_intents(state, recorded_searches(command))
        enabled = {name for name, definition in state.settings.servers.items() if definition.enabled}
        return _Measured(
            len(enabled),
            len(enabled & state.catalog.listed_upstreams),
            wanted,
            round(median(searches)) if searches else None,
            sample,
            await preset_costs(gateway, wanted, sample),
        )


def _intent(
    given: GivenAnswers, measured: _Measured, chosen: Recommendation, *, is_asking: bool
) -> tuple[DerivedIntent | None, str | None]:
    """Return the settings derived from the project, and those to write; configured ones stay."""
    if given.intent is not None:
        return None, " ".join(given.intent.split()) or None
    if chosen.preset not in SELECTING or measured.intent is not None:
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


def _edits(command: Command, outcome: _Outcome, *, dry_run: bool) -> list[FileEdit]:
    """Return the edit of the configuration, and of the project's file where an intent goes there."""
    file = command.config_file or command.paths.config_file
    preset = load_preset(outcome.chosen.preset)
    edits = [edit_file(file, lambda text: apply_preset(text, preset, file), dry_run=dry_run)]
    if outcome.intent is not None:
        project = _project_file()
        values = {"gateway": {"intent": outcome.intent}}
        edits.append(edit_file(project, lambda text: set_values(text, values, project), dry_run=dry_run))
    return edits


def _project_file() -> Path:
    return find_project_file(Path.cwd()) or Surroundings.here(Path.cwd()).project / PROJECT_NAME


def _confirmed(edits: Sequence[FileEdit]) -> bool:
    names = " and ".join(str(edit.path) for edit in edits if edit.has_changed)
    return typer.confirm(f"Write {names}?", default=True, err=True)


def _warnings(command: Command, outcome: _Outcome, edits: Sequence[FileEdit]) -> list[str]:
    warnings = consequences(load_preset(outcome.chosen.preset), edits[0])
    if outcome.intent is not None:
        # Until it is written, the intent is missed that is about to be there.
        warnings = [warning for warning in warnings if "no intent is configured" not in warning]
        store, project = TrustStore(command.paths.trust_file), edits[-1]
        was_trusted = bool(project.before) and store.is_trusted(project.path, project.before.encode())
        if was_trusted and project.has_changed:
            warnings.append(f"{project.path} was trusted as it was before; run `pml trust project` again")
    return warnings


def _show(outcome: _Outcome, edits: Sequence[FileEdit]) -> None:
    measured, situation = outcome.measured, outcome.situation
    print_table(
        ("PRESET", "TOOLS", "TOKENS", "OF THE CONTEXT"),
        (
            (
                f"{cost.preset}{' *' if cost.preset == outcome.chosen.preset else ''}{' ~' if cost.is_sampled else ''}",
                cost.tools,
                f"{cost.tokens:,}",
                f"{cost.tokens / situation.context_window:.1%}",
            )
            for cost in measured.costs
        ),
    )
    servers = counted(measured.servers, "server")
    known = f"{measured.known} of {servers}" if measured.known < measured.servers else servers
    say(f"tools of {known}, o200k_base tokens of one tools/list; * is chosen", style="dim")
    if measured.intent:
        say(f"intent: {measured.intent}", style="dim")
    elif measured.sample is not None:
        say(f"~ {measured.sample}", style="dim")
    if situation.servers != measured.known:
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
        "sample": None if outcome.measured.sample is None else outcome.measured.sample.as_json(),
        "presets": [
            {
                "preset": cost.preset,
                "tools": cost.tools,
                "tokens": cost.tokens,
                "of_context_window": round(cost.tokens / situation.context_window, 4),
            }
            for cost in outcome.measured.costs
        ],
        "preset": outcome.chosen.preset,
        "reason": outcome.chosen.reason,
        "notes": outcome.chosen.notes,
        "intent": {
            "text": outcome.intent or outcome.measured.intent,
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
