"""The shipped model: turns texts into vectors with onnxruntime and tokenizers, without torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pml_gateway.errors import ModelError
from pml_gateway.index.calibration import Calibration
from pml_gateway.index.embedder import Embeddings

MODEL_FILE = "model.onnx"
TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "config.json"


class OnnxEmbedder:
    """A sentence model exported by `models/build_model.py`: token ids in, one normalised vector out.

    Texts run one at a time. The dynamic quantisation of the model scales activations over everything in a run, so in
    a batch a vector would depend on its neighbours; alone it depends on its text only, which caching relies on. On one
    thread a batch, with its padding, is no faster.
    """

    def __init__(self, directory: Path) -> None:
        """Load the model files in `directory`; raises ModelError when one is missing or unreadable."""
        import onnxruntime  # imported late: see pml_gateway/index/__init__.py
        import tokenizers

        self._directory = directory
        try:
            config = json.loads((directory / CONFIG_FILE).read_text(encoding="utf-8"))
            self._model_id = str(config["model_id"])
            self._dimension = int(config["dimension"])
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

    @property
    def model_id(self) -> str:
        """Name and content hash of the model file."""
        return self._model_id

    @property
    def dimension(self) -> int:
        """Length of one vector."""
        return self._dimension

    @cached_property
    def calibration(self) -> Calibration:
        """Fitted on labelled intents with this model; raises ModelError when the file is missing or malformed."""
        return Calibration.read(self._directory)

    def encode(self, texts: Sequence[str]) -> Embeddings:
        """Embed texts, one row each, in their order; what exceeds the model's tokens is cut."""
        vectors = np.zeros((len(texts), self._dimension), dtype=np.float32)
        for row, text in enumerate(texts):
            ids = np.asarray([self._tokenizer.encode(text).ids], dtype=np.int64)
            vectors[row] = self._session.run(None, {"input_ids": ids})[0][0]
        return vectors


def _session_options(onnxruntime: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # patterns are kept per input length and would grow with every new one
    options.log_severity_level = 3
    return options
