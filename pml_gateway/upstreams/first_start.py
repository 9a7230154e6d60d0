"""The first start of an upstream whose command fetches a package: a longer time limit, and one for each package."""

from __future__ import annotations

import time
from collections.abc import Callable

from mcp.client.stdio import StdioServerParameters

from pml_gateway.config.commands.packages import PackageRun, package_run
from pml_gateway.config.settings import EffectiveSettings
from pml_gateway.errors import GatewayError, UpstreamUnavailableError, UpstreamUnusableError
from pml_gateway.mcp.transport import process_parameters
from pml_gateway.processes.installs import Install, Installs, Outcome
from pml_gateway.processes.package_faults import UNKNOWN_PACKAGE, shown
from pml_gateway.working_directory import WorkingDirectory

RETRY_SECONDS = 5.0
"""Seconds after which a call that came during an installation may be retried."""


class FirstStart:
    """The first start of one upstream, if its command fetches a package."""

    def __init__(
        self, effective: EffectiveSettings, installs: Installs | None, working_directory: WorkingDirectory
    ) -> None:
        self._upstream_id = effective.upstream_id
        self._definition = effective.definition
        self._workplace = working_directory
        run = package_run(self._definition.command or "", self._definition.args)
        self.limit = 0.0 if run is None else effective.first_start_timeout
        self._name = "" if run is None else shown(run)
        self._installs = installs if run is not None else None
        self._began = 0.0
        self._was_unknown = False

    async def is_due(self) -> bool:
        """Return True if a package must be installed before the server can be started.

        Raises:
            GatewayError: the server cannot be started at all.
        """
        found = self._found()
        return self._installs is not None and found is not None and not await self._installs.is_installed(*found)

    async def begin(self, on_begin: Callable[[], None]) -> Install | None:
        """Wait until the package may be installed; return None if nothing is missing, else call `on_begin` at once.

        Raises:
            GatewayError: another start still installs it, or the server cannot be started at all.
        """
        found = self._found()
        if self._installs is None or found is None or await self._installs.is_installed(*found):
            return None
        self._began = time.monotonic()
        self._was_unknown = await self._installs.last(*found) is Outcome.UNKNOWN
        on_begin()
        try:
            return await self._installs.begin(*found, self.limit)
        except TimeoutError as error:
            raise self._no_answer() from error

    def failed(self, install: Install | None, error: GatewayError) -> None:
        """Record that the package does not exist, if that is the error of its first start."""
        if install is not None and error.details.get("state") == UNKNOWN_PACKAGE:
            install.note(Outcome.UNKNOWN)

    async def late(self, install: Install | None, pid: int | None) -> GatewayError | None:
        """Treat the next start as a first one, as this one took too long; return the error if this was one, too."""
        found = self._found()
        if install is not None:
            install.note(Outcome.LATE)
            return self._no_answer()
        if self._installs is not None and found is not None:
            # The runner may have begun to fetch a new version.
            await self._installs.doubt(*found, pid or 0)
        return None

    def progress(self) -> GatewayError:
        """Return the error for requests during the installation."""
        seconds = time.monotonic() - self._began if self._began else 0.0
        if self._was_unknown:
            return UpstreamUnusableError(
                f"{self._upstream_id}: {self._name} did not exist when it was last tried; it is tried again",
                hint=f"correct the name or version in servers.{self._upstream_id}.args",
                details={"executed": "no", "state": "installing", "retry_after_seconds": RETRY_SECONDS},
            )
        return UpstreamUnavailableError(
            f"{self._upstream_id}: installing, {self._name} for the first time: {seconds:.0f} s so far, "
            f"at most {self.limit:g} s",
            hint="it goes on by itself; try again in a moment",
            details={"executed": "no", "state": "installing", "retry_after_seconds": RETRY_SECONDS},
        )

    def _found(self) -> tuple[PackageRun, StdioServerParameters] | None:
        """Return the package and the command that runs it; None if the command fetches no package."""
        if self._installs is None:
            return None
        parameters = process_parameters(self._upstream_id, self._definition, self._workplace)
        run = package_run(parameters.command, parameters.args)
        return None if run is None else (run, parameters)

    def _no_answer(self) -> GatewayError:
        return UpstreamUnavailableError(
            f"{self._upstream_id}: {self._name} did not answer within the {self.limit:g} s of its first start",
            hint=f"raise upstreams.first_start_timeout; its messages: pml upstreams logs {self._upstream_id}",
        )
