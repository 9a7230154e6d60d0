"""The index that a server builds in the background."""

from __future__ import annotations

import asyncio
from contextvars import Context

import anyio
from uncalled_for import SharedContext

from pml_gateway.catalog.model import Catalog
from pml_gateway.config.settings import Settings
from pml_gateway.example_queries.library import ExampleLibrary
from pml_gateway.example_queries.sources import ToolExamples
from pml_gateway.gateway.indexing import Indexer
from pml_gateway.index.search import ToolIndex
from pml_gateway.paths import Paths
from pml_gateway.signal import Signal

FIRST_WAIT = 5.0
"""Seconds a request waits for the first index: it is one of words alone, which takes milliseconds."""

CHANGE_WAIT = 0.5
"""Seconds a search waits for tools that came since; then it answers from those that are ready."""


class ServerBackground:
    """One task on the event loop of a server, from its first request until it ends."""

    def __init__(self, paths: Paths) -> None:
        self.loop = asyncio.get_running_loop()
        self.index: ToolIndex | None = None
        examples = ToolExamples(ExampleLibrary(paths.example_queries_dir))
        self._indexer = Indexer(paths.cache_dir, examples=examples)
        self._wanted: Catalog | None = None
        self._indexed: frozenset[str] = frozenset()
        self._swapped = Signal()
        self._task: asyncio.Task[None] | None = None

    def want(self, settings: Settings, catalog: Catalog) -> None:
        """Have these tools indexed, soon."""
        if self._task is None or self._task.done():
            # No request's context: the task outlives the one that begins it.
            self._task = self.loop.create_task(self._run(), name="pml-gateway index", context=Context())
            stack = SharedContext.stack.get(None)
            if stack is not None:
                stack.push_async_callback(self._end)
        if catalog is not self._wanted:
            self._wanted = catalog
            self._indexer.request(settings, catalog)

    async def ready(self, names: frozenset[str]) -> None:
        """Wait a moment for an index of these tools; at its end, search by what there is."""
        with anyio.move_on_after(FIRST_WAIT if self.index is None else CHANGE_WAIT):
            await self._swapped.until(lambda: self.index is not None and names <= self._indexed)

    async def wait_for_usable_index(self, timeout: float) -> None:
        """Wait at most `timeout` seconds for an index of the newest tools with all but what takes long to compute."""
        await self._indexer.wait_for_usable_index(timeout)

    async def settled(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds, and return True if the index of the newest tools is complete."""
        return await self._indexer.wait(timeout)

    async def _run(self) -> None:
        # In a group, so that who cancels the task waits for its threads.
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._indexer.run, self._swap)

    async def _end(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})

    def _swap(self, index: ToolIndex) -> None:
        self.index = index
        self._indexed = frozenset(document.key for document in index.documents)
        self._swapped.set()
