"""`pml example-queries`: what is asked for tools, by which search finds them: listed, shown, removed, shared."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pml_gateway.cli.completion import server_names, tool_names
from pml_gateway.cli.consent import Consent, YesOption
from pml_gateway.cli.context import Command, ConfigOption, JsonOption, bring_up_to_date
from pml_gateway.cli.output import note, print_json, print_table, say
from pml_gateway.errors import InvalidInputError, UsageError
from pml_gateway.owner.operations import EXAMPLES, LEARN_EXAMPLES
from pml_gateway.text import counted, quoted

if TYPE_CHECKING:
    from pml_gateway.example_queries.library import ExampleLibrary
    from pml_gateway.owner.results import ExamplesOfTool
    from pml_gateway.types import JsonObject

example_queries_app = typer.Typer(name="example-queries", no_args_is_help=True)

ServerOption = Annotated[
    str | None,
    typer.Option("--server", metavar="ID", help="Only this server's tools.", autocompletion=server_names),
]


@example_queries_app.callback()
def examples() -> None:
    """Manage what people ask who need a tool: search finds tools by it, and no model ever reads it.

    Known public servers come with some; pml enrich has your own language model write more, pml example-queries learn
    takes them from use, and pml example-queries import brings in what others wrote.

    Example: pml example-queries list
    """


@example_queries_app.command("list")
def list_examples(
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
    """List how many example queries each tool has: shipped with the gateway, your own, and from use.

    Example: pml example-queries list --server github
    """
    if shipped:
        _list_shipped(server, as_json=as_json)
        return
    command = Command(config, as_json=as_json)
    known = command.ask(EXAMPLES, {"names": [], "server": server})["tools"]
    rows = [_row(each) for each in known]
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
    say(f"{found} of {counted(len(rows), 'tool')} with examples{more}", style="dim")


def _list_shipped(wanted: str | None, *, as_json: bool) -> None:
    from pml_gateway.example_queries.shipped import ShippedExamples

    servers = [each for each in ShippedExamples().servers() if (wanted or "").casefold() in each.server.casefold()]
    if not servers:
        raise UsageError(
            f"no public server {wanted!r} is known", hint="pml example-queries list --shipped names them all"
        )
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


@example_queries_app.command("show")
def show(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="Its name.", autocompletion=tool_names)],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what is asked for one tool, and where each query comes from.

    Example: pml example-queries show github__create_issue
    """
    command = Command(config, as_json=as_json)
    [found] = command.ask(EXAMPLES, {"names": [tool], "server": None})["tools"]
    if as_json:
        print_json({key: found[key] for key in ("name", "server", "examples")})
    elif found["examples"]:
        print_table(("from", "example"), ((_ORIGINS[each["origin"]], each["text"]) for each in found["examples"]))
    else:
        note(f"{found['name']} has no examples; pml enrich {found['server']} has your language model write some")


_ORIGINS = {"owner": "your own", "use": "from use", "shipped": "shipped"}


