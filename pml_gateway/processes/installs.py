"""Packages that runners install at their first start: one start at a time for each, recorded in a shared folder."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

import anyio
import anyio.to_thread
from mcp.client.stdio import StdioServerParameters

from pml_gateway.config.commands.packages import PackageRun
from pml_gateway.files import take_lock
from pml_gateway.processes.orphan_reaper import KILL_SECONDS, LEAVE_SECONDS, ROLLBACK_SECONDS
from pml_gateway.processes.package_faults import has_whole
from pml_gateway.storage import kinds
from pml_gateway.storage.documents import Document, compact, parsed
from pml_gateway.storage.places import INSTALLS, warn_unwritable

POLL_SECONDS = 0.1
"""Seconds between checks if an installation, perhaps of another gateway, is over."""

LEFT_SECONDS = LEAVE_SECONDS + ROLLBACK_SECONDS + KILL_SECONDS
"""Maximum seconds that a start lives on after its time limit."""

AT_ONCE = max(4, os.cpu_count() or 1)
"""Maximum concurrent installations of one gateway: twenty at once on a small machine would all time out."""


class Outcome(StrEnum):
    """The outcome of the latest start that had something to install."""

    BEGUN = "begun"
    INSTALLED = "installed"
    UNKNOWN = "unknown"  # the registry has no such package
    LATE = "late"


@dataclass(frozen=True, slots=True)
class InstallRecord:
    """The latest start of a package; its process group may still be at work until the time `until`."""

    outcome: Outcome
    group: int = 0
    until: float = 0.0

    @property
    def is_at_work(self) -> bool:
        """Return True if the process group may still be installing something."""
        if not self.group or time.time() >= self.until:
            return False
        try:
            os.killpg(self.group, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # on macOS an unreaped member
        return True


_Document = Document[InstallRecord | None]


class Install:
    """One start that may install a package; no other start of the package begins until this one is over."""

    def __init__(self, record: _Document, lock: int, places: anyio.Semaphore, seconds: float) -> None:
        self.until = time.time() + seconds
        self._record = record
        self._places = places
        self._lock = lock
        self._group = 0
        self.is_over = False

    def began(self, group: int) -> None:
        """Record the process group of the start, which may outlive this process."""
        self._group = group
        self.note(Outcome.BEGUN)

    def note(self, outcome: Outcome) -> None:
        """Record the outcome so far."""
        _write(self._record, InstallRecord(outcome, self._group, self.until + LEFT_SECONDS))

    def answered(self) -> None:
        """Record that the package is installed, and let other starts of it begin."""
        if not self.is_over:
            _write(self._record, InstallRecord(Outcome.INSTALLED))
            self.end()

    def end(self) -> None:
        """Let other starts of the package begin, once the process group of this one is gone."""
        if not self.is_over:
            self.is_over = True
            os.close(self._lock)
            self._places.release()


class Installs:
    """The installed packages of package runners, recorded in a folder that all gateways on this home share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places = anyio.Semaphore(AT_ONCE)

    async def is_installed(self, run: PackageRun, parameters: StdioServerParameters) -> bool:
        """Return True if a start has nothing to install, as far as is known."""
        return await anyio.to_thread.run_sync(self._is_installed, run, parameters)

    async def last(self, run: PackageRun, parameters: StdioServerParameters) -> Outcome | None:
        """Return the recorded outcome of the latest start."""
        record = await anyio.to_thread.run_sync(self._record(run, parameters).read)
        return None if record is None else record.outcome

    async def begin(self, run: PackageRun, parameters: StdioServerParameters, seconds: float) -> Install | None:
        """Wait until no other start installs the package; return None if there is nothing left to install.

        Raises:
            TimeoutError: another one still does after its time limit of `seconds`.
        """
        with anyio.fail_after(seconds + 2 * LEFT_SECONDS):
            while isinstance(lock := await anyio.to_thread.run_sync(self._take, run, parameters), bool):
                if lock:
                    return None
                await anyio.sleep(POLL_SECONDS)
        try:
            await self._places.acquire()
        except BaseException:
            os.close(lock)
            raise
        return Install(self._record(run, parameters), lock, self._places, seconds)

    async def doubt(self, run: PackageRun, parameters: StdioServerParameters, group: int) -> None:
        """Treat the next start as a first one, because this start took too long for an installed server."""
        late = InstallRecord(Outcome.LATE, group, time.time() + LEFT_SECONDS)
        await anyio.to_thread.run_sync(_write, self._record(run, parameters), late)

    def _is_installed(self, run: PackageRun, parameters: StdioServerParameters) -> bool:
        record = self._record(run, parameters).read()
        if record is not None and record.outcome in (Outcome.INSTALLED, Outcome.LATE) and run.family != "npm":
            return record.outcome is Outcome.INSTALLED
        # npx's cache is authoritative, except after a start that may have fetched a new version.
        is_late = record is not None and record.outcome is Outcome.LATE
        return not is_late and has_whole(run, parameters.env or {})

    def _take(self, run: PackageRun, parameters: StdioServerParameters) -> int | bool:
        """Return the lock of the package, True if there is nothing to install, or False while another start does."""
        document = self._record(run, parameters)
        try:
            lock = take_lock(document.path)
        except OSError as error:
            warn_unwritable(INSTALLS, self._folder, error)
            return True
        if lock is None:
            return False
        record = document.read()
        is_at_work = record is not None and record.is_at_work
        if not is_at_work and not self._is_installed(run, parameters):
            return lock
        os.close(lock)
        return not is_at_work

    def _record(self, run: PackageRun, parameters: StdioServerParameters) -> _Document:
        return Document(
            kinds.INSTALLS,
            self._folder / f"{run.key(parameters.env or {})}.json",
            decode=_decode,
            encode=lambda record: compact(record and asdict(record)),
            empty=lambda: None,
        )


def _write(document: _Document, record: InstallRecord) -> None:
    with suppress(OSError):
        document.write(record)


def _decode(content: bytes) -> InstallRecord:
    raw = parsed(content)
    return InstallRecord(Outcome(raw["outcome"]), int(raw["group"]), float(raw["until"]))
