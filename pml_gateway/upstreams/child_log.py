"""What a child writes to stderr becomes a file of bounded size that always holds the end of it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MAX_LOG_BYTES = 1024 * 1024
"""Size at which a log becomes the old log, and a new one is begun: between one and two of these are kept."""


class ChildLog:
    """One log, which other gateways may write and rotate as well."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    def write(self, content: bytes) -> None:
        """Append; a log that cannot be written is done without, for no child may fail for it."""
        with suppress(OSError):
            for start in range(0, len(content), MAX_LOG_BYTES):
                part = content[start : start + MAX_LOG_BYTES]
                self._make_room(len(part))
                os.write(self._descriptor, part)

    def note(self, text: str) -> None:
        """Append a line of the gateway's own."""
        self.write(f"[pml] {text}\n".encode("utf-8", "replace"))

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _make_room(self, size: int) -> None:
        self._follow()
        if os.fstat(self._descriptor).st_size + size <= MAX_LOG_BYTES:
            return
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        # Whoever waited for the lock finds the file rotated already.
        if self._is_current():
            self._path.replace(old_log(self._path))
        self._follow()

    def _is_current(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except FileNotFoundError:
            return False

    def _follow(self) -> None:
        if not self._is_current():
            descriptor = _open(self._path)
            os.close(self._descriptor)
            self._descriptor = descriptor


@contextmanager
def open_child_log(path: Path) -> Iterator[ChildLog]:
    """The log at `path`, made if need be; readable by its owner only, for servers write secrets."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = ChildLog(path, _open(path))
    try:
        yield log
    finally:
        log.close()


def log_path(logs_dir: Path, upstream_id: str) -> Path:
    """Where the log of an upstream lies."""
    name = "".join(character if character.isalnum() or character in "-_." else "_" for character in upstream_id)
    return logs_dir / f"{name}.log"


def old_log(path: Path) -> Path:
    """Where what came before the log at `path` lies."""
    return path.with_name(f"{path.name}.1")


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
