"""The shipped 8-bit model beside the float32 model it was made from, ranked by cosines alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.baselines import minilm_dense
from benchmarks.labelled_sets import LabelledSet
from benchmarks.rankers import peer_figures
from pml_gateway.index.cache import EmbeddingCache
from pml_gateway.index.calibration import shipped_directory
from pml_gateway.index.embedder import Embedder
from pml_gateway.index.models import CONFIG_FILE
from pml_gateway.types import JsonObject

WEIGHTS = "model.safetensors"


def float_reference(candidates: Sequence[Path]) -> Path | None:
    """The first directory whose weights the shipped model was made from, by the hash in its configuration."""
    config = json.loads((shipped_directory() / CONFIG_FILE).read_text(encoding="utf-8"))
    expected = config.get("source_sha256")
    return next((path for path in candidates if _digest(path / WEIGHTS) == expected), None) if expected else None


def compare(sets: Sequence[LabelledSet], shipped: Embedder, original: Embedder, cache: EmbeddingCache) -> JsonObject:
    """nDCG@10 of both on each set, and what is lost in the mean."""
    rows = {}
    for labelled in sets:
        found = {
            name: peer_figures(minilm_dense.build(labelled, embedder, cache), labelled)["ndcg@10"]
            for name, embedder in (("float32", original), ("int8", shipped))
        }
        rows[labelled.name] = found
    return {"sets": rows, "mean_loss": fmean(row["float32"] - row["int8"] for row in rows.values())}


def _digest(path: Path) -> str | None:
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
