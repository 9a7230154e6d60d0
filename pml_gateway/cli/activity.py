"""`pml activity`: which client called what, when, and how it ended."""

from __future__ import annotations

import time
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import anyio
import anyio.to_thread
import typer

from pml_gateway.cli.completion import client_names, server_names, tool_names
from pml_gateway.cli.context import Command, ConfigOption, JsonOption
from pml_gateway.cli.output import fail, note, print_json, print_json_line, print_table, say, warn
from pml_gateway.cli.stats import seconds_of
from pml_gateway.errors import GatewayError, UsageError
from pml_gateway.text import counted, escaped, shortened, suggestion

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pml_gateway.activity.accesses import AccessFilter, AccessInRequest, RecordedAccess
    from pml_gateway.types import JsonObject

activity_app = typer.Typer(name="activity", no_args_is_help=False)

FOLLOW_SECONDS = 0.3
MAX_LISTED = 100_000
MAX_NAMES = 12
MAX_SHOWN = 60
MAX_PROGRAM = 20
COLUMNS = ("id", "when", "client", "program", "used", "outcome", "time", "decision")


@activity_app.callback(invoke_without_command=True)
def activity(
    context: typer.Context,
    client: Annotated[
        str | None, typer.Option("--client", metavar="NAME", help="Of one client.", autocompletion=client_names)
    ] = None,
    program: Annotated[
        str | None, typer.Option("--program", metavar="NAME", help="Of one program, by the name it gives itself.")
    ] = None,
    tool: Annotated[
        str | None,
        typer.Option("--tool", metavar="NAME", help="Of one tool, or of a pattern.", autocompletion=tool_names),
    ] = None,
    server: Annotated[
        str | None, typer.Option("--server", metavar="NAME", help="Of one server.", autocompletion=server_names)
    ] = None,
    outcome: Annotated[
        str | None, typer.Option("--outcome", metavar="WORD", help="ok, failed, refused, or a code as TIMEOUT.")
    ] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="SPAN", help="How far back: 15m, 12h, 7d.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=MAX_LISTED, help="The latest so many.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", help="Stay, and show what is recorded from now on.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what clients called, got and read: when, how it ended and what decided.

    Example: pml activity --client cursor --since 1h --outcome refused
    """
    if context.invoked_subcommand is not None:
        return
    from pml_gateway.activity.accesses import OUTCOMES, AccessFilter, read_accesses, read_gaps
    from pml_gateway.telemetry.events import OUTCOMES as CODES

    command = Command(config, as_json=as_json)
    path = command.paths.activity_file
    began = None if since is None else time.time() - seconds_of(since)
    if outcome is not None and outcome.lower() not in (known := [*OUTCOMES, *(code.lower() for code in CODES)]):
        words = "write ok, failed, refused or a code, for example timeout"
        fail(UsageError(f"unknown outcome {outcome!r}{suggestion(outcome, known)}", hint=words), as_json=as_json)
    wanted = AccessFilter(command.identity, client, tool, server, outcome and outcome.lower(), began, program=program)
    if follow:
        command.run(partial(_follow, command, wanted))
        return
    try:
        found = read_accesses(path, wanted, limit)
        gaps = read_gaps(path, began if began is not None or not found else found[0].at)
    except GatewayError as error:
        fail(error, as_json=as_json)
    if as_json:
        missing = [{"before": at, "reason": reason} for at, reason in gaps]
        print_json({"accesses": [asdict(each) for each in found], "missing": missing})
        return
    if found:
        _show_all(found)
    else:
        note("nothing is recorded that fits; `pml serve` records calls unless activity.record is false")
    for at, reason in gaps:
        warn(f"records may be missing before {_when(at)}: {reason}")


async def _follow(command: Command, wanted: AccessFilter) -> None:
    from dataclasses import replace

    from pml_gateway.activity.accesses import last_id, read_accesses

    path = command.paths.activity_file
    seen = await anyio.to_thread.run_sync(last_id, path)
    while True:
        for each in await anyio.to_thread.run_sync(read_accesses, path, replace(wanted, after=seen), MAX_LISTED):
            seen = max(seen, each.id)
            if command.as_json:
                print_json_line(asdict(each))
            else:
                say("  ".join(filter(None, _cells(each))))
        await anyio.sleep(FOLLOW_SECONDS)


@activity_app.command("show")
def show(
    number: Annotated[int, typer.Argument(metavar="ID", help="Number of the record.")],
    as_json: JsonOption = False,
) -> None:
    """Show one record with its whole way: search, decision, arguments, sends, times, sizes, the rest of its request.

    Example: pml activity show 1284
    """
    from pml_gateway.activity.accesses import read_access

    try:
        way = read_access(Command().paths.activity_file, number)
        if way is None:
            raise UsageError(f"no record {number}", hint="pml activity names those that there are")
    except GatewayError as error:
        fail(error, as_json=as_json)
    if as_json:
        print_json(asdict(way))
    else:
        _show(way)


@activity_app.command("clear")
def clear(as_json: JsonOption = False) -> None:
    """Forget everything that is recorded on this machine. Gateways that run go on recording.

    Example: pml activity clear
    """
    from pml_gateway.activity import database

    path = Command().paths.activity_file
    try:
        calls = database.clear(path)
    except GatewayError as error:
        fail(error, as_json=as_json)
    if as_json:
        print_json({"cleared_calls": calls, "file": str(path)})
    else:
        note(f"forgot {counted(calls, 'call')} of {path}")


def _show_all(accesses: Iterable[RecordedAccess]) -> None:
    rows = [_cells(each) for each in accesses]
    # Without rules, nothing decided, and names have the room.
    columns = len(COLUMNS) if any(row[-1] for row in rows) else len(COLUMNS) - 1
    print_table(COLUMNS[:columns], [row[:columns] for row in rows])


def _cells(access: RecordedAccess) -> tuple[str, ...]:
    decision = "refused" if access.refused else "allowed" if access.rule else ""
    return (
        str(access.id),
        _when(access.at),
        escaped(access.client),
        shortened(escaped(access.program), MAX_PROGRAM),
        shortened(escaped(access.target), MAX_SHOWN),
        access.code,
        _ms(access.seconds),
        ": ".join(filter(None, (decision, escaped(access.rule)))),
    )


def _show(way: AccessInRequest) -> None:
    access = way.access
    say(f"{access.id}  {escaped(access.target)}  {access.code}", style="bold")
    by = f"{escaped(access.client)} ({access.mode})"
    say(f"  when       {_when(access.at)}, by {by}, as {access.how} {access.method}")
    if access.program:
        say(f"  program    {escaped(access.program)}, as it calls itself")
    if access.replica:
        say(f"  gateway    {escaped(access.replica)}")
    if access.intent:
        say(f"  intent     {escaped(access.intent)}")
    if access.query is not None:
        say(f"  search     {escaped(access.query)}, place {access.rank}")
    if access.server:
        say(f"  server     {escaped(access.server)}, effect {access.effect}")
    by = f" by {escaped(access.rule)}" if access.rule else ""
    approval = f", approval {escaped(access.approval)}" if access.approval else ""
    say(f"  decision   {'refused' if access.refused else 'allowed'}{by}{approval}")
    say(f"  arguments  {_arguments(access.kept, access.arguments)}")
    if access.sends:
        again = f", {counted(access.sends - 1, 'retry', 'retries')}" if access.sends > 1 else ""
        say(f"  sent       {counted(access.sends, 'time')}{again}; the server took {_ms(access.server_seconds)}")
    say(f"  took       {_ms(access.seconds)}")
    say(f"  size       {access.given:,} characters given, {access.answered:,} answered")
    say(f"  request    {escaped(access.request) or 'none'}")
    if way.request:
        say()
        _show_all(way.request)


def _arguments(kept: str, arguments: JsonObject | None) -> str:
    if arguments is None:
        return "not kept"
    if kept != "keys":
        from pml_gateway.text import escaped_json

        return escaped_json(arguments)
    shown = [f"{escaped(name)} ({size:,})" for name, size in list(arguments.items())[:MAX_NAMES]]
    more = len(arguments) - len(shown)
    return (", ".join(shown) + (f" and {more} more" if more else "")) or "none"


def _when(at: float) -> str:
    return time.strftime("%m-%d %H:%M:%S", time.localtime(at))


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.0f} s"
