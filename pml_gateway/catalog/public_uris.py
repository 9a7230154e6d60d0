"""Replacement of resource URIs in answers and tool metadata by those under which clients reach the resources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pml_gateway.catalog.build import same_tool
from pml_gateway.catalog.model import Catalog, CatalogTool
from pml_gateway.catalog.prompts_and_resources import OfferTable, Route
from pml_gateway.types import JsonObject

_Public = Callable[[str], str]
_Change = Callable[[JsonObject, _Public], JsonObject]

NAMING_KEYS = frozenset({"openai/outputTemplate", "ui/resourceUri", "resourceUri"})
"""Keys under which a tool names the resource that shows its results; the last one is below `ui`."""

MAX_DEPTH = 4


def with_public_uris(
    result: JsonObject, upstream_id: str, table: OfferTable, asked: tuple[str, Route] | None = None
) -> JsonObject:
    """Return a `tools/call`, `prompts/get` or `resources/read` result with public URIs; the same object if unchanged.

    The resource that was `asked` for, and was sent there, keeps the URI as the client wrote it.
    """
    if not table.renames and asked is None:
        return result

    def public(uri: str) -> str:
        if asked is not None and table.is_same(asked[1], uri):
            return asked[0]
        return table.public_uri(upstream_id, uri) if table.renames else uri

    changed = {
        key: _each(result[key], change, public) for key, change in _CHANGES.items() if isinstance(result.get(key), list)
    }
    return {**result, **changed} if any(value is not result[key] for key, value in changed.items()) else result


def _each(items: list[Any], change: _Change, public: _Public) -> list[Any]:
    changed = [change(item, public) if isinstance(item, dict) else item for item in items]
    return changed if any(new is not old for new, old in zip(changed, items, strict=True)) else items


def _contents(item: JsonObject, public: _Public) -> JsonObject:
    uri = item.get("uri")
    if not isinstance(uri, str) or public(uri) == uri:
        return item
    return {**item, "uri": public(uri)}


def _content(item: JsonObject, public: _Public) -> JsonObject:
    match item:
        case {"type": "resource_link"}:
            return _contents(item, public)
        case {"type": "resource", "resource": dict(resource)}:
            changed = _contents(resource, public)
            return item if changed is resource else {**item, "resource": changed}
    return item


def _message(item: JsonObject, public: _Public) -> JsonObject:
    content = item.get("content")
    if not isinstance(content, dict):
        return item
    changed = _content(content, public)
    return item if changed is content else {**item, "content": changed}


_CHANGES: Mapping[str, _Change] = {"content": _content, "messages": _message, "contents": _contents}


def with_public_meta(catalog: Catalog, previous: Catalog | None = None) -> Catalog:
    """Return the catalog with public URIs in `_meta`; unchanged tools are taken from the previous catalog."""
    return replace(catalog, tools=tuple(_with_public_meta(tool, catalog, previous) for tool in catalog.tools))


def _with_public_meta(tool: CatalogTool, catalog: Catalog, previous: Catalog | None) -> CatalogTool:
    if "_meta" not in tool.definition:
        return tool
    # From the server's own definition: a tool taken from an earlier catalog has the URIs of that catalog.
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
