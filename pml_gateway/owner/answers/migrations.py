"""Recorded calls replayed against another stage of the migration."""

from __future__ import annotations

import time

import anyio.to_thread

from pml_gateway.activity.history import RecordFilter, most_used, read_history
from pml_gateway.activity.stages import Stage, values_of
from pml_gateway.owner.context import OperationContext
from pml_gateway.reports.replay import PlannedMigration
from pml_gateway.reports.replay import plan_migration as replay

SEARCH_SECONDS = 60.0


async def plan_migration(
    context: OperationContext, client: str | None, target: str, days: float, keep: float
) -> PlannedMigration:
    """Replay the calls of the last days, of one client if named, against a stage."""
    state, stage = await context.gateway.wait_for_search(SEARCH_SECONDS), Stage(target)
    hybrid = values_of(stage, state.settings, client).get("gateway", {}).get("hybrid", {})
    by_usage = hybrid.get("fallback", state.settings.gateway.hybrid.fallback) == "usage"
    usage, wanted = context.paths.activity_file, RecordFilter(context.identity, time.time() - days * 86_400, client)

    def replayed() -> PlannedMigration:
        ranking = most_used(usage, context.identity) if by_usage else ()
        calls = read_history(usage, wanted).calls
        return replay(state, calls, stage, client=client, keep=keep, ranking=ranking)

    return await anyio.to_thread.run_sync(replayed)
