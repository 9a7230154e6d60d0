"""`pml sets`: the sets of the configuration, what each gives, and what a client sees, with the rule that decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pml_gateway.cli.completion import client_names, set_names, tool_names
from pml_gateway.cli.context import Command, ConfigOption, JsonOption
from pml_gateway.cli.output import print_json, print_table, say
from pml_gateway.owner.operations import SETS, TRY_CLIENT
from pml_gateway.text import counted

if TYPE_CHECKING:
    from pml_gateway.owner.results import Decided, TriedClient

sets_app = typer.Typer(
    name="sets",
    help="Show sets: named tools that clients are given.\n\nExample: pml sets try ci-bot github__create_issue",
    no_args_is_help=True,
)

LOCAL = "local"
"""Stands for a client over stdio, which has no entry in the configuration."""


@sets_app.command("list")
def list_(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List the sets, how many tools each gives, and who has it.

    Example: pml sets list
    """
    answer = Command(config, as_json=as_json).ask(SETS)
    if as_json:
        print_json(answer)
        return
    if not answer["sets"]:
        say("no sets are configured; pml docs sets says how to write one")
        return
    print_table(
        ("set", "tools", "effects", "listed by", "given to"),
        (
            (
                row["name"],
                row["tools"],
                ", ".join(row["effects"]) or "any",
                row["mode"] or row["preset"] or "",
                ", ".join(row["given_to"]),
            )
            for row in answer["sets"]
        ),
    )


@sets_app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A set or role.", autocompletion=set_names)],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a client over stdio sees that has this set or role alone.

    Example: pml sets show work
    """
    command = Command(config, as_json=as_json)
    answer = command.ask(TRY_CLIENT, {"client": None, "sets": [name], "client_name": "", "tool": None})
    shown: TriedClient = {**answer, "decided": [each for each in answer["decided"] if each["visible"]]}
    _show(shown, as_json=as_json)


@sets_app.command("try")
def try_(
    client: Annotated[
        str,
        typer.Argument(help="An entry of `clients:`, or local: a client over stdio.", autocompletion=client_names),
    ],
    tool: Annotated[str | None, typer.Argument(help="Only this tool.", autocompletion=tool_names)] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="With local: started with this set or role.", autocompletion=set_names),
    ] = None,
    client_name: Annotated[
        str, typer.Option("--name", help="The name that the client gives itself, for gateway.sets_by_client_name.")
    ] = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a client sees, what is hidden from it, and which rule decided.

    Example: pml sets try local --set work
    """
    if sets and client != LOCAL:
        raise typer.BadParameter("is for local: the sets of an entry are in the configuration", param_hint="--set")
    entry = None if client == LOCAL else client
    asked = {"client": entry, "sets": sets or [], "client_name": client_name, "tool": tool}
    _show(Command(config, as_json=as_json).ask(TRY_CLIENT, asked), as_json=as_json)


def _show(answer: TriedClient, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    rows = answer["decided"]
    print_table(
        ("name", "kind", "effect", "visible", "rule"),
        (
            (row["name"], row["kind"], row["effect"] or "", "yes" if row["visible"] else "no", _rule(row))
            for row in rows
        ),
    )
    visible = sum(row["visible"] for row in rows)
    narrowed = ", narrowed by ".join(" and ".join(group) for group in answer["groups"])
    of_roles = f" by the role {', '.join(answer['roles'])}" if answer["roles"] else ""
    say(f"{answer['client']}: {narrowed or 'no set'}{of_roles}; mode {answer['mode']}", style="dim")
    say(f"{counted(visible, 'thing')} of {len(rows)} visible", style="dim")


def _rule(row: Decided) -> str:
    keys = ", ".join(row["keys"])
    return f"{row['rule']} ({keys})" if keys else row["rule"]
