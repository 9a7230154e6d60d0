"""`pml upstreams`, `refresh`: how the servers are, and asking them anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from pml_gateway.cli.context import Command, ConfigOption, JsonOption, command_gateway
from pml_gateway.cli.output import ExitCode, note, print_json, print_table, say, warn
from pml_gateway.counting import counted

if TYPE_CHECKING:
    from pml_gateway.types import JsonObject


upstreams_app = typer.Typer(name="upstreams", no_args_is_help=False)


@upstreams_app.callback(invoke_without_command=True)
def upstreams(context: typer.Context, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show every server: state, tools, latency and age. Asks the running gateways, else connects by itself.

    Example: pml upstreams --json
    """
    if context.invoked_subcommand is not None:
        return
    command = Command(config, as_json=as_json)
    reports = command.run(lambda: _upstreams(command))
    _show(reports, as_json=as_json)


async def _upstreams(command: Command) -> list[JsonObject]:
    from pml_gateway.server.control import ask_gateways
    from pml_gateway.server.status import gateway_status, read_logins

    running = [] if command.config_file is not None else await ask_gateways(command.paths, "status")
    if running:
        return running
    async with command_gateway(command, connect=True) as gateway:
        await read_logins(gateway)
        return [{**gateway_status(gateway), "pid": None}]


def refresh(as_json: JsonOption = False) -> None:
    """Make every running gateway list its servers' tools anew.

    Example: pml refresh
    """
    from pml_gateway.server.control import ask_gateways

    command = Command(as_json=as_json)

    async def ask() -> list[JsonObject]:
        return await ask_gateways(command.paths, "refresh", timeout=40)

    reports = command.run(ask)
    if reports or as_json:
        _show(reports, as_json=as_json)
    if not reports:
        note(f"no gateway runs with {command.paths.home}")
        raise typer.Exit(ExitCode.FAILED)


def _show(reports: list[JsonObject], *, as_json: bool) -> None:
    if as_json:
        print_json({"gateways": reports})
        return
    for report in reports:
        if "error" in report:
            warn(report["error"])
            continue
        if report["pid"] is not None:
            say(f"gateway {report['pid']}, mode {report['mode']}, {counted(report['tools'], 'tool')}", style="bold")
        print_table(
            ("server", "state", "login", "tools", "prompts", "resources", "latency", "age"),
            (
                (row["server"], _state(row), _login(row), row["tools"], *_offered(row), _milliseconds(row), _age(row))
                for row in report["upstreams"]
            ),
        )
        for row in report["upstreams"]:
            if row["error"]:
                warn(row["error"])


def _state(row: JsonObject) -> str:
    breaker = row["breaker"]
    is_held_back = breaker["state"] != "closed" and row["state"] != "failed"
    notes = [
        "tools stale" if row["stale"] else "",
        f"calls {breaker['state'].replace('_', ' ')}" if is_held_back else "",
        f"again in {breaker['retry_after_seconds']:.0f} s" if "retry_after_seconds" in breaker else "",
    ]
    return ", ".join([row["state"], *filter(None, notes)])


def _login(row: JsonObject) -> str:
    auth = row["auth"]
    match auth["state"]:
        case "logged_in" if auth["expires_at"] and not auth["renews"]:
            return f"logged in until {auth['expires_at']}"
        case "logged_in":
            return "logged in"
        case "login_needed":
            return "login needed"
        case "client_credentials":
            return "by client secret"
        case "headers":
            return "by header"
        case _:
            return "not needed"


def _offered(row: JsonObject) -> tuple[object, object]:
    """Gateways of an earlier version do not count what is offered beside tools."""
    return row.get("prompts", ""), row.get("resources", 0) + row.get("templates", 0) if "resources" in row else ""


def _milliseconds(row: JsonObject) -> str:
    return "" if row["latency_seconds"] is None else f"{row['latency_seconds'] * 1000:.0f} ms"


def _age(row: JsonObject) -> str:
    seconds = row["age_seconds"]
    if seconds is None:
        return "never"
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.0f} h"
    )
