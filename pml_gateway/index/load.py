"""Loading: turns the model setting into an embedder."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pml_gateway.errors import ModelError
from pml_gateway.index.calibration import Calibration
from pml_gateway.index.embedder import Embedder
from pml_gateway.index.onnx import MODEL_FILE, OnnxEmbedder
from pml_gateway.index.transformer import TransformerEmbedder

BUILTIN = "builtin"
SHIPPED_MODEL = "all-minilm-l6-v2-int8"

_PACKAGE = Path(__file__).resolve().parents[1]


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


def shipped_directory() -> Path:
    """Where the shipped model lies: inside an installed package, or beside it in a checkout."""
    places = (_PACKAGE / "_shipped" / "models" / SHIPPED_MODEL, _PACKAGE.parent / "models" / SHIPPED_MODEL)
    for place in places:
        if (place / MODEL_FILE).is_file():
            return place
    raise ModelError(
        f"the shipped embedding model is missing: no {MODEL_FILE} in " + " or ".join(map(str, places)),
        hint="reinstall pml-gateway, or name another model in search.model",
    )


@cache
def shipped_calibration() -> Calibration:
    """The calibration of the shipped model; the reference for models without one of their own."""
    return Calibration.read(shipped_directory())
