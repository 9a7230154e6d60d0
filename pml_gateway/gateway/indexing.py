"""Indexes for searches, built in the background: by words, with vectors, with those of examples."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import anyio.from_thread
import anyio.to_thread

from pml_gateway.activity.history import ToolKey
from pml_gateway.catalog.model import Catalog
from pml_gateway.catalog.prompts_and_resources import OfferKind
from pml_gateway.config.settings import Settings
from pml_gateway.errors import ModelError
from pml_gateway.example_queries.sources import ToolExamples
from pml_gateway.gateway.state import documents, skill_documents
from pml_gateway.index.cache import EmbeddingCache
from pml_gateway.index.embedder import Embedder
from pml_gateway.index.models import load_embedder
from pml_gateway.index.search import ToolIndex, all_examples, examples_so_far
from pml_gateway.index.text import ToolDocument, dense_text
from pml_gateway.log import get_logger
from pml_gateway.signal import CoalescedSignal
from pml_gateway.storage.single_flight_cache import ById, SingleFlightCache
from pml_gateway.types import Ranking

logger = get_logger(__name__)

SLICE = 32
"""Tools encoded between two looks at the clock, about 0.15 s. So few are waited for; with more, searches go on."""

FIRST_PART = 256
GROWTH = 1.5
"""An index is brought out once there are so many more vectors, and half as many again: ten times for 20,000 tools."""

LOOK_SECONDS = 0.5
"""Seconds between checks, while waiting for another gateway's index, if a different one is wanted."""

EXAMPLES_SECONDS = 1.0
"""Seconds to collect changes of example queries, which are written a server at a time, before the index is rebuilt."""

OnIndex = Callable[[ToolIndex], None]

MostUsed = Callable[[], Iterable[ToolKey]]
"""Returns the tools that were used, the most used first; may read a file."""


@dataclass(frozen=True, slots=True)
class _Sources:
    """Texts and cache of the vectors of one catalog."""

    texts: Sequence[ToolDocument]
    embedder: Embedder
    cache: EmbeddingCache
    most_used: Callable[[], Iterable[str]]


class _Entry:
    """One index that is built or complete, and who is told of it."""

    def __init__(self, wanted: Sequence[object]) -> None:
        self.wanted = wanted
        self.followers: list[OnIndex] = []
        self.latest: ToolIndex | None = None
        self.is_complete = False
        self.ended = anyio.Event()

    def follow(self, on_index: OnIndex) -> None:
        """Tell of the index so far, and of what it becomes."""
        self.followers.append(on_index)
        if self.latest is not None:
            on_index(self.latest)

    def bring_out(self, index: ToolIndex) -> None:
        """Tell everybody."""
        self.latest = index
        for tell in self.followers:
            tell(index)


def _find(entries: Sequence[_Entry], wanted: Sequence[object]) -> _Entry | None:
    return next((each for each in entries if each.wanted == wanted), None)


class SharedIndexes:
    """The indexes of the gateways of a process: those that have the same tools have the same one, built once."""

    def __init__(self, kept: int = 0) -> None:
        """Keep so many complete ones, the latest, for gateways that come later."""
        self.reading = anyio.CapacityLimiter(1)
        """One gateway after the other reads what its index is made of, as most find what the first one has read."""
        self.texts = SingleFlightCache[Sequence[ToolDocument]](kept)
        """Indexed texts of catalogs."""
        self._kept = kept
        self._entries: list[_Entry] = []

    async def provide(
        self,
        wanted: Sequence[object],
        on_index: OnIndex,
        build: Callable[[OnIndex], Awaitable[bool]],
        is_outdated: Callable[[], bool],
    ) -> bool:
        """Bring out an index, the last one complete; whether it came to that before this is outdated.

        Args:
            wanted: all that it is made of.
            on_index: gets it, and what there is of it before.
            build: builds one, and says whether it came to its end.
            is_outdated: whether nobody wants it any more.
        """
        while not is_outdated():
            entries = list(self._entries)
            entry = await anyio.to_thread.run_sync(_find, entries, wanted)
            if entry is None:
                if entries != self._entries:
                    # Another gateway may have begun the same index meanwhile.
                    continue
                return await self._build(_Entry(wanted), on_index, build)
            entry.follow(on_index)
            while not (entry.ended.is_set() or is_outdated()):
                with anyio.move_on_after(LOOK_SECONDS):
                    await entry.ended.wait()
            entry.followers.remove(on_index)
            if entry.is_complete:
                return True
        return False

    async def _build(self, entry: _Entry, on_index: OnIndex, build: Callable[[OnIndex], Awaitable[bool]]) -> bool:
        entry.follow(on_index)
        self._entries.append(entry)
        try:
            entry.is_complete = await build(entry.bring_out)
        finally:
            entry.ended.set()
            entry.followers.remove(on_index)
            if not entry.is_complete:
                self._entries.remove(entry)
            complete = [each for each in self._entries if each.is_complete]
            for old in complete[: max(len(complete) - self._kept, 0)]:
                self._entries.remove(old)
        return entry.is_complete


