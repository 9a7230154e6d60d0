"""Indexes of large catalogs: built in halves, kept as files that are mapped into memory and shared by processes.

A snapshot is a directory that never changes once `current` names it. Small catalogs have none: their index is built
from cached embeddings faster than files would be checked.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from pml_gateway.files import OWNER_ONLY, PRIVATE_FOLDER, lock_if_free, write_atomically
from pml_gateway.home import CACHE, do_without
from pml_gateway.index.cache import EmbeddingCache
from pml_gateway.index.embedder import Embedder, Embeddings
from pml_gateway.index.lexical import Postings, count_words, rearranged
from pml_gateway.index.request_vectors import (
    Encoded,
    RequestCodes,
    Requests,
    RequestVectors,
    encoded,
    gathered_at,
    in_turn,
    with_requests,
)
from pml_gateway.index.text import ToolDocument, dense_text, lexical_tokens
from pml_gateway.index.vectors import (
    EXACT_LIMIT,
    ClusteredVectors,
    Clusters,
    ExactVectors,
    Positions,
    Rows,
    Stored,
    VectorIndex,
)

FORMAT = 1
CHECKED_AT_ONCE = 1 << 20
SEPARATOR = "\n"
"""Between the words of a vocabulary; no word has one."""

Digests = npt.NDArray[np.uint64]

_logger = logging.getLogger(__name__)


class _DamagedError(Exception):
    """A snapshot that says one thing and holds another."""


_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, RuntimeError, _DamagedError)
"""What JSON, numpy and FAISS make of files that are not theirs."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The index of the n documents of a catalog as it was."""

    model_id: str
    layout: str
    """Changes with the way in which tools become texts and words."""
    text_digests: Digests
    """(n,) of what is embedded of each document."""
    word_digests: Digests
    """(n,) of what is matched by words."""
    clusters: Clusters
    postings: Postings


@dataclass(frozen=True, slots=True)
class RequestSnapshot:
    """The vectors of the requests of the tools that had some."""

    model_id: str
    digests: Digests
    """(n,) of the requests of each tool."""
    codes: RequestCodes


Kept = TypeVar("Kept")


class Snapshots(Generic[Kept]):
    """The newest snapshot in a directory.

    Files that are damaged or come from elsewhere are reported and removed, and ones that cannot be written are done
    without: a search needs none of them.
    """

    def __init__(self, directory: Path, write: Callable[[Path, Kept], None], read: Callable[[Path], Kept]) -> None:
        """Kept as files of a folder that is new each time, which `write` and `read` know."""
        self._directory = directory
        self._current = self._directory / "current"
        self._write, self._read = write, read

    def load(self) -> Kept | None:
        """The newest snapshot, mapped; None when there is none that can be used."""
        # another process may replace a snapshot that is being opened: the next one is then there
        for _ in range(2):
            try:
                folder = self._directory / self._current.read_text(encoding="utf-8")
            except (FileNotFoundError, NotADirectoryError):
                return None
            except (OSError, ValueError) as exc:
                self._discard(self._current, exc)
                return None
            try:
                return self._read(folder)
            except _UNREADABLE as exc:
                if self._is_current(folder):
                    self._discard(folder, exc)
                    return None
        return None

    def save(self, snapshot: Kept) -> Kept:
        """Write a snapshot and give it back mapped; as it is when it cannot be written or another process writes."""
        folder = self._directory / f"snapshot-{secrets.token_hex(8)}"
        try:
            with lock_if_free(self._current) as held:
                if not held:
                    _logger.info("another process is writing the index in %s", self._directory)
                    return snapshot
                folder.mkdir(mode=PRIVATE_FOLDER)
                self._write(folder, snapshot)
                for file in folder.iterdir():
                    file.chmod(OWNER_ONLY)
                saved = self._read(folder)
                write_atomically(self._current, folder.name)
                for other in self._directory.glob("snapshot-*"):
                    if other != folder:
                        shutil.rmtree(other, ignore_errors=True)
                return saved
        except OSError as exc:
            do_without(CACHE, self._directory, exc)
            shutil.rmtree(folder, ignore_errors=True)
            return snapshot
        except (RuntimeError, _DamagedError) as exc:
            _logger.warning("index %s not written: %s", self._directory, exc)
            shutil.rmtree(folder, ignore_errors=True)
            return snapshot

    def _is_current(self, folder: Path) -> bool:
        try:
            return self._current.read_text(encoding="utf-8") == folder.name
        except OSError:
            return False

    def _discard(self, path: Path, reason: Exception) -> None:
        _logger.warning(
            "index %s is damaged or unreadable and is built anew: %s: %s", path, type(reason).__name__, reason
        )
        try:
            self._current.unlink(missing_ok=True)
        except OSError as exc:
            _logger.warning("index %s cannot be removed: %s", self._current, exc)
        if path != self._current and path.parent == self._directory:
            shutil.rmtree(path, ignore_errors=True)


