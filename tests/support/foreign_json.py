"""Generators of JSON as hostile and careless programs write it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

SURROGATES = st.characters(categories=["Cs"])
"""Halves of characters beyond U+FFFF, which mean nothing alone."""

texts = st.text(st.characters(categories=["L", "N", "P", "S", "Z", "M", "Cc", "Cf"]) | st.sampled_from('\\"/ud😀'))
"""Texts that every JSON reader takes, rich in what escapes are made of."""

broken_texts = st.lists(texts | st.text(SURROGATES, max_size=3), max_size=6).map("".join)
"""Texts with lone surrogates, as careless programs cut them."""


def values(strings: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """JSON values whose keys and texts are drawn from `strings`."""
    scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | strings
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(strings, inner, max_size=5),
        max_leaves=20,
    )


def pieces(content: bytes) -> st.SearchStrategy[list[bytes]]:
    """The content, cut anywhere."""
    cuts = st.lists(st.integers(0, len(content)), max_size=12).map(sorted)
    return cuts.map(
        lambda at: [content[start:end] for start, end in zip([0, *at], [*at, len(content)], strict=True)],
    )


def written(value: Any, *, escapes: bool) -> bytes:
    """JSON as programs write it that escape everything, or nothing: surrogates stand in it as escapes or as bytes."""
    return json.dumps(value, ensure_ascii=escapes).encode("utf-8", "surrogatepass")


def without_surrogates(value: Any) -> Any:
    """The value as it is to be read: each lone surrogate is U+FFFD."""
    if isinstance(value, str):
        # What was two halves side by side is one character to whoever reads their escapes.
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {without_surrogates(key): without_surrogates(item) for key, item in value.items()}
    return [without_surrogates(item) for item in value] if isinstance(value, list) else value
