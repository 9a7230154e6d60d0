"""The tools an upstream listed become what sending a call of them depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mcp.shared.inbound import find_invalid_x_mcp_header, x_mcp_header_map

from pml_gateway.types import JsonObject
from pml_gateway.upstreams.retries import repeatable_tools


class ToolFacts:
    """Which arguments go into headers as well, and which tools may be called twice."""

    def __init__(self, tools: Sequence[JsonObject]) -> None:
        self._input_schemas = {str(tool.get("name")): tool.get("inputSchema") for tool in tools}
        self._header_maps: dict[str, Mapping[tuple[str, ...], str]] = {}
        self.repeatable = repeatable_tools(tools)

    def header_map(self, name: str) -> Mapping[tuple[str, ...], str]:
        """A tool's property paths that are annotated with `x-mcp-header`, with their header tokens."""
        if name not in self._input_schemas:
            return {}
        known = self._header_maps.get(name)
        if known is None:
            schema = self._input_schemas[name]
            known = x_mcp_header_map(schema) if find_invalid_x_mcp_header(schema) is None else {}
            self._header_maps[name] = known
        return known
