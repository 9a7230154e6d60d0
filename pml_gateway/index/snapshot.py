"""Snapshots: the index of a large catalog as files, which are mapped into memory and shared by all gateway processes.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pml_gateway.config.files import lock_if_free, write_atomically
from pml_gateway.index.clustered import Clusters
from pml_gateway.index.postings import Postings

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


class SnapshotStore:
    """The newest snapshot of one catalog with one model.

    Files that are damaged or come from elsewhere are reported and removed, and ones that cannot be written are done
    without: a search needs none of them.
    """

    def __init__(self, directory: Path, *, identity: str, model: str) -> None:
        """In a directory that other catalogs share; `identity` names the catalog, `model` the model setting."""
        self._directory = directory / hashlib.sha256(f"{identity}\0{model}".encode()).hexdigest()[:16]
        self._current = self._directory / "current"

    def load(self) -> Snapshot | None:
        """The newest snapshot, mapped; None when there is none that can be used."""
        # another process may replace a snapshot that is being opened: the next one is then there
        for _ in range(2):
            try:
                folder = self._directory / self._current.read_text(encoding="utf-8")
            except FileNotFoundError:
                return None
            except (OSError, ValueError) as exc:
                self._discard(self._current, exc)
                return None
            try:
                return _read(folder)
            except _UNREADABLE as exc:
                if self._is_current(folder):
                    self._discard(folder, exc)
                    return None
        return None

    def save(self, snapshot: Snapshot) -> Snapshot:
        """Write a snapshot and give it back mapped; as it is when it cannot be written or another process writes."""
        folder = self._directory / f"snapshot-{secrets.token_hex(8)}"
        try:
            with lock_if_free(self._current) as held:
                if not held:
                    _logger.info("another process is writing the index in %s", self._directory)
                    return snapshot
                folder.mkdir(mode=0o700)
                _write(folder, snapshot)
                saved = _read(folder)
                write_atomically(self._current, folder.name)
                for other in self._directory.glob("snapshot-*"):
                    if other != folder:
                        shutil.rmtree(other, ignore_errors=True)
                return saved
        except (OSError, RuntimeError, _DamagedError) as exc:
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
        if path.parent == self._directory and path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


def _write(folder: Path, snapshot: Snapshot) -> None:
    import faiss  # imported late: see pml_gateway/index/__init__.py

    for name, values in _arrays(snapshot).items():
        np.save(folder / f"{name}.npy", values, allow_pickle=False)
    faiss.write_index(snapshot.clusters.inverted, str(folder / "clusters.faiss"))
    (folder / "words.txt").write_text(SEPARATOR.join(snapshot.postings.vocabulary), encoding="utf-8", newline="")
    meta = {
        "format": FORMAT,
        "model_id": snapshot.model_id,
        "layout": snapshot.layout,
        "checksums": {file.name: _checksum(file) for file in folder.iterdir()},
    }
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


def _read(folder: Path) -> Snapshot:
    import faiss  # imported late, as above

    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    if meta["format"] != FORMAT:
        raise _DamagedError(f"format {meta['format']!r} is not {FORMAT}")
    for name, checksum in meta["checksums"].items():
        if _checksum(folder / name) != checksum:
            raise _DamagedError(f"{name} is not what was written")
    # asarray: a plain view of the mapped pages, without the cost of numpy's memmap class at every slice
    arrays = {name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)) for name in _ARRAYS}
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
