"""The process that listens on a port."""

from __future__ import annotations

import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

_LISTENING = "0A"
"""The state LISTEN in `/proc/net/tcp`."""

LSOF_SECONDS = 5
MAX_COMMAND = 60
"""Characters of a command line that name a process well enough."""


@dataclass(frozen=True, slots=True)
class Listener:
    """Process that listens; both fields are unknown if the system does not show them."""

    pid: int | None = None
    command: str = ""

    def __str__(self) -> str:
        if self.pid is None:
            return "another process (perhaps of another user)"
        return f"process {self.pid}{f' ({self.command})' if self.command else ''}"


def listener_on(host: str, port: int) -> Listener | None:
    """Return the process that listens on `port`, or None if it is free."""
    if port == 0 or _is_free(host.strip("[]"), port):
        return None
    pid = _by_proc(port) if Path("/proc/net/tcp").exists() else _by_lsof(port)
    return Listener(pid, _command(pid)) if pid is not None else Listener()


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _by_proc(port: int) -> int | None:
    inodes = {inode for table in ("tcp", "tcp6") for inode in _inodes(Path("/proc/net", table), port)}
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and wanted & _sockets(folder / "fd"):
            return int(folder.name)
    return None


def _inodes(table: Path, port: int) -> list[str]:
    try:
        lines = table.read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return []
    rows = [line.split() for line in lines]
    return [row[9] for row in rows if row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port]


def _sockets(folder: Path) -> set[str]:
    found = set()
    try:
        for link in folder.iterdir():
            found.add(str(link.readlink()))
    except OSError:
        # Processes of other users keep theirs to themselves, and processes end.
        pass
    return found


def _by_lsof(port: int) -> int | None:
    lsof = shutil.which("lsof")
    if lsof is None:
        return None
    try:
        done = subprocess.run(
            [lsof, "-nP", f"-iTCP:{port}", "-sTCP:LISTEN", "-t"],
            capture_output=True,
            text=True,
            timeout=LSOF_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    first = done.stdout.split()[:1]
    return int(first[0]) if first and first[0].isdecimal() else None


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    # Arguments may hold secrets: the program and its first word say what it is.
    return " ".join(word.decode("utf-8", "replace") for word in words[:2]).strip()[:MAX_COMMAND]
