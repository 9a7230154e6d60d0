"""Counting what lists cost, once or after each change."""

from __future__ import annotations

from contextlib import suppress
from typing import Never

from pml_gateway.activity.history import read_queries
from pml_gateway.errors import GatewayError
from pml_gateway.owner.context import OperationContext
from pml_gateway.reports.token_costs import CatalogCosts, TokenReport, catalog_costs, token_report
from pml_gateway.signal import CoalescedSignal

SETTLE_SECONDS = 0.3
"""Changes that come within this time are shown as one."""


async def tokens(context: OperationContext, query: str | None, window: int) -> TokenReport:
    """Return the report for an intent and a context window."""
    return await token_report(context.gateway, query, window, _searches(context))


async def watch_tokens(context: OperationContext, query: str | None, window: int) -> Never:
    """Tell every report that differs from the one before, without end."""
    changed = CoalescedSignal(SETTLE_SECONDS)
    stop = context.gateway.current.on_swap(lambda _before, _after: changed.ask())
    shown: TokenReport | None = None
    try:
        while True:
            report = await tokens(context, query, window)
            if report != shown:
                context.tell({"report": report})
                shown = report
            await changed.next()
    finally:
        stop()


async def preset_costs(context: OperationContext, intent: str | None) -> CatalogCosts:
    """Return the costs of the catalog by preset, for an intent instead of the configured one."""
    return await catalog_costs(context.gateway, intent, _searches(context))


def _searches(context: OperationContext) -> list[str]:
    """Return the latest recorded searches of this configuration; none if the records cannot be read."""
    with suppress(GatewayError):
        return read_queries(context.paths.activity_file, context.identity)
    return []
