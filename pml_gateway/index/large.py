"""Large catalogs: turns tool documents into the two halves of their index, from a snapshot as far as there is one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from pml_gateway.index.cache import EmbeddingCache
from pml_gateway.index.clustered import ClusteredVectors, Clusters, Rows, Stored
from pml_gateway.index.embedder import Embedder, Embeddings
from pml_gateway.index.postings import Postings, count_words, rearranged
from pml_gateway.index.snapshot import Digests, Snapshot, SnapshotStore
from pml_gateway.index.text import ToolDocument, dense_text, lexical_tokens

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


def not_embedded(documents: Sequence[ToolDocument], embedder: Embedder, store: SnapshotStore | None) -> list[int]:
    """Positions of the documents whose vectors the snapshot lacks."""
    snapshot = _usable(store)
    if snapshot is None or snapshot.model_id != embedder.model_id:
        return list(range(len(documents)))
    lacking = _lacking(_places(snapshot.text_digests, _text_digests(documents)), len(documents))
    return [int(at) for at in lacking]


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
