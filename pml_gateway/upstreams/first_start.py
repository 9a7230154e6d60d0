"""Installation before the first start of an upstream whose command fetches a package."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from mcp.client.stdio import StdioServerParameters

from pml_gateway.config.commands.packages import PackageRun, package_run
from pml_gateway.config.settings import EffectiveSettings
from pml_gateway.errors import GatewayError, UpstreamUnavailableError, UpstreamUnusableError
from pml_gateway.mcp.transport import process_parameters
from pml_gateway.processes import npx_cache
from pml_gateway.processes.child_log import log_path
from pml_gateway.processes.installs import FirstStartResult, Installs, Outcome
from pml_gateway.secrets.masking import mask_text, without_defaults
from pml_gateway.text import escaped, shortened
from pml_gateway.working_directory import WorkingDirectory

MAX_SHOWN = 60
"""Maximum length of a package's name in a message."""

MAX_LINE = 200
"""Maximum length of a quoted line of a package runner."""

_UNKNOWN = re.compile(
    # npm, pnpm, bun, yarn; then uv and pip; then deno and docker.
    rb"E404|ETARGET|ENOVERSIONS|ERR_PNPM_FETCH_404|NO_MATCHING_VERSION|is not in (?:this|the npm) registry"
    rb"|registry\.npmjs\.org/\S+ - 404|No version matching|(?:Package|package) not found"
    rb"|was not found in the package registry|there is no version of|No matching distribution found"
    rb"|npm package '[^']*' does not exist|JSR package not found"
    rb"|manifest (?:for \S+ not found|unknown)|repository does not exist"
)
"""Output of package runners if a registry has no such package or version."""

RETRY_SECONDS = 5.0
"""Seconds after which a call that came during an installation may be retried."""


class FirstStart:
    """Installs the package of one upstream before its server is started, if its command fetches one."""

    def __init__(
        self,
        effective: EffectiveSettings,
        installs: Installs | None,
        logs_dir: Path,
        working_directory: WorkingDirectory,
    ) -> None:
        self._upstream_id = effective.upstream_id
        self._definition = effective.definition
        self._workplace = working_directory
        run = package_run(self._definition.command or "", self._definition.args)
        self.limit = 0.0 if run is None else effective.first_start_timeout
        self._name = "" if run is None else _shown(run)
        self._installs = installs if run is not None else None
        self._log_file = log_path(logs_dir, effective.upstream_id)
        self._began = 0.0
        self._was_unknown = False

    async def run(self, on_begin: Callable[[], None]) -> None:
        """Install what is missing; call `on_begin` if there is anything.

        Raises:
            GatewayError: the installation failed, or the server cannot be started at all.
        """
        found = self._found()
        if self._installs is None or found is None or await self._installs.is_installed(*found):
            return
        self._began = time.monotonic()
        self._was_unknown = names_unknown_package(await self._installs.said_last(*found))
        on_begin()
        started = await self._installs.see_through(*found, log_file=self._log_file, seconds=self.limit)
        # Without a process there was nothing to install with: the start that follows reports the error.
        if started.outcome is not Outcome.INSTALLED and started.has_run:
            raise self._failure(found[0], started)

    async def is_due(self) -> bool:
        """Return True if a package must be installed before the server can be started.

        Raises:
            GatewayError: the server cannot be started at all.
        """
        found = self._found()
        return self._installs is not None and found is not None and not await self._installs.is_installed(*found)

    async def doubt(self) -> None:
        """Treat the next start as a first one, as this one took too long: the runner may have begun a download."""
        found = self._found()
        if self._installs is not None and found is not None:
            await self._installs.doubt(*found)

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

    def _failure(self, run: PackageRun, started: FirstStartResult) -> GatewayError:
        broken = npx_cache.broken(self._upstream_id, started.said, run)
        if broken is not None:
            return broken
        if names_unknown_package(started.said):
            return UpstreamUnusableError(
                f"{self._upstream_id}: {self._name} does not exist, says {run.runner}: {_last_words(started.said)}",
                hint=f"correct the name or version in servers.{self._upstream_id}.args, or log in to its registry",
                details={"executed": "no", "state": "unknown_package"},
            )
        if started.outcome is Outcome.LATE:
            return UpstreamUnavailableError(
                f"{self._upstream_id}: {self._name} did not answer within the {self.limit:g} s of its first start",
                hint=f"raise upstreams.first_start_timeout; its messages: pml upstreams logs {self._upstream_id}",
            )
        code = "" if started.exit_code is None else f" with exit code {started.exit_code}"
        return UpstreamUnavailableError(
            f"{self._upstream_id}: {self._name} ended{code} at its first start, before it answered",
            hint=f"its messages: pml upstreams logs {self._upstream_id}",
        )


def names_unknown_package(said: bytes) -> bool:
    """Return True if a package runner said that there is no such package or version."""
    return _UNKNOWN.search(said) is not None


def _last_words(said: bytes) -> str:
    """Return the last line that names the missing package: the first ones are codes."""
    lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    line = next((line for line in reversed(lines) if _UNKNOWN.search(line.encode())), lines[-1])
    return shortened(escaped(mask_text(line)), MAX_LINE)


def _shown(run: PackageRun) -> str:
    """Return runner and package for messages, without secrets."""
    return f"{run.runner} {shortened(escaped(mask_text(without_defaults(run.packages[0]))), MAX_SHOWN)}"
