"""The log as a file of bounded size: rotated while it is written, and with repeated lines suppressed."""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from cachetools import FIFOCache

MAX_BYTES = 5 * 1024 * 1024
"""Size in bytes at which a log is rotated."""

OLD_LOGS = 3

MINUTE = 60.0
LINES_OF_ONE_PLACE = 60
"""Maximum lines per minute from one place in the code: more than there are servers, fewer than in a flood."""

MAX_REMEMBERED = 1000


class LogFile:
    """The file that receives this process's stderr, at a path where other processes may also rotate it."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._is_ours = _is_same(path)

    def __call__(self, record: logging.LogRecord) -> bool:
        """Rotate the file if needed, as a filter of the handler that writes it."""
        try:
            if self._is_ours:
                self._make_room()
        except OSError:
            # A log that cannot be rotated is still written.
            pass
        return True

    def _make_room(self) -> None:
        if _is_same(self._path):
            if os.fstat(2).st_size < self._max_bytes:
                return
            for number in range(OLD_LOGS, 0, -1):
                newer = self._path if number == 1 else old_log(self._path, number - 1)
                if newer.exists():
                    newer.replace(old_log(self._path, number))
        opened = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            for descriptor in (1, 2):
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    os.dup2(opened, descriptor)
        finally:
            os.close(opened)


def old_log(path: Path, number: int = 1) -> Path:
    """Return the path of a rotated log; 1 is the newest."""
    return path.with_name(f"{path.name}.{number}")


def _is_same(path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(2), path.stat())
    except OSError:
        return False


class Repeats:
    """Filter that drops warnings repeated within a minute, and excess lines from one place in the code.

    The next line reports how many were suppressed. Lines about the end of a request are all written.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._places: FIFOCache[tuple[str, int], list[float]] = FIFOCache(MAX_REMEMBERED)
        self._warnings: FIFOCache[str, float] = FIFOCache(MAX_REMEMBERED)
        self._left_out: dict[tuple[str, int], int] = {}

    def __call__(self, record: logging.LogRecord) -> bool:
        """Return True if a record should be written, as a filter of the handler that writes it."""
        if hasattr(record, "code"):
            return True
        now, place = self._clock(), (record.pathname, record.lineno)
        try:
            text = record.getMessage()
        except (TypeError, ValueError):
            # The handler reports what is wrong with it.
            return True
        is_told = record.levelno >= logging.WARNING and now - self._warnings.get(text, -MINUTE) < MINUTE
        lines = [at for at in self._places.get(place, ()) if now - at < MINUTE]
        if is_told or len(lines) >= LINES_OF_ONE_PLACE:
            self._left_out[place] = self._left_out.get(place, 0) + 1
            return False
        self._places[place] = [*lines, now]
        self._warnings[text] = now
        if (left_out := self._left_out.pop(place, 0)) > 0:
            record.msg, record.args = f"{text} (and {left_out} times before)", ()
        return True
