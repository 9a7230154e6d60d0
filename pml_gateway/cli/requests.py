"""`pml requests`: what is asked for tools, by which search finds them: listed, shown, removed, shared."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio.to_thread
import typer

from pml_gateway.cli.completion import server_names, tool_names
from pml_gateway.cli.consent import Consent, YesOption
from pml_gateway.cli.context import Command, ConfigOption, JsonOption, command_gateway
from pml_gateway.cli.output import fail, note, print_json, print_table, refuse_unasked, say
from pml_gateway.errors import GatewayError, InvalidInputError, UsageError
from pml_gateway.text import counted, quoted

if TYPE_CHECKING:
    from pml_gateway.catalog.model import CatalogTool
    from pml_gateway.gateway.gateway import Gateway
    from pml_gateway.requests.library import ExampleRequest, LibraryEntry, RequestLibrary
    from pml_gateway.types import JsonObject

requests_app = typer.Typer(name="requests", no_args_is_help=True)

ServerOption = Annotated[
    str | None,
    typer.Option("--server", metavar="ID", help="Only this server's tools.", autocompletion=server_names),
]


@requests_app.callback()
def requests() -> None:
    """Manage what people ask who need a tool: search finds tools by it, and no model ever reads it.

    Known public servers come with some; pml enrich has your own language model write more, pml requests learn takes
    them from use, and pml requests import brings in what others wrote.

    Example: pml requests list
    """


@requests_app.command("list")
def list_requests(
    server: ServerOption = None,
    shipped: Annotated[
        bool,
        typer.Option(
            "--shipped",
            help="The public servers whose tools are known, instead of yours; with --server, whose names hold it.",
        ),
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List how many requests each tool has: shipped with the gateway, your own, and from use.

    Example: pml requests list --server github
    """
    if shipped:
        _list_shipped(server, as_json=as_json)
        return
    command = Command(config, as_json=as_json)
    rows = [_row(tool, asked) for tool, asked in command.run(lambda: _known(command, server=server))]
    if as_json:
        print_json({"tools": rows})
        return
    if rows:
        print_table(
            ("tool", "your own", "from use", "shipped"),
            ((row["name"], row["owner"], row["use"], row["shipped"]) for row in rows),
        )
    found = sum(1 for row in rows if row["owner"] or row["use"] or row["shipped"])
    more = "; pml enrich has your language model write the others" if found < len(rows) else ""
    say(f"{found} of {counted(len(rows), 'tool')} with requests{more}", style="dim")


def _list_shipped(wanted: str | None, *, as_json: bool) -> None:
    from pml_gateway.requests.shipped import ShippedRequests

    try:
        known = ShippedRequests().servers()
    except GatewayError as error:
        fail(error, as_json=as_json)
    servers = [each for each in known if (wanted or "").casefold() in each.server.casefold()]
    if not servers:
        hint = "pml requests list --shipped names them all"
        fail(UsageError(f"no public server {wanted!r} is known", hint=hint), as_json=as_json)
    if as_json:
        print_json(
            {
                "servers": [
                    {"server": each.server, "package": each.package or None, "tools": list(each.tools)}
                    for each in servers
                ]
            }
        )
        return
    print_table(("server", "tools", "package"), ((each.server, len(each.tools), each.package) for each in servers))
    tools = sum(len(each.tools) for each in servers)
    say(f"{counted(tools, 'tool')} of {counted(len(servers), 'server')}", style="dim")


