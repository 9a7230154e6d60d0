"""Catalogs are indexed in the background; of a large one, a restart and an edit compute only what is new."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from pml_gateway.catalog.build import build_catalog
from pml_gateway.catalog.model import Catalog
from pml_gateway.config.settings import Settings
from pml_gateway.gateway.indexing import Indexer
from pml_gateway.index import ToolIndex
from pml_gateway.installation import TRANSFORMERS, adding
from pml_gateway.types import Ranking
from tests.catalog.listings import listing, raw_tool

pytestmark = pytest.mark.anyio

EXACT_LIMIT = 20
NOUNS = ("account", "branch", "calendar", "document", "invoice", "message", "page", "ticket")
VERBS = ("create", "delete", "export", "find", "move", "rename")


def catalog(first: str = "Creates a new account for a customer") -> Catalog:
    described = [(f"{verb}_{noun}", f"{verb} the {noun} of a customer") for verb in VERBS for noun in NOUNS]
    tools = [raw_tool(name, text) for name, text in described[1:]]
    return build_catalog([listing("crm", raw_tool("create_account", first), *tools)])


async def indexed(cache_dir: Path, tools: Catalog, limit: int = EXACT_LIMIT) -> Sequence[ToolIndex]:
    """The indexes that a process brings out until the last one stands."""
    indexer = Indexer(cache_dir, "configuration", exact_limit=limit)
    indexes: list[ToolIndex] = []
    indexer.request(Settings(), tools)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(indexer.run, indexes.append)
        assert await indexer.wait(60)
        tasks.cancel_scope.cancel()
    return indexes


def embeddings(cache_dir: Path) -> int:
    """How many there are; the file is made when the first one is computed."""
    file = cache_dir / "embeddings" / "embeddings.sqlite3"
    if not file.exists():
        return 0
    with closing(sqlite3.connect(file)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM embeddings").fetchone()
        return int(count)


def folders(cache_dir: Path) -> list[str]:
    return [folder.name for folder in cache_dir.iterdir()]


async def test_words_answer_before_the_model_does(tmp_path: Path) -> None:
    first, last = await indexed(tmp_path, catalog())
    assert first.search("rename a page", limit=1).ranking is Ranking.LEXICAL
    assert last.search("rename a page", limit=1).ranking is Ranking.FUSED


async def test_a_restart_with_a_large_catalog_embeds_nothing_even_without_the_cache(tmp_path: Path) -> None:
    *_, before = await indexed(tmp_path, catalog())
    assert embeddings(tmp_path) == len(before.documents)
    (tmp_path / "embeddings" / "embeddings.sqlite3").unlink()
    *_, after = await indexed(tmp_path, catalog())
    assert embeddings(tmp_path) == 0
    assert after.search("rename a page", limit=3) == before.search("rename a page", limit=3)


async def test_one_edited_description_in_a_large_catalog_is_one_embedding(tmp_path: Path) -> None:
    await indexed(tmp_path, catalog())
    (tmp_path / "embeddings" / "embeddings.sqlite3").unlink()
    *_, after = await indexed(tmp_path, catalog("Registers a zebra in the zoo"))
    assert embeddings(tmp_path) == 1
    assert after.search("register a zebra", limit=1).hits[0].key == "crm__create_account"


async def test_a_small_catalog_keeps_embeddings_and_no_index(tmp_path: Path) -> None:
    await indexed(tmp_path, catalog(), limit=1_000)
    assert folders(tmp_path) == ["embeddings"]


async def test_a_model_whose_library_is_missing_leaves_words_and_a_warning_and_the_way_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    indexer, indexes = Indexer(tmp_path, "configuration"), list[ToolIndex]()
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
