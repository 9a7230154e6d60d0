"""The steps of `pml migrate`: what one would do, doing it, and how the stage goes."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import anyio.to_thread

from pml_gateway.cli.context import Command, command_gateway
from pml_gateway.errors import ConfigurationError, GatewayError
from pml_gateway.types import JsonObject
from pml_gateway.usage.criteria import Criteria, reasons_to_wait, standing
from pml_gateway.usage.history import History, Wanted, read_history
from pml_gateway.usage.migration import Journal, overruled
from pml_gateway.usage.ranking import most_used
from pml_gateway.usage.stages import Stage, stage_in, values_of

if TYPE_CHECKING:
    from pml_gateway.config.write import FileEdit
    from pml_gateway.server.replay import MigrationPlan

RELOAD_SECONDS = 30.0


async def plan_step(
    command: Command, client: str | None, target: Stage | None, days: float, keep: float
) -> MigrationPlan:
    """What a step to `target`, else to the next stage, would do.

    Raises:
        GatewayError: there is no next stage, or the step cannot be taken.
    """
    from pml_gateway.server.replay import plan_migration

    settings = command.load().settings
    stage = stage_in(settings, client)
    if target is None:
        target = _next_of(stage)
    # What would refuse the step refuses it before the servers are asked.
    values = values_of(target, settings, client)
    history = _history(command, client, time.time() - days * 86400)
    fallback = values.get("gateway", {}).get("hybrid", {}).get("fallback", settings.gateway.hybrid.fallback)
    ranking = most_used(command.paths.usage_file, command.identity) if fallback == "usage" else ()
    async with command_gateway(command) as gateway:
        state = await gateway.searchable(60)
        return await anyio.to_thread.run_sync(
            lambda: plan_migration(state, history.calls, target, client=client, keep=keep, ranking=ranking)
        )


def _next_of(stage: Stage | None) -> Stage:
    if stage is None:
        raise GatewayError(
            "this exposure is none of the stages: semantic, or hybrid with values of its own",
            hint=f"choose one: pml migrate --to {Stage.HYBRID_BALANCED}",
        )
    if stage.next is None:
        raise GatewayError(f"{stage} is the last stage", hint="pml migrate back undoes the last step")
    return stage.next


async def apply_step(
    command: Command, found: MigrationPlan, client: str | None, *, apply_whitelist: bool, dry_run: bool
) -> JsonObject:
    """Take the step: write the configuration, remember how to undo that, and tell running gateways."""
    from pml_gateway.config.edit import set_values
    from pml_gateway.config.write import edit_file

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
    from pml_gateway.server.control import ask_gateways

    answers = await ask_gateways(command.paths, "reload", timeout=RELOAD_SECONDS)
    return [{key: answer[key] for key in ("pid", "mode", "error") if key in answer} for answer in answers]


def stage_status(command: Command, client: str | None, criteria: Criteria) -> JsonObject:
    """The stage, how it goes since it began, and what speaks against moving on."""
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
        "reasons_to_wait": reasons_to_wait(found, criteria) if following else [],
        "clients_with_own_mode": own,
    }


def _history(command: Command, client: str | None, since: float | None) -> History:
    return read_history(command.paths.usage_file, Wanted(command.identity, since, client))


def journal_of(command: Command) -> Journal:
    """The steps of this configuration."""
    return Journal(command.paths.migrations_dir, command.identity)


def plan_json(found: MigrationPlan) -> JsonObject:
    """A plan as `--json` prints it."""
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
