"""Context of commands: options, loaded settings, and a gateway, either this machine's or their own.

Commands that ask the running gateway are as fast as what they import, so that everything large is imported when needed.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pml_gateway.cli.completion import mode_names, preset_names
from pml_gateway.cli.output import fail, messages, note, told, warn
from pml_gateway.errors import ConfigurationError, GatewayError, SharedStateError, UsageError, innermost

if TYPE_CHECKING:
    from pml_gateway.config.load import LoadedSettings
    from pml_gateway.owner.operations import OfGateway
    from pml_gateway.paths import Paths
    from pml_gateway.storage.shared_documents import SharedDocuments
    from pml_gateway.types import JsonObject

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
NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Command:
    """Options of a command."""

    config_file: Path | None = None
    mode: str | None = None
    preset: str | None = None
    as_json: bool = False
    overrides: dict[str, Any] | None = None

    @property
    def paths(self) -> Paths:
        """Return the paths of the gateway's files."""
        from pml_gateway.paths import Paths

        return Paths.from_environ(os.environ)

    @property
    def identity(self) -> str:
        """Return the identity of this configuration: its file."""
        return self.paths.identity(self.config_file)

    def load(self) -> LoadedSettings:
        """Return the settings in force.

        Raises:
            ConfigurationError: with every problem found.
        """
        from pml_gateway.config.load import load_settings, with_servers

        loaded = load_settings(
            config_file=self.config_file, mode=self.mode, preset=self.preset, overrides=self.overrides
        )
        return with_servers(loaded, self.identity)

    def shared_documents(self) -> SharedDocuments | None:
        """Return the documents that replicas have in common, if this configuration is that of several."""
        from pml_gateway.config.load import load_settings
        from pml_gateway.storage.shared_documents import open_documents

        return open_documents(load_settings(config_file=self.config_file).settings.storage)

    def run(self, work: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Run a command's work, which a signal ends; an error ends the process with its message and exit code."""
        from pml_gateway.serve.signals import run_until_signalled

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

    def ask(
        self,
        operation: OfGateway[ResultT],
        arguments: Mapping[str, Any] = NOTHING,
        hear: Callable[[Mapping[str, Any]], None] = lambda _: None,
    ) -> ResultT:
        """Return the result of an operation of this machine's gateway, which is started if there is none.

        Where `local.attach` is off, or no gateway can be shared, it is that of a gateway of this command's own.

        Args:
            operation: the operation.
            arguments: what it is given.
            hear: gets what is told meanwhile beside how far it has come.

        Raises:
            GatewayError: there is no gateway, or the operation failed.
        """
        with ExitStack() as shown:
            telling = _ProgressDisplay(shown, hear)
            answer = self._asked(operation.name, arguments, telling)
            if answer is None:
                answer = self.run(lambda: _in_own_gateway(self, operation.name, arguments, telling))
        if not self.as_json:
            for warning in answer.get("warnings", ()):
                warn(warning)
        if "error" in answer:
            error = told(answer["error"])
            error.exit_code = answer["exit"]
            raise error
        return operation.decoded(answer["result"])

    def _asked(
        self, operation: str, arguments: Mapping[str, Any], telling: Callable[[Mapping[str, Any]], None]
    ) -> JsonObject | None:
        """Return the answer of the gateway of this machine; None where none is to be shared."""
        from pml_gateway.cli.asking import ask
        from pml_gateway.local.bridge import RefusedError, ServeAloneError
        from pml_gateway.local.endpoint import UnsupportedSystemError
        from pml_gateway.local.entry import folder, may_be_off

        config = None if self.config_file is None else str(self.config_file)
        options = {"config": config, "mode": self.mode, "preset": self.preset}
        if may_be_off(options, os.environ, folder()) and not self.load().settings.local.attach:
            return None
        try:
            return ask(operation, arguments, options, telling)
        except ServeAloneError:
            return None
        except UnsupportedSystemError as error:
            raise ConfigurationError(str(error)) from None
        except RefusedError as refused:
            kind = {2: UsageError, 78: ConfigurationError}.get(refused.exit_code, GatewayError)
            raise kind(refused.message, hint=refused.hint) from None


def bring_up_to_date(documents: SharedDocuments | None) -> None:
    """Take over what other replicas have changed; if Redis does not answer, warn and go on with what was known last."""
    if documents is not None:
        try:
            documents.pull()
        except SharedStateError as error:
            warn(f"{error.message}; what is shown was known here last")


class _ProgressDisplay:
    """Display of an operation's progress on a terminal; other notices are passed on."""

    def __init__(self, shown: ExitStack, hear: Callable[[Mapping[str, Any]], None]) -> None:
        self._shown = shown
        self._hear = hear
        self._update: Callable[[str], None] | None = None

    def __call__(self, notice: Mapping[str, Any]) -> None:
        match notice:
            case {"progress": str() as text}:
                if self._update is None:
                    self._update = self._shown.enter_context(messages().status(text)).update
                self._update(text)
            case {"note": str() as text}:
                note(text)
            case _:
                self._hear(notice)


async def _in_own_gateway(
    command: Command, operation: str, arguments: Mapping[str, Any], telling: Callable[[Mapping[str, Any]], None]
) -> JsonObject:
    """Return the answer of a gateway that lives as long as the command."""
    # The server stack takes 0.7 s to import, which `pml --help` and `pml config` never need.
    import anyio

    from pml_gateway.config.settings import LogSettings
    from pml_gateway.gateway.gateway import open_gateway
    from pml_gateway.meta.meta_tools import ALL_META_TOOLS
    from pml_gateway.owner.answering import AskedOperation, answer_of
    from pml_gateway.owner.context import OperationContext
    from pml_gateway.serve.reload import follow_files
    from pml_gateway.serve.runtime import watched_files
    from pml_gateway.telemetry import logs
    from pml_gateway.working_directory import WorkingDirectory

    # Servers' faults are told as answers and warnings; the log would say them again, in the middle of the answer.
    logs.configure(LogSettings(level="error"))
    loaded = command.load()
    async with (
        open_gateway(
            loaded.settings, command.paths, identity=command.identity, meta_tools=ALL_META_TOOLS, connect=False
        ) as gateway,
        anyio.create_task_group() as tasks,
    ):
        watched = watched_files(command.paths, WorkingDirectory.here())
        tasks.start_soon(follow_files, gateway, loaded, command.load, watched)
        context = OperationContext(gateway, command.paths, command.identity, telling)
        asked = AskedOperation(name=operation, arguments={**arguments})
        answer = await answer_of(asked, context, loaded.warnings)
        tasks.cancel_scope.cancel()
    return answer
