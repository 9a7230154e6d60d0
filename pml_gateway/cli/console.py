"""`pml console`: web pages about the gateway, for its owner's browser."""

from __future__ import annotations

import webbrowser
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pml_gateway.cli.context import Command, ConfigOption, JsonOption
from pml_gateway.cli.local import MachineGateway
from pml_gateway.cli.output import note, print_json_line, say
from pml_gateway.errors import ConfigurationError, GatewayError
from pml_gateway.local.commands import ask
from pml_gateway.local.endpoint import Endpoint
from pml_gateway.owner.operations import CONSOLE, EXPECT

if TYPE_CHECKING:
    from pml_gateway.config.findings import Finding
    from pml_gateway.config.load import LoadedSettings
    from pml_gateway.owner.operations import OfGateway
    from pml_gateway.paths import Paths
    from pml_gateway.types import JsonObject

ANSWER_SECONDS = 15.0
"""Time limit in seconds for the gateway to answer; it is busy while it loads its search model."""

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class CommandSource:
    """The gateway of this machine, asked as commands ask it."""

    command: Command
    endpoint: Endpoint

    @property
    def identity(self) -> str:
        """Return the configuration file."""
        return self.command.identity

    @property
    def paths(self) -> Paths:
        """Return the paths of the gateway's files, the configuration among them."""
        return replace(self.command.paths, config_file=Path(self.identity))

    def load(self) -> LoadedSettings:
        """Return the settings in force.

        Raises:
            ConfigurationError: with every problem found.
        """
        return self.command.load()

    async def status(self) -> JsonObject:
        """Return what `pml status --json` prints."""
        from pml_gateway.cli.status import look
        from pml_gateway.local.serving_processes import status_as_json

        return status_as_json(await look(self.command))

    async def approvals(self) -> list[JsonObject]:
        """Return the calls that wait for the owner, with their arguments."""
        from pml_gateway.owner.approvals import pending_approvals

        return await pending_approvals(self.paths)

    async def examine(self) -> list[Finding]:
        """Return what `pml doctor` finds."""
        from pml_gateway.cli.doctor import examined
        from pml_gateway.console.source import findings_of

        found, has_servers = await examined(self.command, lambda _: None)
        return await findings_of(self, found, Path.cwd() if has_servers else None)

    async def ask(
        self, operation: OfGateway[ResultT], arguments: Mapping[str, Any], *, mode: str | None = None
    ) -> ResultT:
        """Return the result of an operation.

        Raises:
            GatewayError: no gateway runs, or the operation failed.
        """
        import anyio.to_thread

        def work() -> ResultT:
            # No page starts a gateway: that forks, which is not safe beside other threads.
            if ask(self.endpoint, EXPECT, ANSWER_SECONDS, awaits_start=False) is None:
                raise GatewayError("no gateway runs", hint="pml up, or the next client, starts it")
            return replace(self.command, mode=mode).ask(operation, arguments)

        return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)


def console(
    port: Annotated[int, typer.Option("--port", help="Port on 127.0.0.1; 0 takes a free one.", min=0, max=65535)] = 0,
    opens: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show in a browser what runs, what each client sees and why, and what a search finds, until Ctrl-C.

    The pages are for this machine alone. The link works once. A gateway with http.console serves them itself.

    Example: pml console
    """
    command = Command(config, as_json=as_json)

    def announce(link: str, ends: str = "Ctrl-C ends the console") -> None:
        if as_json:
            print_json_line({"url": link})
        else:
            say(link)
            note(f"the link works once, for five minutes; {ends}" if "?link=" in link else "log in with your token")
        if opens:
            webbrowser.open(link)

    if (served := command.run(partial(_served_at, command))) is not None:
        announce(served, "the gateway goes on serving the console")
        return
    if not command.load().settings.local.attach:
        raise ConfigurationError("local.attach is off, and the console shows the gateway that clients share")
    machine = MachineGateway.of(command)
    machine.start(stays=False)
    # A gateway that a client starts ends after ten seconds without one: this one waits for the page.
    ask(machine.endpoint, EXPECT, ANSWER_SECONDS)

    async def serve() -> None:
        # The server takes 0.2 s to import.
        from pml_gateway.console.server import serve_console

        # As JSON, so that no page's warnings are printed.
        source = CommandSource(replace(command, as_json=True), machine.endpoint)
        await serve_console(source, port, announce)

    command.run(serve)


async def _served_at(command: Command) -> str | None:
    """Return an address that opens the console of a running gateway, if one serves it."""
    from pml_gateway.owner.sockets import ask_gateways

    answers = await ask_gateways(command.paths, CONSOLE, ANSWER_SECONDS)
    found = (each["url"] for each in answers.results if each["config"] == command.identity)
    return next(filter(None, found), None)
