"""Embedding models: the shipped one on onnxruntime without torch, any other on sentence-transformers (an extra)."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from pml_gateway.errors import ModelError
from pml_gateway.index.calibration import Calibration, shipped_calibration, shipped_directory
from pml_gateway.index.embedder import Embedder, Embeddings
from pml_gateway.installation import TRANSFORMERS, adding

MODEL_FILE = "model.onnx"
TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "config.json"

NO_REPORTS = {"ORT_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
"""Environment variables that disable the telemetry of onnxruntime (official packages from 1.29 on) and huggingface_hub
when they load. Without its variable, the first stores an identifier of the machine in the home and sends events to
Microsoft."""

MIN_WORD = 4
"""Letters of an ordinary word: the model's vocabulary has nearly all shorter texts, words or not."""

BATCH_SIZE = 32
"""Texts in a batch; on a CPU, larger batches lose more time to padding than they save."""

BUILTIN = "builtin"
_LOADED: WeakValueDictionary[tuple[str, str], OnnxEmbedder | TransformerEmbedder] = WeakValueDictionary()

_LOADING = Lock()
"""Lock for `_LOADED`, the models in use: models are large, so the gateways of one process share them."""


def library(name: str) -> Any:
    """Import a library late, with its telemetry disabled; every library with telemetry must be loaded through here."""
    os.environ.update(NO_REPORTS)
    return import_module(name)


class OnnxEmbedder:
    """A sentence model exported by `models/build_model.py`: token ids in, one normalised vector out.

    Texts are encoded one at a time. The model's dynamic quantisation scales activations over the whole batch, so in a
    batch a vector would depend on its neighbours; alone it depends on its text only, which the cache relies on. On one
    thread a batch, with its padding, is no faster.
    """

    def __init__(self, directory: Path) -> None:
        """Load the model files in `directory`; raise a ModelError if one is missing or unreadable."""
        import tokenizers  # imported late: see pml_gateway/index/__init__.py

        onnxruntime = library("onnxruntime")
        self._directory = directory
        try:
            config = json.loads((directory / CONFIG_FILE).read_text(encoding="utf-8"))
            self.model_id = str(config["model_id"])
            self.dimension = int(config["dimension"])
            self._tokenizer: Any = tokenizers.Tokenizer.from_file(str(directory / TOKENIZER_FILE))
            self._tokenizer.no_padding()
            self._tokenizer.enable_truncation(int(config["max_tokens"]))
            self._session: Any = onnxruntime.InferenceSession(
                str(directory / MODEL_FILE), _session_options(onnxruntime), providers=["CPUExecutionProvider"]
            )
        except Exception as exc:
            raise ModelError(
                f"the embedding model in {directory} cannot be loaded: {exc}",
                hint="reinstall pml-gateway, or name another model in search.model",
                details={"directory": str(directory)},
            ) from exc

    @cached_property
    def calibration(self) -> Calibration:
        """Return the calibration fitted for this model; raise a ModelError if the file is missing or malformed."""
        return Calibration.read(self._directory)

    def encode(self, texts: Sequence[str]) -> Embeddings:
        """Embed texts, one row each, in their order; longer texts are cut at the model's maximum of tokens."""
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in enumerate(texts):
            ids = np.asarray([self._tokenizer.encode(text).ids], dtype=np.int64)
            vectors[row] = self._session.run(None, {"input_ids": ids})[0][0]
        return vectors


@cache
def ordinary_words() -> frozenset[str]:
    """Return the words that the shipped model's vocabulary has as a whole; reading them takes 15 ms."""
    content = json.loads((shipped_directory() / TOKENIZER_FILE).read_text(encoding="utf-8"))
    return frozenset(word for word in content["model"]["vocab"] if len(word) >= MIN_WORD and word.isalpha())


def _session_options(onnxruntime: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # a pattern is kept for each input length, so memory would grow
    options.log_severity_level = 3
    return options


class TransformerEmbedder:
    """A sentence-transformers model, given by its name on the hub or the path of its directory."""

    def __init__(self, model: str) -> None:
        """Load the model, from the local cache if possible; raise a ModelError if that fails."""
        require_library(model)
        try:
            self._model: Any = _load(library("sentence_transformers").SentenceTransformer, model)
        except Exception as exc:
            raise ModelError(
                f"the embedding model {model!r} in search.model cannot be loaded: {exc}",
                hint="use `builtin`, a directory holding a sentence-transformers model, or a name on the hub; "
                "a name needs a network or an earlier download",
                details={"model": model},
            ) from exc
        self.model_id = f"sentence-transformers:{model}{_revision(Path(model))}"
        self.dimension = int(self._model.encode_document([""]).shape[1])

    @cached_property
    def calibration(self) -> Calibration:
        """Return the shipped model's calibration transferred to this one; cached for all builds of an index."""
        return shipped_calibration().transferred(self)

    def encode(self, texts: Sequence[str]) -> Embeddings:
        """Embed tool texts, with the model's own prompt for documents if it has one."""
        return self._vectors(self._model.encode_document, texts)

    def encode_queries(self, texts: Sequence[str]) -> Embeddings:
        """Embed queries, with the model's own prompt for queries if it has one."""
        return self._vectors(self._model.encode_query, texts)

    def _vectors(self, encode: Any, texts: Sequence[str]) -> Embeddings:
        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32)
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
        # the local copy first: starts need no request to the hub, and work without a network
        return model_class(model, device="cpu", local_files_only=True)
    except (OSError, ValueError):
        return model_class(model, device="cpu")


def require_library(model: str) -> None:
    """Check, without loading anything, that the library for `model` is installed.

    Raises:
        ModelError: it is not installed; the hint has the command that installs it.
    """
    if model != BUILTIN and not _is_exported(model) and find_spec("sentence_transformers") is None:
        raise ModelError(
            f"search.model {model!r} needs sentence-transformers, which is not installed",
            hint="use `builtin`, or add it and restart the gateway (`pml docs search` says how to do without CUDA): "
            + adding(TRANSFORMERS),
            details={"model": model},
        )


def _is_exported(model: str) -> bool:
    return (Path(model).expanduser() / MODEL_FILE).is_file()


def load_embedder(model: str) -> Embedder:
    """Load `builtin`, a directory made by `models/build_model.py`, or any sentence-transformers model by name or path.

    If this process uses the model already, that instance is returned.

    Raises:
        ModelError: the model cannot be loaded.
    """
    directory = shipped_directory() if model == BUILTIN else Path(model).expanduser()
    key = (model, _revision(directory))
    with _LOADING:
        embedder = _LOADED.get(key)
        if embedder is None:
            if model == BUILTIN or _is_exported(model):
                embedder = OnnxEmbedder(directory)
            else:
                embedder = TransformerEmbedder(str(directory) if directory.is_dir() else model)
            _LOADED[key] = embedder
    return embedder
