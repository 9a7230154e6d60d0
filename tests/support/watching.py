"""What a program and all its children do to the world: addresses they speak to, files they write; seen by strace."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

RUN_SECONDS = 240
"""Commands take two to five times as long under strace, on a machine that other tests share."""

SPEAKS = ("connect", "sendto", "sendmsg", "sendmmsg", "bind")
WRITES = (
    *("creat", "mkdir", "mkdirat", "mknod", "mknodat", "rename", "renameat", "renameat2", "link", "linkat"),
    *("symlink", "symlinkat", "unlink", "unlinkat", "rmdir", "truncate", "chmod", "fchmodat"),
)
OPENS = ("open", "openat", "openat2")
REFUSED = "io_uring_setup"
"""Through its rings a program would read, write and connect past strace; where there are none, libuv does without."""

_LINE = re.compile(r"(\w+)\((.*)\)\s+= (-?\d+)(.*)$")
_INTERNET = re.compile(r'sin6?_port=htons\((\d+)\)[^}]*?(?:inet_addr\("|inet_pton\(AF_INET6, ")([^"]+)"')
_UNIX = re.compile(r'sun_path=@?"([^"]*)"')
_PATH = re.compile(r'(?:AT_FDCWD<([^>]*)>, |\d+<([^>]*)>, )?"((?:[^"\\]|\\.)*)"')
_OPENED = re.compile(r"<(.*?)>(?:\(deleted\))?$")


@dataclass(frozen=True)
class Seen:
    """What a program did, each with the line of strace that says so."""

    output: str
    spoken_to: Mapping[str, str]
    """By `address:port` of IPv4 and IPv6, which name servers are too, and by the path of a Unix socket."""

    own: frozenset[str]
    """What the program itself, or a child of it, listened on."""

    written: Mapping[str, str]
    """By the path that was made, changed, renamed or removed."""


@cache
def blind() -> str:
    """Why strace sees nothing here, if so."""
    if shutil.which("strace") is None:
        return "strace is not installed; it sees what programs write and whom they speak to"
    tried = subprocess.run(["strace", "-f", "--seccomp-bpf", "true"], capture_output=True, text=True, check=False)
    return f"strace must not trace here: {tried.stderr}" if tried.returncode else ""


def watched(command: Sequence[str], env: Mapping[str, str], cwd: Path, logs: Path) -> Seen:
    """Run a command to its end, which must be good, and read what it and its children did; nothing, if blind."""
    logs.mkdir(parents=True)
    calls = ",".join(f"?{name}" for name in (*SPEAKS, *WRITES, *OPENS, REFUSED, "getsockname"))
    strace = ["strace", "-ff", "-y", "-s", "200", "--seccomp-bpf", "-e", "signal=none", "-e", f"trace={calls}"]
    strace += ["-e", f"inject={REFUSED}:error=ENOSYS", "-o", str(logs / "process")]
    done = subprocess.run(
        [*([] if blind() else strace), *command],
        env=env,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    spoken_to: dict[str, str] = {}
    own: set[str] = set()
    written: dict[str, str] = {}
    for line, name, arguments, returned, result in _calls(logs):
        if name in SPEAKS:
            addresses = dict.fromkeys(_addresses(arguments), line)
            spoken_to |= addresses
            own |= addresses.keys() if name == "bind" else set()
        elif name == "getsockname":
            own.update(_addresses(arguments))
        elif returned >= 0 and (name in WRITES or re.search("O_(WRONLY|RDWR|CREAT|TRUNC)", arguments)):
            opened = _OPENED.search(result) if name in OPENS else None
            paths = [opened[1]] if opened else list(_paths(arguments, cwd))
            written |= dict.fromkeys(paths, line)
    return Seen(done.stdout, spoken_to, frozenset(own), written)


def _calls(logs: Path) -> Iterator[tuple[str, str, str, int, str]]:
    for log in sorted(logs.iterdir()):
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            if match := _LINE.match(line):
                yield f"{log.name}: {line}", match[1], match[2], int(match[3]), match[4]


def _addresses(arguments: str) -> Iterator[str]:
    for port, host in _INTERNET.findall(arguments):
        yield f"{host}:{port}"
    yield from _UNIX.findall(arguments)


def _paths(arguments: str, cwd: Path) -> Iterator[str]:
    for folder, opened, path in _PATH.findall(arguments):
        yield os.path.normpath(Path(folder or opened or cwd) / path)


def unexpected(acts: Mapping[str, str], *allowed: Callable[[str], bool]) -> list[str]:
    """The lines of strace about what no rule allows."""
    return [line for what, line in acts.items() if not any(rule(what) for rule in allowed)]
