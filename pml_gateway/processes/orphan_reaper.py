"""Ends the children of a gateway that ended without doing so itself; a small program of its own, for POSIX systems.

    python -I -S orphan_reaper.py [background PIPE...]

Each line of stdin is a sign and a process group: `+`, the gateway started it; `~`, it may be installing something; `-`,
the gateway saw it end. When stdin ends, the gateway has ended, however it came to that, or has left these groups here.
Those that are still there are given a moment to notice the end of their own stdin, then terminated, then killed. In the
background, it also reads what they write to these pipes. It needs the standard library alone.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

LEAVE_SECONDS, TERMINATE_SECONDS, KILL_SECONDS = 0.6, 0.4, 1.0
"""What is given to the end of stdin, to SIGTERM and to SIGKILL: as the gateway itself does at an orderly end."""

ROLLBACK_SECONDS = 15.0
"""What a package runner is given after SIGTERM: npm takes back what it had begun, which takes seconds."""

READ_BYTES = 65536
POLL_SECONDS = 0.05


def main() -> None:
    """Follow the gateway's children until it ends, then end them."""
    # Whoever signals every process of a container means the gateway; the end of stdin says when that is gone.
    for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    groups: dict[int, bool] = {}
    for line in sys.stdin:
        groups.pop(int(line[1:]), None)
        if line[0] != "-":
            groups[int(line[1:])] = line[0] == "~"
    pipes = [int(pipe) for pipe in sys.argv[2:]]
    if len(sys.argv) > 1 and os.fork():
        # Who started this waits for it; the rest is nobody's child.
        os._exit(0)
    installing = {group for group, is_installing in groups.items() if is_installing}
    left = _ended({*groups}, None, LEAVE_SECONDS, pipes)
    for group in left & installing:
        _signal(group, signal.SIGTERM)
    others = _ended(left - installing, signal.SIGTERM, TERMINATE_SECONDS, pipes)
    _ended(others, signal.SIGKILL, KILL_SECONDS, pipes)
    installing = _ended(left & installing, None, ROLLBACK_SECONDS, pipes)
    _ended(installing, signal.SIGKILL, KILL_SECONDS, pipes)


def _ended(groups: set[int], sent: signal.Signals | None, seconds: float, pipes: list[int]) -> set[int]:
    """Signal the groups, or only look, and wait for their end; those that are still there."""
    left = {group for group in groups if _signal(group, sent)}
    deadline = time.monotonic() + seconds
    while left and time.monotonic() < deadline:
        _read(pipes)
        # One that is gone is never signalled again: its number may be given to others.
        left = {group for group in left if _signal(group, None)}
    return left


def _read(pipes: list[int]) -> None:
    """Wait a moment, and read what came: a runner that cannot write ends with its work half done."""
    time.sleep(POLL_SECONDS)
    for pipe in select.select(pipes, [], [], 0)[0]:
        try:
            has_ended = not os.read(pipe, READ_BYTES)
        except OSError:
            has_ended = True
        if has_ended:
            pipes.remove(pipe)


def _signal(group: int, sent: signal.Signals | None) -> bool:
    """Signal a process group, or only look; whether it is there."""
    try:
        os.killpg(group, sent or 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # members of another user, or macOS and a member that nobody waited for yet
    return True


if __name__ == "__main__":
    main()