@requests_app.command("show")
def show(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="Its name.", autocompletion=tool_names)],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what is asked for one tool, and where each request comes from.

    Example: pml requests show github__create_issue
    """
    command = Command(config, as_json=as_json)
    [(found, asked)] = command.run(lambda: _known(command, name=tool))
    if as_json:
        listed = [{"text": request.text, "origin": request.origin.value} for request in asked]
        print_json({"name": found.qualified_name, "server": found.upstream_id, "requests": listed})
    elif asked:
        print_table(("from", "request"), ((_ORIGINS[request.origin.value], request.text) for request in asked))
    else:
        note(
            f"{found.qualified_name} has no requests; pml enrich {found.upstream_id} has your language model write some"
        )


_ORIGINS = {"owner": "your own", "use": "from use", "shipped": "shipped"}


@requests_app.command("learn")
def learn(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be kept, and end.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep what your clients searched for before they called a tool, as requests of that tool. Nothing leaves here.

    From the usage that is recorded on this machine (pml stats): searches after which a tool was called and succeeded.
    Each is judged as written ones are; what was learned before is replaced.

    Example: pml requests learn
    """
    from pml_gateway.requests.library import RequestOrigin

    command = Command(config, as_json=as_json)
    entries = command.run(lambda: _learned(command))
    texts = sum(len(entry.requests) for entry in entries)
    if not dry_run:
        try:
            library = _library(command)
            stale = [entry.digest for entry in library.entries() if entry.origin is RequestOrigin.USE]
            library.put_all(entries)
            library.remove(set(stale) - {entry.digest for entry in entries}, RequestOrigin.USE)
        except GatewayError as error:
            fail(error, as_json=as_json)
    if as_json:
        rows = [{"server": each.server, "name": each.name, "requests": list(each.requests)} for each in entries]
        print_json({"tools": rows, "requests": texts, "kept": not dry_run})
        return
    if dry_run and entries:
        print_table(
            ("server", "tool", "request"),
            ((each.server, each.name, text) for each in entries for text in each.requests),
        )
    told = "would be kept" if dry_run else "kept"
    note(
        f"{counted(texts, 'request')} of {counted(len(entries), 'tool')} {told}, from what was searched and then called"
    )


async def _learned(command: Command) -> list[LibraryEntry]:
    """Return the requests learned from usage for the current tools."""
    from pml_gateway.gateway.state import documents
    from pml_gateway.index import EmbeddingCache, load_embedder
    from pml_gateway.requests.learning import learned
    from pml_gateway.requests.library import LibraryEntry, RequestOrigin
    from pml_gateway.requests.sources import tool_digest
    from pml_gateway.usage.history import RecordFilter, read_history

    settings = command.load().settings
    calls = read_history(command.paths.usage_file, RecordFilter(command.identity)).calls
    async with command_gateway(command, of_all=True) as gateway:
        catalog = (await gateway.wait_for_tools()).catalog
        known = await anyio.to_thread.run_sync(gateway.requests.of, catalog.tools, settings.servers)
    others = [tuple(each for each in requests if each.origin is not RequestOrigin.USE) for requests in known]
    tools = {(tool.upstream_id, tool.name): tool for tool in catalog.tools}
    asked = [
        (tools[call.tool].qualified_name, call.query)
        for call in calls
        if call.succeeded and call.query and call.tool in tools
    ]

    def judged() -> dict[str, tuple[str, ...]]:
        cache = EmbeddingCache.of_catalog(command.paths.cache_dir, len(catalog.tools))
        return learned(
            documents(catalog.tools, catalog.ownership, others), asked, load_embedder(settings.search.model), cache
        )

    found = await anyio.to_thread.run_sync(judged) if asked else {}
    return [
        LibraryEntry(tool_digest(tool), tool.name, tool.upstream_id, RequestOrigin.USE, found[tool.qualified_name])
        for tool in catalog.tools
        if tool.qualified_name in found
    ]


