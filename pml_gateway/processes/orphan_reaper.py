"""The reaper of children whose gateway ended without ending them; a standalone program for POSIX systems.

    python -I -S orphan_reaper.py [background PIPE...]

Each line of stdin is a sign and a process group: `+`, the gateway started it; `~`, it may be installing something, and
has until the time that follows to finish that; `-`, the gateway saw it end. When stdin ends, the gateway has ended, for
whatever reason, or has left these groups here. Those that still exist get a moment to notice the end of their own
stdin, then are terminated, then killed. In the background, this process also reads the given pipes, to which they
write. It needs only the standard library.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

LEAVE_SECONDS, TERMINATE_SECONDS, KILL_SECONDS = 0.6, 0.4, 1.0
"""Seconds after the end of stdin, after SIGTERM and after SIGKILL: as in an orderly end of the gateway."""

ROLLBACK_SECONDS = 15.0
"""Seconds for a package runner after SIGTERM: npm rolls back what it began, which takes seconds."""

READ_BYTES = 65536
POLL_SECONDS = 0.05


def main() -> None:
    """Follow the gateway's children until the gateway ends, then end them."""
    # A signal to all processes of a container is meant for the gateway; the end of stdin shows that it is gone.
    for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    groups: dict[int, float | None] = {}
    for line in sys.stdin:
        group, *until = line[1:].split()
        groups.pop(int(group), None)
        if line[0] != "-":
            groups[int(group)] = float(*until) if line[0] == "~" else None
    pipes = [int(pipe) for pipe in sys.argv[2:]]
    if len(sys.argv) > 1 and os.fork():
        # The caller waits for this process; the fork continues without a parent.
        os._exit(0)
    installing = {group: until for group, until in groups.items() if until is not None}
    left = _ended({*groups}, None, LEAVE_SECONDS, pipes)
    others = _ended(left - {*installing}, signal.SIGTERM, TERMINATE_SECONDS, pipes)
    _ended(others, signal.SIGKILL, KILL_SECONDS, pipes)
    _end_installing({group: installing[group] for group in left & {*installing}}, pipes)


def _end_installing(groups: dict[int, float], pipes: list[int]) -> None:
    """Terminate each group at its time, or once it answers a client that is gone; kill it if it cannot roll back."""
    terminated: set[int] = set()
    while groups:
        has_answered = _read(pipes)
        now = time.time()
        for group, until in [*groups.items()]:
            if not _signal(group, None):
                del groups[group]
            elif group in terminated and now >= until + ROLLBACK_SECONDS:
                _signal(group, signal.SIGKILL)
                del groups[group]
            elif group not in terminated and (has_answered or now >= until):
                groups[group] = now
                terminated.add(group)
                _signal(group, signal.SIGTERM)


def _ended(groups: set[int], sent: signal.Signals | None, seconds: float, pipes: list[int]) -> set[int]:
    """Signal the groups, or only check them if `sent` is None, and wait; return those that still exist."""
    left = {group for group in groups if _signal(group, sent)}
    deadline = time.monotonic() + seconds
    while left and time.monotonic() < deadline:
        _read(pipes)
        # A group that is gone is never signalled again: its number may be reused.
        left = {group for group in left if _signal(group, None)}
    return left


def _read(pipes: list[int]) -> bool:
    """Wait a moment, and read pending output: a runner that cannot write would stop half done.

    Return True if it contains a message, so that nothing is being installed any more.
    """
    time.sleep(POLL_SECONDS)
    output = b""
    for pipe in select.select(pipes, [], [], 0)[0]:
        try:
            received = os.read(pipe, READ_BYTES)
        except OSError:
            received = b""
        if not received:
            pipes.remove(pipe)
        output += received
    return b'"jsonrpc"' in output


def _signal(group: int, sent: signal.Signals | None) -> bool:
    """Signal a process group, or only check it if `sent` is None; return True if it exists."""
    try:
        os.killpg(group, sent or 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # members of another user, or on macOS an unreaped member
    return True


if __name__ == "__main__":
    main()
