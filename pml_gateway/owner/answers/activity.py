"""Recorded usage: its figures, the tools that were never called, and its replay against a stage of the migration."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import anyio.to_thread

from pml_gateway.activity.history import RecordFilter, most_used, read_clients, read_daily_counts, read_history
from pml_gateway.activity.stages import Stage, values_of
from pml_gateway.activity.statistics import Figures, statistics
from pml_gateway.errors import UsageError
from pml_gateway.owner.context import OperationContext
from pml_gateway.policy.principal import LOCAL
from pml_gateway.reports.replay import PlannedMigration
from pml_gateway.reports.replay import plan_migration as replay
from pml_gateway.text import some_of, suggestion

MAX_DAYS_SHOWN = 60
SEARCH_SECONDS = 60.0


async def stats(
    context: OperationContext,
    seconds: float,
    client: str | None,
    upstream: str | None,
    program: str | None = None,
) -> Figures:
    """Return figures of the calls, searches and lists in the last `seconds`, of one client, program or server if named.

    Searches and lists are of all servers, so that their figures are None for one server.

    Raises:
        UsageError: the server, client or program is neither configured nor recorded.
    """
    now = time.time()
    wanted = RecordFilter(context.identity, now - seconds, client, upstream, program)
    history = await anyio.to_thread.run_sync(
        partial(read_history, context.paths.activity_file, wanted, lists=upstream is None)
    )
    state = await context.gateway.wait_for_tools()
    names = {(tool.upstream_id, tool.name): tool.qualified_name for tool in state.view(LOCAL).tools}
    if upstream is not None and not history.calls:
        servers = [*state.settings.servers, *(server for server, _ in names)]
        await anyio.to_thread.run_sync(_refuse_unknown, "server", upstream, servers, partial(_servers, context))
    if not (history.calls or history.searches or history.lists.count):
        for what, name, configured in (("client", client, [*state.settings.clients]), ("program", program, [])):
            if name is not None:
                recorded = partial(read_clients, context.paths.activity_file, context.identity, what)
                await anyio.to_thread.run_sync(_refuse_unknown, what, name, configured, recorded)
    known = {key: name for key, name in names.items() if upstream in (None, key[0])}
    days = min(max(round(seconds / 86400), 1), MAX_DAYS_SHOWN)
    return statistics(history, known, now=now, days=days, of_all=upstream is None)


def _servers(context: OperationContext) -> list[str]:
    """Return the servers whose calls were recorded."""
    return sorted({server for (server, _), _, _ in read_daily_counts(context.paths.activity_file, context.identity)})


def _refuse_unknown(what: str, name: str, configured: Sequence[str], recorded: Callable[[], Sequence[str]]) -> None:
    known = list(dict.fromkeys([*configured, *recorded()]))
    if name not in known:
        raise UsageError(
            f"no {what} {name!r} is configured or recorded{suggestion(name, known)}",
            hint=f"known are {some_of(known)}" if known else f"no {what} was recorded yet",
        )


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
