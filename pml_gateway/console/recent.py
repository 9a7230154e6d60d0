"""Figures that open pages show, made once for all of them and kept while nothing changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import anyio
import anyio.to_thread
from cachetools import TTLCache

from pml_gateway.activity.accesses import last_ids
from pml_gateway.activity.figures import ActivityFigures, ServerFigures, read_figures, read_server_figures
from pml_gateway.console.source import GatewaySource
from pml_gateway.errors import GatewayError
from pml_gateway.owner.operations import TOKENS
from pml_gateway.reports.token_costs import TokenReport

COSTS_SECONDS = 300.0
"""Seconds that counted tokens are shown for the same servers: each recorded call loads open pages again."""

CONTEXT_WINDOW = 200_000

FIGURES_SECONDS = 15.0
"""Seconds that figures are shown if nothing was recorded: calls leave the last hour without a new one."""

ResultT = TypeVar("ResultT")


class RecentFigures:
    """Figures of recorded activity and of lists, each kept until it may have changed."""

    def __init__(self, activity_file: Path, identity: str) -> None:
        self._costs: TTLCache[str, TokenReport | str] = TTLCache(1, COSTS_SECONDS)
        self._counting = anyio.Lock()
        self._path, self._identity = activity_file, identity
        self._turn = anyio.Lock()
        self._kept: TTLCache[str, tuple[object, object]] = TTLCache(2, FIGURES_SECONDS)

    async def activity(self) -> ActivityFigures:
        """Return the calls of the last hour and day, and the tokens of today."""
        return await self._latest(read_figures)

    async def servers(self) -> dict[str, ServerFigures]:
        """Return the figures of each server that was called in the last day."""
        return await self._latest(read_server_figures)

    def costs(self, servers: str) -> TokenReport | str | None:
        """Return the tokens of lists that were counted for these servers, or why they could not be."""
        return self._costs.get(servers)

    async def counted_costs(self) -> list[str]:
        """Return the servers that lists were counted for."""
        return [*self._costs]

    async def count_costs(self, source: GatewaySource, servers: str) -> None:
        """Count the tokens of lists for these servers, once for all who ask; it can take many seconds."""
        async with self._counting:
            if servers not in self._costs:
                try:
                    found = await source.ask(TOKENS, {"query": None, "window": CONTEXT_WINDOW})
                except GatewayError as error:
                    self._costs[servers] = str(error)
                else:
                    self._costs[servers] = found

    async def _latest(self, read: Callable[[Any, str, float], ResultT]) -> ResultT:
        async with self._turn:
            recorded = await anyio.to_thread.run_sync(last_ids, self._path)
            known = self._kept.get(read.__name__)
            if known is None or known[0] != recorded:
                found = await anyio.to_thread.run_sync(read, self._path, self._identity, time.time())
                known = self._kept[read.__name__] = (recorded, found)
            return cast("ResultT", known[1])
