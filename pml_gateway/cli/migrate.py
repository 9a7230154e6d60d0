"""`pml migrate`: from everything listed to meta-tools only, one stage at a time, with proof and a way back."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from pml_gateway.activity.stages import ANOTHER, Stage
from pml_gateway.cli.completion import client_names
from pml_gateway.cli.consent import Consent, DryRunOption, YesOption
from pml_gateway.cli.context import Command, ConfigOption, JsonOption
from pml_gateway.cli.output import ExitCode, note, print_diff, print_json, print_table, say, warn
from pml_gateway.owner.operations import PLAN_MIGRATION
from pml_gateway.text import counted, plural_of, shortened
from pml_gateway.types import JsonObject

if TYPE_CHECKING:
    from pml_gateway.reports.replay import PlannedMigration, SearchedCalls
    from pml_gateway.setup.migration import Migration

    class Change(Protocol):
        """A change of the configuration file, and its report."""

        def __call__(self, *, dry_run: bool) -> Awaitable[JsonObject]: ...


SHOWN = 12
MAX_QUERY = 32


def say_plan(report: PlannedMigration) -> None:
    """Show the changes of a step."""
    calls = counted(report["calls"], "recorded call")
    say(f"{report['stage'] or 'now'} -> {report['target']}, {calls} replayed", style="bold")
    gone = report["calls_of_gone_tools"]
    if gone:
        are = plural_of(
            gone, "is of a tool or client that is gone, and is", "are of tools or clients that are gone, and are"
        )
        say(f"  {gone:,} more {are} left out")
    say(f"  {report['listed_calls']:,} {plural_of(report['listed_calls'], 'finds its', 'find their')} tool listed")
    hits = f"among the first {report['first_hits']} hits of a search"
    say(f"  {report['found_calls']:,} {plural_of(report['found_calls'], 'finds', 'find')} it {hits}")
    say(f"  {report['lost_calls']:,} would be neither listed nor found")
    saved = report["tokens_now"] - report["tokens_then"]
    share = f" ({saved / report['tokens_now']:.0%})" if report["tokens_now"] else ""
    say(
        f"  a list costs {counted(report['tokens_then'], 'token')} instead of {report['tokens_now']:,}: "
        f"{saved:,} saved{share}"
    )
    changes = report["changes"]
    if changes:
        say()
        rows = _by_tool(changes)
        print_table(
            ("not listed then", "calls", "place", "found by", "words from"),
            (
                (
                    row["name"],
                    row["calls"],
                    row["rank"] or "none",
                    shortened(row["query"], MAX_QUERY),
                    row["words_from"],
                )
                for row in rows[:SHOWN]
            ),
        )
        if len(rows) > SHOWN:
            say(f"and {len(rows) - SHOWN} more (--json names all)", style="dim")
    whitelist = report["whitelist"]
    if whitelist["tools"]:
        say()
        names = whitelist["tools"]
        say(
            f"whitelist of {counted(len(names), 'tool')}, {whitelist['tokens']:,} "
            f"of {whitelist['full_tokens']:,} tokens, keeps {whitelist['share']:.1%} of the calls listed"
        )
        say(f"  {', '.join(names[:SHOWN])}{f', and {len(names) - SHOWN} more' if len(names) > SHOWN else ''}")
        say("  (the cheapest one; hybrid stages list it, --apply-whitelist writes it)", style="dim")


def say_standing(report: JsonObject) -> None:
    """Show the progress of a stage, and when to move on."""
    whose = f" of {report['client']}" if report["client"] else ""
    say(f"stage{whose}: {report['stage'] or 'none: ' + report['mode'] + ' with values of its own'}", style="bold")
    calls = counted(report["calls"], "call")
    say(f"  {calls} in {report['days']:.1f} days, {report['through_search']:,} of them by a search")
    searches = counted(report["searches"], "search", "searches")
    say(f"  {searches}, {report['missed']:,} missed ({report['miss_rate']:.0%})")
    say(f"  success {_share(report['success'])}, before this stage {_share(report['success_before'])}")
    for name in report["clients_with_own_mode"]:
        say(f"  {name} has a mode of its own: pml migrate status --client {name}")
    if report["stage"] is None:
        say("  choose a stage: pml migrate --to hybrid_balanced")
    elif report["next"] is None:
        say(f"  this is the last stage; what another one would do: {ANOTHER}")
    elif report["reasons_to_wait"]:
        say(f"  wait before {report['next']}: {'; '.join(report['reasons_to_wait'])}")
    else:
        say(f"  move on to {report['next']}: it has enough calls, and they go well. See pml migrate plan")


def say_moved(report: JsonObject) -> None:
    """Print the changes of a step, without the text of the file."""
    planned = report["plan"]
    if not planned["calls"]:
        note("no calls are recorded, so nothing spoke against it; `pml migrate status` will say how it goes")
    verb = f"moved from {report['from']} to" if report["moved"] else "nothing was written; this would move to"
    saved = planned["tokens_now"] - planned["tokens_then"]
    change = f"{saved:,} fewer" if saved >= 0 else f"{-saved:,} more"
    note(f"{verb} {report['stage']}: a list has {counted(planned['tokens_then'], 'token')}, {change}")
    if report["moved"]:
        say_reloaded(report["gateways"])
        note("`pml migrate back` undoes this")


def say_reloaded(gateways: list[JsonObject]) -> None:
    """Name the running gateways that use the configuration."""
    served = [str(each["pid"]) for each in gateways if "pid" in each]
    if served:
        note(f"running gateways serve it now: {', '.join(served)}")
    for each in gateways:
        if "error" in each:
            warn(each["error"])


def _by_tool(changes: list[SearchedCalls]) -> list[SearchedCalls]:
    """One row per tool: all its calls, and the words that find it worst; lost ones first."""
    found: dict[str, SearchedCalls] = {}
    for row in sorted(changes, key=lambda row: (row["rank"] is not None, -(row["rank"] or 0))):
        known = found.setdefault(row["name"], {**row, "calls": 0})
        known["calls"] += row["calls"]
    return sorted(found.values(), key=lambda row: (row["rank"] is not None, -row["calls"]))


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"


migrate_app = typer.Typer(name="migrate", no_args_is_help=False)

ClientOption = Annotated[
    str | None,
    typer.Option("--client", metavar="NAME", help="One configured client alone.", autocompletion=client_names),
]
MissedOption = Annotated[
    int, typer.Option("--max-missed", min=0, help="Calls that may be neither listed nor found by a search.")
]
DaysOption = Annotated[float, typer.Option("--days", min=0.01, help="How many days of recorded calls to replay.")]
KeepOption = Annotated[float, typer.Option("--keep", min=0, max=1, help="Share of calls the whitelist keeps listed.")]
WhitelistOption = Annotated[
    bool, typer.Option("--apply-whitelist", help="Also write the proposed whitelist, in addition to existing entries.")
]
StageOption = Annotated[
    str | None, typer.Option("--to", metavar="STAGE", help=f"A stage: {', '.join(Stage)}.", show_default=False)
]
DAYS = 30.0


@migrate_app.callback(invoke_without_command=True)
def migrate(
    context: typer.Context,
    to: StageOption = None,
    client: ClientOption = None,
    max_missed: MissedOption = 0,
    days: DaysOption = DAYS,
    keep: KeepOption = 1.0,
    apply_whitelist: WhitelistOption = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move to any stage: full_proxy, hybrid_permissive, hybrid_balanced or meta_only.

    Each step is judged by the calls recorded so far, changes the exposure keys of the configuration alone, reaches
    running gateways without a restart, and `pml migrate back` undoes it.

    Example: pml migrate --to hybrid_permissive
    """
    if context.invoked_subcommand is not None:
        return
    if to is None:
        say(context.get_help())
        raise typer.Exit(ExitCode.USAGE)
    asked = Consent(yes, dry_run, as_json)
    _move(Command(config, as_json=as_json), client, _stage(to), max_missed, days, keep, apply_whitelist, asked)


