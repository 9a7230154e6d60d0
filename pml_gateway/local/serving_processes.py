"""The processes that serve, as `pml status --json` and the pages of the console show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pml_gateway.errors import ConfigurationError
from pml_gateway.local.commands import StuckGatewayError

if TYPE_CHECKING:
    from pml_gateway.reports.status import ProcessStatus
    from pml_gateway.types import JsonObject


@dataclass(frozen=True, slots=True)
class ServingProcesses:
    """Status of the processes that serve: this machine's gateway, `reports` with servers, and errors of the others.

    Of one of this machine that is `stuck` nothing else is known; what is `broken` is the configuration, without which
    nothing is known of servers that no gateway has.
    """

    machine: ProcessStatus | None
    reports: list[ProcessStatus]
    errors: list[str]
    stuck: StuckGatewayError | None = None
    broken: ConfigurationError | None = None
    warnings: Sequence[str] = ()


def status_as_json(found: ServingProcesses) -> JsonObject:
    """Return what `pml status --json` prints."""
    from pml_gateway.reports.status import command_for, need_of

    told = ("pid", "version", "mode", "tools", "transport", "url", "age_seconds", "is_ending", "storage")
    running = [report for report in found.reports if report["pid"] is not None]
    machine = None if found.machine is None else {k: v for k, v in found.machine.items() if k != "upstreams"}
    return {
        "machine": machine if found.stuck is None else _stuck(found.stuck),
        "gateways": [
            {**{key: value for key, value in report.items() if key in told}, "clients": report["client_count"]}
            for report in running
        ],
        "errors": [*found.errors, *([str(found.broken)] if found.broken is not None else [])],
        "servers": [
            {
                "server": row["server"],
                "gateway": report["pid"],
                "folders": row.get("folders"),
                "clients": row.get("clients"),
                "state": row["state"],
                "login": row["auth"]["state"],
                "tools": row["tools"],
                "age_seconds": row["age_seconds"],
                "needs": {"what": need.what, "command": command_for(need)} if (need := need_of(row)) else None,
            }
            for report in found.reports
            for row in report["upstreams"]
        ],
    }


def _stuck(error: StuckGatewayError) -> JsonObject:
    return {"pid": error.process or None, "error": str(error)}
