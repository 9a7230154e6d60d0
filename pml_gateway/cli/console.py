"""`pml console`: web pages about the gateway, for its owner's browser."""

from __future__ import annotations

import webbrowser
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pml_gateway.cli.context import Command, ConfigOption
from pml_gateway.cli.output import note, say

if TYPE_CHECKING:
    from pml_gateway.owner.operations import OfGateway
    from pml_gateway.types import JsonObject

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class CommandSource:
    """The gateway of this machine, asked as commands ask it; it is started if none runs."""

    command: Command

    async def status(self) -> JsonObject:
        """Return what `pml status --json` prints."""
        from pml_gateway.cli.status import look, status_as_json

        return status_as_json(await look(self.command))

    async def ask(
        self, operation: OfGateway[ResultT], arguments: Mapping[str, Any], *, mode: str | None = None
    ) -> ResultT:
        """Return the result of an operation."""
        import anyio.to_thread

        command = replace(self.command, mode=mode)
        return await anyio.to_thread.run_sync(partial(command.ask, operation, arguments), abandon_on_cancel=True)


def console(
    port: Annotated[int, typer.Option("--port", help="Port on 127.0.0.1; 0 takes a free one.", min=0, max=65535)] = 0,
    opens: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
    config: ConfigOption = None,
) -> None:
    """Show in a browser what runs, what each client sees and why, and what a search finds, until Ctrl-C.

    The pages are for this machine alone. The link works once.

    Example: pml console
    """
    # A command that prints warnings would print them at each page.
    command = Command(config, as_json=True)

    def announce(link: str) -> None:
        say(link)
        note("the link works once, for five minutes; Ctrl-C ends the console")
        if opens:
            webbrowser.open(link)

    async def serve() -> None:
        # The server takes 0.2 s to import.
        from pml_gateway.console.server import serve_console

        await serve_console(CommandSource(command), port, announce)

    command.run(serve)