@migrate_app.command()
def status(client: ClientOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Say which stage this is, how it goes, and when to move on.

    Example: pml migrate status
    """
    command = Command(config, as_json=as_json)

    report = _migration(command, client).status(command.load().settings)
    print_json(report) if as_json else say_standing(report)


@migrate_app.command()
def plan(
    to: StageOption = None,
    client: ClientOption = None,
    days: DaysOption = DAYS,
    keep: KeepOption = 1.0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replay the recorded calls against the next stage, and say what it would change and save. Writes nothing.

    Example: pml migrate plan --keep 0.95
    """
    command = Command(config, as_json=as_json)
    target = None if to is None else _stage(to)
    report = _plan(command, _migration(command, client), target, days, keep)
    print_json(report) if as_json else say_plan(report)


@migrate_app.command("next")
def next_stage(
    client: ClientOption = None,
    max_missed: MissedOption = 0,
    days: DaysOption = DAYS,
    keep: KeepOption = 1.0,
    apply_whitelist: WhitelistOption = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move to the next stage if no more than --max-missed of the recorded calls would be lost.

    Example: pml migrate next --max-missed 3
    """
    asked = Consent(yes, dry_run, as_json)
    _move(Command(config, as_json=as_json), client, None, max_missed, days, keep, apply_whitelist, asked)


@migrate_app.command()
def back(
    client: ClientOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Undo the last step: byte for byte, or its own keys alone where the file has changed since.

    Example: pml migrate back --dry-run
    """
    command, asked = Command(config, as_json=as_json), Consent(yes, dry_run, as_json)
    migration = _migration(command, client)
    report = _done_if_wanted(command, asked, migration.back)
    if as_json:
        print_json(report)
    elif report["moved"]:
        if report["exact"]:
            note(f"back in {report['stage']}; {report['file']} is what it was before, byte for byte")
        else:
            note(f"back in {report['stage']}; {report['file']} has changed since, so only its own keys were undone")
        say_reloaded(report["gateways"])
    else:
        note(f"nothing was written; this would go back to {report['stage']}")
    asked.refuse_if_impossible()


def _stage(name: str) -> Stage:
    try:
        return Stage(name.replace("-", "_"))
    except ValueError:
        raise typer.BadParameter(f"no stage {name!r}; choose from {', '.join(Stage)}", param_hint="--to") from None


def _move(
    command: Command,
    client: str | None,
    target: Stage | None,
    max_missed: int,
    days: float,
    keep: float,
    apply_whitelist: bool,
    asked: Consent,
) -> None:
    migration = _migration(command, client)
    found = _plan(command, migration, target, days, keep)
    if found["lost_calls"] > max_missed:
        if command.as_json:
            print_json({"moved": False, "plan": found})
        else:
            say_plan(found)
            warn(
                f"not moved: {found['lost_calls']} recorded calls would be neither listed nor found; "
                f"--max-missed allows {max_missed}. Raise it, or whitelist these tools in a hybrid stage"
            )
        raise typer.Exit(ExitCode.FAILED)

    apply = partial(migration.apply, found, command.load(), apply_whitelist=apply_whitelist)
    report = _done_if_wanted(command, asked, apply)
    print_json(report) if command.as_json else say_moved(report)
    asked.refuse_if_impossible()


def _migration(command: Command, client: str | None) -> Migration:
    # What replays calls imports the server stack, which --help never needs.
    from pml_gateway.setup.migration import Migration

    return Migration(command.paths, command.identity, command.config_file or command.paths.config_file, client)


def _plan(command: Command, migration: Migration, target: Stage | None, days: float, keep: float) -> PlannedMigration:
    # What would refuse the step refuses it before the gateway is asked.
    chosen = migration.checked(target, command.load().settings)
    asked = {"client": migration.client, "target": chosen, "days": days, "keep": keep}
    return command.ask(PLAN_MIGRATION, asked)


def _done_if_wanted(command: Command, asked: Consent, change: Change) -> JsonObject:
    """Return the report of a change after it was shown and asked for, or of the preview where it is not wanted."""
    preview = command.run(partial(change, dry_run=True))
    if not asked.as_json:
        print_diff(preview["diff"])
    # A step that changes no text needs no question on a terminal.
    is_wanted = (asked.is_interactive and not preview["diff"]) or asked.agrees(f"Write {preview['file']}?")
    return command.run(partial(change, dry_run=False)) if is_wanted else preview
