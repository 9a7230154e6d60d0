"""The console beside `/mcp`: pages about the process that serves them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import anyio.to_thread
from starlette.types import ASGIApp

from pml_gateway.clients.places import Surroundings
from pml_gateway.config.findings import Finding
from pml_gateway.config.load import LoadedSettings
from pml_gateway.config.settings import Settings
from pml_gateway.console.access import ROOT, ConsoleAccess
from pml_gateway.console.app import Console
from pml_gateway.console.source import findings_of
from pml_gateway.errors import ConfigurationError, GatewayError
from pml_gateway.files import signature
from pml_gateway.hosts import KnownHosts
from pml_gateway.local.endpoint import Endpoint
from pml_gateway.local.health import health
from pml_gateway.local.serving_processes import ServingProcesses, status_as_json
from pml_gateway.owner.answering import AskedOperation, answer_of
from pml_gateway.owner.approvals import pending_approvals
from pml_gateway.owner.context import OperationContext
from pml_gateway.owner.operations import STATUS, OfGateway
from pml_gateway.owner.process import ServingProcess
from pml_gateway.owner.sockets import ask_gateways
from pml_gateway.paths import Paths
from pml_gateway.policy.owner_tokens import OwnerTokens
from pml_gateway.policy.refusals import is_loopback
from pml_gateway.reports.doctor.cases import MachineCase
from pml_gateway.reports.doctor.examine import examine
from pml_gateway.reports.status import with_disabled
from pml_gateway.serve.runtime import Runtime
from pml_gateway.types import ExposureMode

ANSWER_SECONDS = 3.0
"""Time limit in seconds for other processes to say how they are."""

ResultT = TypeVar("ResultT")


class ProcessSource:
    """The gateway that serves the pages, and what else runs beside it.

    Args:
        process: the process.
        runtime: its gateway over HTTP, which answers operations.
        paths: the gateway's files.
        identity: the configuration file.
        load: loads the configuration as it is now.
    """

    def __init__(
        self,
        process: ServingProcess,
        runtime: Runtime,
        paths: Paths,
        identity: str,
        load: Callable[[], LoadedSettings],
    ) -> None:
        self._process = process
        self._runtime = runtime
        self._load = load
        self._checked = signature(Path(identity))
        self._problem = ""
        self.identity = identity
        self.paths = replace(paths, config_file=Path(identity))

    def load(self) -> LoadedSettings:
        """Return the settings in force. Blocking."""
        return self._load()

    async def status(self) -> dict[str, Any]:
        """Return what `pml status --json` prints."""
        answers = await ask_gateways(self.paths, STATUS, ANSWER_SECONDS)
        # Without a socket of its own it still answers itself.
        found = answers.results or [await self._process.status()]
        machine = next((each for each in found if "started_by" in each), None)
        reports = with_disabled([each for each in found if each["gateways"]], await self._settings())
        return status_as_json(ServingProcesses(machine, reports, [*answers.errors, *filter(None, [self._problem])]))

    async def _settings(self) -> Settings:
        """Return the settings that are served; of a file that has changed, note whether it can be."""
        now = signature(Path(self.identity))
        if now != self._checked:
            self._checked, self._problem = now, ""
            try:
                await anyio.to_thread.run_sync(self._load)
            except ConfigurationError as error:
                self._problem = f"{error.message}; until it is fixed, clients are served by the previous configuration"
        return self._runtime.gateway.state.settings

    async def approvals(self) -> list[dict[str, Any]]:
        """Return the calls that wait for the owner, with their arguments."""
        return await pending_approvals(self.paths)

    async def examine(self) -> list[Finding]:
        """Return what `pml doctor` finds."""
        here = self._runtime.gateway.pool.working_directory
        answers = await ask_gateways(self.paths, STATUS, ANSWER_SECONDS, removes_dead=False)
        around = Surroundings.here(here.folder, here.environ)
        running = (answers.results, answers.errors, answers.dead)
        case = MachineCase(Settings(), here.environ, self.paths, self.identity, around, *running)
        endpoint = Endpoint.of(self.paths.home, self.identity)
        found, has_servers = await examine(
            case, self._load, lambda given: health(endpoint, given.settings), lambda _: None
        )
        return await findings_of(self, found, here.folder if has_servers else None)

    async def ask(
        self, operation: OfGateway[ResultT], arguments: Mapping[str, Any], *, mode: str | None = None
    ) -> ResultT:
        """Return the result of an operation.

        Raises:
            GatewayError: the operation failed.
        """
        context = OperationContext(
            self._runtime.gateway, self.paths, self.identity, mode=None if mode is None else ExposureMode(mode)
        )
        answer = await answer_of(AskedOperation(name=operation.name, arguments={**arguments}), context)
        if "error" in answer:
            raise GatewayError(answer["error"]["message"], hint=answer["error"].get("hint") or "")
        return operation.decoded(answer["result"])


def console_apps(
    source: ProcessSource, runtime: Runtime, tokens: OwnerTokens, hosts: KnownHosts
) -> Mapping[str, ASGIApp]:
    """Return the application of the console by its path, and have `pml console` open it."""
    replicas = runtime.gateway.replicas
    # Any replica forwards requests for pages below another one's id to it.
    access = ConsoleAccess(tokens=tokens, holder="" if replicas is None else f"{replicas.own.id}-")

    def link() -> str:
        host, _, port = (runtime.presence.url or "").removeprefix("http://").removesuffix("/mcp").rpartition(":")
        host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
        # A link is for this machine; from others only a token opens the console.
        return f"http://{host}:{port}{access.new_link() if is_loopback(host) else ROOT}"

    runtime.presence.console_link = link
    return {ROOT: Console(source, access, hosts).app()}