@example_queries_app.command("learn")
def learn(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be kept, and end.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep what your clients searched for before they called a tool, as its example queries. Nothing leaves here.

    From the usage that is recorded on this machine (pml stats): searches after which a tool was called and succeeded.
    Each is judged as written ones are; what was learned before is replaced.

    Example: pml example-queries learn
    """
    from pml_gateway.example_queries.library import ExampleOrigin, LibraryEntry

    command = Command(config, as_json=as_json)
    entries = [
        LibraryEntry(each["digest"], each["name"], each["server"], ExampleOrigin.USE, tuple(each["examples"]))
        for each in command.ask(LEARN_EXAMPLES)["tools"]
    ]
    texts = sum(len(entry.examples) for entry in entries)
    if not dry_run:
        _library(command).replace_all(entries, ExampleOrigin.USE)
    if as_json:
        rows = [{"server": each.server, "name": each.name, "examples": list(each.examples)} for each in entries]
        print_json({"tools": rows, "examples": texts, "kept": not dry_run})
        return
    if dry_run and entries:
        print_table(
            ("server", "tool", "example"),
            ((each.server, each.name, text) for each in entries for text in each.examples),
        )
    told = "would be kept" if dry_run else "kept"
    note(
        f"{counted(texts, 'example')} of {counted(len(entries), 'tool')} {told}, from what was searched and then called"
    )


@example_queries_app.command("remove")
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
    """Forget example queries of your own and from use; shipped ones go with `search.example_queries: false` alone.

    Example: pml example-queries remove github__create_issue
    """
    if sum(map(bool, (tools, server, unused, everything))) != 1:
        raise UsageError("name tools, or one of --server, --unused and --all", hint="pml example-queries list")
    command = Command(config, as_json=as_json)
    if everything:
        chosen = list(_library(command).all())
    else:
        kept, found = _library(command).all(), command.ask(EXAMPLES, {"names": tools or [], "server": server})
        named = [each["digest"] for each in found["tools"] if each["digest"] in kept]
        chosen = sorted(kept.keys() - {*found["digests"]}) if unused else named
    asked = Consent(yes, as_json=as_json)
    removed = 0
    if chosen and asked.agrees(f"Forget the examples of {counted(len(chosen), 'tool')}?", default=False):
        removed = _library(command).remove(chosen)
    if as_json:
        print_json({"removed": removed})
    elif removed:
        note(f"forgot the examples of {counted(removed, 'tool')}")
    elif not chosen:
        note("there is nothing to remove")
    if chosen:
        asked.refuse_if_impossible(
            done="removed",
            remedy=f"--yes to remove them; see pml example-queries show {quoted(next(iter(chosen)))} for the first",
        )


@example_queries_app.command("export")
def export(
    target: Annotated[Path | None, typer.Argument(metavar="FILE", help="Where to; - or none for stdout.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write your own example queries, and those from use, as lines of JSON that others can import.

    Example: pml example-queries export examples.jsonl
    """
    from pml_gateway.example_queries.exchange import exported
    from pml_gateway.files import write_atomically

    command = Command(config, as_json=as_json)
    entries = _library(command).entries()
    text = "".join(f"{line}\n" for line in exported(entries))
    if target is None or str(target) == "-":
        sys.stdout.write(text)
        return
    try:
        write_atomically(target, text)
    except OSError as error:
        raise InvalidInputError(f"{target} cannot be written: {error}", hint="name another file") from None
    if as_json:
        print_json({"file": str(target), "definitions": len(entries)})
    else:
        note(f"wrote the examples of {counted(len(entries), 'definition')} to {target}")


@example_queries_app.command("import")
def import_examples(
    source: Annotated[
        Path, typer.Argument(metavar="FILE", help="As pml example-queries export writes it; - for stdin.")
    ],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add example queries that others wrote to your own. Running gateways search by them within seconds.

    Each text is checked as what servers say is: what hides characters or speaks to a model is left out.

    Example: pml example-queries import examples.jsonl
    """
    from pml_gateway.example_queries.exchange import imported, read_entries, read_lines

    command = Command(config, as_json=as_json)
    file = None if str(source) == "-" else source
    result = imported(_library(command), read_entries(read_lines(file), str(file or "stdin")))
    if as_json:
        print_json({"definitions": result.definitions, "added": result.examples, "refused": result.refused})
        return
    note(f"{counted(result.examples, 'new example')} for {counted(result.definitions, 'definition')}")
    if result.refused:
        note(f"{counted(result.refused, 'text')} not kept: said already, too many for one tool, or not sound")


def _library(command: Command) -> ExampleLibrary:
    from pml_gateway.example_queries.library import ExampleLibrary

    documents = command.shared_documents()
    library = ExampleLibrary(command.paths.example_queries_dir, documents)
    bring_up_to_date(documents)
    return library


def _row(tool: ExamplesOfTool) -> JsonObject:
    counts = Counter(each["origin"] for each in tool["examples"])
    return {"name": tool["name"], "server": tool["server"], **{origin: counts[origin] for origin in _ORIGINS}}
