"""The meta-tools: those a gateway lists by default, in their fixed order, and how any are listed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pml_gateway.config.settings import KNOWN_META_TOOLS
from pml_gateway.exposure.instructions import Systems
from pml_gateway.meta.meta_tools import ALL_META_TOOLS
from pml_gateway.types import JsonObject

LISTED = [name for name in KNOWN_META_TOOLS if name in ALL_META_TOOLS]


def meta_tool_definitions(names: Collection[str], servers: Sequence[str]) -> list[JsonObject]:
    """The definitions of these meta-tools in front of these servers."""
    return [tool.definition(Systems(servers)) for tool in ALL_META_TOOLS if tool.name in names]
