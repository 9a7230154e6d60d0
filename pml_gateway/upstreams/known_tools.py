"""The tools an upstream listed, as far as calling them needs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mcp.shared.inbound import find_invalid_x_mcp_header, x_mcp_header_map

from pml_gateway.types import JsonObject


class KnownTools:
    """What calls depend on: the arguments that travel as headers, and which tools may be called twice."""

    def __init__(self, tools: Iterable[JsonObject]) -> None:
        self.repeatable: frozenset[str] = frozenset()
        self._input_schemas: dict[str, object] = {}
        self.replace(tools)

    def replace(self, tools: Iterable[JsonObject]) -> None:
        """Take over another list."""
        given = {str(tool.get("name")): tool for tool in tools}
        self._input_schemas = {name: tool.get("inputSchema") for name, tool in given.items()}
        self.repeatable = frozenset(name for name, tool in given.items() if _is_repeatable(tool.get("annotations")))

    def header_map(self, name: str) -> Mapping[tuple[str, ...], str]:
        """The `x-mcp-header` annotations of a tool: property path to header token."""
        schema = self._input_schemas.get(name)
        return x_mcp_header_map(schema) if find_invalid_x_mcp_header(schema) is None else {}


def _is_repeatable(annotations: object) -> bool:
    """Whether a server declares a tool read-only or idempotent."""
    if not isinstance(annotations, dict):
        return False
    return annotations.get("readOnlyHint") is True or annotations.get("idempotentHint") is True
