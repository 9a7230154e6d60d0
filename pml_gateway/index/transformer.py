"""Any sentence-transformers model: turns texts into vectors with torch, for those who name their own model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pml_gateway.errors import ModelError
from pml_gateway.index.calibration import Calibration
from pml_gateway.index.embedder import Embeddings
from pml_gateway.index.shipped import shipped_calibration

BATCH_SIZE = 32
"""Padding wastes more than larger batches save on a CPU."""


class TransformerEmbedder:
    """A model by its name on the hub, or by the path of its directory."""

    def __init__(self, model: str) -> None:
        """Load the model, from the local cache if it is there; raises ModelError when it cannot be had."""
        import sentence_transformers  # imported late: see pml_gateway/index/__init__.py

        try:
            self._model: Any = _load(sentence_transformers.SentenceTransformer, model)
        except Exception as exc:
            raise ModelError(
                f"the embedding model {model!r} in search.model cannot be loaded: {exc}",
                hint="use `builtin`, a directory holding a sentence-transformers model, or a name on the hub; "
                "a name needs a network or an earlier download",
                details={"model": model},
            ) from exc
        self._model_id = f"sentence-transformers:{model}{_revision(Path(model))}"
        self._dimension = int(self._model.encode_document([""]).shape[1])

    @property
    def model_id(self) -> str:
        """The name the model was loaded by; for a directory with a digest that changes with its files."""
        return self._model_id

    @property
    def dimension(self) -> int:
        """Length of one vector."""
        return self._dimension

    @cached_property
    def calibration(self) -> Calibration:
        """The calibration of the shipped model, carried over once and not at every build of an index."""
        return shipped_calibration().transferred(self)

    def encode(self, texts: Sequence[str]) -> Embeddings:
        """Embed tool texts, with the model's own prompt for documents if it has one."""
        return self._vectors(self._model.encode_document, texts)

    def encode_queries(self, texts: Sequence[str]) -> Embeddings:
        """Embed queries, with the model's own prompt for queries if it has one."""
        return self._vectors(self._model.encode_query, texts)

    def _vectors(self, encode: Any, texts: Sequence[str]) -> Embeddings:
        if not texts:
            return np.zeros((0, self._dimension), dtype=np.float32)
        vectors = encode(list(texts), batch_size=BATCH_SIZE, normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(vectors, dtype=np.float32)


def _revision(directory: Path) -> str:
    if not directory.is_dir():
        return ""
    states = [(str(path), path.stat()) for path in sorted(directory.rglob("*")) if path.is_file()]
    listing = repr([(name, state.st_size, state.st_mtime_ns) for name, state in states])
    return "@" + hashlib.sha256(listing.encode()).hexdigest()[:12]


def _load(model_class: Any, model: str) -> Any:
    try:
        # the local copy first: no request to the hub on every start, and a start without a network
        return model_class(model, device="cpu", local_files_only=True)
    except (OSError, ValueError):
        return model_class(model, device="cpu")
