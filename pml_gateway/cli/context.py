"""What commands start from: options, loaded settings and, where needed, a gateway that lives as long as the command."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import anyio
import typer

from pml_gateway.cli.completion import mode_names, preset_names
from pml_gateway.cli.output import fail, messages, note, warn
from pml_gateway.config.advice import intent_sources
from pml_gateway.config.load import LoadedSettings, load_settings, with_servers
from pml_gateway.config.settings import LogSettings
from pml_gateway.errors import GatewayError, innermost
from pml_gateway.paths import Paths
from pml_gateway.serve.signals import run_until_signalled
from pml_gateway.telemetry import logs

if TYPE_CHECKING:
    from pml_gateway.gateway.gateway import Gateway

ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Configuration file instead of the user's.")
]
ModeOption = Annotated[
    str | None,
    typer.Option(
        "--mode", metavar="MODE", help="meta_only, semantic, hybrid or full_proxy.", autocompletion=mode_names
    ),
]
PresetOption = Annotated[
    str | None,
    typer.Option("--preset", metavar="NAME", help="Exposure of a preset.", autocompletion=preset_names),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Command:
    """What a command was started with."""

    config_file: Path | None = None
    mode: str | None = None
    preset: str | None = None
    as_json: bool = False
    overrides: dict[str, Any] | None = None

    @property
    def paths(self) -> Paths:
        """Where the gateway's files lie."""
        return Paths.from_environ(os.environ)

    @property
    def identity(self) -> str:
        """What names this configuration: its file."""
        return self.paths.identity(self.config_file)

    def load(self) -> LoadedSettings:
        """The settings in force.

        Raises:
            ConfigurationError: with every problem found.
        """
        loaded = load_settings(
            config_file=self.config_file, mode=self.mode, preset=self.preset, overrides=self.overrides
        )
        return with_servers(loaded, self.identity)

    def run(self, work: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Run a command's work, which a signal ends; an error ends the process with its message and exit code."""
        try:
            return run_until_signalled(work)
        except (GatewayError, BaseExceptionGroup) as raised:
            error = innermost(raised)
            if isinstance(error, SystemExit):
                # rich leaves so when nobody reads the answer any more
                raise error from None
            if not isinstance(error, GatewayError):
                raise
            fail(error, as_json=self.as_json)


def recorded_searches(command: Command) -> list[str]:
    """What was searched for on this configuration, oldest first; nothing where the records cannot be read."""
    from pml_gateway.usage.history import Wanted, read_history

    with suppress(GatewayError):
        return [each.query for each in read_history(command.paths.usage_file, Wanted(command.identity)).searches]
    return []


async def _tell_of_installations(gateway: Gateway) -> None:
    """Say once of each server that it is installed first, as that takes longer than anybody expects."""
    from pml_gateway.reports.status import PROGRESS_SECONDS

    told: set[str] = set()
    while True:
        for name, upstream in gateway.pool.upstreams.items():
            if name not in told and (progress := upstream.installing) is not None:
                told.add(name)
                note(f"{progress.message}; it goes on if you interrupt this")
        await anyio.sleep(PROGRESS_SECONDS)


@asynccontextmanager
async def command_gateway(
    command: Command,
    *,
    connect: bool = False,
    timeout: float | None = None,
    lists_by_intent: bool = False,
    of_all: bool = False,
) -> AsyncIterator[Gateway]:
    """A gateway for one command. It answers from the manifest; without one, or asked to, it connects first.

    It waits for servers as long as the slowest may take to connect, or for `timeout` seconds.

    That no intent is configured is said where `lists_by_intent`, and not at every other command; which servers' tools
    are not known, where the answer is `of_all`.
    """
    # The server stack takes 0.7 s to import, which `pml --help` and `pml config` never need.
    from pml_gateway.gateway.gateway import open_gateway
    from pml_gateway.meta.meta_tools import ALL_META_TOOLS
    from pml_gateway.reports.status import tell_waiting

    # Servers' faults are told as answers and warnings; the log would say them again, in the middle of the answer.
    logs.configure(LogSettings(level="error"))
    loaded = command.load()
    if not command.as_json:
        unsaid = () if lists_by_intent else intent_sources(loaded.settings)
        for warning in loaded.warnings:
            if warning not in unsaid:
                warn(warning)
    settings = loaded.settings
    async with open_gateway(
        settings, command.paths, identity=command.identity, meta_tools=ALL_META_TOOLS, connect=connect
    ) as gateway:
        if connect or not gateway.knows_tools:
            slowest = max((upstream.longest_start for upstream in gateway.pool.upstreams.values()), default=0.0)
            with messages().status("starting the servers") as shown:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(tell_waiting, gateway, shown.update)
                    tasks.start_soon(_tell_of_installations, gateway)
                    await gateway.refresh(timeout or slowest + 1)
                    tasks.cancel_scope.cancel()
        if of_all and not command.as_json and (unlisted := gateway.unlisted()):
            warn(f"nothing is known of the tools of {', '.join(unlisted)}; pml upstreams --probe says why")
        yield gateway
