"""Counting what lists cost, once or after each change."""

from __future__ import annotations

from contextlib import suppress

from pml_gateway.errors import GatewayError
from pml_gateway.owner.context import OperationContext
from pml_gateway.reports.token_costs import TokenReport, token_report
from pml_gateway.signal import CoalescedSignal
from pml_gateway.types import JsonObject
from pml_gateway.usage.history import RecordFilter, read_history

SETTLE_SECONDS = 0.3
"""Changes that come within this time are shown as one."""


async def tokens(context: OperationContext, arguments: JsonObject) -> JsonObject:
    """Return the report for an intent (`query`) and a context `window`."""
    return (await _report(context, arguments)).as_json()


async def watch_tokens(context: OperationContext, arguments: JsonObject) -> JsonObject:
    """Tell every report that differs from the one before, without end."""
    changed = CoalescedSignal(SETTLE_SECONDS)
    stop = context.gateway.on_swap(lambda _before, _after: changed.ask())
    shown: TokenReport | None = None
    try:
        while True:
            report = await _report(context, arguments)
            if report != shown:
                context.tell({"report": report.as_json()})
                shown = report
            await changed.next()
    finally:
        stop()


async def _report(context: OperationContext, arguments: JsonObject) -> TokenReport:
    searches: list[str] = []
    with suppress(GatewayError):
        history = read_history(context.paths.usage_file, RecordFilter(context.identity))
        searches = [each.query for each in history.searches]
    return await token_report(context.gateway, arguments["query"], arguments["window"], searches)
