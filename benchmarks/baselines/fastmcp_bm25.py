"""FastMCP 4's BM25SearchTransform: BM25 Okapi over name, description, parameter names and their descriptions.

Tokens are runs of two or more letters and digits in small letters; nothing is split at capitals, stemmed or left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio
from fastmcp.server.transforms.search import BM25SearchTransform

from benchmarks.baselines.fastmcp_search import MAX_RESULTS, answer_text, fastmcp_tools
from benchmarks.labelled_sets import LabelledSet
from benchmarks.rankers import Ranker


def build(labelled: LabelledSet) -> Ranker:
    """The transform's own index, built by its own first search.

    Later queries ask the index itself: the transform hashes the whole catalog before each, and gives one tool for all
    of the same name, which a server cannot have but sets of several servers do.
    """
    tools = fastmcp_tools(labelled)
    transform = BM25SearchTransform(max_results=MAX_RESULTS)
    anyio.run(transform._search, tools, "")
    index, keys = transform._index, list(labelled.rows)

    def rank(query: str, depth: int) -> Sequence[str]:
        return [keys[at] for at in index.query(query, depth)]

    return Ranker(rank, answer_text(keys, tools))
