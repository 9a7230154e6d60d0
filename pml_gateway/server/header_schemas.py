"""The called tool becomes the schema that the SDK checks `Mcp-Param-*` headers against, before any handler runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cachetools import FIFOCache
from mcp.shared.inbound import x_mcp_header_map

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.server.gateway import Gateway
from pml_gateway.server.meta_definitions import AVAILABLE
from pml_gateway.server.request import CURRENT, RequestScope

MAX_REMEMBERED = 1000


class HeaderSchemas:
    """Input schemas by tool name, as the current client may see them; none where no parameter travels in a header."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._remembered: FIFOCache[str, tuple[CatalogTool, Mapping[str, Any] | None]] = FIFOCache(MAX_REMEMBERED)

    def __call__(self, name: str) -> Mapping[str, Any] | None:
        state = self._gateway.state
        if name in AVAILABLE:
            # Meta-tools and namespaces take no arguments from headers.
            return None
        view = state.view((CURRENT.get() or RequestScope()).client)
        if name in state.namespaces(view):
            return None
        tool = view.resolve(name)
        if tool is None:
            return None
        known = self._remembered.get(name)
        if known is None or known[0] is not tool:
            schema: Mapping[str, Any] = tool.definition["inputSchema"]
            # Walking a schema takes longer than all else here.
            known = tool, schema if x_mcp_header_map(schema) else None
            self._remembered[name] = known
        return known[1]
