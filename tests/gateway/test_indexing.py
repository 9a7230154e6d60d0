"""Catalogs are indexed in the background; a restart and an edit compute only what is new."""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from pml_gateway.catalog.build import build_catalog
from pml_gateway.catalog.model import Catalog
from pml_gateway.config.settings import Settings
from pml_gateway.gateway import indexing as indexing_module
from pml_gateway.gateway.indexing import FIRST_PART, SLICE, Indexer
from pml_gateway.gateway.state import documents
from pml_gateway.index.embedder import Embeddings
from pml_gateway.index.search import ToolIndex
from pml_gateway.index.text import ToolDocument
from pml_gateway.installation import TRANSFORMERS, adding
from pml_gateway.types import Ranking
from tests.catalog.listings import listing, raw_tool
from tests.index.fakes import HashedWords

pytestmark = pytest.mark.anyio

NOUNS = ("account", "branch", "calendar", "document", "invoice", "message", "page", "ticket")
VERBS = ("create", "delete", "export", "find", "move", "rename")


def catalog(first: str = "Creates a new account for a customer") -> Catalog:
    described = [(f"{verb}_{noun}", f"{verb} the {noun} of a customer") for verb in VERBS for noun in NOUNS]
    tools = [raw_tool(name, text) for name, text in described[1:]]
    return build_catalog([listing("crm", raw_tool("create_account", first), *tools)])


async def indexed(cache_dir: Path, tools: Catalog) -> Sequence[ToolIndex]:
    """The indexes that a process brings out until the last one stands."""
    indexer = Indexer(cache_dir)
    indexes: list[ToolIndex] = []
    indexer.request(Settings(), tools)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(indexer.run, indexes.append)
        assert await indexer.wait(60)
        tasks.cancel_scope.cancel()
    return indexes


def embeddings(cache_dir: Path) -> int:
    """How many there are."""
    with closing(sqlite3.connect(cache_dir / "embeddings" / "embeddings.sqlite3")) as connection:
        (count,) = connection.execute("SELECT count(*) FROM blobs").fetchone()
        return int(count)


def folders(cache_dir: Path) -> list[str]:
    return [folder.name for folder in cache_dir.iterdir()]


async def test_words_answer_before_the_model_does(tmp_path: Path) -> None:
    first, *_, last = await indexed(tmp_path, catalog())
    assert first.search("rename a page", limit=1).ranking is Ranking.LEXICAL
    assert last.search("rename a page", limit=1).ranking is Ranking.FUSED


async def test_one_edited_description_is_one_embedding(tmp_path: Path) -> None:
    *_, before = await indexed(tmp_path, catalog())
    assert embeddings(tmp_path) == len(before.documents)
    *_, after = await indexed(tmp_path, catalog("Registers a zebra in the zoo"))
    assert embeddings(tmp_path) == len(before.documents) + 1
    assert after.search("register a zebra", limit=1).hits[0].key == "crm__create_account"


async def test_a_catalog_keeps_embeddings_and_no_index(tmp_path: Path) -> None:
    await indexed(tmp_path, catalog())
    assert folders(tmp_path) == ["embeddings"]


async def test_what_cannot_be_stored_is_computed_once_more_and_found(
    tmp_path: Path, asked: Callable[[str], None]
) -> None:
    (tmp_path / "file").write_text("not a directory")
    asked("first")
    indexer = Indexer(tmp_path / "file", load=lambda _: HashedWords())
    indexer.request(Settings(), many(2 * SLICE))
    async with indexing(indexer) as indexes:
        assert await indexer.wait(30)
    assert indexes[-1].lacking == indexes[-1].lacking_examples == []
    assert indexes[-1].search("handle item20", limit=1).hits[0].key == "crm__tool_20"


