"""A user unit of systemd: its text by systemd's rules of escaping, what it starts, and `systemctl --user`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pml_gateway.errors import GatewayError
from pml_gateway.service.program import MARK, RETRY_SECONDS, STOP_SECONDS, Program
from pml_gateway.service.state import SHORT_SECONDS, Absence, ServiceState, ask

NAME = "pml-gateway.service"

_UNIT = """\
# {mark}; pml service uninstall takes it away.
# Folders that were made for it: {folders}
[Unit]
Description=MCP gateway of this machine (pml-gateway)
StartLimitIntervalSec=120
StartLimitBurst=5

[Service]
Type=exec
{environ}ExecStart={command}
Restart=on-failure
RestartSec={retry}
# A wrong configuration stays wrong, however often it is tried.
RestartPreventExitStatus=2 78
# Running calls get to end, then whatever is left of the servers is ended with the gateway.
KillMode=mixed
TimeoutStopSec={stop}
# One server that takes too much memory does not end the others.
OOMPolicy=continue
# No core dumps: memory holds secrets. More is not closed, as servers need the home, the network, and other programs
# (NoNewPrivileges would break podman).
LimitCORE=0

[Install]
WantedBy=default.target
"""

_NO_SYSTEMD = Absence(
    # It has no exit code of its own for this.
    re.compile(r"connect to (user scope )?bus|not been booted|No medium found"),
    "no systemd of this user answers",
    "there is none in a container or under su; log in as this user",
)

_SHELL = ("/bin/sh", "-c", 'exec "$0" "$@"')
"""systemd takes no quotes and backslashes in the path of a program, and before version 244 no `$`; a shell does."""

_NOT_IN_PROGRAMS = re.compile(r"""["'\\$]""")
_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"')


def unit_text(program: Program, folders: int = 0) -> str:
    """The unit that starts a program at login; `folders` is how many folders its file needed."""
    words = program.command
    if _NOT_IN_PROGRAMS.search(words[0]):
        words = (*_SHELL, *words)
    environ = (f"Environment={_quoted(f'{name}={value}')}\n" for name, value in sorted(program.environ.items()))
    return _UNIT.format(
        mark=MARK,
        folders=folders,
        environ="".join(environ),
        command=" ".join(_quoted(word).replace("$", "$$") for word in words),
        retry=RETRY_SECONDS,
        stop=STOP_SECONDS,
    )


def _quoted(word: str) -> str:
    """One word of a line: backslashes and quotes are escaped, and percent signs are no specifiers."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def unit_program(text: str) -> Program | None:
    """What a unit of ours starts."""
    environ: dict[str, str] = {}
    command: tuple[str, ...] = ()
    # Other ends of lines that Unicode knows are none to systemd.
    for line in text.split("\n"):
        key, _, value = line.partition("=")
        words = [re.sub(r"\\(.)", r"\1", word).replace("%%", "%") for word in _WORD.findall(value)]
        if key == "Environment" and words:
            name, _, content = words[0].partition("=")
            environ[name] = content
        elif key == "ExecStart":
            command = tuple(word.replace("$$", "$") for word in words)
    if command[: len(_SHELL)] == _SHELL:
        command = command[len(_SHELL) :]
    return Program(command, environ) if command else None


@dataclass(frozen=True, slots=True)
class SystemdUnit:
    """The gateway's user unit."""

    folder: Path

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> SystemdUnit:
        """Where the user's units lie."""
        given = environ.get("XDG_CONFIG_HOME") or ""
        # A relative one is invalid by its specification.
        config = Path(given) if Path(given).is_absolute() else Path(environ.get("HOME") or Path.home()) / ".config"
        return cls(config / "systemd" / "user")

    @property
    def file(self) -> Path:
        """The unit's file."""
        return self.folder / NAME

    @property
    def by_hand(self) -> str:
        """What enables it in a session of the user's own."""
        return f"systemctl --user enable --now {NAME}"

    @property
    def where_logged(self) -> str:
        """Where what it logs is read."""
        return f"journalctl --user -u {NAME}"

    def text(self, program: Program, folders: int) -> str:
        """What the file is to say."""
        return unit_text(program, folders)

    def program(self, text: str) -> Program | None:
        """What a file of ours starts."""
        return unit_program(text)

    def state(self) -> ServiceState:
        """Whether it is enabled and runs.

        Raises:
            NoManagerError: no systemd of this user answers.
        """
        asked = ("ActiveState", "UnitFileState", "MainPID", "Result")
        said = _systemctl("show", NAME, *(f"--property={name}" for name in asked))
        values = dict(line.partition("=")[::2] for line in said.splitlines())
        pid = int(values.get("MainPID") or 0)
        is_running = values.get("ActiveState") in ("active", "reloading", "deactivating")
        result = values.get("Result", "")
        return ServiceState(
            is_enabled=values.get("UnitFileState", "").startswith("enabled"),
            is_running=is_running,
            pid=pid or None,
            failure="" if is_running or result == "success" else result,
        )

    def start(self, *, is_changed: bool) -> None:
        """Enable and start it; one that runs is started anew only where its unit changed.

        Raises:
            NoManagerError: no systemd of this user answers.
            GatewayError: it cannot be enabled or started.
        """
        _systemctl("daemon-reload")
        _systemctl("enable", NAME)
        # One that failed too often is not started again before that is forgotten.
        with suppress(GatewayError):
            _systemctl("reset-failed", NAME)
        _systemctl("restart" if is_changed else "start", NAME, seconds=STOP_SECONDS + SHORT_SECONDS)

    def stop(self) -> None:
        """Stop and disable it.

        Raises:
            NoManagerError: no systemd of this user answers.
            GatewayError: it does not end.
        """
        _systemctl("disable", "--now", NAME, seconds=STOP_SECONDS + SHORT_SECONDS)

    def forget(self) -> None:
        """Have nothing left of it once its file is gone: no link that enables it, and nothing that systemd remembers.

        Raises:
            OSError: a link cannot be removed.
        """
        for link in self._links():
            link.unlink(missing_ok=True)
            with suppress(OSError):
                link.parent.rmdir()
        with suppress(GatewayError):
            _systemctl("daemon-reload")
            _systemctl("reset-failed", NAME)

    def _links(self) -> Iterator[Path]:
        for pattern in ("*.wants", "*.requires"):
            # With the name in the pattern, links whose target is gone would not be found.
            yield from (link for folder in self.folder.glob(pattern) if (link := folder / NAME).is_symlink())

    def note(self, user: str) -> str:
        """What somebody who has just installed it should know; "" where there is nothing."""
        with suppress(GatewayError):
            if ask("loginctl", "show-user", user, "--property=Linger") == "Linger=yes":
                return ""
        return "it ends when you log out of the machine; `loginctl enable-linger` keeps it running"


def _systemctl(*words: str, seconds: float = SHORT_SECONDS) -> str:
    return ask("systemctl", "--user", *words, seconds=seconds, absence=_NO_SYSTEMD)
