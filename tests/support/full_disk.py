"""A disk that takes no file larger than so many bytes: what is longer fails in the middle, as on a full one."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Let no file of this process grow past `size` bytes; Python ignores the signal that comes with the error."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder but locks, which are empty and stay."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }
