"""`pml migrate`: from everything listed to meta-tools only, one stage at a time, with proof and a way back."""

from __future__ import annotations

from typing import Annotated

import typer

from pml_gateway.cli.completion import client_names
from pml_gateway.cli.context import Command, ConfigOption, JsonOption
from pml_gateway.cli.migrate_steps import apply_step, journal_of, plan_json, plan_step, reload_gateways, stage_status
from pml_gateway.cli.migrate_text import say_moved, say_plan, say_reloaded, say_standing
from pml_gateway.cli.output import ExitCode, note, print_diff, print_json, say, warn
from pml_gateway.types import JsonObject
from pml_gateway.usage.criteria import Criteria
from pml_gateway.usage.stages import Stage

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
    bool, typer.Option("--apply-whitelist", help="Also write the proposed whitelist, beside the entries there are.")
]
StageOption = Annotated[
    str | None, typer.Option("--to", metavar="STAGE", help=f"A stage: {', '.join(Stage)}.", show_default=False)
]
DAYS = 30.0
CRITERIA = Criteria()


@migrate_app.callback(invoke_without_command=True)
def migrate(
    context: typer.Context,
    to: StageOption = None,
    client: ClientOption = None,
    max_missed: MissedOption = 0,
    days: DaysOption = DAYS,
    keep: KeepOption = 1.0,
    apply_whitelist: WhitelistOption = False,
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
    _move(Command(config, as_json=as_json), client, _stage(to), max_missed, days, keep, apply_whitelist, dry_run)


@migrate_app.command()
def status(client: ClientOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Say which stage this is, how it goes, and when to move on.

    Example: pml migrate status
    """
    command = Command(config, as_json=as_json)

    async def work() -> JsonObject:
        return stage_status(command, client, CRITERIA)

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
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move to the next stage if no more than --max-missed of the recorded calls would be lost.

    Example: pml migrate next --max-missed 3
    """
    _move(Command(config, as_json=as_json), client, None, max_missed, days, keep, apply_whitelist, dry_run)


@migrate_app.command()
def back(client: ClientOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Undo the last step: byte for byte, or its own keys alone where the file has changed since.

    Example: pml migrate back
    """
    command = Command(config, as_json=as_json)

    async def work() -> JsonObject:
        undone = journal_of(command).undo(client)
        reloaded = await reload_gateways(command)
        return {
            "stage": undone.step.before_stage,
            "from": undone.step.stage,
            "client": client,
            "exact": undone.exact,
            "file": str(undone.edit.path),
            "diff": undone.edit.diff,
            "gateways": reloaded,
        }

    report = command.run(work)
    if as_json:
        print_json(report)
        return
    print_diff(report["diff"])
    if report["exact"]:
        note(f"back in {report['stage']}; {report['file']} is what it was before, byte for byte")
    else:
        note(f"back in {report['stage']}; {report['file']} has changed since, so only the step's own keys were undone")
    say_reloaded(report["gateways"])


@migrate_app.command()
def auto(
    client: ClientOption = None,
    max_missed: MissedOption = 0,
    min_calls: Annotated[int, typer.Option("--min-calls", min=0, help="Calls in this stage.")] = CRITERIA.min_calls,
    min_days: Annotated[float, typer.Option("--min-days", min=0, help="Days in this stage.")] = CRITERIA.min_days,
    max_miss_rate: Annotated[
        float, typer.Option("--max-miss-rate", min=0, max=1, help="Share of searches that may miss.")
    ] = CRITERIA.max_miss_rate,
    days: DaysOption = DAYS,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move on by one stage when the criteria hold, and say why not otherwise; for cron, where waiting is no failure.

    Example: pml migrate auto --min-days 5
    """
    command = Command(config, as_json=as_json)
    criteria = Criteria(min_calls, min_days, max_miss_rate)

    async def work() -> JsonObject:
        report = stage_status(command, client, criteria)
        reasons = list(report["reasons_to_wait"])
        if report["next"] is not None and not reasons:
            found = await plan_step(command, client, None, days, 1.0)
            if found.lost <= max_missed:
                return await apply_step(command, found, client, apply_whitelist=False, dry_run=False)
            reasons = [f"{found.lost} recorded calls would be lost in {found.target}; at most {max_missed} may be"]
        reasons = reasons or [f"{report['stage'] or 'this'} is the last stage"]
        return {"moved": False, "stage": report["stage"], "reasons_to_wait": reasons}

    report = command.run(work)
    if as_json:
        print_json(report)
    elif report["moved"]:
        say_moved(report)
    else:
        say(f"stays in {report['stage'] or 'settings of its own'}: {'; '.join(report['reasons_to_wait'])}")


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
    dry_run: bool,
) -> None:
    async def work() -> JsonObject:
        found = await plan_step(command, client, target, days, keep)
        if found.lost > max_missed:
            return {"moved": False, "plan": plan_json(found)}
        return await apply_step(command, found, client, apply_whitelist=apply_whitelist, dry_run=dry_run)

    report = command.run(work)
    if command.as_json:
        print_json(report)
    elif report["moved"] or dry_run:
        say_moved(report)
    else:
        say_plan(report["plan"])
        warn(
            f"not moved: {report['plan']['lost_calls']} recorded calls would be neither listed nor found; "
            f"--max-missed allows {max_missed}. Raise it, or whitelist these tools in a hybrid stage"
        )
    if not report["moved"] and not (dry_run and "diff" in report):
        raise typer.Exit(ExitCode.FAILED)