class SnapshotStore(Snapshots[Snapshot]):
    """The snapshots of one catalog with one model; requests have their own, as they change at other times."""

    def __init__(self, directory: Path, *, identity: str, model: str) -> None:
        """In a directory that other catalogs share; `identity` names the catalog, `model` the model setting."""
        own = directory / hashlib.sha256(f"{identity}\0{model}".encode()).hexdigest()[:16]
        super().__init__(own, _write, _read)
        self.requests = Snapshots(own / "requests", _write_requests, _read_requests)


def _write(folder: Path, snapshot: Snapshot) -> None:
    import faiss  # imported late: see pml_gateway/index/__init__.py

    _write_arrays(folder, _arrays(snapshot))
    faiss.write_index(snapshot.clusters.inverted, str(folder / "clusters.faiss"))
    (folder / "words.txt").write_text(SEPARATOR.join(snapshot.postings.vocabulary), encoding="utf-8", newline="")
    _write_meta(folder, {"model_id": snapshot.model_id, "layout": snapshot.layout})


def _read(folder: Path) -> Snapshot:
    import faiss  # imported late, as above

    meta = _checked_meta(folder)
    arrays = _mapped_arrays(folder, _ARRAYS)
    words = (folder / "words.txt").read_text(encoding="utf-8")
    vocabulary = {word: number for number, word in enumerate(words.split(SEPARATOR) if words else ())}
    inverted: Any = faiss.read_index(str(folder / "clusters.faiss"), faiss.IO_FLAG_MMAP)
    return Snapshot(
        model_id=str(meta["model_id"]),
        layout=str(meta["layout"]),
        text_digests=arrays["text_digests"],
        word_digests=arrays["word_digests"],
        clusters=Clusters(arrays["vectors"], inverted),
        postings=Postings(vocabulary, arrays["starts"], arrays["owners"], arrays["counts"], arrays["lengths"]),
    )


def _write_requests(folder: Path, snapshot: RequestSnapshot) -> None:
    import faiss  # imported late, as above

    codes = snapshot.codes
    values = (snapshot.digests, codes.starts, codes.codes, codes.scales)
    _write_arrays(folder, dict(zip(_REQUEST_ARRAYS, values, strict=True)))
    faiss.write_index(codes.means, str(folder / "means.faiss"))
    _write_meta(folder, {"model_id": snapshot.model_id})


def _read_requests(folder: Path) -> RequestSnapshot:
    import faiss  # imported late, as above

    meta = _checked_meta(folder)
    digests, starts, codes, scales = _mapped_arrays(folder, _REQUEST_ARRAYS).values()
    means: Any = faiss.read_index(str(folder / "means.faiss"), faiss.IO_FLAG_MMAP_IFC)
    return RequestSnapshot(str(meta["model_id"]), digests, RequestCodes(starts, codes, scales, means))


_REQUEST_ARRAYS = ("digests", "starts", "codes", "scales")


def _write_arrays(folder: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values, allow_pickle=False)


def _mapped_arrays(folder: Path, names: Iterable[str]) -> dict[str, npt.NDArray[Any]]:
    # asarray: a plain view of the mapped pages, without the cost of numpy's memmap class at every slice
    return {name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)) for name in names}


def _write_meta(folder: Path, said: Mapping[str, str]) -> None:
    meta = {"format": FORMAT, **said, "checksums": {file.name: _checksum(file) for file in folder.iterdir()}}
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


