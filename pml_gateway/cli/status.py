"""`pml status`: the gateways that run, and each server in a line, at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pml_gateway import __version__
from pml_gateway.cli.context import Command, ConfigOption, JsonOption
from pml_gateway.cli.output import INDENT, note, print_json, print_lines, say, warn, wrapped
from pml_gateway.config.settings import LogSettings
from pml_gateway.telemetry import logs
from pml_gateway.text import counted, span

if TYPE_CHECKING:
    from pml_gateway.reports.status import Need
    from pml_gateway.types import JsonObject

ANSWER_SECONDS = 3.0
"""What a gateway may take to answer; one that is stopped in a debugger is not waited for."""


def status(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the gateways that run and every server in a line; what needs something comes first, with what mends it.

    Nothing is started or connected for it. Without a running gateway it is what was last known.

    Example: pml status
    """
    command = Command(config, as_json=as_json)
    reports = command.run(lambda: reported(command))
    answered = [report for report in reports if "error" not in report]
    if as_json:
        print_json(_as_json(answered, [str(report["error"]) for report in reports if "error" in report]))
        return
    for report in reports:
        if "error" in report:
            warn(report["error"])
        elif report["pid"] is not None:
            first, *more = wrapped(_gateway(report), INDENT)
            say("\n".join([first, *(" " * INDENT + line for line in more)]))
    if not any(report["pid"] is not None for report in answered):
        say(f"no gateway runs with {command.paths.home}; its servers as they were last known:")
    say()
    print_lines(("server", "state", "what helps"), _rows(answered), shorten="state")
    if answered and answered[0]["pid"] is None:
        note("pml upstreams --probe starts the servers and looks")


async def reported(command: Command) -> list[JsonObject]:
    """What the running gateways say; without one, or for another configuration, what was last known."""
    from pml_gateway.reports.status import last_known
    from pml_gateway.serve.control import ask_gateways

    running = [] if command.config_file else await ask_gateways(command.paths, "status", timeout=ANSWER_SECONDS)
    if any("error" not in report for report in running):
        return running
    logs.configure(LogSettings(level="error"))
    return [*running, await last_known(command.load().settings, command.paths, command.identity)]


def _gateway(report: JsonObject) -> str:
    """One running gateway in a line; earlier versions do not say how they are reached."""
    version = report["version"] + ("" if report["version"] == __version__ else f" (not {__version__}: start it anew)")
    parts = [f"gateway {report['pid']}", f"version {version}"]
    if "transport" in report:
        parts += [report["url"] or report["transport"], f"for {span(report['age_seconds'])}"]
        parts.append(counted(report["clients"], "client"))
    return ", ".join([*parts, f"mode {report['mode']}", counted(report["tools"], "tool")])


def _rows(reports: list[JsonObject]) -> Iterator[tuple[str, str, str]]:
    from pml_gateway.reports.status import in_words

    for row, need, pids in _servers(reports):
        where = f" (gateway {', '.join(map(str, pids))})" if pids else ""
        yield row["server"], (need.what if need else in_words(row)) + where, need.command if need else ""


def _servers(reports: list[JsonObject]) -> list[tuple[JsonObject, Need | None, list[int]]]:
    """Each server once for each thing that gateways say of it, those that need something first.

    The gateways are named where not all of them say the same.
    """
    from pml_gateway.reports.status import need_of

    found: dict[tuple[str, Need | None], tuple[JsonObject, list[int]]] = {}
    for report in reports:
        for row in report["upstreams"]:
            found.setdefault((row["server"], need_of(row)), (row, []))[1].append(report["pid"])
    said = [server for server, _ in found]
    listed = [(row, need, pids if said.count(server) > 1 else []) for (server, need), (row, pids) in found.items()]
    return sorted(listed, key=lambda each: each[1] is None)


def _as_json(reports: list[JsonObject], errors: list[str]) -> JsonObject:
    from pml_gateway.reports.status import need_of

    told = ("pid", "version", "mode", "tools", "transport", "url", "age_seconds", "clients")
    running = [report for report in reports if report["pid"] is not None]
    return {
        "gateways": [{key: report.get(key) for key in told} for report in running],
        "errors": errors,
        "servers": [
            {
                "server": row["server"],
                "gateway": report["pid"],
                "state": row["state"],
                "login": row["auth"]["state"],
                "tools": row["tools"],
                "age_seconds": row["age_seconds"],
                "needs": {"what": need.what, "command": need.command} if (need := need_of(row)) else None,
            }
            for report in reports
            for row in report["upstreams"]
        ],
    }
