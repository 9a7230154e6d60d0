"""Files in folders that others can write to: opened without waiting, regular, of the user's own, and not too large.

A bridge reads the project's file before it imports anything large, so this module imports little.
"""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

PROJECT_NAME = ".pml.yaml"

GIT = ".git"


class RefusedFileError(OSError):
    """An existing file that must not be read."""

    def __init__(self, reason: str, path: str | os.PathLike[str]) -> None:
        super().__init__(errno.EPERM, reason, os.fspath(path))


def read_regular(
    path: str | os.PathLike[str], max_bytes: int, *, is_own: bool = False, within: str | os.PathLike[str] | None = None
) -> bytes:
    """Return the first `max_bytes` of a regular file; no pipe, device or socket is waited for.

    Args:
        path: The file; links are followed.
        max_bytes: One more than the limit shows that a file is too large.
        is_own: Refuse what belongs to another user than this one and root.
        within: The folder in which the file has to lie after links are followed.

    Raises:
        RefusedFileError: it is no regular file, belongs to another user, or lies elsewhere.
        OSError: it cannot be read.
    """
    real = path
    if within is not None:
        real = os.path.realpath(path)
        if not is_inside(real, os.path.realpath(within)):
            raise RefusedFileError("a link to a file outside the project", path)
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0)
    if within is not None:
        # What takes its place meanwhile is not followed out again.
        flags |= getattr(os, "O_NOFOLLOW", 0)
    # Opening a device may do something already, and a pipe that is not opened tells its writers nothing.
    if not stat.S_ISREG(os.stat(real).st_mode):
        raise RefusedFileError("not a regular file", path)
    descriptor = os.open(real, flags)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise RefusedFileError("not a regular file", path)
        if is_own and not _is_own(found):
            raise RefusedFileError("owned by another user", path)
        parts, left = [], max_bytes
        while left > 0 and (part := os.read(descriptor, left)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def _is_own(found: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or found.st_uid in (os.geteuid(), 0)


def is_inside(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> bool:
    """Return True if a path is a folder or lies in it, by how both are written."""
    path, folder = os.path.normpath(path), os.path.normpath(folder)
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def git_root(folder: str | os.PathLike[str]) -> str | None:
    """Return the closest folder at or above this one that is a git repository of this user; None if there is none.

    The repository of another user ends the search, as it does for git: in a shared folder, anyone can make one.
    """
    current = os.path.abspath(folder)
    while True:
        try:
            found = os.lstat(os.path.join(current, GIT))
        except OSError:
            pass
        else:
            return current if _is_own(found) else None
        above = os.path.dirname(current)
        if above == current:
            return None
        current = above


def project_files(folder: str | os.PathLike[str]) -> Iterator[str]:
    """Yield where the project's file may lie: in the folder and, in a git repository, those above it up to its root."""
    current = os.path.realpath(folder)
    root = git_root(current) or current
    while True:
        yield os.path.join(current, PROJECT_NAME)
        if current == root:
            return
        current = os.path.dirname(current)