def _checked_meta(folder: Path) -> dict[str, Any]:
    meta: dict[str, Any] = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    if meta["format"] != FORMAT:
        raise _DamagedError(f"format {meta['format']!r} is not {FORMAT}")
    for name, checksum in meta["checksums"].items():
        if _checksum(folder / name) != checksum:
            raise _DamagedError(f"{name} is not what was written")
    return meta


_ARRAYS = ("text_digests", "word_digests", "vectors", "starts", "owners", "counts", "lengths")


def _arrays(snapshot: Snapshot) -> dict[str, npt.NDArray[Any]]:
    postings = snapshot.postings
    values = (snapshot.text_digests, snapshot.word_digests, snapshot.clusters.vectors)
    return dict(
        zip(_ARRAYS, (*values, postings.starts, postings.owners, postings.counts, postings.lengths), strict=True)
    )


def _checksum(file: Path) -> int:
    """Of the whole file, 1 s for the gigabyte of a million tools: FAISS does not survive every damaged file."""
    checksum = 0
    with file.open("rb") as stream:
        while block := stream.read(CHECKED_AT_ONCE):
            checksum = zlib.crc32(block, checksum)
    return checksum


MAX_CHANGES = 2_000
"""Tools that came or went since the snapshot; new ones are compared one by one, in at most 1 ms. With more of them,
the snapshot is brought up to date."""

ENCODED_AT_ONCE = 10_000

_PROBES = (
    ToolDocument("a__getHTTPThing_v2", "a-server", "getHTTPThing_v2", "The Title", "Lists the files.", ("pathName",)),
    ToolDocument("b__検索", "b", "検索する", "", "ファイルを検索します。 Über naïve cafés", ()),
)


def lexical_half(documents: Sequence[ToolDocument], store: SnapshotStore | None) -> Postings:
    """The postings of documents; only the words of those that are not in the snapshot are counted."""
    snapshot = _usable(store)
    if snapshot is None:
        return count_words(map(lexical_tokens, documents))
    return _postings(snapshot, documents, _word_digests(documents))


def go_on() -> None:
    """The pause of a build that nobody stops."""


def both_halves(
    documents: Sequence[ToolDocument],
    embedder: Embedder,
    cache: EmbeddingCache | None,
    store: SnapshotStore | None,
    *,
    pause: Callable[[], None] = go_on,
    max_changes: int = MAX_CHANGES,
) -> tuple[Postings, ClusteredVectors]:
    """The postings and vectors of documents; what the snapshot lacks is embedded, or taken from the cache.

    Args:
        documents: the tools.
        embedder: the model.
        cache: of embeddings.
        store: of snapshots; None builds in memory.
        pause: called every few seconds at most; what it raises stops the build.
        max_changes: with more of them, the snapshot is brought up to date.
    """
    snapshot = _usable(store)
    texts, words = _text_digests(documents), _word_digests(documents)
    known = snapshot if snapshot is not None and snapshot.model_id == embedder.model_id else None
    moved = _places(known.text_digests, texts) if known is not None else np.zeros(0, dtype=np.int64)
    lacking = _lacking(moved, len(documents))
    counted = count_words(map(lexical_tokens, documents)) if snapshot is None else _postings(snapshot, documents, words)
    if known is not None and len(lacking) + np.count_nonzero(moved < 0) <= max_changes:
        fresh = _encode([documents[at] for at in lacking.tolist()], embedder, cache)
        return counted, ClusteredVectors(known.clusters, moved, fresh, lacking)
    if known is not None and 2 * len(lacking) <= len(documents):
        fresh = _encode([documents[at] for at in lacking.tolist()], embedder, cache)
        clusters = known.clusters.rearranged(moved, fresh, lacking)
    else:
        vectors = np.empty((len(documents), embedder.dimension), dtype=np.float16)
        if known is not None:
            vectors[moved[moved >= 0]] = known.clusters.vectors[moved >= 0]
        _encode_into(vectors, documents, lacking, embedder, cache, pause)
        clusters = Clusters.place(vectors, pause)
    current = Snapshot(embedder.model_id, _layout(), texts, words, clusters, counted)
    if store is not None:
        current = store.save(current)
    whole = np.arange(len(documents), dtype=np.int64)
    nothing = np.zeros((0, embedder.dimension), dtype=np.float32)
    return current.postings, ClusteredVectors(current.clusters, whole, nothing, whole[:0])