class Indexer:
    """Builds the index for the newest catalog requested; older requests are skipped.

    Words come first, then the vectors that are stored, then those that are computed, a part at a time: first of the
    tools themselves, then of their examples.
    """

    def __init__(
        self,
        cache_dir: Path,
        *,
        examples: ToolExamples | None = None,
        most_used: MostUsed = tuple,
        load: Callable[[str], Embedder] = load_embedder,
        indexes: SharedIndexes | None = None,
    ) -> None:
        """Keep embeddings in `cache_dir`.

        Args:
            cache_dir: shared with other gateway processes.
            examples: what is asked for tools; nothing unless given.
            most_used: tools whose vectors are computed first.
            load: the model of a setting.
            indexes: those of other gateways of this process.
        """
        self._indexes = indexes or SharedIndexes()
        self._cache_dir = cache_dir
        self._examples = examples
        self._most_used = most_used
        self._load = load
        self._requested: tuple[Settings, Catalog] | None = None
        self._since = time.monotonic()
        self._wanted = CoalescedSignal()
        self._new_examples = CoalescedSignal(EXAMPLES_SECONDS)
        self._usable = anyio.Event()
        self._current = anyio.Event()
        self._embedders: dict[str, Embedder | None] = {}
        self._indexed: tuple[object, ...] = ()
        self._has_index = False
        self._sought: dict[str, None] = {}

    def request(self, settings: Settings, catalog: Catalog) -> None:
        """Ask for an index over this catalog."""
        self._requested = (settings, catalog)
        if self._usable.is_set():
            self._usable, self._since = anyio.Event(), time.monotonic()
        if self._current.is_set():
            self._current = anyio.Event()
        self._wanted.ask()

    def renew(self) -> None:
        """Ask soon for the index once more, because examples changed; meanwhile the previous one is complete."""
        self._new_examples.ask()

    async def follow_examples(self) -> None:
        """Ask for the index whenever examples changed, for as long as the owner's task group lives."""
        while True:
            await self._new_examples.next()
            if self._requested is not None:
                self._wanted.ask()

    def prefer(self, names: Iterable[str]) -> None:
        """Compute the vectors of these tools first, where any are to be computed."""
        if not self._current.is_set():
            self._sought.update(dict.fromkeys(names))

    async def wait_for_usable_index(self, timeout: float) -> bool:
        """Wait for an index of the newest catalog with all but what takes long to compute; whether it stands.

        Where there is an index to answer from, all who wait do so for no longer than `timeout` seconds together.
        """
        waited = time.monotonic() - self._since if self._has_index else 0.0
        with anyio.move_on_after(max(timeout - waited, 0.0)):
            await self._usable.wait()
        return self._usable.is_set()

    async def wait(self, timeout: float) -> bool:
        """Wait for the complete index of the newest catalog, at most `timeout` seconds; whether it stands."""
        with anyio.move_on_after(timeout):
            await self._current.wait()
        return self._current.is_set()

    async def run(self, on_index: OnIndex) -> None:
        """Serve requests for as long as the owner's task group lives."""

        def bring_out(index: ToolIndex) -> None:
            self._has_index = True
            on_index(index)

        while True:
            await self._wanted.next()
            if self._requested is None:
                continue
            settings, catalog = self._requested
            texts = await anyio.to_thread.run_sync(self._documents, settings, catalog, limiter=self._indexes.reading)
            wanted = (settings.search.model, settings.search.ranking is Ranking.LEXICAL, *texts)
            if not await anyio.to_thread.run_sync(wanted.__eq__, self._indexed):
                self._indexed = ()
                build = partial(self._build, settings, catalog, texts)
                if await self._indexes.provide(wanted, bring_out, build, lambda: self._wanted.is_due):
                    self._indexed = wanted
            if not self._wanted.is_due:
                self._usable.set()
                self._current.set()
                self._sought.clear()

    def _documents(self, settings: Settings, catalog: Catalog) -> Sequence[ToolDocument]:
        examples = self._examples if settings.search.example_queries else None

        def written() -> Sequence[ToolDocument]:
            asked = None if examples is None else examples.of(catalog.tools, settings.servers)
            skills = catalog.offers.of_kind(OfferKind.SKILL)
            return [*documents(catalog.tools, catalog.ownership, asked), *skill_documents(skills)]

        kept = None if examples is None else (ById(examples.library.all()), settings.servers)
        return self._indexes.texts.get((ById(catalog), kept), written)

    async def _build(
        self, settings: Settings, catalog: Catalog, texts: Sequence[ToolDocument], bring_out: OnIndex
    ) -> bool:
        """Bring out indexes, the last one complete; whether it came to that before another catalog was requested."""
        in_thread = anyio.to_thread.run_sync
        words = await in_thread(ToolIndex.build, texts, None)
        embedder = None
        if settings.search.ranking is not Ranking.LEXICAL:
            if not self._has_index:
                # So that no search waits for the model to load.
                bring_out(words.awaiting_vectors())
            embedder = await in_thread(self._embedder, settings.search.model)
        if embedder is None:
            bring_out(words)
            return True
        cache = EmbeddingCache.of_catalog(self._cache_dir, len(texts))
        names = catalog.assignments
        sources = _Sources(texts, embedder, cache, lambda: [names[tool] for tool in self._most_used() if tool in names])
        index = await self._with_own_vectors(words, sources, bring_out)
        if index is None:
            return False
        bring_out(index)
        return await self._with_examples(index, sources, bring_out)

    async def _with_own_vectors(self, words: ToolIndex, sources: _Sources, bring_out: OnIndex) -> ToolIndex | None:
        """Return the index with the vectors of all tools; None when another catalog was requested meanwhile."""
        in_thread = anyio.to_thread.run_sync
        texts, embedder, cache = sources.texts, sources.embedder, sources.cache
        so_far = partial(words.with_known_vectors, embedder, cache)
        index = await in_thread(so_far)
        if index.lacking:
            if len(index.lacking) > SLICE:
                bring_out(index)
                if not self._wanted.is_due:
                    self._usable.set()
                self.prefer(await in_thread(sources.most_used))

            def encode(chosen: Sequence[int]) -> None:
                cache.encode(embedder, [dense_text(texts[at]) for at in chosen])

            known = len(texts) - len(index.lacking)
            if not await self._encoded(texts, index.lacking, known, encode, so_far, bring_out):
                return None
            index = await in_thread(so_far)
        if index.lacking:
            # What could not be stored is computed once more.
            examples = await in_thread(examples_so_far, texts, embedder, cache)
            build = partial(ToolIndex.build, pause=anyio.from_thread.check_cancelled, examples=examples)
            index = await in_thread(build, texts, embedder, cache)
        return index

    async def _with_examples(self, index: ToolIndex, sources: _Sources, bring_out: OnIndex) -> bool:
        """Bring out the index with the vectors of all requests; False when another catalog was requested meanwhile.

        It answers without them too, so that nothing waits for these.
        """
        in_thread = anyio.to_thread.run_sync
        texts, embedder, cache = sources.texts, sources.embedder, sources.cache
        having = sum(bool(each.examples) for each in texts)
        lacking = await in_thread(lambda: index.lacking_examples)
        if lacking:
            if not self._wanted.is_due:
                self._usable.set()
            self.prefer(await in_thread(sources.most_used))

            def encode(chosen: Sequence[int]) -> None:
                cache.encode_examples(embedder, [texts[at].examples for at in chosen])

            def so_far() -> ToolIndex:
                return index.with_examples(examples_so_far(texts, embedder, cache))

            if not await self._encoded(texts, lacking, having - len(lacking), encode, so_far, bring_out):
                return False
            examples = partial(all_examples, texts, embedder, cache, anyio.from_thread.check_cancelled)
            bring_out(index.with_examples(await in_thread(examples)))
        return True

    async def _encoded(
        self,
        texts: Sequence[ToolDocument],
        lacking: Sequence[int],
        known: int,
        encode: Callable[[Sequence[int]], object],
        so_far: Callable[[], ToolIndex],
        bring_out: OnIndex,
    ) -> bool:
        """Compute and store the vectors that are lacking beside those known, and bring out indexes with those so far.

        In slices, because a thread cannot be cancelled and a process that is asked to end should. False when another
        catalog was requested meanwhile.
        """
        due = _next_part(known)
        for chosen, left in self._slices(texts, lacking):
            await anyio.to_thread.run_sync(encode, chosen)
            if self._wanted.is_due:
                return False
            if left and known + len(lacking) - left >= due:
                bring_out(await anyio.to_thread.run_sync(so_far))
                due = _next_part(known + len(lacking) - left)
        return True

    def _slices(self, texts: Sequence[ToolDocument], lacking: Sequence[int]) -> Iterator[tuple[list[int], int]]:
        """Yield missing texts in slices, recently searched ones first, each with the number left after it."""
        places = {texts[at].key: at for at in lacking}
        waiting, left = deque(lacking), set(lacking)
        while left:
            waiting.extendleft(places[name] for name in reversed(self._sought) if name in places)
            self._sought.clear()
            chosen: list[int] = []
            while waiting and len(chosen) < SLICE:
                at = waiting.popleft()
                if at in left:
                    left.discard(at)
                    chosen.append(at)
            yield chosen, len(left)

    def _embedder(self, model: str) -> Embedder | None:
        if model not in self._embedders:
            try:
                self._embedders[model] = self._load(model)
            except ModelError as error:
                logger.warning("%s; search answers from words alone", error)
                self._embedders[model] = None
        return self._embedders[model]


def _next_part(known: int) -> int:
    """With how many vectors the next index is brought out: so much more that all of them take little time together."""
    return max(known + FIRST_PART, round(GROWTH * known))
