"""Fusion: adds what the words of a query prove to what its meaning suggests."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

LEXICAL_WEIGHT = 0.03
"""Cosine gained per BM25 unit once the evidence is strong."""

LEXICAL_DOUBT = 40.0
"""BM25 units at which lexical evidence counts half. A common word or two (BM25 of 3) then add nothing (0.01), rare
words of a name (30 and more) outweigh most cosines (0.4): paraphrases are ranked by meaning, quoted words by words."""

REFERENCE_TOOLS = 400
"""The catalog whose BM25 units the two constants speak of. The same word in the same tool is worth three times as much
among 14,000 tools as among 45; unscaled, single words of a paraphrase outweighed its meaning in large catalogs."""

Floats = npt.NDArray[np.float32]


def fuse(cosines: Floats, lexical: Floats, tools: int) -> Floats:
    """Raw strength (n,) from cosines on the shipped model's scale and BM25 values, both (n,), among so many tools.

    Absolute evidence, unlike ranks or z-scores: it needs no statistics of other tools but their number, so hidden tools
    leave no trace and a catalog of two tools is scored like one of a thousand.
    """
    scaled = lexical * np.float32(np.log1p(REFERENCE_TOOLS) / np.log1p(max(tools, 1)))
    fused: Floats = cosines + np.float32(LEXICAL_WEIGHT) * scaled * scaled / (scaled + np.float32(LEXICAL_DOUBT))
    return fused
