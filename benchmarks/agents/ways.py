"""The ways in which a gateway shows tools to a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SEARCH = ("search_tools", "tool_schema")
_READ = "read_result"


@dataclass(frozen=True, slots=True)
class ModelWay:
    """Settings of the gateway; with `sends_intent` the client says what the user asked when it lists tools."""

    name: str
    gateway: Mapping[str, Any]
    sends_intent: bool = False


LISTED = "listed"
MODEL_WAYS = {
    way.name: way
    for way in (
        ModelWay(LISTED, {"tools_exposure": "full_proxy"}),
        ModelWay(
            "hybrid",
            # As the preset hybrid_balanced.
            {"tools_exposure": "hybrid", "hybrid": {"max_underlying_tools": 20, "semantic_threshold": 0.7}},
            sends_intent=True,
        ),
        ModelWay(
            "meta_only", {"tools_exposure": "meta_only", "meta_tools": [*_SEARCH, "call_tool", "call_batch", _READ]}
        ),
        ModelWay("workflows", {"tools_exposure": "meta_only"}),
        ModelWay(
            "by_effect",
            {
                "tools_exposure": "meta_only",
                "meta_tools": [*_SEARCH, "call_tool_read", "call_tool_write", "call_tool_destructive", _READ],
            },
        ),
    )
}
