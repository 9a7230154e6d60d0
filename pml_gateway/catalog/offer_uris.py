"""The resource URIs in an upstream's answer become those under which clients reach the same resources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pml_gateway.catalog.offers import OfferTable
from pml_gateway.types import JsonObject

_Public = Callable[[str], str]
_Change = Callable[[JsonObject, _Public], JsonObject]


def with_public_uris(result: JsonObject, upstream_id: str, table: OfferTable) -> JsonObject:
    """A result of `tools/call`, `prompts/get` or `resources/read` with public URIs; the same object if none differs."""
    if not table.renames:
        return result

    def public(uri: str) -> str:
        return table.public_uri(upstream_id, uri)

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
