"""The `pml` command: its commands and groups, each imported if the command line names it, and unforeseen faults."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from pml_gateway import __version__
from pml_gateway.cli.output import ExitCode, error_object, fail, note, print_json, without_known_secrets
from pml_gateway.errors import GatewayError, UsageError, innermost
from pml_gateway.gc_pause import collection_put_off

MODULES = {
    "demo": "demo",
    "init": "init",
    "add": "servers",
    "remove": "servers",
    "enable": "servers",
    "disable": "servers",
    "rename": "servers",
    "clients": "clients",
    "connect": "clients",
    "disconnect": "clients",
    "status": "status",
    "console": "console",
    "up": "local",
    "down": "local",
    "restart": "local",
    "doctor": "doctor",
    "docs": "docs",
    "serve": "serve",
    "tools": "tools",
    "search": "inspect",
    "schema": "inspect",
    "enrich": "enrich",
    "prompts": "prompts_and_resources",
    "resources": "prompts_and_resources",
    "skills": "prompts_and_resources",
    "call": "call",
    "tokens": "tokens",
    "refresh": "upstreams",
    "stats": "stats",
    "service": "service",
    "secrets": "secrets",
    "keys": "keys",
    "backups": "backups",
    "upstreams": "upstreams",
    "activity": "activity",
    "migrate": "migrate",
    "config": "config",
    "eval": "evaluate",
    "workflow": "workflow",
    "sets": "sets",
    "trust": "trust",
    "rules": "rules",
    "approvals": "approvals",
    "example-queries": "example_queries",
}
"""The module of each command and group, in the order of `pml --help`. A group is `NAME_app` there; a command is a
function, mounted with `NAME_OPTIONS` if the module has them."""

MEANT = {"stop": "down", "start": "up", "list": "tools"}
"""Commands by names that other programs have for them."""


class Commands(Mapping[str, Any]):
    """All commands by name. Each is imported at its first use, because all of them take half a second."""

    def __init__(self) -> None:
        self._imported: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._imported:
            self._imported[name] = _imported(name)
        return self._imported[name]

    def __iter__(self) -> Iterator[str]:
        return iter(MODULES)

    def __len__(self) -> int:
        return len(MODULES)


def _imported(name: str) -> Any:
    with collection_put_off():
        module = import_module(f"pml_gateway.cli.{MODULES[name]}")
    own, around = name.replace("-", "_"), typer.Typer()
    if (group := getattr(module, f"{own}_app", None)) is not None:
        around.add_typer(group)
    else:
        around.command(**getattr(module, f"{own.upper()}_OPTIONS", {}))(getattr(module, own))
    command = get_group(around).commands[name]
    _lay_out(command)
    return command


class Program(TyperGroup):
    """The whole command line. Where JSON was asked for, what is wrong with the words is said as JSON too."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{**given, "commands": Commands()})

    def main(self, args: Sequence[str] | None = None, *given: Any, **options: Any) -> Any:
        """Run the command that these words are for, and end the process with its exit code."""
        # Not when it is made: typer adds the options for completion afterwards.
        _lay_out_own(self)
        words = sys.argv[1:] if args is None else [*args]
        options["obj"] = wants_json(words)
        if not options["obj"] or not options.get("standalone_mode", True):
            return super().main(args, *given, **options)
        try:
            code = super().main(words, *given, **{**options, "standalone_mode": False})
        except typer.TyperException as error:
            # Its classes of usage errors are private to typer, but for the one of parameters.
            text, context = getattr(error, "format_message", error.__str__)(), getattr(error, "ctx", None)
            hint = f"{context.command_path} --help says what it takes" if context is not None else ""
            print_json(error_object(UsageError(text, hint=hint)))
            code = ExitCode.USAGE
        sys.exit(code if isinstance(code, int) else ExitCode.OK)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the words name; an error suggests what is called so elsewhere."""
        try:
            return super().resolve_command(ctx, args)
        except typer.TyperException as error:
            from pml_gateway.docs import topic_about

            if meant := MEANT.get(args[0]):
                error.message = f"No such command {args[0]!r}. Did you mean {meant!r}?"
            elif ctx.parent is None and (topic := topic_about(args[0])) is not None:
                error.message = f"No such command {args[0]!r}. It is explained by: pml docs {topic}"
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run a command; an error that it raises ends the process with its message and exit code."""
        try:
            return super().invoke(ctx)
        except GatewayError as error:
            fail(error, as_json=ctx.obj)


def _lay_out(command: Any) -> None:
    """Have the help of a command, and of those below it, wrapped as wide as the terminal, with no type for a flag."""
    _lay_out_own(command)
    for each in getattr(command, "commands", {}).values():
        _lay_out(each)


def _lay_out_own(command: Any) -> None:
    command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in (command.help or "").split("\n\n"))
    for parameter in (*command.params, command.get_help_option(typer.Context(command))):
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""


def wants_json(words: Sequence[str]) -> bool:
    """Return True if the option is among the words before `--`."""
    own = itertools.takewhile(lambda word: word != "--", words)
    return "--json" in own


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"pml {__version__}\n")
        raise typer.Exit


def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """One MCP endpoint in front of all your MCP servers; you choose how many tools the model sees.

    Start with: pml demo, pml init, pml connect CLIENT. Exit codes: 0 done, 1 failed, 2 usage, 78 configuration.

    Example: pml search "create an issue"
    """


app = typer.Typer(name="pml", cls=Program, no_args_is_help=True, pretty_exceptions_enable=False)
app.callback()(root)


def main() -> None:
    """Run the command line; whatever is not foreseen ends as one line and exit code 1."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(ExitCode.FAILED)
    # The last line of defence: a person gets a sentence, and the whole story with PML_DEBUG=1.
    except Exception as raised:
        if os.environ.get("PML_DEBUG"):
            raise
        error = innermost(raised)
        text = without_known_secrets(f"{type(error).__name__}: {error}")
        if wants_json(sys.argv[1:]):
            print_json(error_object(GatewayError(text, hint="PML_DEBUG=1 shows where")))
        else:
            note(f"internal error: {text} (PML_DEBUG=1 shows where)")
        sys.exit(ExitCode.FAILED)
