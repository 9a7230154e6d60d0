"""`pml search` and `pml schema`: the meta-tools that find and describe, from the command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from pml_gateway.cli.completion import server_names, tool_names
from pml_gateway.cli.context import Command, ConfigOption, JsonOption
from pml_gateway.cli.output import answers, fail, print_json, print_table, say, told, wrapped
from pml_gateway.errors import ToolNotFoundError
from pml_gateway.owner.operations import SCHEMA, SEARCH
from pml_gateway.text import first_sentence, shown_score

if TYPE_CHECKING:
    from pml_gateway.owner.operations import OfGateway
    from pml_gateway.owner.results import ToolResult
    from pml_gateway.types import JsonObject

INDENTED = " " * 6
"""Fields shown below the name of a hit, in addition to its score."""


def search(
    query: Annotated[str, typer.Argument(help="What the tool should do; '*' lists the servers.")],
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, max=50, help="Hits at most. [default: search.limit; for '*' 50]")
    ] = None,
    server: Annotated[
        str | None, typer.Option("--server", help="Only this server's tools.", autocompletion=server_names)
    ] = None,
    detail: Annotated[
        str | None, typer.Option("--detail", help="signature, name or schema. [default: what it does]")
    ] = None,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="With what speaks for each hit: meaning alone, words alone, and an example."),
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find tools by what they do, as search_tools does.

    Example: pml search "read a file"
    """
    if detail not in (None, "signature", "name", "schema"):
        raise typer.BadParameter("use signature, name or schema", param_hint="--detail")
    given = {"query": query, "limit": limit, "detail": detail, "server": server, "explain": explain}
    command = Command(config, as_json=as_json)
    answer = _ask(command, SEARCH, {key: value for key, value in given.items() if value is not None})
    if as_json:
        print_json(answer)
    elif "servers" in answer:
        kinds = [kind for kind in ("tools", "skills") if any(kind in row for row in answer["servers"])]
        rows = ((row["server"], *(row.get(kind, 0) for kind in kinds)) for row in answer["servers"])
        print_table(("server", *kinds), rows)
        _say_unavailable(answer)
    elif "menu" in answer:
        for line in answer["menu"]:
            say(f"\n{INDENTED}".join(wrapped(line, len(INDENTED))))
        if "next_offset" in answer:
            say("more tools follow; pml tools lists all", style="dim")
        _say_unavailable(answer)
    elif answer["hits"]:
        for hit in answer["hits"]:
            name = f"skill {hit['name']} of {hit['server']}" if "kind" in hit else hit["name"]
            say(f"{shown_score(hit['score'])}  {name}" if "score" in hit else name, style="bold")
            if hit.get("description"):
                say(INDENTED + first_sentence(hit["description"], answers().width - len(INDENTED)))
            if "kind" in hit:
                say(f"{INDENTED}pml skills {hit['server']}:{hit['name']}", style="cyan")
            if detail == "signature" and "signature" in hit:
                for line in wrapped(hit["signature"], len(INDENTED)):
                    say(INDENTED + line, style="cyan")
            elif detail == "schema" and "inputSchema" in hit:
                for line in json.dumps(hit["inputSchema"], indent=2, ensure_ascii=False).splitlines():
                    say(INDENTED + line, style="cyan")
            if "evidence" in hit:
                scores = (f"{name}: {_shown(hit['evidence'][name])}" for name in ("meaning", "words"))
                say(INDENTED + ", ".join(scores), style="dim")
                if "example" in hit["evidence"]:
                    say(f"{INDENTED}asked of it: {hit['evidence']['example']}", style="dim")
        _say_unavailable(answer)
    else:
        say(answer["reason"])
        _say_unavailable(answer)
    if not as_json and answer.get("hits") and answer.get("unknown_words"):
        say(f"no tool knows: {', '.join(answer['unknown_words'])}; scores are halved", style="dim")
    if not as_json and answer.get("ranking"):
        say(f"ranked by: {answer['ranking']}", style="dim")
    if not as_json and answer.get("partial"):
        say(f"partial: {answer['partial']}", style="dim")


def _say_unavailable(answer: JsonObject) -> None:
    """Name the servers that have no tools now."""
    for each in answer.get("unavailable", ()):
        say(f"unavailable: {each['server']} ({each['reason']})", style="dim")
    if "more_unavailable" in answer:
        say(f"unavailable: {answer['more_unavailable']} more", style="dim")


def _shown(score: float | None) -> str:
    return "none" if score is None else shown_score(score)


def schema(
    names: Annotated[list[str], typer.Argument(help="Tool names.", autocompletion=tool_names)],
    format_: Annotated[str, typer.Option("--format", help="json, typescript or markdown.")] = "markdown",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Describe tools in full, as tool_schema does.

    Example: pml schema files__read_file --format typescript
    """
    if format_ not in ("json", "typescript", "markdown"):
        raise typer.BadParameter("use json, typescript or markdown", param_hint="--format")
    chosen = "json" if as_json else format_
    answer = _ask(Command(config, as_json=as_json), SCHEMA, {"names": names, "format": chosen})
    if as_json or chosen == "json":
        print_json(answer)
        return
    for tool in answer["tools"]:
        say(tool[chosen])
        say()
    if answer.get("errors"):
        fail(ToolNotFoundError(answer["errors"][0]["message"], hint=answer["errors"][0]["hint"]))


def _ask(command: Command, operation: OfGateway[ToolResult], arguments: JsonObject) -> JsonObject:
    """Return the data of a meta-tool's result; its error ends the command."""
    result = command.ask(operation, arguments)
    data: JsonObject = result["structuredContent"]
    if result.get("isError"):
        fail(told(data["error"]), as_json=command.as_json)
    return data
