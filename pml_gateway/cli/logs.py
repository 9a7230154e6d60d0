"""`pml upstreams logs`: what a server that the gateway starts has written to its stderr."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from pml_gateway.cli.completion import server_names
from pml_gateway.cli.context import Command, ConfigOption, JsonOption
from pml_gateway.cli.output import fail, note, print_json, say
from pml_gateway.config.problems import did_you_mean
from pml_gateway.config.servers import Transport
from pml_gateway.errors import GatewayError, InvalidInputError, UsageError

if TYPE_CHECKING:
    from pml_gateway.upstreams.log_reader import LogReader

FOLLOW_SECONDS = 0.25

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The server's name in `servers:`.", autocompletion=server_names)
]


def logs(
    name: NameArgument,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last lines.")] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as more is written, until interrupted.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a server wrote to stderr, its secrets masked. About the last megabyte of each server is kept.

    Example: pml upstreams logs github --lines 20
    """
    try:
        reader = _reader(Command(config, as_json=as_json), name)
    except GatewayError as error:
        fail(error, as_json=as_json)
    last = reader.last(lines)
    if as_json and not follow:
        print_json({"server": name, "lines": last})
        return
    if not last and not follow:
        note(f"{name} has written nothing")
    for line in last:
        _print(line, as_json=as_json)
    while follow:
        for line in reader.more():
            _print(line, as_json=as_json)
        time.sleep(FOLLOW_SECONDS)


def _print(line: str, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps({"line": line}, ensure_ascii=False) + "\n")
    else:
        say(line)
    sys.stdout.flush()


def _reader(command: Command, name: str) -> LogReader:
    from pml_gateway.upstreams.child_log import log_path
    from pml_gateway.upstreams.log_reader import LogReader

    servers = command.load().settings.servers
    definition = servers.get(name)
    if definition is None:
        raise UsageError(
            f"no server {name!r} is configured{did_you_mean(name, servers)}", hint=f"known are {', '.join(servers)}"
        )
    if definition.resolved_transport is not Transport.STDIO:
        raise InvalidInputError(
            f"{name} is reached over {definition.resolved_transport.value}: the gateway does not see its stderr",
            hint="what went wrong there: pml upstreams",
        )
    return LogReader(log_path(command.paths.logs_dir, name), definition)
