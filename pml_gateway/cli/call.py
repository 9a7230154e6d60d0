"""`pml call`: a tool's parameters as options, a call, its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from pml_gateway.cli.completion import tool_names, tool_schema
from pml_gateway.cli.context import Command, ConfigOption, JsonOption
from pml_gateway.cli.output import ExitCode, fail, print_json, print_table, printable, say, told
from pml_gateway.owner import operations
from pml_gateway.text import escaped

if TYPE_CHECKING:
    from pml_gateway.owner.arguments import Flag
    from pml_gateway.owner.results import ToolDescription


class CallCommand(TyperCommand):
    """The command whose options depend on the tool: the shell completes those of the tool named on the line."""

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return the tool's options after the name, then those of the command."""
        own: list[Any] = super().shell_complete(ctx, incomplete)
        schema = tool_schema(ctx.params.get("config"), ctx.params.get("name") or "")
        if schema is None or not incomplete.startswith("-"):
            return own
        from pml_gateway.owner.arguments import flags_of

        completion = type(super().shell_complete(ctx, "--")[0])  # its class is private to typer
        return [completion(option) for option in _options(flags_of(schema)) if option.startswith(incomplete)] + own


def _options(flags: list[Flag]) -> list[str]:
    options = [flag.option for flag in flags]
    return options + [f"--no-{flag.option.removeprefix('--')}" for flag in flags if flag.is_switch]


def _values(ctx: typer.Context, args: list[str], incomplete: str) -> list[str]:
    """Return the choices of the option before the cursor."""
    schema = tool_schema(ctx.params.get("config"), ctx.params.get("name") or "")
    if schema is None or not args:
        return []
    from pml_gateway.owner.arguments import flags_of

    flag = next((flag for flag in flags_of(schema) if flag.option == args[-1]), None)
    choices = () if flag is None else flag.choices or (flag.item.choices if flag.item is not None else ())
    # A shell writes what it completes to the terminal.
    return [text for text in map(str, choices) if text.startswith(incomplete) and escaped(text) == text]


def call(
    ctx: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="Tool name, also as server:tool.", autocompletion=tool_names)
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JSON] [--PARAMETER VALUE]...",
            help="Arguments as a JSON object, or the tool's parameters as options (pml call NAME --help lists them).",
            autocompletion=_values,
        ),
    ] = None,
    argument: Annotated[
        list[str] | None, typer.Option("--arg", metavar="NAME=VALUE", help="One argument, whatever its name.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    wants_help: Annotated[bool, typer.Option("--help", help="Show this message, or a tool's parameters.")] = False,
) -> None:
    """Call a tool and print its result. Options that pml has itself go to the tool after `--`.

    Example: pml call calc__evaluate_expression --expression "6 * 7"
    """
    if name is None:
        if not wants_help:
            raise typer.BadParameter("name a tool; pml tools lists them", param_hint="NAME")
        say(ctx.get_help())
        return
    command = Command(config, as_json=as_json)
    if wants_help:
        _print_parameters(name, command.ask(operations.DESCRIBE, {"name": name}), as_json=as_json)
        return
    words = list(arguments or [])
    text = words.pop(0) if words and not words[0].startswith("--") else None
    given = {"name": name, "text": text, "words": words, "pairs": argument or []}
    answer = command.ask(operations.CALL, given)
    if (wrong := answer.get("wrong")) is not None:
        raise typer.BadParameter(printable(f"{wrong['message']}\n{wrong['hint']}".strip()))
    result = answer["answer"]
    error = (result.get("structuredContent") or {}).get("error") if result.get("isError") else None
    if as_json:
        print_json(result)
    elif isinstance(error, dict) and {"code", "message", "hint"} <= error.keys():
        fail(told(error))
    else:
        for item in result.get("content", ()):
            say(item["text"] if item.get("type") == "text" else f"[{item.get('type')} {item.get('mimeType', '')}]")
    if result.get("isError"):
        raise typer.Exit(ExitCode.FAILED)


CALL_OPTIONS: dict[str, Any] = {
    "cls": CallCommand,
    "add_help_option": False,
    "context_settings": {"ignore_unknown_options": True},
}
"""Settings of the command: options unknown to it are the tool's."""


def _print_parameters(name: str, tool: ToolDescription, *, as_json: bool) -> None:
    if as_json:
        print_json(tool)
        return
    say(f"Usage: pml call {name} [JSON] [--PARAMETER VALUE]...\n", style="bold")
    if tool["description"]:
        say(f"{tool['description']}\n")
    from pml_gateway.owner.arguments import flags_of

    flags = flags_of(tool["inputSchema"])
    if not flags:
        say("It takes no parameters.")
        return
    print_table(
        ("parameter", "value", "what it is"),
        (
            (
                f"{flag.option}{' *' if flag.required else ''}",
                "(switch)" if flag.is_switch else flag.values,
                " ".join(flag.description.split()),
            )
            for flag in flags
        ),
    )
    if any(flag.required for flag in flags):
        say("* required", style="dim")
