"""The memory of the test process itself."""

from __future__ import annotations

import ctypes
import gc
import sys
from contextlib import suppress
from pathlib import Path

GROWTH_MIB = 300


class Footprint:
    """Returns what is free to the system whenever much has gathered.

    Each gateway loads its model in a thread, and glibc keeps what a thread has freed: 30 MB a test, 3 GB a run.
    """

    def __init__(self) -> None:
        self._least = _resident_mib()

    def reduce(self) -> None:
        """After a test."""
        if sys.platform != "linux" or _resident_mib() < self._least + GROWTH_MIB:
            return
        gc.collect()
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        self._least = _resident_mib()


def _resident_mib() -> float:
    if sys.platform != "linux":
        return 0.0
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    line = next((line for line in status.splitlines() if line.startswith("VmRSS")), "VmRSS 0")
    return int(line.split()[1]) / 1024
