"""The overview: whether all is well, who is connected, what waits, and what calls and lists cost today."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from pml_gateway.console.recent import RecentFigures
from pml_gateway.console.request import PageRequest
from pml_gateway.errors import GatewayError
from pml_gateway.types import JsonObject

_SUMMED = ("calls", "lists", "listed", "everything", "answered")


async def overview_of(status: JsonObject, approvals: Sequence[JsonObject], figures: RecentFigures) -> JsonObject:
    """Return what `pml status --watch --json` prints, and the page shows."""
    found: JsonObject = {
        "status": status,
        "needs": [row for row in status["servers"] if row["needs"]],
        "waiting": [
            {"id": each["id"], "client": each["client"], "tools": [call["tool"] for call in each["calls"]]}
            for each in approvals
            if each["state"] == "pending"
        ],
        "clients": [row for row in (status["machine"] or {}).get("clients", []) if not row.get("is_command")],
    }
    try:
        counted = await figures.activity()
    except GatewayError as error:
        return found | {"calls_error": str(error)}
    rows = [asdict(row) for row in counted.today]
    return found | {
        "calls": {"hour": asdict(counted.hour), "day": asdict(counted.day)},
        "today": {"rows": rows, **{name: sum(row[name] for row in rows) for name in _SUMMED}, "modes": _by_mode(rows)},
    }


def _by_mode(rows: list[dict[str, Any]]) -> list[JsonObject]:
    """Return the tokens of all clients of each mode."""
    modes = dict.fromkeys(row["mode"] for row in rows)
    return [
        {"mode": mode, **{name: sum(row[name] for row in rows if row["mode"] == mode) for name in _SUMMED}}
        for mode in modes
    ]


async def overview(request: PageRequest) -> JsonObject:
    """Return the overview, with what a list costs in each mode once that was counted."""
    source, figures = request.source, request.figures
    status, approvals = await source.status(), list[JsonObject]()
    try:
        approvals = await source.approvals()
    except GatewayError as error:
        status = {**status, "errors": [*status["errors"], str(error)]}
    found = await overview_of(status, approvals, figures)
    counted_for = repr(sorted({(row["server"], row["tools"]) for row in found["status"]["servers"]}))
    costs = figures.costs(counted_for)
    if costs is None:
        request.later.append(partial(figures.count_costs, source, counted_for))
    return found | ({"costs_error": costs} if isinstance(costs, str) else {"costs": costs})
