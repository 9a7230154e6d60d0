"""Garbage collection, put off while much is read that stays: looking for garbage in it takes as long as reading it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_puts_off = 0
_was_enabled = False


class GcPause:
    """Garbage collection, put off until `end`, or for as long as this object lives."""

    def __init__(self) -> None:
        global _puts_off, _was_enabled
        with _lock:
            if _puts_off == 0:
                _was_enabled = gc.isenabled()
                gc.disable()
            _puts_off += 1
        self._is_over = False

    def __del__(self) -> None:
        self.end()

    def end(self) -> None:
        """Collect garbage again, unless others put it off."""
        global _puts_off
        with _lock:
            if self._is_over:
                return
            self._is_over = True
            _puts_off -= 1
            if _puts_off == 0 and _was_enabled:
                gc.enable()


@contextmanager
def collection_put_off() -> Iterator[None]:
    """Collect no garbage in this process for the length of this context, or of the last of several."""
    put_off = GcPause()
    try:
        yield
    finally:
        put_off.end()
