"""Examples from use: what clients searched for before they called a tool, where it leads to that tool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from pml_gateway.example_queries.gates import sift
from pml_gateway.example_queries.library import sound_lists
from pml_gateway.index.cache import EmbeddingCache
from pml_gateway.index.embedder import Embedder
from pml_gateway.index.text import ToolDocument

MAX_LEARNED = 8
"""Of one tool; what was asked most often, and of that asked as often, what was asked last."""


def learned(
    catalog: Sequence[ToolDocument],
    asked: Iterable[tuple[str, str]],
    embedder: Embedder,
    cache: EmbeddingCache | None = None,
) -> dict[str, tuple[str, ...]]:
    """Return the recorded searches that pass the gates, by tool key.

    Args:
        catalog: all tools, with the examples that they have but for those from use.
        asked: the key of a tool and a query that led to it, oldest first; keys of tools that are gone are passed over.
        embedder: the model of search.
        cache: of embeddings.
    """
    counts: dict[str, Counter[str]] = {}
    for key, query in asked:
        queries = counts.setdefault(key, Counter())
        queries[query] = queries.pop(query, 0) + 1  # what was asked last comes last
    known = {tool.key: tool for tool in catalog if tool.key in counts}
    often = [[query for query, _ in Counter(dict(reversed(counts[key].items()))).most_common()] for key in known]
    chosen = {key: texts[:MAX_LEARNED] for key, texts in zip(known, sound_lists(often), strict=True)}
    written = {key: (*known[key].examples, *texts) for key, texts in chosen.items()}
    kept = sift(catalog, written, embedder, cache).kept
    fresh = {key: set(texts) - set(known[key].examples) for key, texts in chosen.items()}
    passed = {key: tuple(text for text in kept[key] if text in texts) for key, texts in fresh.items()}
    return {key: texts for key, texts in passed.items() if texts}
