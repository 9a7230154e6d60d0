"""Resources that a tool names in its `_meta` become those under which clients reach them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pml_gateway.catalog.build import same_tool
from pml_gateway.catalog.model import Catalog, CatalogTool

NAMING_KEYS = frozenset({"openai/outputTemplate", "ui/resourceUri", "resourceUri"})
"""Where a tool says which resource shows its results: the last one below `ui`."""

MAX_DEPTH = 4


def with_public_meta(catalog: Catalog, previous: Catalog | None = None) -> Catalog:
    """The catalog with public URIs in `_meta`; tools that are as in the catalog before are taken over from there."""
    return replace(catalog, tools=tuple(_with_public_meta(tool, catalog, previous) for tool in catalog.tools))


def _with_public_meta(tool: CatalogTool, catalog: Catalog, previous: Catalog | None) -> CatalogTool:
    if "_meta" not in tool.definition:
        return tool
    # From the server's own words: one that was taken over from an earlier catalog has the URIs of that.
    public = tool.listed["_meta"]
    if catalog.offers.renames:
        public = _mapped(public, lambda uri: catalog.offers.public_uri(tool.upstream_id, uri), MAX_DEPTH)
    if public == tool.definition["_meta"]:
        return tool
    changed = replace(tool, definition={**tool.definition, "_meta": public})
    known = None if previous is None else previous.by_name(tool.qualified_name)
    return known if known is not None and same_tool(known, changed) else changed


def _mapped(meta: dict[str, Any], public: Callable[[str], str], depth: int) -> dict[str, Any]:
    mapped = dict(meta)
    for key, value in meta.items():
        if isinstance(value, dict) and depth:
            mapped[key] = _mapped(value, public, depth - 1)
        elif key in NAMING_KEYS and isinstance(value, str):
            mapped[key] = public(value)
    return mapped
