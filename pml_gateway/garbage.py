"""Garbage collection, put off while much is read that stays: looking for garbage in it takes as long as reading it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_puts_off = 0
_was_enabled = False


@contextmanager
def collection_put_off() -> Iterator[None]:
    """Collect no garbage in this process for the length of this context, or of the last of several."""
    global _puts_off, _was_enabled
    with _lock:
        if _puts_off == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _puts_off += 1
    try:
        yield
    finally:
        with _lock:
            _puts_off -= 1
            if _puts_off == 0 and _was_enabled:
                gc.enable()
