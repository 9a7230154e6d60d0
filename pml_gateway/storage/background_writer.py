"""A thread that writes records in batches, so that requests never wait for a disk."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from pml_gateway.errors import GatewayError
from pml_gateway.log import get_logger

logger = get_logger(__name__)

BATCH_SECONDS = 0.5
"""Pause before a batch is written: what a process loses at most if it is killed. Each batch of each process takes a
transaction of its own, and wakes those who watch the folder."""

MAX_WAITING = 10_000
"""Records in memory that wait for the disk; beyond, new ones are dropped and counted."""

MAX_WEIGHT = 32 * 1024 * 1024
"""Characters of these records."""

RETRY_SECONDS = 5.0
"""Pause after a fault of the disk; a full one may have room again."""

CLOSE_SECONDS = 3.0

RecordT = TypeVar("RecordT")


class BackgroundWriter(Generic[RecordT]):
    """Takes records on the event loop, and makes and writes them in its own thread.

    Args:
        name: what is recorded, for messages.
        write: writes all of a batch or raises `GatewayError` or `OSError`, and is told how many records before it were
            dropped.
        weigh: the characters of a record.
        failed: told of each fault of `write`.
    """

    def __init__(
        self,
        name: str,
        write: Callable[[list[RecordT], int], None],
        weigh: Callable[[RecordT], int],
        failed: Callable[[Exception], None],
    ) -> None:
        self._name = name
        self._write = write
        self._weigh = weigh
        self._failed = failed
        self._waiting: deque[Callable[[], RecordT | None]] = deque()
        self._made: list[RecordT] = []
        self._weight = 0
        self._taken = 0
        self._refused = 0
        self._left_out = 0
        self._told = 0
        self._finished = 0
        self._retry_at = 0.0
        self._arrived = threading.Event()
        self._closing = threading.Event()
        self._is_awaited = threading.Event()
        """Set to write what is queued without a pause."""
        self._progress = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, make: Callable[[], RecordT | None]) -> None:
        """Queue a record, which is made in the thread, unless that is None; takes microseconds and raises nothing."""
        self._taken += 1
        if len(self._waiting) >= MAX_WAITING:
            self._refused += 1
            return
        self._waiting.append(make)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"pml-{self._name}", daemon=True)
            self._thread.start()
        if not self._arrived.is_set():
            self._arrived.set()

    def flush(self, timeout: float = CLOSE_SECONDS) -> bool:
        """Wait until every queued record is written or dropped; return False on timeout. Blocks."""
        taken = self._taken
        self._is_awaited.set()
        with self._progress:
            return self._progress.wait_for(lambda: self._finished >= taken, timeout)

    def close(self) -> None:
        """Write the queued records and end the thread, or give up after CLOSE_SECONDS and say so. Blocks."""
        self._closing.set()
        self._is_awaited.set()
        self._arrived.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)
        lost = self._taken - self._finished
        if lost:
            logger.warning("%d records of %s could not be written before the end", lost, self._name)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._arrived.wait(RETRY_SECONDS if self._made else None)
            self._is_awaited.wait(BATCH_SECONDS)
            self._is_awaited.clear()
            self._arrived.clear()
            self._make()
            if time.monotonic() >= self._retry_at:
                self._write_made()
        self._make()
        self._write_made()

    def _make(self) -> None:
        """Make what is queued: records hold less memory than the requests that they are of."""
        while self._waiting:
            make = self._waiting.popleft()
            try:
                record = make()
                if record is None:
                    continue
                weight = self._weigh(record)
            # A fault of one record must not end the thread, and its text may quote request data.
            except Exception as fault:
                shown = logger.isEnabledFor(logging.DEBUG)
                logger.error("%s: no record of %s can be made", type(fault).__name__, self._name, exc_info=shown)
                self._left_out += 1
                continue
            if len(self._made) >= MAX_WAITING or self._weight + weight > MAX_WEIGHT:
                self._left_out += 1
                continue
            self._made.append(record)
            self._weight += weight

    def _write_made(self) -> None:
        dropped = self._refused + self._left_out
        try:
            if self._made or dropped > self._told:
                self._write(self._made, dropped - self._told)
        except (GatewayError, OSError) as error:
            self._retry_at = time.monotonic() + RETRY_SECONDS
            self._failed(error)
            return
        except (ValueError, TypeError, RecursionError) as error:
            # Records that cannot be written must not hold up the others for ever, nor end the thread.
            logger.error("%d records of %s cannot be written (%s)", len(self._made), self._name, type(error).__name__)
            self._left_out += len(self._made)
        else:
            if dropped > self._told:
                logger.warning("%d records of %s were dropped: too many at once", dropped - self._told, self._name)
            self._told = dropped
        self._made, self._weight, self._retry_at = [], 0, 0.0
        with self._progress:
            self._finished = self._taken - len(self._waiting)
            self._progress.notify_all()
