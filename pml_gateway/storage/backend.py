"""Stores for results, as `storage.results` says: in memory or on disk."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import anyio.to_thread

from pml_gateway.errors import ConfigurationError
from pml_gateway.files import OWNER_ONLY, PRIVATE_FOLDER, make_private
from pml_gateway.secrets.masking import without_defaults
from pml_gateway.secrets.references import resolve
from pml_gateway.storage.memory import KeyValues, MemoryStore
from pml_gateway.storage.places import RESULTS, obstacle, warn_unwritable
from pml_gateway.storage.tables import make_own_file
from pml_gateway.working_directory import WorkingDirectory

DBNAME = "cache.db"
"""As diskcache calls its file in a folder."""

DISK_MARGIN = 1024 * 1024
"""Bytes the disk store may use beyond the cap for its own bookkeeping."""


@dataclass(frozen=True, slots=True)
class Backend:
    """A store, with the context that closes it and the exceptions its operations fail with."""

    values: KeyValues
    context: AbstractAsyncContextManager[object]
    failures: tuple[type[Exception], ...]


def build_backend(
    written: str, directory: Path, max_bytes: int, working_directory: WorkingDirectory | None = None
) -> Backend:
    """Return the store a setting names, not yet open. Imports take 0.3 s: call it in a thread.

    Args:
        written: `memory`, `disk` or `disk:<folder>`.
        directory: the folder of `disk`; it is created for its owner only.
        max_bytes: limit of what lies on disk.
        working_directory: whose variables and folder the setting is read with; by default those of this process.

    Where nothing can be written into the folder, results are kept in memory.

    Raises:
        ConfigurationError: a variable in it is missing, or the folder holds something else.
    """
    working_directory = working_directory or WorkingDirectory.here()
    store = resolve(written, working_directory.environ)
    if store == "memory":
        return _memory()
    folder = working_directory.path(store[5:]) if store[5:] else directory
    return _disk(folder, without_defaults(written), max_bytes)


def _memory() -> Backend:
    return Backend(MemoryStore(), nullcontext(), ())


def _disk(directory: Path, written: str, max_bytes: int) -> Backend:
    from diskcache import Cache, Disk, Timeout
    from key_value.aio.errors import BaseKeyValueError
    from key_value.aio.stores.disk import DiskStore

    class PrivateDisk(Disk):  # type: ignore[misc]  # it has no types
        """Files that only their owner can read, in whichever folder they lie."""

        def filename(self, *given: Any) -> tuple[str, str]:
            """Name a file, in folders of its owner's own."""
            name, path = super().filename(*given)
            make_private(Path(path).parent)
            return name, path

        def store(self, *given: Any, **named: Any) -> tuple[int, int, str | None, Any]:
            """Write a value; a large one is a file."""
            size, mode, name, value = super().store(*given, **named)
            if name is not None:
                (directory / name).chmod(OWNER_ONLY)
            return size, mode, name, value

    class OwnCache(Cache):  # type: ignore[misc]  # it has no types
        """A cache that the store takes though it is empty."""

        def __bool__(self) -> bool:
            return True

    try:
        make_own_file(directory / DBNAME)
        _close_to_others(directory)
        # The folder's own cap also holds for what other processes and earlier runs left there.
        cache = OwnCache(str(directory), size_limit=max_bytes + max_bytes // 8 + DISK_MARGIN, disk=PrivateDisk)
        store = DiskStore(disk_cache=cache)
    except OSError as error:
        warn_unwritable(RESULTS, directory, error)
        return _memory()
    except sqlite3.Error as error:
        if obstacle(directory):
            warn_unwritable(RESULTS, directory, error)
            return _memory()
        raise ConfigurationError(
            f"storage.results: {written} cannot be used ({error})", hint="name another folder: disk:<folder>"
        ) from error
    failures = (BaseKeyValueError, sqlite3.Error, OSError, Timeout)
    return Backend(cast(KeyValues, store), _closing(cache, store), failures)


@asynccontextmanager
async def _closing(cache: Any, store: Any) -> AsyncIterator[None]:
    async with store:
        try:
            yield
        finally:
            await anyio.to_thread.run_sync(cache.close)


def _close_to_others(directory: Path) -> None:
    """Close what lies there from before, also in a folder that others can enter; foreign files stay as they are."""
    for path in (*directory.glob(f"{DBNAME}*"), *directory.glob("??/??/*.val")):
        with suppress(OSError):
            path.chmod(OWNER_ONLY)
    for path in directory.glob("??"):
        if path.is_dir() and any(path.glob("??/*.val")):
            with suppress(OSError):
                path.chmod(PRIVATE_FOLDER)
