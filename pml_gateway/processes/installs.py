"""First starts of package runners: each runs in a separate process, one at a time for each package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import anyio
import anyio.to_thread
from mcp.client.stdio import StdioServerParameters

from pml_gateway.config.commands.packages import PackageRun
from pml_gateway.files import take_lock, write_atomically
from pml_gateway.home import INSTALLS, warn_unwritable
from pml_gateway.processes.npx_cache import has_whole

FIRST_START = Path(__file__).with_name("first_start.py")

POLL_SECONDS = 0.1
"""Seconds between checks if an installation, perhaps of another gateway, is over."""

SPAWN_SECONDS = 10.0
GRACE_SECONDS = 20.0
"""Seconds that the process may take beyond its limit to end the server it started."""

LEFT_SECONDS = 16.0
"""Maximum seconds that an abandoned start may still take for its rollback (orphan_reaper.py)."""

AT_ONCE = max(4, os.cpu_count() or 1)
"""Maximum concurrent installations of one gateway: twenty at once on a small machine would all time out."""


class Outcome(StrEnum):
    """The outcome of a first start."""

    INSTALLED = "installed"
    ENDED = "ended"
    LATE = "late"


@dataclass(frozen=True, slots=True)
class FirstStartResult:
    """The result and time of a first start; `said` is the end of its stderr.

    Until `free_at`, another process may still be working on it.
    """

    outcome: Outcome
    at: float = 0.0
    exit_code: int | None = None
    said: bytes = b""
    free_at: float = 0.0

    @property
    def has_run(self) -> bool:
        """Return True if a process was started: one that ended by itself has an exit code."""
        return self.outcome is not Outcome.ENDED or self.exit_code is not None


INSTALLED = FirstStartResult(Outcome.INSTALLED)


class Installs:
    """The installed packages of package runners, recorded in a folder that all gateways on this home share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places = anyio.Semaphore(AT_ONCE)

    async def is_installed(self, run: PackageRun, parameters: StdioServerParameters) -> bool:
        """Return True if a start has nothing to install, as far as is known."""
        return await anyio.to_thread.run_sync(self._is_installed, run, parameters)

    async def see_through(
        self,
        run: PackageRun,
        parameters: StdioServerParameters,
        *,
        log_file: Path,
        seconds: float,
    ) -> FirstStartResult:
        """Wait until the package is installed by any process, or that failed; a cancellation does not stop it.

        Args:
            run: the package to install.
            parameters: how to start the server.
            log_file: the log for its stderr.
            seconds: time limit, not counting the wait for a place.
        """
        request = {
            "command": parameters.command,
            "args": parameters.args,
            "env": parameters.env,
            "cwd": None if parameters.cwd is None else str(parameters.cwd),
            "seconds": seconds,
            "log_file": str(log_file),
            "outcome_file": str(self._file(run, parameters)),
        }
        async with self._places:
            began = time.time()
            with anyio.move_on_after(seconds + GRACE_SECONDS):
                while True:
                    found = await anyio.to_thread.run_sync(self._step, run, parameters, json.dumps(request), began)
                    if found is not None:
                        return found
                    await anyio.sleep(POLL_SECONDS)
        return FirstStartResult(Outcome.LATE)

    async def said_last(self, run: PackageRun, parameters: StdioServerParameters) -> bytes:
        """Return the end of stderr of the previous start, if it failed."""
        last = await anyio.to_thread.run_sync(_read, self._file(run, parameters))
        return b"" if last is None or last.outcome is not Outcome.ENDED else last.said

    async def doubt(self, run: PackageRun, parameters: StdioServerParameters) -> None:
        """Treat the next start as a first one, because this start took too long for an installed server."""
        now = time.time()
        late = json.dumps({"outcome": Outcome.LATE, "at": now, "free_at": now + LEFT_SECONDS})
        with suppress(OSError):
            await anyio.to_thread.run_sync(write_atomically, self._file(run, parameters), late)

    def _is_installed(self, run: PackageRun, parameters: StdioServerParameters) -> bool:
        last = _read(self._file(run, parameters))
        return has_whole(run, parameters.env or {}) if last is None else last.outcome is Outcome.INSTALLED

    def _step(
        self, run: PackageRun, parameters: StdioServerParameters, request: str, began: float
    ) -> FirstStartResult | None:
        """Check the progress, and start the installation if no process does; return None while it continues."""
        file = self._file(run, parameters)
        try:
            lock = take_lock(file)
        except OSError as error:
            warn_unwritable(INSTALLS, self._folder, error)
            return INSTALLED
        if lock is None:
            return None
        try:
            last = _read(file)
            if last is not None and 0 < last.free_at - time.time() <= LEFT_SECONDS:
                return None
            is_new = last is not None and last.at >= began
            if last is not None and (is_new or last.outcome is Outcome.INSTALLED):
                return self._settled(last, file, has_whole(run, parameters.env or {}))
            if last is None and has_whole(run, parameters.env or {}):
                return INSTALLED
            _spawn(request, lock)
        finally:
            os.close(lock)
        return None

    def _settled(self, last: FirstStartResult, file: Path, is_whole: bool) -> FirstStartResult:
        """Return the outcome; if npx's cache has the package, drop the record, since the cache is authoritative."""
        if not is_whole or last.outcome is Outcome.LATE:
            return last
        file.unlink(missing_ok=True)
        # A server may end at once because of a missing key even if installed: the next start reports that.
        return INSTALLED

    def _file(self, run: PackageRun, parameters: StdioServerParameters) -> Path:
        return self._folder / f"{run.key(parameters.env or {})}.json"


def _spawn(request: str, lock: int) -> None:
    """Start a first start in a detached process that keeps the lock."""
    subprocess.run(
        # Isolated and without site-packages, since it needs neither; it forks once it has read the request.
        [sys.executable, "-I", "-S", str(FIRST_START)],
        input=request.encode(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={},
        pass_fds=(lock,),
        start_new_session=True,
        timeout=SPAWN_SECONDS,
        check=False,
    )


def _read(file: Path) -> FirstStartResult | None:
    try:
        raw = json.loads(file.read_bytes())
        return FirstStartResult(
            Outcome(raw["outcome"]),
            float(raw["at"]),
            raw.get("exit_code"),
            str(raw.get("said", "")).encode(),
            float(raw.get("free_at", 0)),
        )
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