async def test_a_model_whose_library_is_missing_leaves_words_and_a_warning_and_the_way_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    indexer, indexes = Indexer(tmp_path), list[ToolIndex]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(indexer.run, indexes.append)
        for model, ranking in (
            ("builtin", Ranking.FUSED),
            ("nobody/no-such-model", Ranking.LEXICAL),
            ("builtin", Ranking.FUSED),
        ):
            indexer.request(Settings.model_validate({"search": {"model": model}}), catalog())
            assert await indexer.wait(60)
            assert indexes[-1].search("rename a page", limit=1).ranking is ranking
        tasks.cancel_scope.cancel()
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "nobody/no-such-model" in warning
    assert adding(TRANSFORMERS) in warning
    assert "words alone" in warning


class Held(HashedWords):
    """Computes the vectors of as many tools as it is allowed to, and then waits until it is allowed more."""

    def __init__(self, allowed: int = 0) -> None:
        super().__init__()
        self.allowed = threading.Semaphore(allowed)
        self.waits = threading.Event()

    def encode(self, texts: Sequence[str]) -> Embeddings:
        for _ in [text for text in texts if text.startswith("crm ")]:
            if not self.allowed.acquire(blocking=False):
                self.waits.set()
                assert self.allowed.acquire(timeout=30)
        return super().encode(texts)

    def allow(self, tools: int) -> None:
        self.waits.clear()
        self.allowed.release(tools)

    async def waiting(self) -> None:
        assert await anyio.to_thread.run_sync(self.waits.wait, 30)


def many(count: int) -> Catalog:
    return build_catalog(
        [listing("crm", *(raw_tool(f"tool_{at}", f"Handles item{at} of a customer") for at in range(count)))]
    )


@asynccontextmanager
async def indexing(indexer: Indexer) -> AsyncIterator[list[ToolIndex]]:
    """The indexes that are brought out so far."""
    indexes: list[ToolIndex] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(indexer.run, indexes.append)
        yield indexes
        tasks.cancel_scope.cancel()


async def test_while_vectors_are_computed_searches_answer_from_words_and_the_vectors_so_far(tmp_path: Path) -> None:
    held = Held()
    indexer = Indexer(tmp_path, load=lambda _: held)
    indexer.request(Settings(), many(4 * FIRST_PART))
    async with indexing(indexer) as indexes:
        assert await indexer.wait_for_usable_index(30)
        await held.waiting()
        assert not await indexer.wait(0)
        assert len(indexes[-1].lacking) == 4 * FIRST_PART
        assert indexes[-1].search("handle item900", limit=1).hits[0].key == "crm__tool_900"
        held.allow(FIRST_PART)
        await held.waiting()
        partial = indexes[-1]
        assert len(partial.lacking) == 3 * FIRST_PART
        assert partial.search("handle item9", limit=1).ranking is Ranking.FUSED
        assert partial.search("handle item900", limit=1).hits[0].key == "crm__tool_900"
        held.allow(3 * FIRST_PART)
        assert await indexer.wait(30)
        assert indexes[-1].encoded is None


async def test_what_was_sought_and_used_gets_its_vectors_first(tmp_path: Path) -> None:
    held = Held()
    indexer = Indexer(tmp_path, load=lambda _: held, most_used=lambda: [("crm", "tool_700")])
    indexer.request(Settings(), many(4 * FIRST_PART))
    async with indexing(indexer) as indexes:
        assert await indexer.wait_for_usable_index(30)
        await held.waiting()
        indexer.prefer(["crm__tool_900", "another__tool"])
        held.allow(FIRST_PART)
        await held.waiting()
        lacking = {indexes[-1].documents[at].name for at in indexes[-1].lacking}
        assert "tool_500" in lacking
        assert not lacking & {"tool_700", "tool_900"}
        held.allow(3 * FIRST_PART)
        assert await indexer.wait(30)


async def test_a_catalog_that_changes_while_vectors_are_computed_is_searched_at_once(tmp_path: Path) -> None:
    held = Held()
    indexer = Indexer(tmp_path, load=lambda _: held)
    indexer.request(Settings(), many(FIRST_PART))
    async with indexing(indexer) as indexes:
        assert await indexer.wait_for_usable_index(30)
        await held.waiting()
        indexer.request(Settings(), many(FIRST_PART + 50))
        held.allow(SLICE)
        assert await indexer.wait_for_usable_index(30)
        assert len(indexes[-1].documents) == FIRST_PART + 50
        assert len(indexes[-1].lacking) == FIRST_PART + 50 - SLICE
        held.allow(FIRST_PART + 50 - SLICE)
        assert await indexer.wait(30)
        assert len([text for text in held.encoded if text.startswith("crm ")]) == FIRST_PART + 50


