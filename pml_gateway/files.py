"""Files that several gateway processes share: written whole or not at all, by one writer at a time.

Bridges import this module, and each client has one, so its imports stay small: no pathlib, tempfile or threading.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    StrPath = str | os.PathLike[str]

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

OWNER_ONLY = 0o600
PRIVATE_FOLDER = 0o700

LOCK_SECONDS = 30.0
"""A process that writes holds its lock for milliseconds; one that asks a keyring, for half of this at most."""

LOCK_POLL_SECONDS = 0.01

Signature = tuple[int, int, int] | None
"""Modification time (ns), size and inode of a file, which differ after each replacement; None if there is no file."""


def make_private(folder: StrPath) -> None:
    """Make a folder, and those above it that are missing, for their owner alone."""
    if not os.path.exists(folder):
        make_private(os.path.dirname(os.path.abspath(folder)))
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, PRIVATE_FOLDER)


def write_atomically(path: StrPath, content: str | bytes, mode: int = OWNER_ONLY) -> None:
    """Replace a file; a reader sees the old or the new content, also after a crash. A failure leaves nothing."""
    folder, name = os.path.split(path)
    make_private(folder)
    temporary = os.path.join(folder, f".{name}.{os.urandom(4).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


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
    return lock_file(path.with_name(f".{path.name}.lock"))


def lock_file(path: StrPath) -> int | None:
    """Return a file descriptor that holds a lock file until it is closed; None if the file is locked already.

    Raises:
        OSError: the lock file cannot be created.
    """
    # A link in its place would have another file made, or its mode changed.
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    while True:
        descriptor = os.open(path, flags, OWNER_ONLY)
        if not try_lock(descriptor):
            os.close(descriptor)
            return None
        if is_named(descriptor, path):
            return descriptor
        # The previous holder has removed the file: only the file that currently has the name counts.
        os.close(descriptor)


def is_named(descriptor: int, path: StrPath) -> bool:
    """Return True if an open file is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def try_lock(descriptor: int) -> bool:
    """Lock an open file; return False if it is locked already."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def signature(file: Path) -> Signature:
    """Return the signature of a file."""
    try:
        status = file.stat()
    except (OSError, ValueError):
        # There is none, also where its name cannot be one.
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
