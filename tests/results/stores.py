"""Stores for tests: every kind the setting can name, and a clock that tests move."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from pml_gateway.config.settings import ReferenceSettings
from pml_gateway.errors import SharedStateError
from pml_gateway.results.store import ResultStore
from pml_gateway.results.stored import Source
from pml_gateway.storage.backend import Backend, build_backend
from pml_gateway.storage.redis import RedisValues, open_redis

STORAGE_KEY = "a random text of the tests, long enough"
SOURCE = Source(tool=("up", "make"), name="up__make")


@dataclass
class Clock:
    """Unix seconds that only a test moves."""

    now: float = 2_000_000_000.0

    def __call__(self) -> float:
        return self.now


def everything(_: Source) -> bool:
    """Hide nothing."""
    return True


@asynccontextmanager
async def opened(
    folder: Path, clock: Clock | None = None, store: str = "memory", **settings: object
) -> AsyncIterator[ResultStore]:
    """A store by these settings, with a clock of its own."""
    given = ReferenceSettings.model_validate(settings)
    async with open_values(store, folder, given.max_bytes) as backend:

        async def open_backend() -> Backend:
            return backend

        yield ResultStore(given, open_backend, clock or Clock())


@asynccontextmanager
async def open_values(store: str, folder: Path, max_bytes: int) -> AsyncIterator[Backend]:
    """A store by its setting, or at the URL of a Redis server."""
    if not store.startswith("redis:"):
        backend = build_backend(store, folder, max_bytes)
        async with backend.context:
            yield backend
        return
    async with open_redis(store, "${env:KEY}", {"KEY": STORAGE_KEY}) as server:
        assert server is not None
        yield Backend(RedisValues(server), nullcontext(), (SharedStateError,))
