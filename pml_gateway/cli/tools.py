"""`pml tools`: the catalog, what one client gets of it, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pml_gateway.cli.completion import client_names, set_names, setting_names
from pml_gateway.cli.context import Command, ConfigOption, JsonOption, ModeOption, PresetOption
from pml_gateway.cli.output import print_json, print_lines, print_table, say
from pml_gateway.owner.operations import EXPLAIN, TOOLS
from pml_gateway.text import counted, shown_score

if TYPE_CHECKING:
    from pml_gateway.owner.results import ExplainedTools
    from pml_gateway.reports.verdicts import ExplainedTool


def tools(
    query: Annotated[str | None, typer.Option("--query", help="Intent that selects tools.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Every tool, with why it is listed or not.")] = False,
    searched: Annotated[
        list[str] | None,
        typer.Option("--searched", help="With --explain: after this search of a session, if gateway.follow is on."),
    ] = None,
    client: Annotated[
        str | None,
        typer.Option("--client", metavar="NAME", help="As this configured client.", autocompletion=client_names),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="With --explain: a client started with this set.", autocompletion=set_names),
    ] = None,
    tried: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="KEY=VALUE",
            help="With --explain: as if this setting were so, and which tools that adds and removes.",
            autocompletion=setting_names,
        ),
    ] = None,
    config: ConfigOption = None,
    mode: ModeOption = None,
    preset: PresetOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the whole catalog, or with --mode, --preset or --client exactly what a client would get.

    Example: pml tools --explain --try gateway.hybrid.semantic_threshold=0.5

    Example: pml tools --mode hybrid --query "work with pull requests" --explain
    """
    command = Command(config, mode, preset, as_json)
    is_mode_given = mode is not None or preset is not None
    as_client = is_mode_given or client is not None
    asked = {"query": query, "client": client, "is_mode_given": is_mode_given}
    for option, given in (("--searched", searched), ("--set", sets), ("--try", tried)):
        if given and not explain:
            raise typer.BadParameter("needs --explain", param_hint=option)
    if sets and client is not None:
        raise typer.BadParameter("is for clients on this machine; those of an entry are configured", param_hint="--set")
    if explain:
        # What reads settings takes 0.2 s to import.
        from pml_gateway.config.single_settings import read_settings

        values = read_settings(tried or [], "--try")
        explained = command.ask(EXPLAIN, {**asked, "searched": searched or [], "sets": sets or [], "tried": values})
        _print_explained(explained, as_json=as_json)
        if searched and explained["follow"] == "off" and not as_json:
            say("--searched changes nothing: gateway.follow is off", style="yellow")
        return
    answer = command.ask(TOOLS, {**asked, "as_client": as_client})
    if as_json:
        print_json(answer)
        return
    rows = answer["tools"]
    columns = {
        "tool": [row["name"] for row in rows],
        "server": [row["server"] or "(gateway)" for row in rows],
        "why" if as_client else "state": [row["reason"] or row["state"] for row in rows],
        "effect": [row["effect"] or "" for row in rows],
        "what it does": [row["description"] for row in rows],
    }
    if all(row["state"] == "ok" for row in rows):
        # As it should be, which nobody has to be told of every tool.
        columns.pop("state", None)
    if not any(columns["effect"]):
        del columns["effect"]
    cells = list(zip(*columns.values(), strict=True))
    print_lines(list(columns), cells, shorten="what it does")
    say(counted(len(rows), "tool"), style="dim")


def _print_explained(answer: ExplainedTools, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    # The reports take 0.2 s to import.
    from pml_gateway.reports.verdicts import reason_in_words

    rows = answer["tools"]
    print_table(
        ("tool", "in", "score", "why"),
        ((row["name"], "yes" if row["listed"] else "no", _score(row), reason_in_words(row)) for row in rows),
    )
    listed, by_name = (sum(row[key] for row in rows) for key in ("listed", "callable"))
    intent = f"intent {answer['intent']!r}" if answer["intent"] else "no intent"
    if answer["follow"] == "searches":
        intent += ", and what the session just searched for and used"
    tokens = counted(answer["tokens"], "token")
    say(
        f"{answer['mode']}, {intent}: {listed} of {len(rows)} listed with {tokens}, {by_name} callable by name",
        style="dim",
    )
    if (change := answer["change"]) is not None:
        for what, names in (("comes in", change["comes_in"]), ("goes out", change["goes_out"])):
            say(f"{what}: {', '.join(names) or 'nothing'}")
        say(f"{tokens}, before {change['tokens_before']:,}")


def _score(row: ExplainedTool) -> str:
    return "" if row["score"] is None else shown_score(row["score"])
