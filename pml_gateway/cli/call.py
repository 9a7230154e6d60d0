"""`pml call`: a tool's parameters as options, a call, its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from pml_gateway.cli.arguments import Flag, flags_of, given_arguments, read_flags
from pml_gateway.cli.completion import tool_names, tool_schema
from pml_gateway.cli.context import Command, ConfigOption, JsonOption, command_gateway
from pml_gateway.cli.output import ExitCode, fail, print_json, print_table, printable, say, told
from pml_gateway.errors import InvalidInputError, ToolNotFoundError
from pml_gateway.text import escaped, quoted
from pml_gateway.types import SEPARATORS

if TYPE_CHECKING:
    from pml_gateway.gateway.gateway import Gateway
    from pml_gateway.types import JsonObject


class CallCommand(TyperCommand):
    """The command whose options depend on the tool: the shell completes those of the tool named on the line."""

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """The tool's options after the name, then those of the command."""
        own: list[Any] = super().shell_complete(ctx, incomplete)
        schema = tool_schema(ctx.params.get("config"), ctx.params.get("name") or "")
        if schema is None or not incomplete.startswith("-"):
            return own
        completion = type(super().shell_complete(ctx, "--")[0])  # its class is private to typer
        return [completion(option) for option in _options(flags_of(schema)) if option.startswith(incomplete)] + own


def _options(flags: list[Flag]) -> list[str]:
    options = [flag.option for flag in flags]
    return options + [f"--no-{flag.option.removeprefix('--')}" for flag in flags if flag.is_switch]


def _values(ctx: typer.Context, args: list[str], incomplete: str) -> list[str]:
    """The choices of the option before the cursor."""
    schema = tool_schema(ctx.params.get("config"), ctx.params.get("name") or "")
    if schema is None or not args:
        return []
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
        _print_parameters(name, command.run(lambda: _described(command, name)), as_json=as_json)
        return
    words = list(arguments or [])
    text = words.pop(0) if words and not words[0].startswith("--") else None
    result = command.run(lambda: _call(command, name, text, words, argument or []))
    if isinstance(result, InvalidInputError):
        raise typer.BadParameter(printable(f"{result.message}\n{result.hint or ''}".strip()))
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


async def _call(
    command: Command, name: str, text: str | None, words: list[str], pairs: list[str]
) -> JsonObject | InvalidInputError:
    """The result, or what is wrong with the command line."""
    from pml_gateway.gateway.calling import Caller
    from pml_gateway.gateway.request import CallOptions, RequestScope

    async with command_gateway(command) as gateway:
        await gateway.connect_once(name)
        schema = await _schema(gateway, name)
        try:
            given = read_flags(schema or {}, words, given_arguments(text, pairs, schema)) if schema is not None else {}
        except InvalidInputError as error:
            return error
        if schema is None:
            _refuse_disabled(gateway, name)
        call_tool = {"name": name, "arguments": given}
        return await Caller(gateway).as_owner(RequestScope(), "call_tool", call_tool, CallOptions())


async def _schema(gateway: Gateway, name: str) -> JsonObject | None:
    """The tool's own schema; none if there is no such tool, which the call itself will say best."""
    from pml_gateway.policy.client import LOCAL

    tool = (await gateway.ready()).view(LOCAL).resolve(name)
    return None if tool is None else tool.input_schema


def _refuse_disabled(gateway: Gateway, name: str) -> None:
    """Say that a server is disabled, instead of which other tool is called like its one.

    Raises:
        ToolNotFoundError: no tool of this name is there, and that is why.
    """
    for server, definition in gateway.state.settings.servers.items():
        if not definition.enabled and any(name.startswith(server + separator) for separator in SEPARATORS):
            raise ToolNotFoundError(f"{server} is disabled, and with it {name!r}", hint=f"pml enable {quoted(server)}")


async def _described(command: Command, name: str) -> JsonObject:
    from pml_gateway.policy.client import LOCAL

    async with command_gateway(command) as gateway:
        await gateway.connect_once(name)
        view = (await gateway.ready()).view(LOCAL)
        tool = view.resolve(name)
        if tool is None:
            _refuse_disabled(gateway, name)
            raise ToolNotFoundError(
                f"no tool {name!r}", hint=f"closest: {', '.join(view.closest(name)) or 'none; see pml tools'}"
            )
        return {"name": tool.qualified_name, "description": tool.description, "inputSchema": tool.input_schema}


def _print_parameters(name: str, tool: JsonObject, *, as_json: bool) -> None:
    if as_json:
        print_json(tool)
        return
    say(f"Usage: pml call {name} [JSON] [--PARAMETER VALUE]...\n", style="bold")
    if tool["description"]:
        say(f"{tool['description']}\n")
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
