"""Recorded usage: figures of calls, searches and lists, with the tools that were never called."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import anyio.to_thread

from pml_gateway.activity.history import RecordFilter, read_clients, read_daily_counts, read_history
from pml_gateway.activity.statistics import Figures, statistics
from pml_gateway.errors import UsageError
from pml_gateway.owner.context import OperationContext
from pml_gateway.policy.principal import LOCAL
from pml_gateway.text import some_of, suggestion

MAX_DAYS_SHOWN = 60


async def stats(context: OperationContext, seconds: float, client: str | None, upstream: str | None) -> Figures:
    """Return figures of the calls, searches and lists in the last `seconds`, of one client or server if named.

    Searches and lists are of all servers, so that their figures are None for one server.

    Raises:
        UsageError: the server or the client is neither configured nor recorded.
    """
    now = time.time()
    wanted = RecordFilter(context.identity, now - seconds, client, upstream)
    history = await anyio.to_thread.run_sync(
        partial(read_history, context.paths.activity_file, wanted, lists=upstream is None)
    )
    state = await context.gateway.wait_for_tools()
    names = {(tool.upstream_id, tool.name): tool.qualified_name for tool in state.view(LOCAL).tools}
    if upstream is not None and not history.calls:
        servers = [*state.settings.servers, *(server for server, _ in names)]
        await anyio.to_thread.run_sync(_refuse_unknown, "server", upstream, servers, partial(_servers, context))
    if client is not None and not (history.calls or history.searches or history.lists.count):
        recorded = partial(read_clients, context.paths.activity_file, context.identity)
        await anyio.to_thread.run_sync(_refuse_unknown, "client", client, [*state.settings.clients], recorded)
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
