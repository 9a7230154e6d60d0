"""`pml tools`: the catalog, what one client gets of it, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pml_gateway.cli.completion import client_names
from pml_gateway.cli.context import Command, ConfigOption, JsonOption, ModeOption, PresetOption
from pml_gateway.cli.output import print_json, print_lines, print_table, say
from pml_gateway.text import counted

if TYPE_CHECKING:
    from pml_gateway.types import JsonObject


def tools(
    query: Annotated[str | None, typer.Option("--query", help="Intent that selects tools.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Every tool, with why it is listed or not.")] = False,
    client: Annotated[
        str | None,
        typer.Option("--client", metavar="NAME", help="As this configured client.", autocompletion=client_names),
    ] = None,
    config: ConfigOption = None,
    mode: ModeOption = None,
    preset: PresetOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the whole catalog, or with --mode, --preset or --client exactly what a client would get.

    Example: pml tools --mode hybrid --query "work with pull requests" --explain
    """
    command = Command(config, mode, preset, as_json)
    is_mode_given = mode is not None or preset is not None
    as_client = is_mode_given or client is not None
    asked = {"query": query, "client": client, "is_mode_given": is_mode_given}
    if explain:
        _print_explained(command.ask("explain", {**asked, "lists_by_intent": not query}), as_json=as_json)
        return
    answer = command.ask("tools", {**asked, "as_client": as_client, "lists_by_intent": as_client and not query})
    if as_json:
        print_json(answer)
        return
    rows = answer["tools"]
    columns = ["tool", "server", "why" if as_client else "state", "what it does"]
    cells = [
        [row["name"], row["server"] or "(gateway)", row["reason"] or row["state"], row["description"]] for row in rows
    ]
    if not as_client and all(row["state"] == "ok" for row in rows):
        # As it should be, which nobody has to be told of every tool.
        columns, cells = [*columns[:2], columns[3]], [[*row[:2], row[3]] for row in cells]
    print_lines(columns, cells, shorten="what it does")
    say(counted(len(rows), "tool"), style="dim")


def _print_explained(answer: JsonObject, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    rows = answer["tools"]
    print_table(
        ("tool", "in", "score", "why"),
        ((row["name"], "yes" if row["listed"] else "no", _score(row), _why(row)) for row in rows),
    )
    listed, by_name = (sum(row[key] for row in rows) for key in ("listed", "callable"))
    intent = f"intent {answer['intent']!r}" if answer["intent"] else "no intent"
    say(f"{answer['mode']}, {intent}: {listed} of {len(rows)} listed, {by_name} callable by name", style="dim")


def _score(row: JsonObject) -> str:
    return "" if row["score"] is None else f"{row['score']:.2f}"


def _why(row: JsonObject) -> str:
    decided = f" ({row['limit']:g})" if row["limit"] is not None else ""
    matched = f" by {row['pattern']!r}" if row["pattern"] else ""
    place = f", place {row['place']}" if row["place"] is not None and not row["listed"] else ""
    return f"{row['reason']}{decided}{matched}{place}"