@pytest.mark.parametrize("tools", [SLICE, FIRST_PART])
async def test_a_restart_computes_no_vector(tmp_path: Path, tools: int) -> None:
    async def computed(held: Held) -> int:
        indexer = Indexer(tmp_path, load=lambda _: held)
        indexer.request(Settings(), many(tools))
        async with indexing(indexer) as indexes:
            assert await indexer.wait(30)
            assert indexes[-1].encoded is None
            assert indexes[-1].search("handle item20", limit=1).ranking is Ranking.FUSED
        return len([text for text in held.encoded if text.startswith("crm ")])

    assert await computed(Held(tools)) == tools
    assert await computed(Held()) == 0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Give every tool two examples, which a word tells apart from those given before."""

    def give(word: str) -> None:
        def with_examples(*given: Any) -> list[ToolDocument]:
            return [
                replace(each, examples=(f"crm wants {each.name} {word}", f"crm {word} somebody"))
                for each in documents(*given)
            ]

        monkeypatch.setattr(indexing_module, "documents", with_examples)

    return give


def request_texts(held: Held) -> list[str]:
    return [text for text in held.encoded if text.startswith("crm wants")]


async def test_requests_are_computed_after_the_tools_and_a_restart_computes_none(
    tmp_path: Path, asked: Callable[[str], None]
) -> None:
    async def built(held: Held, known: int, tools: Catalog) -> ToolIndex:
        indexer = Indexer(tmp_path, load=lambda _: held)
        indexer.request(Settings(), tools)
        async with indexing(indexer) as indexes:
            if known:
                # All tools have their own vectors by now, and searches that wait for these are answered.
                await held.waiting()
                assert await indexer.wait_for_usable_index(30)
                assert not await indexer.wait(0)
                assert not indexes[-1].lacking
                assert len(indexes[-1].lacking_examples) == known
                held.allow(10_000)
            assert await indexer.wait(30)
            assert not indexes[-1].lacking_examples
            return indexes[-1]

    asked("first")
    first = Held(4 * SLICE)
    await built(first, 4 * SLICE, many(4 * SLICE))
    assert len(request_texts(first)) == 4 * SLICE
    again = Held()
    index = await built(again, 0, many(4 * SLICE))
    assert index.examples is not None
    assert index.examples.counts.tolist() == [2] * (4 * SLICE)
    assert [text for text in again.encoded if text.startswith("crm ")] == []
    came = Held(2)
    await built(came, 2, many(4 * SLICE + 2))
    assert len(request_texts(came)) == 2
    asked("second")
    changed = Held(0)
    await built(changed, 4 * SLICE, many(4 * SLICE))
    assert [text for text in changed.encoded if text.startswith("crm ") and text not in request_texts(changed)] == [
        "crm second somebody"
    ] * (4 * SLICE)


async def test_examples_of_what_was_sought_and_used_are_computed_first(
    tmp_path: Path, asked: Callable[[str], None]
) -> None:
    asked("first")
    held = Held(4 * FIRST_PART)
    indexer = Indexer(tmp_path, load=lambda _: held, most_used=lambda: [("crm", "tool_700")])
    indexer.request(Settings(), many(4 * FIRST_PART))
    async with indexing(indexer) as indexes:
        await held.waiting()
        indexer.prefer(["crm__tool_900"])
        held.allow(2 * (FIRST_PART + SLICE))
        await held.waiting()
        lacking = {indexes[-1].documents[at].name for at in indexes[-1].lacking_examples}
        assert "tool_500" in lacking
        assert not lacking & {"tool_700", "tool_900"}
        held.allow(8 * FIRST_PART)
        assert await indexer.wait(30)