@requests_app.command("remove")
def remove(
    tools: Annotated[
        list[str] | None, typer.Argument(metavar="TOOL", help="Their names.", autocompletion=tool_names)
    ] = None,
    server: ServerOption = None,
    unused: Annotated[bool, typer.Option("--unused", help="Those of definitions that no server lists now.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    yes: YesOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget requests of your own and from use; those that are shipped go with `search.requests: false` alone.

    Example: pml requests remove github__create_issue
    """
    if sum(map(bool, (tools, server, unused, everything))) != 1:
        fail(
            UsageError("name tools, or one of --server, --unused and --all", hint="pml requests list"), as_json=as_json
        )
    command = Command(config, as_json=as_json)
    chosen = command.run(lambda: _chosen(command, tools or (), server, unused=unused, everything=everything))
    asked = Consent(yes, as_json=as_json)
    is_unasked = bool(chosen) and asked.is_impossible
    removed = 0
    if chosen and asked.agrees(f"Forget the requests of {counted(len(chosen), 'tool')}?", default=False):
        try:
            removed = _library(command).remove(chosen)
        except GatewayError as error:
            fail(error, as_json=as_json)
    if as_json:
        print_json({"removed": removed})
    elif removed:
        note(f"forgot the requests of {counted(removed, 'tool')}")
    elif not chosen:
        note("there is nothing to remove")
    if is_unasked:
        refuse_unasked(
            as_json=as_json,
            done="removed",
            remedy=f"--yes to remove them; pml requests show {quoted(next(iter(chosen)))} shows those of the first",
        )


@requests_app.command("export")
def export(
    target: Annotated[Path | None, typer.Argument(metavar="FILE", help="Where to; - or none for stdout.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write your own requests, and those from use, as lines of JSON that others can import.

    Example: pml requests export requests.jsonl
    """
    from pml_gateway.files import write_atomically
    from pml_gateway.requests.exchange import exported

    command = Command(config, as_json=as_json)
    entries = _library(command).entries()
    text = "".join(f"{line}\n" for line in exported(entries))
    if target is None or str(target) == "-":
        sys.stdout.write(text)
        return
    try:
        write_atomically(target, text)
    except OSError as error:
        fail(InvalidInputError(f"{target} cannot be written: {error}", hint="name another file"), as_json=as_json)
    if as_json:
        print_json({"file": str(target), "definitions": len(entries)})
    else:
        note(f"wrote the requests of {counted(len(entries), 'definition')} to {target}")


@requests_app.command("import")
def import_requests(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="As pml requests export writes it; - for stdin.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add requests that others wrote to your own. Running gateways search by them within seconds.

    Each text is checked as what servers say is: what hides characters or speaks to a model is left out.

    Example: pml requests import requests.jsonl
    """
    from pml_gateway.requests.exchange import imported, read_entries, read_lines

    command = Command(config, as_json=as_json)
    try:
        file = None if str(source) == "-" else source
        result = imported(_library(command), read_entries(read_lines(file), str(file or "stdin")))
    except GatewayError as error:
        fail(error, as_json=as_json)
    if as_json:
        print_json({"definitions": result.definitions, "added": result.requests, "refused": result.refused})
        return
    note(f"{counted(result.requests, 'new request')} for {counted(result.definitions, 'definition')}")
    if result.refused:
        note(f"{counted(result.refused, 'text')} not kept: said already, too many for one tool, or not sound")


def _library(command: Command) -> RequestLibrary:
    from pml_gateway.requests.library import RequestLibrary

    return RequestLibrary(command.paths.requests_dir)


async def _known(
    command: Command, *, name: str = "", server: str | None = None
) -> list[tuple[CatalogTool, Sequence[ExampleRequest]]]:
    """Return the tools that are wanted, with what is asked for each."""
    async with command_gateway(command, of_all=not name) as gateway:
        state = await gateway.wait_for_tools()
        wanted = _wanted(gateway, [name] if name else [], server)
        asked = await anyio.to_thread.run_sync(gateway.requests.of, state.catalog.tools, state.settings.servers)
        return [
            (tool, each) for tool, each in zip(state.catalog.tools, asked, strict=True) if tool.qualified_name in wanted
        ]


def _wanted(gateway: Gateway, names: Sequence[str], server: str | None) -> set[str]:
    """Return the qualified names of the tools that are named, of a server, or of all.

    Raises:
        GatewayError: there is no such tool or server.
    """
    from pml_gateway.gateway.calling import find
    from pml_gateway.policy.client import LOCAL

    view = gateway.state.view(LOCAL)
    if names:
        return {find(view, name).qualified_name for name in names}
    if server is not None and server not in gateway.state.settings.servers:
        known = ", ".join(gateway.state.settings.servers)
        raise UsageError(f"no server {server!r} is configured", hint=f"there are: {known}")
    return {tool.qualified_name for tool in view.tools if server is None or tool.upstream_id == server}


async def _chosen(
    command: Command, names: Sequence[str], server: str | None, *, unused: bool, everything: bool
) -> list[str]:
    """Return the definitions whose requests are to go: those that have any in the library."""
    from pml_gateway.requests.sources import tool_digest

    known = await anyio.to_thread.run_sync(_library(command).all)
    if everything:
        return list(known)
    async with command_gateway(command) as gateway:
        tools = (await gateway.wait_for_tools()).catalog.tools
        if unused:
            return sorted(set(known) - {tool_digest(tool) for tool in tools})
        wanted = _wanted(gateway, names, server)
        return [digest for tool in tools if tool.qualified_name in wanted and (digest := tool_digest(tool)) in known]


def _row(tool: CatalogTool, asked: Sequence[ExampleRequest]) -> JsonObject:
    counts = Counter(request.origin.value for request in asked)
    return {
        "name": tool.qualified_name,
        "server": tool.upstream_id,
        **{origin: counts[origin] for origin in _ORIGINS},
    }