def all_requests(
    documents: Sequence[ToolDocument],
    embedder: Embedder,
    cache: EmbeddingCache | None,
    store: SnapshotStore | None,
    *,
    pause: Callable[[], None] = go_on,
    max_changes: int = MAX_CHANGES,
) -> RequestVectors:
    """The vectors of the requests of documents; what the snapshot lacks is embedded, or taken from the cache.

    The arguments are those of `both_halves`.
    """
    encode = _encode_requests(embedder, cache)
    requests = [document.requests for document in documents]
    having = with_requests(requests)
    if not len(having):
        return RequestVectors(len(documents))
    known, moved, digests = _known_requests(requests, having, embedder, store)
    lacking = _lacking(moved, len(having))
    if known is not None and len(lacking) + np.count_nonzero(moved < 0) <= max_changes:
        came = in_turn(requests, having[lacking], encode, pause)
        fresh = gathered_at(requests, having[lacking], came, embedder.dimension)
        return RequestVectors(len(documents), (known, _followed(having, moved)), fresh)
    before = np.full(len(having), -1, dtype=np.int64)
    before[moved[moved >= 0]] = np.flatnonzero(moved >= 0)

    came = in_turn(requests, having[before < 0], encode, pause)
    tools = (next(came) if known is None or number < 0 else known[number] for number in before.tolist())
    codes, _ = gathered_at(requests, having, tools, embedder.dimension)
    current = RequestSnapshot(embedder.model_id, digests, codes)
    if store is not None:
        current = store.requests.save(current)
    return RequestVectors(len(documents), (current.codes, having))


def requests_so_far(
    documents: Sequence[ToolDocument], embedder: Embedder, cache: EmbeddingCache | None, store: SnapshotStore | None
) -> RequestVectors:
    """The vectors of requests that are in the snapshot or the cache; none is computed."""
    requests = [document.requests for document in documents]
    having = with_requests(requests)
    if not len(having):
        return RequestVectors(len(documents))
    known, moved, _ = _known_requests(requests, having, embedder, store)
    lacking = _lacking(moved, len(having))[:EXACT_LIMIT]
    parts = [] if known is None else [(known, _followed(having, moved))]
    if cache is not None:
        stored = in_turn(requests, having[lacking], partial(cache.stored_requests, embedder), go_on)
        parts.append(gathered_at(requests, having[lacking], stored, embedder.dimension))
    return RequestVectors(len(documents), *parts)


def _encode_requests(embedder: Embedder, cache: EmbeddingCache | None) -> Callable[[Requests], Sequence[Encoded]]:
    return partial(encoded, embedder) if cache is None else partial(cache.encode_requests, embedder)


def _known_requests(
    requests: Requests, having: Positions, embedder: Embedder, store: SnapshotStore | None
) -> tuple[RequestCodes | None, Rows, Digests]:
    """What the snapshot has, which of those at `having` each of it is of, and the digests of the latter."""
    snapshot = None if store is None else store.requests.load()
    digests = _digests(requests[at] for at in having.tolist())
    if snapshot is None or snapshot.model_id != embedder.model_id:
        return None, np.zeros(0, dtype=np.int64), digests
    return snapshot.codes, _places(snapshot.digests, digests), digests


def _followed(having: Positions, moved: Rows) -> Positions:
    positions: Positions = np.where(moved >= 0, having[moved], -1)
    return positions


