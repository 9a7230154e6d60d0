"""The audit: accesses as lines of JSON in a file that is only appended to, private to its owner, and rotated."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread

from pml_gateway.files import OWNER_ONLY, is_named, locked, make_private
from pml_gateway.log import get_logger
from pml_gateway.storage.background_writer import BackgroundWriter
from pml_gateway.text import escaped_json, utc
from pml_gateway.types import JsonObject

logger = get_logger(__name__)

AUDIT_NAME = "audit.jsonl"

MAX_BYTES = 20 * 1024 * 1024
"""Size at which a file is rotated."""

OLD_FILES = 20

ROTATION_SECONDS = 1.0
"""Seconds that a process waits while another one rotates; then it goes on with the larger file."""


class AuditFile:
    """A file of lines that several processes append to. Methods block, and are safe in threads."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._descriptor: int | None = None
        self._is_torn = False
        self._turn = threading.Lock()

    def append(self, lines: list[bytes]) -> None:
        """Append lines, each in one write, and remove those that are written from the list.

        Raises:
            OSError: a line cannot be written; it stays in the list.
        """
        with self._turn:
            descriptor = self._opened()
            while lines:
                line = b"\n" + lines[0] if self._is_torn else lines[0]
                # Other processes must not write into the middle of it, which O_APPEND and one write make sure of.
                written = os.write(descriptor, line)
                self._is_torn = written < len(line)
                if self._is_torn:
                    raise OSError(f"only {written} of {len(line)} bytes could be written")
                del lines[0]

    def close(self) -> None:
        """Close the file."""
        with self._turn:
            self._let_go()

    def _opened(self) -> int:
        """Return the descriptor of the file that has the name now, after rotating one that is full."""
        if self._descriptor is not None and (self._path.is_symlink() or not is_named(self._descriptor, self._path)):
            self._let_go()
        if self._descriptor is not None and os.fstat(self._descriptor).st_size >= self._max_bytes:
            self._rotate(self._descriptor)
            self._let_go()
        if self._descriptor is None:
            self._descriptor = self._open()
        return self._descriptor

    def _open(self) -> int:
        make_private(self._path.parent)
        # A link in its place would have another file written.
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        descriptor = os.open(self._path, flags, OWNER_ONLY)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError("it is not a regular file")
            if stat.S_IMODE(status.st_mode) != OWNER_ONLY:
                self._path.chmod(OWNER_ONLY)
            size = status.st_size
            os.lseek(descriptor, max(size - 1, 0), os.SEEK_SET)
            self._is_torn = size > 0 and os.read(descriptor, 1) != b"\n"
        except BaseException:
            os.close(descriptor)
            raise
        if self._is_torn:
            logger.warning("%s: the last line is torn; the process that wrote it was killed", self._path)
        return descriptor

    def _rotate(self, descriptor: int) -> None:
        try:
            with locked(self._path, ROTATION_SECONDS):
                if is_named(descriptor, self._path):
                    for number in range(OLD_FILES, 0, -1):
                        newer = self._path if number == 1 else _old(self._path, number - 1)
                        if newer.exists():
                            newer.replace(_old(self._path, number))
        except TimeoutError:
            pass

    def _let_go(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _old(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def line_of(record: JsonObject) -> bytes:
    """Return a record as one line: no text in it can end the line or hide from who reads it."""
    return escaped_json(record).encode() + b"\n"


class Audit:
    """The audit files of one process: lines are written in a thread, or at once where they are required."""

    def __init__(self) -> None:
        self._files: dict[Path, AuditFile] = {}
        self._writer: BackgroundWriter[tuple[Path, bytes]] = BackgroundWriter(
            "the audit", self._write, lambda made: len(made[1]), _warn
        )

    def add(self, path: Path, make: Callable[[], JsonObject]) -> None:
        """Queue a record for a file; it is made in the thread."""
        self._writer.add(lambda: (path, line_of(make())))

    def write(self, path: Path, record: JsonObject) -> None:
        """Write a record now.

        Raises:
            OSError: it cannot be written.
        """
        try:
            self._file(path).append([line_of(record)])
        except OSError as error:
            logger.error("%s cannot be written (%s); calls are refused while audit.required is set", path, error)
            raise

    def flush(self) -> bool:
        """Wait until every queued record is written or dropped; return False on timeout. Blocks."""
        return self._writer.flush()

    def close(self) -> None:
        """Write what is queued, and close the files. Blocks."""
        self._writer.close()
        for file in self._files.values():
            file.close()

    def _file(self, path: Path) -> AuditFile:
        return self._files.setdefault(path, AuditFile(path))

    def _write(self, made: list[tuple[Path, bytes]], dropped: int) -> None:
        if dropped and (paths := [*self._files] or [path for path, _ in made[:1]]):
            gap: JsonObject = {"ts": utc(), "event": "gap", "dropped": dropped}
            self._file(paths[-1]).append([line_of(gap)])
        while made:
            path, line = made[0]
            self._file(path).append([line])
            del made[0]


def _warn(error: Exception) -> None:
    logger.warning("the audit cannot be written (%s); what does not fit in memory meanwhile is dropped", error)


@asynccontextmanager
async def open_audit() -> AsyncIterator[Audit]:
    """Open an audit whose records are on disk when this context ends."""
    audit = Audit()
    try:
        yield audit
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(audit.close)
