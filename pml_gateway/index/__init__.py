"""The index: turns tool documents and an intent into calibrated hits.

Importing this package loads numpy and nothing heavier. A stdio client starts the gateway for every session, so
onnxruntime, tokenizers, faiss, Stemmer and sentence_transformers (5 s, 560 MB) are imported inside the constructors
that need them; this is the only exception to the rule against imports inside functions.
"""

from __future__ import annotations

from pml_gateway.index.cache import EmbeddingCache
from pml_gateway.index.embedder import Embedder
from pml_gateway.index.models import load_embedder
from pml_gateway.index.search import Hit, SearchResult, ToolIndex
from pml_gateway.index.text import ToolDocument

__all__ = ["Embedder", "EmbeddingCache", "Hit", "SearchResult", "ToolDocument", "ToolIndex", "load_embedder"]