def vectors_so_far(
    documents: Sequence[ToolDocument], embedder: Embedder, cache: EmbeddingCache, store: SnapshotStore | None
) -> tuple[VectorIndex, Positions]:
    """The vectors of k documents that are in the snapshot or the cache, and which those are (k,); none is computed."""
    snapshot = _usable(store)
    if snapshot is None or snapshot.model_id != embedder.model_id:
        # Compared one by one, so not more of them than that is good for.
        embeddings, positions = cache.stored(embedder, [dense_text(each) for each in documents[:EXACT_LIMIT]])
        return ExactVectors(embeddings), positions
    moved = _places(snapshot.text_digests, _text_digests(documents))
    lacking = _lacking(moved, len(documents))[:EXACT_LIMIT]
    fresh, stored = cache.stored(embedder, [dense_text(documents[at]) for at in lacking.tolist()])
    positions = np.sort(np.concatenate((moved[moved >= 0], lacking[stored])))
    rows = np.where(moved >= 0, np.searchsorted(positions, moved), -1)
    vectors = ClusteredVectors(snapshot.clusters, rows, fresh, np.searchsorted(positions, lacking[stored]))
    return vectors, positions


def _usable(store: SnapshotStore | None) -> Snapshot | None:
    snapshot = None if store is None else store.load()
    return snapshot if snapshot is not None and snapshot.layout == _layout() else None


def _postings(snapshot: Snapshot, documents: Sequence[ToolDocument], words: Digests) -> Postings:
    moved = _places(snapshot.word_digests, words)
    if len(moved) == len(words) and np.array_equal(moved, np.arange(len(words))):
        return snapshot.postings
    lacking = _lacking(moved, len(documents))
    fresh = count_words(lexical_tokens(documents[at]) for at in lacking.tolist())
    return rearranged(snapshot.postings, moved, fresh, lacking)


def _encode_into(
    vectors: Stored,
    documents: Sequence[ToolDocument],
    rows: Rows,
    embedder: Embedder,
    cache: EmbeddingCache | None,
    pause: Callable[[], None],
) -> None:
    """Fill rows of `vectors` (n, dimension), not all at once: their full precision would take twice the memory."""
    for start in range(0, len(rows), ENCODED_AT_ONCE):
        pause()
        part = rows[start : start + ENCODED_AT_ONCE]
        vectors[part] = _encode([documents[at] for at in part.tolist()], embedder, cache)


def _encode(documents: Sequence[ToolDocument], embedder: Embedder, cache: EmbeddingCache | None) -> Embeddings:
    texts = [dense_text(document) for document in documents]
    return embedder.encode(texts) if cache is None else cache.encode(embedder, texts)


def _places(old: Digests, new: Digests) -> Rows:
    """(n_old,) where each old document is among the new ones, -1 where it is not; of equals, each has its own place."""
    by_old, by_new = np.argsort(old, kind="stable"), np.argsort(new, kind="stable")
    ordered_old, ordered_new = old[by_old], new[by_new]
    rank = np.arange(len(old)) - np.searchsorted(ordered_old, ordered_old)
    at = np.searchsorted(ordered_new, ordered_old) + rank
    found = at < len(new)
    found[found] = ordered_new[at[found]] == ordered_old[found]
    places = np.full(len(old), -1, dtype=np.int64)
    places[by_old[found]] = by_new[at[found]]
    return places


def _lacking(moved: Rows, count: int) -> Rows:
    """The positions, of `count`, that no old document has moved to."""
    lacking = np.ones(count, dtype=np.bool_)
    lacking[moved[moved >= 0]] = False
    return np.flatnonzero(lacking)


def _text_digests(documents: Iterable[ToolDocument]) -> Digests:
    return _digests((each.server, each.name, each.title, each.description) for each in documents)


def _word_digests(documents: Iterable[ToolDocument]) -> Digests:
    return _digests((each.server, each.name, each.title, each.description, *each.parameters) for each in documents)


def _digests(documents: Iterable[tuple[str, ...]]) -> Digests:
    """64 bits each: a mix-up among a million is as likely as 1 in 40 million, and would only rank one tool wrongly."""
    joined = b"".join(
        hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=8).digest()
        for parts in documents
    )
    return np.frombuffer(joined, dtype=np.uint64)


def _layout() -> str:
    """What becomes of texts that have something of everything."""
    seen = [(dense_text(probe), sorted(lexical_tokens(probe).items())) for probe in _PROBES]
    return hashlib.sha256(repr(seen).encode()).hexdigest()
