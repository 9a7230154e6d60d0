"""An agent of launchd: its property list, what it starts, and `launchctl`."""

from __future__ import annotations

import os
import plistlib
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from xml.parsers.expat import ExpatError

from pml_gateway.errors import GatewayError
from pml_gateway.service.program import MARK, RETRY_SECONDS, STOP_SECONDS, Program
from pml_gateway.service.state import SHORT_SECONDS, Absence, NoManagerError, ServiceState, ask

LABEL = "pml-gateway"

BOOTSTRAP_POLL_SECONDS = 0.5
"""launchd refuses an agent as long as the one before it is ending."""

_NO_DESKTOP = Absence(
    re.compile(r"Could not find domain|Domain does not support|125:"),
    "this user has no session with a desktop",
    "over ssh there may be none; log in at the machine",
)


def agent_text(program: Program, log: Path, folders: int = 0) -> str:
    """The property list that starts a program at login; `folders` is how many folders its file needed."""
    values = {
        "Label": LABEL,
        "ProgramArguments": list(program.command),
        "EnvironmentVariables": dict(program.environ),
        "RunAtLoad": True,
        # Only after a failure: `pml down` ends it for this session.
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": RETRY_SECONDS * 6,
        "ExitTimeOut": STOP_SECONDS,
        # Clients wait for its answers; what launchd takes for background work gets less of the machine.
        "ProcessType": "Interactive",
        "StandardErrorPath": str(log),
    }
    head, _, rest = plistlib.dumps(values, sort_keys=False).decode().partition("<plist")
    said = f"{MARK}; pml service uninstall takes it away.\n     Folders that were made for it: {folders}"
    return f"{head}<!-- {said} -->\n<plist{rest}"


def agent_program(text: str) -> Program | None:
    """What an agent of ours starts."""
    try:
        values = plistlib.loads(text.encode())
        command, environ = values["ProgramArguments"], values.get("EnvironmentVariables", {})
        return Program(tuple(map(str, command)), {str(name): str(value) for name, value in environ.items()})
    except (plistlib.InvalidFileException, ExpatError, ValueError, LookupError, TypeError, AttributeError):
        return None


@dataclass(frozen=True, slots=True)
class LaunchdAgent:
    """The gateway's agent."""

    folder: Path
    log: Path

    @classmethod
    def of(cls, environ: Mapping[str, str], log: Path) -> LaunchdAgent:
        """Where the user's agents lie; what it prints goes to `log`."""
        folder = Path(environ.get("HOME") or Path.home()) / "Library" / "LaunchAgents"
        return cls(folder, log)

    @property
    def file(self) -> Path:
        """The agent's file."""
        return self.folder / f"{LABEL}.plist"

    @property
    def by_hand(self) -> str:
        """What loads it in a session of the user's own."""
        return f"launchctl bootstrap gui/$(id -u) ~/Library/LaunchAgents/{LABEL}.plist"

    @property
    def _domain(self) -> str:
        return f"gui/{os.getuid()}"

    @property
    def _target(self) -> str:
        return f"{self._domain}/{LABEL}"

    @property
    def where_logged(self) -> str:
        """Where what it logs is read."""
        return str(self.log)

    def text(self, program: Program, folders: int) -> str:
        """What the file is to say."""
        return agent_text(program, self.log, folders)

    def program(self, text: str) -> Program | None:
        """What a file of ours starts."""
        return agent_program(text)

    def state(self) -> ServiceState:
        """Whether it is enabled and runs.

        Raises:
            NoManagerError: there is no session of this user with a desktop.
        """
        disabled = _in_domain("print-disabled", self._domain)
        is_enabled = not re.search(rf'"{LABEL}" => (disabled|true)', disabled)
        try:
            said = ask("launchctl", "print", self._target)
        except GatewayError:
            return ServiceState(is_enabled=is_enabled, is_running=False)
        pid = re.search(r"^\s*pid = (\d+)", said, re.MULTILINE)
        code = re.search(r"^\s*last exit code = ([1-9]\d*)", said, re.MULTILINE)
        return ServiceState(
            is_enabled=is_enabled,
            is_running=pid is not None,
            pid=int(pid[1]) if pid else None,
            failure=f"exit code {code[1]}" if code and not pid else "",
        )

    def start(self, *, is_changed: bool) -> None:
        """Load and start it; one that runs is started anew only where its file changed.

        Raises:
            NoManagerError: there is no session of this user with a desktop.
            GatewayError: it cannot be loaded.
        """
        _in_domain("enable", self._target)
        if self._is_loaded():
            if not is_changed:
                ask("launchctl", "kickstart", self._target)
                return
            ask("launchctl", "bootout", self._target, seconds=STOP_SECONDS + SHORT_SECONDS)
        until = time.monotonic() + STOP_SECONDS
        while True:
            try:
                _in_domain("bootstrap", self._domain, str(self.file))
                return
            except NoManagerError:
                raise
            except GatewayError:
                if time.monotonic() > until or not self._is_loaded():
                    raise
            time.sleep(BOOTSTRAP_POLL_SECONDS)

    def stop(self) -> None:
        """End it and unload it.

        Raises:
            NoManagerError: there is no session of this user with a desktop.
            GatewayError: it does not end.
        """
        _in_domain("print-disabled", self._domain)
        if self._is_loaded():
            ask("launchctl", "bootout", self._target, seconds=STOP_SECONDS + SHORT_SECONDS)

    def forget(self) -> None:
        """launchd remembers nothing of an agent whose file is gone."""

    def note(self, user: str) -> str:
        """What somebody who has just installed it should know."""
        return "it runs while you are logged in, and starts at every login"

    def _is_loaded(self) -> bool:
        with suppress(GatewayError):
            ask("launchctl", "print", self._target)
            return True
        return False


def _in_domain(*words: str) -> str:
    return ask("launchctl", *words, absence=_NO_DESKTOP)
