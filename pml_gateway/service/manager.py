"""The login service: the unit or agent file that starts the gateway, and the commands that load and unload it."""

from __future__ import annotations

import os
import plistlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pml_gateway.clients.own import own_places, pml_command
from pml_gateway.errors import ConfigurationError, GatewayError
from pml_gateway.files import write_atomically
from pml_gateway.local.endpoint import Endpoint
from pml_gateway.paths import Paths

UNIT = "pml-gateway.service"
LABEL = "pml-gateway"
MARK = "Written by pml service install"  # in each file that pml writes; other files are left alone
STOP_SECONDS = 75  # `pml down` lets running calls go on for 60 seconds, and servers need a few to end

_UNIT = f"""\
# {MARK}; pml service uninstall removes it.
[Unit]
Description=MCP gateway of this machine (pml-gateway)
StartLimitIntervalSec=120
StartLimitBurst=5

[Service]
Type=exec
ExecStart=%s
Restart=on-failure
RestartSec=5
RestartPreventExitStatus=2 78
# Running calls get to end, then what is left of the servers is ended with the gateway.
KillMode=mixed
TimeoutStopSec={STOP_SECONDS}
OOMPolicy=continue
# No core dumps: memory holds secrets. More is not closed, as servers need the home, the network and other programs.
LimitCORE=0
%s
[Install]
WantedBy=default.target
"""


@dataclass(frozen=True, slots=True)
class Manager:
    """A program that starts others at login, systemd or launchd: its file for the gateway, and its commands."""

    file: Path
    text: str
    log: str
    loads: tuple[str, ...]
    unloads: tuple[str, ...]
    restarts: tuple[str, ...]
    shows: tuple[str, ...]

    def installed(self) -> str | None:
        """Return the text of the installed file, None if there is none; raise an error if pml did not write it."""
        text = self.file.read_text(encoding="utf-8", errors="replace") if self.file.exists() else None
        if text is not None and MARK not in text:
            raise ConfigurationError(f"{self.file} was not written by pml", hint="look at it, and remove it yourself")
        return text

    def install(self) -> None:
        """Write the file, and load it in place of a loaded one; the file stays even if it cannot be loaded."""
        try:
            write_atomically(self.file, self.text)
        except OSError as error:
            raise ConfigurationError(f"{self.file} cannot be written: {error.strerror or error}") from error
        with suppress(GatewayError):
            run(*self.unloads)
        try:
            run(*self.loads)
        except GatewayError as error:
            raise GatewayError(f"{self.file} is written, but {error}", hint="log in and try again") from error

    def uninstall(self) -> None:
        """Unload the service and remove its file, even if it cannot be unloaded."""
        try:
            run(*self.unloads)
        finally:
            self.file.unlink(missing_ok=True)


def manager_here(environ: Mapping[str, str], *options: str, platform: str = sys.platform) -> Manager:
    """Return the manager of this platform; the service keeps the current PATH, as a login's often lacks npx or uvx."""
    home = Path(environ.get("HOME") or Path.home())
    kept = own_places(environ) | ({"PATH": environ["PATH"]} if environ.get("PATH") else {})
    command = [*pml_command(), "up", "--foreground", "--by-service", *options]
    if unfit := [word for word in (*command, *kept.values()) if not word.isprintable()]:
        raise ConfigurationError(f"no file of systemd or launchd can hold {unfit[0]!r}")
    if platform.startswith("linux"):
        given = Path(environ.get("XDG_CONFIG_HOME") or "")
        ask = ("systemctl", "--user")
        return Manager(
            (given if given.is_absolute() else home / ".config") / "systemd" / "user" / UNIT,
            unit_text(command, kept),
            log=f"journalctl --user -u {UNIT}",
            loads=(*ask, "enable", "--now", UNIT),
            unloads=(*ask, "disable", "--now", UNIT),
            restarts=(*ask, "restart", UNIT),
            shows=(*ask, "show", UNIT, "--property=ActiveState,UnitFileState,MainPID,Result"),
        )
    if platform == "darwin":
        paths = Paths.from_environ(environ)
        log = str(Endpoint.of(paths.home, paths.config_file).log)
        file = home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
        domain = f"gui/{os.getuid()}"
        return Manager(
            file,
            agent_text(command, kept, log),
            log,
            loads=("launchctl", "bootstrap", domain, str(file)),
            unloads=("launchctl", "bootout", f"{domain}/{LABEL}"),
            restarts=("launchctl", "kickstart", "-k", f"{domain}/{LABEL}"),
            shows=("launchctl", "print", f"{domain}/{LABEL}"),
        )
    raise ConfigurationError(f"there is no service for {platform}", hint="have `pml up` run when you log in")


def unit_text(command: Sequence[str], environ: Mapping[str, str]) -> str:
    if {*command[0]} & {*"\"'\\$"}:
        raise ConfigurationError(f"systemd cannot start {command[0]!r}", hint="install pml in another folder")
    variables = "".join(f"Environment={_quoted(f'{name}={environ[name]}')}\n" for name in sorted(environ))
    return _UNIT % (" ".join(_quoted(word).replace("$", "$$") for word in command), variables)


def _quoted(word: str) -> str:
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'


def agent_text(command: Sequence[str], environ: Mapping[str, str], log: str) -> str:
    values = {
        "Label": LABEL,
        "ProgramArguments": list(command),
        "EnvironmentVariables": dict(environ),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},  # only after a failure: `pml down` ends it for this session
        "ExitTimeOut": STOP_SECONDS,
        "ProcessType": "Interactive",  # launchd gives fewer resources to background jobs
        "StandardErrorPath": log,
    }
    head, _, rest = plistlib.dumps(values, sort_keys=False).decode().partition("<plist")
    return f"{head}<!-- {MARK}; pml service uninstall removes it. -->\n<plist{rest}"


def run(*words: str) -> str:
    """Return the output of a command; raise a GatewayError if it fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=STOP_SECONDS + 15)
    except FileNotFoundError:
        raise GatewayError(f"there is no {words[0]} on this machine") from None
    except subprocess.TimeoutExpired as error:
        raise GatewayError(str(error)) from error
    if done.returncode:
        raise GatewayError(f"{' '.join(words)}: {(done.stderr or done.stdout).strip() or done.returncode}")
    return done.stdout.strip()
