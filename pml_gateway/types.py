"""Words of the domain that more than one stage uses."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

JsonObject = dict[str, Any]
"""A decoded JSON object."""


class ExposureMode(StrEnum):
    """How much of the catalog a client sees."""

    META_ONLY = "meta_only"
    SEMANTIC = "semantic"
    HYBRID = "hybrid"
    FULL_PROXY = "full_proxy"


class Ranking(StrEnum):
    """Which evidence orders search hits."""

    FUSED = "fused"
    DENSE = "dense"
    LEXICAL = "lexical"
