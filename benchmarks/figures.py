"""What one process holds: memory, descriptors, threads, children, asyncio tasks."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.processes import resident_mib

OBSERVER_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Figures:
    """One look at a process; `children` counts descendants of every degree, `zombies` those nobody waited for."""

    rss_mib: float
    descriptors: int
    threads: int
    children: int
    zombies: int
    tasks: int

    def row(self, when: str) -> dict[str, object]:
        """For a table."""
        return {"when": when, **asdict(self)}

    def exceeds(self, other: Figures, *, descriptors: int, threads: int, tasks: int) -> list[str]:
        """What there is more of than in `other`, beyond the given allowances."""
        allowed = {"descriptors": descriptors, "threads": threads, "tasks": tasks, "children": 0, "zombies": 0}
        return [
            f"{name}: {getattr(other, name)} became {getattr(self, name)}"
            for name, more in allowed.items()
            if getattr(self, name) > getattr(other, name) + more
        ]


def figures(pid: int, observer: Path) -> Figures:
    """Look at a gateway that `benchmarks.observed` runs."""
    below = list(descendants(pid))
    return Figures(
        rss_mib=round(resident_mib(pid), 1),
        descriptors=sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
        threads=sum(1 for _ in Path(f"/proc/{pid}/task").iterdir()),
        children=len(below),
        zombies=sum(1 for child in below if _stat(child)[0] == "Z"),
        tasks=sum(tasks(observer).values()),
    )


def tasks(observer: Path) -> dict[str, int]:
    """Unfinished tasks by coroutine, as the observed process says."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(OBSERVER_SECONDS)
        connection.connect(str(observer))
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    found: dict[str, int] = json.loads(answer)
    return found


def descendants(pid: int) -> Iterator[int]:
    """Children, their children and so on."""
    parents = {
        int(entry.name): int(stat[1])
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal() and (stat := _stat(int(entry.name)))[0]
    }
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    yield from sorted(found - {pid})


def parent_of(pid: int) -> int:
    """The parent's process id; 0 where the process has ended."""
    return int(_stat(pid)[1])


def is_running(pid: int, argument: str) -> bool:
    """Whether this process lives and has `argument` on its command line: numbers are given out again."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return argument.encode() in command.split(b"\0") and _stat(pid)[0] != "Z"


def _stat(pid: int) -> tuple[str, str]:
    """State and parent."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return "", "0"
    return fields[0], fields[1]
