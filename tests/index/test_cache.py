"""The embedding cache encodes each text once, whatever happens to its file."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pml_gateway.index.cache import EmbeddingCache
from pml_gateway.index.search import ToolIndex
from pml_gateway.index.text import dense_text
from tests.index.fakes import HashedWords
from tests.index.tools import OFFICE, REPOSITORY

TEXTS = ["read a file", "send an email", "read a file", "query the database"]
DISTINCT = ["read a file", "send an email", "query the database"]


def test_a_text_is_encoded_once(tmp_path: Path) -> None:
    embedder = HashedWords()
    first = EmbeddingCache(tmp_path).encode(embedder, TEXTS)
    assert embedder.encoded == DISTINCT
    second = EmbeddingCache(tmp_path).encode(embedder, [*TEXTS, "make a call"])
    assert embedder.encoded == [*DISTINCT, "make a call"]
    assert np.array_equal(second[:4], first)
    assert np.array_equal(first, HashedWords().encode(TEXTS))


def test_a_rebuilt_index_encodes_only_the_tools_that_changed(tmp_path: Path) -> None:
    embedder, cache = HashedWords(), EmbeddingCache(tmp_path)
    ToolIndex.build(OFFICE[:-1], embedder, cache)
    embedder.encoded.clear()
    ToolIndex.build(OFFICE, embedder, cache)
    office = {dense_text(document) for document in OFFICE}
    assert [text for text in embedder.encoded if text in office] == [dense_text(OFFICE[-1])]


def test_vectors_of_one_model_are_not_given_for_another(tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path)
    cache.encode(HashedWords(model_id="one"), TEXTS)
    other = HashedWords(model_id="two")
    cache.encode(other, TEXTS)
    assert other.encoded == DISTINCT


def test_damage_that_sqlite_cannot_name_is_replaced(tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path)
    expected = cache.encode(HashedWords(), TEXTS)
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    damaged = content.replace(b"tableblobs", b"table\xfflobs", 1)
    assert damaged != content
    file.write_bytes(damaged)
    for _ in range(2):
        assert np.array_equal(cache.encode(HashedWords(), TEXTS), expected)
    again = HashedWords()
    cache.encode(again, TEXTS)
    assert again.encoded == []


@pytest.mark.parametrize("damage", [b"", b"no database at all, but long enough to be taken for one" * 100])
def test_a_damaged_file_is_replaced(tmp_path: Path, damage: bytes) -> None:
    cache = EmbeddingCache(tmp_path)
    expected = cache.encode(HashedWords(), TEXTS)
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage)
    assert np.array_equal(cache.encode(HashedWords(), TEXTS), expected)
    cache.encode(HashedWords(), TEXTS)
    again = HashedWords()
    assert np.array_equal(cache.encode(again, TEXTS), expected)
    assert again.encoded == []


def test_a_file_cut_short_does_not_stop_a_search(tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path)
    texts = [f"text {number}" for number in range(200)]
    expected = cache.encode(HashedWords(), texts)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert np.array_equal(cache.encode(HashedWords(), texts), expected)


@pytest.mark.parametrize(
    "vector", [b"short", np.full(128, 7, "<f4").tobytes(), np.full(128, np.nan, "<f4").tobytes(), "text"]
)
def test_a_damaged_vector_is_encoded_again(tmp_path: Path, vector: object) -> None:
    cache, embedder = EmbeddingCache(tmp_path), HashedWords()
    expected = cache.encode(embedder, DISTINCT)
    (file,) = tmp_path.iterdir()
    connection = sqlite3.connect(file)
    with connection:
        connection.execute("UPDATE blobs SET blob = ?", (vector,))
    connection.close()
    assert np.array_equal(cache.encode(embedder, DISTINCT), expected)
    assert embedder.encoded == DISTINCT * 2


def test_the_cache_keeps_no_more_than_its_limit(tmp_path: Path) -> None:
    cache, embedder = EmbeddingCache(tmp_path, max_entries=3), HashedWords()
    cache.encode(embedder, ["a", "b", "c"])
    cache.encode(embedder, ["d", "e"])
    embedder.encoded.clear()
    cache.encode(embedder, ["d", "e"])
    assert embedder.encoded == []
    cache.encode(embedder, ["a", "b", "c"])
    assert len(embedder.encoded) == 2


def test_a_place_that_cannot_be_written_is_done_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    assert EmbeddingCache(blocked).encode(HashedWords(), TEXTS).shape == (4, 128)
    assert "cannot be written" in caplog.text


def test_processes_share_the_cache_while_all_of_them_write(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.index.fakes import HashedWords\n"
        "from pml_gateway.index.cache import EmbeddingCache\n"
        "cache = EmbeddingCache(Path(sys.argv[1]))\n"
        "for n in range(40): cache.encode(HashedWords(), [f'text {n}', f'{sys.argv[2]} {n}'])\n"
    )
    environment = {"PYTHONPATH": f"{REPOSITORY}"}
    writers = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path), name], env=environment, stderr=subprocess.PIPE)
        for name in ("one", "two", "three")
    ]
    assert [writer.communicate(timeout=60)[1] for writer in writers] == [b"", b"", b""]
    embedder = HashedWords()
    texts = [f"{name} {n}" for name in ("text", "one", "two", "three") for n in range(40)]
    assert np.array_equal(EmbeddingCache(tmp_path).encode(embedder, texts), HashedWords().encode(texts))
    assert embedder.encoded == []


REQUESTS = [
    ("read my notes", "what does the file say"),
    ("mail it to Ann",),
    ("read my notes", "what does the file say"),
]


def test_examples_of_a_tool_are_encoded_once(tmp_path: Path) -> None:
    embedder = HashedWords()
    first = EmbeddingCache(tmp_path).encode_examples(embedder, REQUESTS)
    embedder.encoded.clear()
    second = EmbeddingCache(tmp_path).encode_examples(embedder, [*REQUESTS, ("count the rows",)])
    assert embedder.encoded == ["count the rows"]
    for mine, computed in zip(second, first, strict=False):
        assert np.array_equal(mine.codes, computed.codes)
        assert np.array_equal(mine.scales, computed.scales)
    stored = EmbeddingCache(tmp_path).stored_examples(embedder, [("something new",), REQUESTS[1]])
    assert [each is None for each in stored] == [True, False]
    assert embedder.encoded == ["count the rows"]


def test_examples_of_one_model_are_not_given_for_another(tmp_path: Path) -> None:
    EmbeddingCache(tmp_path).encode_examples(HashedWords(model_id="one"), REQUESTS)
    for other in (HashedWords(model_id="two"), HashedWords(64, model_id="one")):
        assert EmbeddingCache(tmp_path).stored_examples(other, REQUESTS) == [None] * 3


@pytest.mark.parametrize("at", [0, 5, 40, -1])
def test_damaged_requests_are_encoded_again(tmp_path: Path, at: int) -> None:
    cache, embedder = EmbeddingCache(tmp_path), HashedWords()
    (expected,) = cache.encode_examples(embedder, REQUESTS[:1])
    connection = sqlite3.connect(tmp_path / "examples.sqlite3")
    with connection:
        (blob,) = connection.execute("SELECT blob FROM blobs").fetchone()
        damaged = bytearray(blob)
        damaged[at] ^= 1
        connection.execute("UPDATE blobs SET blob = ?", (bytes(damaged),))
    connection.close()
    assert cache.stored_examples(embedder, REQUESTS[:1]) == [None]
    (again,) = cache.encode_examples(embedder, REQUESTS[:1])
    assert np.array_equal(again.codes, expected.codes)
