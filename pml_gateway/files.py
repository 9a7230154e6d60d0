"""Files that several gateway processes share: written whole or not at all, by one writer at a time."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

OWNER_ONLY = 0o600
PRIVATE_FOLDER = 0o700

LOCK_SECONDS = 30.0
"""A process that writes holds its lock for milliseconds; one that asks a keyring, for half of this at most."""

LOCK_POLL_SECONDS = 0.01


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for their owner alone."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)


_MAKING = threading.Lock()


def make_own_file(path: Path) -> None:
    """Have a file for its owner alone, for SQLite to write; one that is there is not opened.

    Whoever closes a file drops all locks that its process has on it (POSIX), also those of SQLite in other threads,
    and without them another process breaks the file.

    Raises:
        OSError: there is none, and none can be made; or it cannot be written.
    """
    make_private(path.parent)
    with _MAKING:
        if not path.exists():
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, OWNER_ONLY))
        elif not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, "it cannot be written", str(path))


def write_atomically(path: Path, content: str | bytes, mode: int = OWNER_ONLY) -> None:
    """Replace `path` by `content`; a reader sees the old or the new one, never a part. A failure leaves nothing."""
    make_private(path.parent)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


READ_AT_ONCE = 4 * 1024 * 1024
"""Bytes of JSON that are read in one go, some 0.05 s."""


def read_json(path: Path) -> Any:
    """Read a JSON file. Call it in a thread if the file may be large.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no JSON.
        RecursionError: it is nested too deep.
    """
    content = path.read_bytes()
    # A hook in Python takes three times as long, and lets other threads have their turn meanwhile.
    return json.loads(content, object_hook=_unchanged if len(content) > READ_AT_ONCE else None)


def _unchanged(value: dict[str, Any]) -> dict[str, Any]:
    return value


def usual_mode() -> int:
    """Return the mode of a new file that is not for its owner alone: by the umask."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


@contextlib.contextmanager
def locked(path: Path, timeout: float = LOCK_SECONDS) -> Iterator[None]:
    """Hold the lock beside `path`; other processes wait for it. It is released by the system if we die.

    Raises:
        TimeoutError: another process held it for `timeout` seconds.
        OSError: the lock file cannot be created next to `path`.
    """
    until = time.monotonic() + timeout
    while True:
        with lock_if_free(path) as is_held:
            if is_held:
                yield
                return
        if time.monotonic() > until:
            raise TimeoutError(
                errno.ETIMEDOUT, f"another process has been writing it for over {timeout:g} s", str(path)
            )
        time.sleep(LOCK_POLL_SECONDS)


@contextlib.contextmanager
def lock_if_free(path: Path) -> Iterator[bool]:
    """Take the lock of `path` without waiting; yield False if another process holds it."""
    descriptor = take_lock(path)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def take_lock(path: Path) -> int | None:
    """Return a file descriptor that holds the lock of `path` until it is closed, here and in children that inherit it.

    Return None if the lock is held already.

    Raises:
        OSError: the lock file cannot be created next to `path`.
    """
    make_private(path.parent)
    # A link in its place would have another file made, or its mode changed.
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path.with_name(f".{path.name}.lock"), flags, OWNER_ONLY)
    if _lock(descriptor):
        return descriptor
    os.close(descriptor)
    return None


def _lock(descriptor: int) -> bool:
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


Signature = tuple[int, int, int] | None
"""By which a file is known to be as it was; None for one that is not there."""


def signature(file: Path) -> Signature:
    """Return the mode of an existing file."""
    try:
        status = file.stat()
    except (OSError, ValueError):
        # There is none, also where its name cannot be one.
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
