"""Stores for tests: every kind the setting can name, and a clock that tests move."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from pml_gateway.config.settings import ReferenceSettings
from pml_gateway.results.store import ResultStore
from pml_gateway.results.stored import Source
from pml_gateway.storage.backend import build_backend

SOURCE = Source(tool=("up", "make"), name="up__make")


@dataclass
class Clock:
    """Unix seconds that only a test moves."""

    now: float = 2_000_000_000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def opened(
    folder: Path, clock: Clock | None = None, store: str = "memory", **settings: object
) -> AsyncIterator[ResultStore]:
    """A store by these settings, with a clock of its own."""
    given = ReferenceSettings.model_validate(settings)
    async with AsyncExitStack() as stack:
        backend = build_backend(store, folder, given.max_bytes)
        await stack.enter_async_context(backend.context)

        async def open_backend() -> object:
            return backend

        yield ResultStore(given, open_backend, clock or Clock())  # type: ignore[arg-type]
