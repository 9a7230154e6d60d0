"""Loggers by module; where records go is set once, by the command that runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

ROOT = "pml_gateway"

REPEAT_SECONDS = 60.0
"""Minimum seconds between repetitions of a line that others can cause at will."""


def get_logger(name: str) -> logging.Logger:
    """Return the logger of one module."""
    return logging.getLogger(name)


class ThrottledWarning:
    """A warning that others can cause at will: written once a minute, with the number of times it was left out."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._next = 0.0
        self._unsaid = 0

    def warning(self, message: str, *args: object) -> None:
        """Write the warning, or count it if one was written less than REPEAT_SECONDS ago."""
        now = self._clock()
        if now < self._next:
            self._unsaid += 1
            return
        self._next = now + REPEAT_SECONDS
        more, self._unsaid = self._unsaid, 0
        self._logger.warning(message + (" (and %d times before)" if more else ""), *args, *((more,) if more else ()))
