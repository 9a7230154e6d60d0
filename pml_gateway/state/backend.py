"""Where stored results are kept by `references.store`: in memory, on disk or in Redis."""

from __future__ import annotations

import math
import sqlite3
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from pml_gateway.config.settings import ReferenceSettings
from pml_gateway.errors import ConfigurationError
from pml_gateway.files import make_private
from pml_gateway.home import RESULTS, do_without, obstacle
from pml_gateway.installation import EXTRAS, adding
from pml_gateway.secrets.masking import without_defaults
from pml_gateway.secrets.references import resolve
from pml_gateway.state.memory import MemoryStore
from pml_gateway.state.store import KeyValues
from pml_gateway.workplace import Workplace

DISK_MARGIN = 1024 * 1024
"""Bytes the disk store may use beyond the cap for its own bookkeeping."""


@dataclass(frozen=True, slots=True)
class Backend:
    """A store, with the context that closes it and the exceptions its operations fail with."""

    values: KeyValues
    context: AbstractAsyncContextManager[object]
    failures: tuple[type[Exception], ...]


def check_store(settings: ReferenceSettings, workplace: Workplace | None = None) -> None:
    """Refuse a store that could not be opened later, when a result that already exists would suffer.

    Raises:
        ConfigurationError: a secret in `store` is missing, it names no store, or a package is not installed.
    """
    store = resolve(settings.store, (workplace or Workplace.here()).environ)
    if store in ("memory", "disk") or store.startswith("disk:"):
        return
    if not _is_redis_url(store):
        # Not shown: it was meant to be a URL, which may hold a password.
        raise ConfigurationError(
            "references.store stands for no store",
            hint="write memory, disk, disk:<folder>, or redis://[user:password@]host[:port][/number]",
        )
    if find_spec("redis") is None:
        raise ConfigurationError(
            "references.store names a Redis server, and the redis package is not installed",
            hint=f"install it with: {adding(*EXTRAS['redis'])}",
        )


def _is_redis_url(store: str) -> bool:
    try:
        parts = urlsplit(store)
        return (
            parts.scheme in ("redis", "rediss")
            and (parts.port is None or parts.port > 0)
            and (parts.path in ("", "/") or parts.path.removeprefix("/").isdecimal())
        )
    except ValueError:
        return False


def build_backend(settings: ReferenceSettings, directory: Path, workplace: Workplace | None = None) -> Backend:
    """The store a setting names, not yet open. Imports take 0.3 s: call it in a thread.

    Args:
        settings: `store` is `memory`, `disk`, `disk:<folder>`, or a `redis://` or `rediss://` URL.
        directory: the folder of `disk`; it is created for its owner only.
        workplace: whose variables and folder `store` is read with; by default those of this process.

    Where nothing can be written into the folder, results are kept in memory.

    Raises:
        ConfigurationError: as `check_store`, or the folder holds what is no store.
    """
    workplace = workplace or Workplace.here()
    check_store(settings, workplace)
    store = resolve(settings.store, workplace.environ)
    if store == "memory":
        return _memory()
    if store == "disk" or store.startswith("disk:"):
        folder = workplace.path(store[5:]) if store[5:] else directory
        return _disk(folder, without_defaults(settings.store), settings.max_bytes)
    return _redis(store)


def _memory() -> Backend:
    # Whoever keeps results holds them to `references.max_bytes`, which may change while the gateway runs.
    return Backend(MemoryStore(max_entries=math.inf, max_bytes=math.inf), nullcontext(), ())


def _disk(directory: Path, written: str, max_bytes: int) -> Backend:
    from diskcache import Timeout
    from key_value.aio.errors import BaseKeyValueError
    from key_value.aio.stores.disk import DiskStore

    try:
        make_private(directory)
        # The folder's own cap also holds for what other processes and earlier runs left there.
        store = DiskStore(directory=directory, max_size=max_bytes + max_bytes // 8 + DISK_MARGIN)
    except OSError as error:
        do_without(RESULTS, directory, error)
        return _memory()
    except sqlite3.Error as error:
        if obstacle(directory):
            do_without(RESULTS, directory, error)
            return _memory()
        raise ConfigurationError(
            f"references.store: {written} cannot be used ({error})", hint="name another folder: disk:<folder>"
        ) from error
    return _backend(store, BaseKeyValueError, sqlite3.Error, OSError, Timeout)


def _redis(url: str) -> Backend:
    from key_value.aio.errors import BaseKeyValueError
    from key_value.aio.stores.redis import RedisStore
    from redis.exceptions import RedisError

    return _backend(RedisStore(url=url), BaseKeyValueError, RedisError, OSError)


def _backend(store: Any, *failures: type[Exception]) -> Backend:
    return Backend(cast(KeyValues, store), store, failures)
