"""Builds in the background what searches want: indexes, at once by words alone, then with the model; then links.

Links are sought for each view by itself, so that what it hides leaves no trace.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from weakref import WeakKeyDictionary

import anyio
import anyio.from_thread
import anyio.to_thread

from pml_gateway.catalog.model import Catalog
from pml_gateway.config.settings import Settings
from pml_gateway.errors import ModelError
from pml_gateway.gateway.state import documents, linked_tool, remember
from pml_gateway.index.cache import MAX_ENTRIES, EmbeddingCache
from pml_gateway.index.embedder import Embedder
from pml_gateway.index.large import SnapshotStore, not_embedded
from pml_gateway.index.limits import EXACT_LIMIT
from pml_gateway.index.links import Links
from pml_gateway.index.models import load_embedder
from pml_gateway.index.search import ToolIndex
from pml_gateway.index.text import ToolDocument, dense_text
from pml_gateway.log import get_logger
from pml_gateway.policy.view import View
from pml_gateway.signal import Coalesced
from pml_gateway.types import Ranking

logger = get_logger(__name__)

SLICE = 32
"""Tools encoded between two looks at the clock, about 0.15 s."""

ENTRIES_PER_TOOL = 1.25
"""Embeddings cached at least for each tool: those of a large catalog take an hour, and no start may repeat it."""

MAX_LINKED_VIEWS = 16
"""Views whose links are kept, up to 3 MB each for 20,000 tools; the oldest go first."""

OnIndex = Callable[[ToolIndex], None]


class Indexer:
    """Builds the index for the newest catalog requested; older requests are skipped."""

    def __init__(self, cache_dir: Path, identity: str, *, exact_limit: int = EXACT_LIMIT) -> None:
        """Keep embeddings and the indexes of large catalogs in `cache_dir`.

        Args:
            cache_dir: shared with other gateway processes.
            identity: names the configuration, so that each has an index of its own.
            exact_limit: a catalog of more tools is large.
        """
        self._cache_dir = cache_dir
        self._exact_limit = exact_limit
        self._identity = identity
        self._requested: tuple[Settings, Catalog] | None = None
        self._wanted = Coalesced()
        self._current = anyio.Event()
        self._embedders: dict[str, Embedder | None] = {}
        self._indexed: tuple[object, ...] = ()

    def request(self, settings: Settings, catalog: Catalog) -> None:
        """Ask for an index over this catalog."""
        self._requested = (settings, catalog)
        if self._current.is_set():
            self._current = anyio.Event()
        self._wanted.ask()

    async def wait(self, timeout: float) -> bool:
        """Wait for the index of the newest catalog, at most `timeout` seconds; whether it stands."""
        with anyio.move_on_after(timeout):
            await self._current.wait()
        return self._current.is_set()

    async def run(self, on_index: OnIndex) -> None:
        """Serve requests for as long as the owner's task group lives."""
        while True:
            await self._wanted.next()
            if self._requested is None:
                continue
            settings, catalog = self._requested
            texts = await anyio.to_thread.run_sync(documents, catalog.tools, catalog.ownership)
            wanted = (settings.search.model, settings.search.ranking is Ranking.LEXICAL, *texts)
            if not await anyio.to_thread.run_sync(wanted.__eq__, self._indexed):
                await self._build(settings, texts, on_index)
                self._indexed = wanted
            if not self._wanted.is_due:
                self._current.set()

    async def _build(self, settings: Settings, texts: Sequence[ToolDocument], on_index: OnIndex) -> None:
        store = SnapshotStore(self._cache_dir / "indexes", identity=self._identity, model=settings.search.model)
        build = partial(ToolIndex.build, texts, store=store, exact_limit=self._exact_limit)
        if not self._indexed or settings.search.ranking is Ranking.LEXICAL:
            # The first index answers from words alone, so that no search waits for the model to load.
            on_index(await anyio.to_thread.run_sync(build, None))
        if settings.search.ranking is Ranking.LEXICAL:
            return
        embedder = await anyio.to_thread.run_sync(self._embedder, settings.search.model)
        if embedder is None:
            on_index(await anyio.to_thread.run_sync(build, None))
            return
        entries = max(MAX_ENTRIES, round(ENTRIES_PER_TOOL * len(texts)))
        cache = EmbeddingCache(self._cache_dir / "embeddings", max_entries=entries)
        lacking: Sequence[int] = range(len(texts))
        if len(texts) > self._exact_limit:
            lacking = await anyio.to_thread.run_sync(not_embedded, texts, embedder, store)
        # In slices, because a thread cannot be cancelled and a process that is asked to end should.
        for start in range(0, len(lacking), SLICE):
            slice_texts = [dense_text(texts[at]) for at in lacking[start : start + SLICE]]
            await anyio.to_thread.run_sync(cache.encode, embedder, slice_texts)
        stoppable = partial(build, embedder, cache, pause=anyio.from_thread.check_cancelled)
        on_index(await anyio.to_thread.run_sync(stoppable))

    def _embedder(self, model: str) -> Embedder | None:
        if model not in self._embedders:
            try:
                self._embedders[model] = load_embedder(model)
            except ModelError as error:
                logger.warning("%s; search answers from words alone", error)
                self._embedders[model] = None
        return self._embedders[model]


class _OutdatedError(Exception):
    """The catalog of the view is no longer served."""


class Linker:
    """The links of the views that somebody lists or searches."""

    def __init__(self, ready: Callable[[], Awaitable[object]], is_current: Callable[[View], bool]) -> None:
        """Find links once things are ready, which searches wait for, and only for views that are current."""
        self._ready = ready
        self._is_current = is_current
        self._known: WeakKeyDictionary[View, Links] = WeakKeyDictionary()
        self._wanted: dict[View, None] = {}
        self._due = Coalesced()

    def links(self, view: View) -> Links | None:
        """What belongs together in a view; None while that is not found out, for which this asks."""
        known = self._known.get(view)
        if known is None and view not in self._wanted:
            self._wanted[view] = None
            self._due.ask()
        return known

    async def run(self) -> None:
        """Find what is asked for, for as long as the owner's task group lives."""
        while True:
            await self._due.next()
            while self._wanted:
                await self._ready()
                view = next(iter(self._wanted))
                with suppress(_OutdatedError):
                    links = await anyio.to_thread.run_sync(self._found, view)
                    remember(self._known, view, links, MAX_LINKED_VIEWS)
                del self._wanted[view]

    def _found(self, view: View) -> Links:
        def pause() -> None:
            anyio.from_thread.check_cancelled()
            if not self._is_current(view):
                raise _OutdatedError

        return Links.build([linked_tool(tool) for tool in view.searchable], pause)
