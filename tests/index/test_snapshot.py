"""The index of a large catalog is kept on disk: nothing is computed twice, and no damage stops a search."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pml_gateway.files import lock_if_free
from pml_gateway.index import Embedder, EmbeddingCache, ToolDocument, ToolIndex
from pml_gateway.index.large import SnapshotStore, all_requests, both_halves, requests_so_far
from pml_gateway.index.request_vectors import RequestVectors
from tests.index.catalogs import catalog, edited
from tests.index.fakes import HashedWords
from tests.index.tools import REPOSITORY

TOOLS = catalog(400)
EXACT_LIMIT = 100
QUERIES = ("create an account of the chess", "share the ticket item7", "list_invoice")
FILES = ("clusters.faiss", "vectors.npy", "owners.npy", "starts.npy", "words.txt", "meta.json", "text_digests.npy")


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path, identity="test", model="hashed")


def build(
    store: SnapshotStore, documents: Sequence[ToolDocument] = TOOLS, embedder: Embedder | None = None
) -> ToolIndex:
    return ToolIndex.build(documents, embedder or HashedWords(), None, store, exact_limit=EXACT_LIMIT)


def lacking(documents: Sequence[ToolDocument], embedder: Embedder, store: SnapshotStore) -> list[int]:
    """The positions of the documents that the snapshot has no vectors of."""
    words = ToolIndex.build(documents, None, store=store, exact_limit=EXACT_LIMIT)
    return words.with_known_vectors(embedder, EmbeddingCache(Path("nowhere")), store).lacking


def encoded(embedder: HashedWords, documents: Sequence[ToolDocument]) -> list[str]:
    """The descriptions of those documents that were embedded; calibration embeds texts of its own."""
    return [each.description for each in documents if any(each.description in text for text in embedder.encoded)]


def answers(index: ToolIndex) -> list[object]:
    return [[(hit.key, hit.score) for hit in index.search(query, limit=5).hits] for query in QUERIES]


def files(folder: Path, name: str) -> list[Path]:
    return sorted(folder.glob(f"*/snapshot-*/{name}"))


def test_a_restart_embeds_nothing_and_answers_the_same(store: SnapshotStore) -> None:
    before = answers(build(store))
    again = HashedWords()
    assert answers(build(store, embedder=again)) == before
    assert encoded(again, TOOLS) == []
    assert lacking(TOOLS, HashedWords(), store) == []


def test_an_edited_tool_is_embedded_alone_and_found_by_its_new_words(store: SnapshotStore) -> None:
    build(store)
    documents = [*TOOLS[:9], edited(TOOLS[9]), *TOOLS[10:]]
    assert lacking(documents, HashedWords(), store) == [9]
    embedder = HashedWords()
    index = build(store, documents, embedder)
    assert encoded(embedder, documents) == [documents[9].description]
    assert index.search(documents[9].description, limit=1).hits[0].key == TOOLS[9].key
    assert len(files(store._directory.parent, "meta.json")) == 1


def test_tools_that_change_places_are_embedded_again_by_no_one(store: SnapshotStore) -> None:
    build(store)
    embedder = HashedWords()
    turned = build(store, TOOLS[::-1], embedder)
    assert encoded(embedder, TOOLS) == []
    assert turned.search(TOOLS[7].description, limit=1).hits[0].key == TOOLS[7].key


def test_a_snapshot_with_many_changes_is_brought_up_to_date(store: SnapshotStore, tmp_path: Path) -> None:
    build(store)
    (before,) = files(tmp_path, "meta.json")
    documents = [*TOOLS[40:], *(edited(document) for document in TOOLS[:20])]
    embedder = HashedWords()
    postings, vectors = both_halves(documents, embedder, None, store, max_changes=10)
    assert encoded(embedder, documents) == [document.description for document in documents[-20:]]
    (after,) = files(tmp_path, "meta.json")
    assert before != after
    assert vectors.changes == 0
    assert len(postings.lengths) == len(documents)
    for at in (0, 200, 379):
        (vector,) = embedder.encode([documents[at].description])
        assert at in vectors.nearest(vector, 20)
    assert lacking(documents, embedder, store) == []


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_damaged_snapshot_is_reported_and_built_anew(
    store: SnapshotStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, damage: str
) -> None:
    expected = answers(build(store))
    (file,) = files(tmp_path, name)
    content = bytearray(file.read_bytes())
    file.unlink()
    if damage == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "changed":
        content[len(content) // 2] ^= 0xFF
        file.write_bytes(content)
    assert answers(build(store)) == expected
    assert "damaged" in caplog.text
    caplog.clear()
    embedder = HashedWords()
    assert answers(build(store, embedder=embedder)) == expected
    assert (encoded(embedder, TOOLS), caplog.text) == ([], "")
    assert len(files(tmp_path, "meta.json")) == 1


@pytest.mark.parametrize("content", [b"", b"elsewhere", b"../..", b"\xff\xfe", b"a\0b"])
def test_a_foreign_pointer_is_no_snapshot(store: SnapshotStore, content: bytes) -> None:
    expected = answers(build(store))
    store._current.write_bytes(content)
    assert answers(build(store)) == expected
    assert lacking(TOOLS, HashedWords(), store) == []


def test_vectors_of_another_model_are_not_used_but_words_are(store: SnapshotStore) -> None:
    build(store)
    other = HashedWords(model_id="another")
    assert lacking(TOOLS, other, store) == list(range(len(TOOLS)))
    build(store, embedder=other)
    assert len(encoded(other, TOOLS)) == len(TOOLS)


def test_a_place_that_cannot_be_written_is_done_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("not a directory")
    blocked = SnapshotStore(tmp_path / "file", identity="test", model="hashed")
    assert build(blocked).search(TOOLS[7].description, limit=1).hits[0].key == TOOLS[7].key
    assert "cannot be written" in caplog.text


def test_while_another_process_writes_the_index_stays_in_memory(store: SnapshotStore, tmp_path: Path) -> None:
    with lock_if_free(store._current) as held:
        assert held
        index = build(store)
    assert index.search(TOOLS[7].description, limit=1).hits[0].key == TOOLS[7].key
    assert files(tmp_path, "meta.json") == []


def test_an_index_that_was_replaced_on_disk_goes_on_answering(store: SnapshotStore) -> None:
    build(store)
    index = build(store)
    expected = answers(index)
    both_halves([edited(document) for document in TOOLS], HashedWords(), None, store)
    assert answers(index) == expected


def test_processes_that_build_at_once_leave_one_good_snapshot(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from pml_gateway.index.large import both_halves\n"
        "from pml_gateway.index.large import SnapshotStore\n"
        "from tests.index.catalogs import catalog, edited\n"
        "from tests.index.fakes import HashedWords\n"
        "store = SnapshotStore(Path(sys.argv[1]), identity='test', model='hashed')\n"
        "tools = catalog(400)\n"
        "for n in range(6):\n"
        "    both_halves([*map(edited, tools[:n]), *tools[n:]], HashedWords(), None, store, max_changes=0)\n"
    )
    environment = {"PYTHONPATH": f"{REPOSITORY}"}
    command = [sys.executable, "-c", program, str(tmp_path)]
    builders = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) for _ in range(3)]
    assert [builder.communicate(timeout=100)[1] for builder in builders] == [b"", b"", b""]
    assert len(files(tmp_path, "meta.json")) == 1
    loaded = SnapshotStore(tmp_path, identity="test", model="hashed").load()
    assert loaded is not None
    assert np.array_equal(np.sort(loaded.postings.owners)[:1], [0])


def test_a_small_catalog_leaves_no_files(store: SnapshotStore, tmp_path: Path) -> None:
    ToolIndex.build(TOOLS, HashedWords(), None, store)
    assert list(tmp_path.iterdir()) == []


def asked(documents: Sequence[ToolDocument]) -> list[ToolDocument]:
    """The same tools with requests, but for every fifth."""
    return [
        replace(each, requests=(f"somebody wants {each.name}", f"{each.name} of mine")[: at % 5])
        for at, each in enumerate(documents)
    ]


def request_texts(embedder: HashedWords) -> list[str]:
    return [text for text in embedder.encoded if "somebody wants" in text or text.endswith("of mine")]


def evidence(requests: RequestVectors) -> bytes:
    found = requests.evidence(HashedWords().encode(["somebody wants create account"]), np.arange(len(requests.counts)))
    return found.mean.tobytes() + found.best.tobytes() + found.which.tobytes() + found.counts.tobytes()


def in_memory(documents: Sequence[ToolDocument]) -> bytes:
    return evidence(ToolIndex.build(documents, HashedWords()).requests)


def test_requests_are_embedded_once_and_those_of_a_changed_tool_again(store: SnapshotStore) -> None:
    tools = asked(TOOLS)
    index = build(store, tools)
    assert evidence(index.requests) == in_memory(tools)
    again = HashedWords()
    assert evidence(build(store, tools, again).requests) == in_memory(tools)
    assert request_texts(again) == []
    changed = [*tools[50:], replace(tools[7], requests=("something of mine",))]
    embedder = HashedWords()
    assert evidence(build(store, changed, embedder).requests) == in_memory(changed)
    assert request_texts(embedder) == ["something of mine"]


def test_requests_that_come_leave_the_snapshot_of_the_tools_alone(store: SnapshotStore, tmp_path: Path) -> None:
    build(store)
    before = files(tmp_path, "meta.json")
    assert not (store._directory / "requests").exists()
    embedder = HashedWords()
    build(store, asked(TOOLS), embedder)
    assert encoded(embedder, TOOLS) == []
    assert files(tmp_path, "meta.json") == before


def test_a_snapshot_of_requests_with_many_changes_is_brought_up_to_date(store: SnapshotStore) -> None:
    tools = asked(TOOLS)
    all_requests(tools, HashedWords(), None, store)
    turned = [replace(tools[9], requests=("something of mine",)), *tools[:300][::-1]]
    embedder = HashedWords()
    made = all_requests(turned, embedder, None, store, max_changes=10)
    assert request_texts(embedder) == ["something of mine"]
    assert evidence(made) == in_memory(turned)
    cache = EmbeddingCache(Path("nowhere"))
    assert evidence(requests_so_far(turned, HashedWords(), cache, store)) == in_memory(turned)
    assert evidence(requests_so_far(turned, HashedWords(model_id="another"), cache, store)) != in_memory(turned)


@pytest.mark.parametrize("name", ["codes.npy", "scales.npy", "starts.npy", "digests.npy", "means.faiss", "meta.json"])
def test_damaged_requests_are_reported_and_embedded_anew(
    store: SnapshotStore, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    tools = asked(TOOLS)
    build(store, tools)
    (file,) = store._directory.glob(f"requests/snapshot-*/{name}")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.unlink()
    file.write_bytes(content)
    embedder = HashedWords()
    assert evidence(build(store, tools, embedder).requests) == in_memory(tools)
    assert "damaged" in caplog.text
    assert encoded(embedder, TOOLS) == []
    again = HashedWords()
    build(store, tools, again)
    assert request_texts(again) == []


def test_requests_in_a_snapshot_are_nearest_as_those_in_memory(store: SnapshotStore) -> None:
    tools = asked(TOOLS)
    build(store, tools)
    kept, fresh = build(store, tools).requests, ToolIndex.build(tools, HashedWords()).requests
    mask = np.arange(len(tools)) % 3 != 0
    for query in HashedWords().encode(QUERIES):
        for allowed in (None, mask):
            assert kept.nearest(query, 20, allowed).tolist() == fresh.nearest(query, 20, allowed).tolist()
