"""`pml migrate`: from everything listed to meta-tools only, one stage at a time, with proof and a way back."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import anyio.to_thread
import typer

from pml_gateway.cli.completion import client_names
from pml_gateway.cli.consent import Consent, YesOption
from pml_gateway.cli.context import Command, ConfigOption, JsonOption, command_gateway
from pml_gateway.cli.output import ExitCode, note, print_diff, print_json, print_table, refuse_unasked, say, warn
from pml_gateway.errors import ConfigurationError, GatewayError
from pml_gateway.text import counted, plural_of, shortened
from pml_gateway.types import JsonObject
from pml_gateway.usage.history import History, RecordFilter, most_used, read_history
from pml_gateway.usage.migration import Journal, overruled
from pml_gateway.usage.stages import Stage, reasons_to_wait, stage_in, standing, values_of

if TYPE_CHECKING:
    from pml_gateway.config.edit import FileEdit
    from pml_gateway.reports.replay import MigrationPlan


ANOTHER = f"pml migrate plan --to {Stage.HYBRID_BALANCED}"

SHOWN = 12
MAX_QUERY = 32


def say_plan(report: JsonObject) -> None:
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
    """Return the changes of a step, without the text of the file."""
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
    """Return the running gateways that use the configuration."""
    served = [str(each["pid"]) for each in gateways if "pid" in each]
    if served:
        note(f"running gateways serve it now: {', '.join(served)}")
    for each in gateways:
        if "error" in each:
            warn(each["error"])


def _by_tool(changes: list[JsonObject]) -> list[JsonObject]:
    """One row per tool: all its calls, and the words that find it worst; lost ones first."""
    found: dict[str, JsonObject] = {}
    for row in sorted(changes, key=lambda row: (row["rank"] is not None, -(row["rank"] or 0))):
        known = found.setdefault(row["name"], {**row, "calls": 0})
        known["calls"] += row["calls"]
    return sorted(found.values(), key=lambda row: (row["rank"] is not None, -row["calls"]))


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"


RELOAD_SECONDS = 30.0


async def plan_step(
    command: Command, client: str | None, target: Stage | None, days: float, keep: float
) -> MigrationPlan:
    """Return the plan of a step to `target`, by default the next stage.

    Raises:
        GatewayError: there is no next stage, or the step cannot be taken.
    """
    from pml_gateway.reports.replay import plan_migration

    settings = command.load().settings
    stage = stage_in(settings, client)
    if target is None:
        target = _next_of(stage, has_moved=journal_of(command).last(client) is not None)
    # What would refuse the step refuses it before the servers are asked.
    values = values_of(target, settings, client)
    history = _history(command, client, time.time() - days * 86400)
    fallback = values.get("gateway", {}).get("hybrid", {}).get("fallback", settings.gateway.hybrid.fallback)
    ranking = most_used(command.paths.usage_file, command.identity) if fallback == "usage" else ()
    async with command_gateway(command) as gateway:
        state = await gateway.wait_for_search(60)
        return await anyio.to_thread.run_sync(
            lambda: plan_migration(state, history.calls, target, client=client, keep=keep, ranking=ranking)
        )


def _next_of(stage: Stage | None, *, has_moved: bool) -> Stage:
    if stage is None:
        raise GatewayError(
            "this exposure is none of the stages: semantic, or hybrid with values of its own",
            hint=f"choose one: pml migrate --to {Stage.HYBRID_BALANCED}",
        )
    if stage.next is None:
        back = "; to undo the last step: pml migrate back" if has_moved else ""
        raise GatewayError(
            f"{stage} is the last stage: no other lists less, so there is nothing to move on to",
            hint=f"stay here, or see what another stage would do: {ANOTHER}{back}",
        )
    return stage.next


async def apply_step(
    command: Command, found: MigrationPlan, client: str | None, *, apply_whitelist: bool, dry_run: bool
) -> JsonObject:
    """Take the step: write the configuration, remember how to undo that, and tell running gateways."""
    from pml_gateway.config.edit import edit_file, set_values

    values = dict(found.values)
    if apply_whitelist:
        proposed = [found.names[key] for key in found.whitelist.tools]
        entries = [*found.whitelisted, *(name for name in proposed if name not in found.whitelisted)]
        gateway = dict(values.get("gateway", {}))
        values["gateway"] = {**gateway, "hybrid": {**gateway.get("hybrid", {}), "whitelisted_tools": entries}}
    blocked = overruled(command.load().origins, values)
    if blocked:
        raise ConfigurationError(
            f"{'; '.join(blocked)}, which wins over the configuration file", hint="remove it there, then try again"
        )
    file = command.config_file or command.paths.config_file
    before = found.stage.value if found.stage else "custom"
    if dry_run:
        edit: FileEdit = edit_file(file, lambda text: set_values(text, values, file), dry_run=True)
        reloaded: list[JsonObject] = []
    else:
        edit = journal_of(command).move(file, values, client=client, before_stage=before, stage=found.target.value)
        reloaded = await reload_gateways(command)
    return {
        "moved": not dry_run,
        "stage": found.target.value,
        "from": before,
        "client": client,
        "file": str(edit.path),
        "diff": edit.diff,
        "gateways": reloaded,
        "plan": plan_json(found),
    }


async def reload_gateways(command: Command) -> list[JsonObject]:
    """Let running gateways read the file now; they also watch it."""
    from pml_gateway.serve.control import ask_gateways

    answers = await ask_gateways(command.paths, "reload", timeout=RELOAD_SECONDS)
    told: list[JsonObject] = [
        {key: answer[key] for key in ("pid", "mode", "error") if key in answer} for answer in answers
    ]
    # One process has a gateway for each folder.
    return [each for at, each in enumerate(told) if each not in told[:at]]


def stage_status(command: Command, client: str | None) -> JsonObject:
    """Return the stage, how it goes since it began, and what speaks against moving on."""
    settings = command.load().settings
    stage = stage_in(settings, client)
    step = journal_of(command).last(client)
    since = step.at if step is not None and stage is not None and step.stage == stage.value else None
    found = standing(_history(command, client, None), since, time.time())
    following = stage.next if stage is not None else None
    own = [] if client else [name for name, entry in settings.clients.items() if entry.mode is not None]
    return {
        "stage": stage.value if stage else None,
        "mode": settings.gateway.tools_exposure.value,
        "client": client,
        "next": following.value if following else None,
        "since": since,
        **asdict(found),
        "miss_rate": found.miss_rate,
        "reasons_to_wait": reasons_to_wait(found) if following else [],
        "clients_with_own_mode": own,
    }


def _history(command: Command, client: str | None, since: float | None) -> History:
    return read_history(command.paths.usage_file, RecordFilter(command.identity, since, client))


def journal_of(command: Command) -> Journal:
    """Return the steps of this configuration."""
    return Journal(command.paths.migrations_dir, command.identity)


def plan_json(found: MigrationPlan) -> JsonObject:
    """Return a plan as `--json` prints it."""
    whitelist = found.whitelist
    return {
        "stage": found.stage.value if found.stage else None,
        "target": found.target.value,
        "calls": found.calls,
        "calls_of_gone_tools": found.gone,
        "listed_calls": sum(each.calls for each in found.replayed if each.listed_then),
        "changed_calls": sum(each.calls for each in found.replayed if each.changes_path),
        "found_calls": sum(each.calls for each in found.replayed if not each.listed_then and each.rank is not None),
        "lost_calls": found.lost,
        "first_hits": found.first_hits,
        "tokens_now": found.tokens_now,
        "tokens_then": found.tokens_then,
        "changes": [
            {
                "name": each.tool.qualified_name,
                "client": each.client,
                "calls": each.calls,
                "listed_now": each.listed_now,
                "query": each.query,
                "words_from": each.words,
                "rank": each.rank,
            }
            for each in found.replayed
            if not each.listed_then
        ],
        "whitelist": {
            "tools": [found.names[key] for key in whitelist.tools],
            "calls": whitelist.calls,
            "share": whitelist.calls / found.calls if found.calls else 1.0,
            "tokens": whitelist.tokens,
            "full_tokens": found.full_tokens,
        },
    }


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
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, write nothing.")]
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
        return
    asked = Consent(yes, dry_run, as_json)
    _move(Command(config, as_json=as_json), client, _stage(to), max_missed, days, keep, apply_whitelist, asked)


@migrate_app.command()
def status(client: ClientOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Say which stage this is, how it goes, and when to move on.

    Example: pml migrate status
    """
    command = Command(config, as_json=as_json)

    async def work() -> JsonObject:
        return stage_status(command, client)

    report = command.run(work)
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
    found = command.run(lambda: plan_step(command, client, None if to is None else _stage(to), days, keep))
    report = plan_json(found)
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

    async def undo(*, dry_run: bool) -> JsonObject:
        undone = journal_of(command).undo(client, dry_run=dry_run)
        return {
            "moved": not dry_run,
            "stage": undone.step.before_stage,
            "from": undone.step.stage,
            "client": client,
            "exact": undone.exact,
            "file": str(undone.edit.path),
            "diff": undone.edit.diff,
            "gateways": [] if dry_run else await reload_gateways(command),
        }

    report = command.run(lambda: undo(dry_run=True))
    report = _done_if_wanted(command, asked, report, lambda: undo(dry_run=False))
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
    _end(asked, report)


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
    found = command.run(lambda: plan_step(command, client, target, days, keep))
    if found.lost > max_missed:
        report: JsonObject = {"moved": False, "plan": plan_json(found)}
        if command.as_json:
            print_json(report)
        else:
            say_plan(report["plan"])
            warn(
                f"not moved: {report['plan']['lost_calls']} recorded calls would be neither listed nor found; "
                f"--max-missed allows {max_missed}. Raise it, or whitelist these tools in a hybrid stage"
            )
        raise typer.Exit(ExitCode.FAILED)

    async def apply(*, dry_run: bool) -> JsonObject:
        return await apply_step(command, found, client, apply_whitelist=apply_whitelist, dry_run=dry_run)

    report = command.run(lambda: apply(dry_run=True))
    report = _done_if_wanted(command, asked, report, lambda: apply(dry_run=False))
    print_json(report) if command.as_json else say_moved(report)
    _end(asked, report)


def _done_if_wanted(
    command: Command, asked: Consent, preview: JsonObject, do: Callable[[], Awaitable[JsonObject]]
) -> JsonObject:
    """Return the report of a change after it was shown and asked for, or of the preview where it is not wanted."""
    if not asked.as_json:
        print_diff(preview["diff"])
    # A step that changes no text needs no question on a terminal.
    is_wanted = (asked.is_interactive and not preview["diff"]) or asked.agrees(f"Write {preview['file']}?")
    return command.run(do) if is_wanted else preview


def _end(asked: Consent, report: JsonObject) -> None:
    if asked.is_impossible:
        refuse_unasked(as_json=asked.as_json)
