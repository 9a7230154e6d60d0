"""Loading: turns the model setting into an embedder."""

from __future__ import annotations

from pathlib import Path

from pml_gateway.index.embedder import Embedder
from pml_gateway.index.onnx import MODEL_FILE, OnnxEmbedder
from pml_gateway.index.shipped import shipped_directory
from pml_gateway.index.transformer import TransformerEmbedder

BUILTIN = "builtin"


def load_embedder(model: str) -> Embedder:
    """Load `builtin`, a directory made by `models/build_model.py`, or any sentence-transformers model by name or path.

    Raises:
        ModelError: naming the value and the remedy.
    """
    if model == BUILTIN:
        return OnnxEmbedder(shipped_directory())
    directory = Path(model).expanduser()
    if (directory / MODEL_FILE).is_file():
        return OnnxEmbedder(directory)
    return TransformerEmbedder(str(directory) if directory.is_dir() else model)
