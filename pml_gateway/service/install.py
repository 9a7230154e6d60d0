"""Installing the service, taking it away, and how it stands."""

from __future__ import annotations

import difflib
import re
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pml_gateway.errors import ConfigurationError
from pml_gateway.files import write_atomically
from pml_gateway.local.endpoint import Endpoint, UnsupportedSystemError
from pml_gateway.paths import Paths
from pml_gateway.service.launchd import LaunchdAgent
from pml_gateway.service.program import MARK, Program
from pml_gateway.service.state import NoManagerError, ServiceState
from pml_gateway.service.systemd import SystemdUnit

Manager = SystemdUnit | LaunchdAgent
"""What starts programs at login, each with the file that it reads."""

READABLE = 0o644
"""There is nothing secret in it, and other programs of the owner's read it."""

_FOLDERS = re.compile(r"Folders that were made for it: (\d+)")


def manager_here(environ: Mapping[str, str], platform: str = sys.platform) -> Manager:
    """What starts programs at login on this system.

    Raises:
        ConfigurationError: nothing that is known here.
    """
    if platform == "darwin":
        paths = Paths.from_environ(environ)
        return LaunchdAgent.of(environ, Path(Endpoint.of(paths.home, paths.config_file).log))
    if platform.startswith("linux"):
        return SystemdUnit.of(environ)
    if platform == "win32":
        raise ConfigurationError(str(UnsupportedSystemError()))
    raise ConfigurationError(f"there is no service for {platform}", hint="have `pml up` run when you log in")


@dataclass(frozen=True, slots=True)
class Installation:
    """The file of the service: what it says now, and what it is to say."""

    manager: Manager
    before: str | None
    after: str

    @property
    def has_changed(self) -> bool:
        """Whether there is anything to write."""
        return self.before != self.after

    @property
    def diff(self) -> str:
        """The change, line by line."""
        name = str(self.manager.file)
        lines = difflib.unified_diff((self.before or "").splitlines(), self.after.splitlines(), name, name, lineterm="")
        return "\n".join(lines)

    def write(self) -> None:
        """Put the file in its place, whole or not at all.

        Raises:
            ConfigurationError: it cannot be written.
        """
        if not self.has_changed:
            return
        try:
            write_atomically(self.manager.file, self.after, READABLE)
        except OSError as error:
            raise ConfigurationError(f"{self.manager.file} cannot be written: {error.strerror or error}") from error


def plan(manager: Manager, program: Program, *, replace: bool = False) -> Installation:
    """What installing it would write.

    Args:
        manager: what starts programs at login here.
        program: what it is to start.
        replace: whether a file that somebody else wrote may be replaced.

    Raises:
        ConfigurationError: there is such a file, and it may not.
    """
    before = _read(manager)
    if before is not None and MARK not in before and not replace:
        raise ConfigurationError(
            f"{manager.file} was not written by pml", hint="look at it; --replace writes this one in its place"
        )
    made = _FOLDERS.search(before) if before is not None and MARK in before else None
    missing = sum(not folder.exists() for folder in manager.file.parents)
    return Installation(manager, before, manager.text(program, int(made[1]) if made else missing))


@dataclass(frozen=True, slots=True)
class Standing:
    """How the service stands; `state` is None where nobody can tell, for the reason of `problem`."""

    is_installed: bool
    program: Program | None
    state: ServiceState | None
    problem: str = ""
    remedy: str = ""


def standing(manager: Manager, own: Program) -> Standing:
    """How it stands, and what is to be done about it.

    Raises:
        ConfigurationError: its file cannot be read.
    """
    text = _read(manager)
    if text is None:
        return Standing(False, None, None)
    if MARK not in text:
        return Standing(False, None, None, f"{manager.file} was not written by pml", "pml service install --replace")
    program = manager.program(text)
    try:
        state = manager.state()
    except NoManagerError as error:
        return Standing(True, program, None, str(error), manager.by_hand)
    problem, remedy = _trouble(program, own, state)
    return Standing(True, program, state, problem, remedy)


def _trouble(program: Program | None, own: Program, state: ServiceState) -> tuple[str, str]:
    """What is wrong with it, and the command that mends it; "" where all is well."""
    again = "pml service install"
    if program is None:
        return "its file says nothing that it could start", again
    if not program.is_there:
        return f"{program.command[0]}, which it starts, is gone", again
    options = program.options_beside(own)
    if options is None:
        return "it starts another installation, or for another home or configuration file", again
    again = shlex.join([*again.split(), *options])
    if not state.is_enabled:
        return "it does not start at login", again
    if not state.is_running:
        return f"it does not run{f' ({state.failure})' if state.failure else ''}", again
    return "", ""


def is_removable(manager: Manager) -> bool:
    """Whether there is a service of ours.

    Raises:
        ConfigurationError: its file is somebody else's, or cannot be read.
    """
    text = _read(manager)
    if text is not None and MARK not in text:
        raise ConfigurationError(f"{manager.file} was not written by pml", hint="remove it yourself if it is yours")
    return text is not None


def remove(manager: Manager) -> None:
    """Take its file away, with every link to it and the folders that were made for it.

    Raises:
        ConfigurationError: it cannot be removed.
    """
    made = _FOLDERS.search(_read(manager) or "")
    try:
        manager.file.unlink(missing_ok=True)
        manager.forget()
    except OSError as error:
        raise ConfigurationError(f"{error.filename} cannot be removed: {error.strerror}") from error
    for folder in [*manager.file.parents][: int(made[1]) if made else 0]:
        with suppress(OSError):
            folder.rmdir()


def _read(manager: Manager) -> str | None:
    """What its file says; "" for a link, which leads to something of somebody else's."""
    if manager.file.is_symlink():
        return ""
    try:
        return manager.file.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"{manager.file} cannot be read: {error.strerror}") from error
