"""FastMCP 4's RegexSearchTransform: the first tools in catalog order whose text a pattern matches.

A sentence as a pattern matches nothing. An agent would write the words it expects, so the pattern here is all words of
the query of at least four letters, any of which may match.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import anyio
from fastmcp.server.transforms.search import RegexSearchTransform

from benchmarks.baselines.fastmcp_search import answer_text, fastmcp_tools
from benchmarks.labelled_sets import LabelledSet
from benchmarks.rankers import Ranker

MIN_LETTERS = 4
MAX_PATTERN = 1000
"""The transform answers longer patterns with nothing."""


def pattern(query: str) -> str:
    """The longer words of a query as alternatives, as many as a pattern may hold; all words if none is long."""
    words = re.findall(r"[^\W_]+", query)
    chosen = list(dict.fromkeys(word.casefold() for word in words if len(word) >= MIN_LETTERS)) or words
    found = ""
    for word in chosen:
        longer = f"{found}|{word}" if found else word
        if len(longer) > MAX_PATTERN:
            break
        found = longer
    return found


def build(labelled: LabelledSet) -> Ranker:
    """The transform itself; a tool that another of the same name hides is found as itself."""
    tools = fastmcp_tools(labelled)
    keys = list(labelled.rows)
    key_of = {id(tool): key for tool, key in zip(tools, keys, strict=True)}

    def rank(query: str, depth: int) -> Sequence[str]:
        wanted = pattern(query)
        if not wanted:
            return []
        return [key_of[id(tool)] for tool in anyio.run(RegexSearchTransform(max_results=depth)._search, tools, wanted)]

    return Ranker(rank, answer_text(keys, tools))
