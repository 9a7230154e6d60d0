"""`pml prompts`, `resources`, `skills`: what the servers offer beside tools, listed, got and read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pml_gateway.cli.context import Command, ConfigOption, JsonOption
from pml_gateway.cli.output import note, print_json, print_table, say, warn
from pml_gateway.owner.operations import OFFERS, PROMPT, RESOURCE, SKILL, SKILLS
from pml_gateway.text import counted

if TYPE_CHECKING:
    from pml_gateway.owner.results import ReadResource
    from pml_gateway.types import JsonObject


def prompts(
    name: Annotated[str | None, typer.Argument(help="Get this prompt instead of listing all.")] = None,
    argument: Annotated[
        list[str] | None, typer.Option("--arg", metavar="NAME=VALUE", help="One argument of the prompt.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the prompts of every server, or get one.

    Example: pml prompts review --arg language=python
    """
    command = Command(config, as_json=as_json)
    pairs = [pair.partition("=") for pair in argument or ()]
    if any(not separator for _, separator, _ in pairs):
        raise typer.BadParameter("--arg takes NAME=VALUE")
    if name is None:
        _list(command, ("prompt", "server", "arguments", "description"), ("prompts",), "prompts")
        return
    result = command.ask(PROMPT, {"name": name, "arguments": {key: value for key, _, value in pairs}})
    if as_json:
        print_json(result)
        return
    for message in result.get("messages", ()):
        say(f"{message.get('role')}:", style="bold")
        _say_content(message.get("content") or {})


def resources(
    uri: Annotated[str | None, typer.Argument(help="Read this resource instead of listing all.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the resources and resource templates of every server, or read one.

    Example: pml resources file:///notes.txt
    """
    command = Command(config, as_json=as_json)
    if uri is None:
        _list(command, ("resource", "server", "type", "description"), ("resources", "templates"), "resources")
        return
    _say_contents(command, command.ask(RESOURCE, {"uri": uri}))


def skills(
    name: Annotated[
        str | None,
        typer.Argument(help="Show this skill instead of listing all; NAME/PATH is a file beside its SKILL.md."),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the skills of your folders and of every server, or show one.

    Example: pml skills refunds
    """
    command = Command(config, as_json=as_json)
    if name is not None:
        _say_contents(command, command.ask(SKILL, {"name": name}))
        return
    answer = command.ask(SKILLS)
    if as_json:
        print_json({key: answer[key] for key in ("skills", "faults")})
        return
    if answer["skills"]:
        rows = ((row["name"], row["server"], len(row["files"]) or "", row["description"]) for row in answer["skills"])
        print_table(("skill", "server", "files", "description"), rows)
    else:
        _say_none("skills", answer["failed"], answer["servers"])
        note("`skills: [FOLDER]` in the configuration serves folders of your own; pml docs skills")
    for fault in answer["faults"]:
        warn(f"not served: {fault}")


def _list(command: Command, columns: tuple[str, ...], kinds: tuple[str, ...], what: str) -> None:
    answer = command.ask(OFFERS, {"kinds": [*kinds]})
    listed = answer["listed"]
    if command.as_json:
        print_json(listed)
        return
    rows = [
        (row.get("name") if kind == "prompts" else row.get("uri") or row["uriTemplate"], row["server"], *_facts(row))
        for kind in kinds
        for row in listed[kind]
    ]
    if rows:
        print_table(columns, rows)
    else:
        _say_none(what, answer["failed"], answer["servers"])


def _say_none(what: str, failed: dict[str, str], asked: int) -> None:
    """Say why the list is empty, and the remedy."""
    note(f"no {what}: {asked - len(failed)} of {counted(asked, 'server')} answered, with none that is allowed")
    for reason in failed.values():
        warn(reason)
    note("pml doctor says what to do about it" if failed else "pml upstreams lists what each server offers")


def _say_contents(command: Command, result: ReadResource) -> None:
    if command.as_json:
        print_json(result)
        return
    for contents in result.get("contents", ()):
        _say_content({"type": "resource", "resource": contents})


def _facts(row: JsonObject) -> tuple[str, str]:
    arguments = ", ".join(f"{each['name']}{'' if each.get('required') else '?'}" for each in row.get("arguments", ()))
    return arguments or str(row.get("mimeType", "")), str(row.get("description") or row.get("title") or "")


def _say_content(content: JsonObject) -> None:
    resource = content.get("resource") or {}
    text = content.get("text", resource.get("text"))
    say(
        text
        if isinstance(text, str)
        else f"[{content.get('type')} {content.get('mimeType', resource.get('mimeType', ''))}]"
    )
