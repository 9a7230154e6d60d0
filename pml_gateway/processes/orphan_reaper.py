"""Ends the children of a gateway that ended without doing so itself; a small program of its own, for POSIX systems.

    python -I -S orphan_reaper.py

Each line of stdin is `+` or `-` and a process group: the gateway started it, or saw it end. When stdin ends, the
gateway has ended, however it came to that. Groups that are still there are left a moment to notice the end of their own
stdin, then terminated, then killed. It needs the standard library alone.
"""

from __future__ import annotations

import os
import signal
import sys
import time

STEPS: tuple[tuple[signal.Signals | None, float], ...] = (
    (None, 0.6),
    (signal.SIGTERM, 0.4),
    (signal.SIGKILL, 1.0),
)
"""What is sent, and the seconds it is given: as the gateway itself does at an orderly end."""

POLL_SECONDS = 0.05


def main() -> None:
    """Follow the gateway's children until it ends, then end them."""
    # Whoever signals every process of a container means the gateway; the end of stdin says when that is gone.
    for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line.startswith("+") else groups.discard)(int(line[1:]))
    for sent, seconds in STEPS:
        groups = {group for group in groups if _signal(group, sent)}
        deadline = time.monotonic() + seconds
        while groups and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            # One that is gone is never signalled again: its number may be given to others.
            groups = {group for group in groups if _signal(group, None)}


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
