"""Upstream listings become a catalog: names assigned, definitions repaired, nothing dropped for its form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from pml_gateway.catalog.model import Catalog, CatalogTool, UpstreamListing
from pml_gateway.catalog.naming import Prefix, assign_names
from pml_gateway.catalog.schema import check_output_schema, repair_input_schema
from pml_gateway.types import JsonObject

_OPTIONAL_FIELDS: Mapping[str, type] = {
    "title": str,
    "description": str,
    "annotations": dict,
    "icons": list,
    "execution": dict,
    "_meta": dict,
}
_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")


def build_catalog(
    listings: Sequence[UpstreamListing],
    *,
    prefix: Prefix = "always",
    max_length: int = 64,
    reserved: frozenset[str] = frozenset(),
    earlier: Mapping[tuple[str, str], str] | None = None,
    previous: Catalog | None = None,
) -> Catalog:
    """Build the snapshot for these listings, in their order.

    Args:
        listings: one per configured upstream; an upstream that never answered has no tools yet.
        prefix: when a name carries its server id.
        max_length: characters a qualified name may have.
        reserved: names no tool may take (the meta-tools).
        earlier: names given in earlier builds, which their owners keep.
        previous: the catalog before this one; its unchanged tools are taken over as they are.
    """
    configured = {listing.upstream_id for listing in listings}
    kept = {owner: name for owner, name in (earlier or {}).items() if owner[0] in configured}
    owners = [(listing.upstream_id, _name(tool)) for listing in listings for tool in listing.tools]
    names = assign_names(owners, prefix=prefix, max_length=max_length, reserved=reserved, earlier=kept)
    known = {} if previous is None else {tool.qualified_name: tool for tool in previous.tools}
    tools: list[CatalogTool] = []
    listed: set[str] = set()
    for listing in listings:
        for raw in listing.tools:
            qualified_name = names[(listing.upstream_id, _name(raw))]
            if qualified_name in listed:
                continue
            listed.add(qualified_name)
            tools.append(_build_tool(raw, qualified_name, listing, known.get(qualified_name)))
    return Catalog(
        tools=tuple(tools),
        upstream_ids=tuple(listing.upstream_id for listing in listings),
        assignments=MappingProxyType(kept | names),
    )


def _build_tool(
    raw: JsonObject, qualified_name: str, listing: UpstreamListing, known: CatalogTool | None
) -> CatalogTool:
    name = _name(raw)
    input_schema, repairs = repair_input_schema(raw.get("inputSchema"))
    output_schema, output_repairs = check_output_schema(raw.get("outputSchema"))
    definition: JsonObject = {"name": qualified_name}
    dropped: list[str] = []
    for key, kind in _OPTIONAL_FIELDS.items():
        value = raw.get(key)
        if isinstance(value, kind):
            definition[key] = value
        elif value is not None:
            dropped.append(f"{key}: not {'an object' if kind is dict else 'a list' if kind is list else 'a string'}")
    if "annotations" in definition:
        definition["annotations"] = _annotations(definition["annotations"], dropped)
    definition["inputSchema"] = input_schema
    if output_schema is not None:
        definition["outputSchema"] = output_schema
    if qualified_name != name and qualified_name.rsplit("__", 1)[-1] != name:
        dropped.append(f"name: {name!r} is listed as {qualified_name!r}")
    execution = definition.get("execution") or {}
    original = raw.get("inputSchema")
    tool = CatalogTool(
        qualified_name=qualified_name,
        upstream_id=listing.upstream_id,
        name=name,
        definition=definition,
        input_schema=original if isinstance(original, dict) else {"type": "object"},
        repairs=(*repairs, *output_repairs, *dropped),
        stale=listing.stale,
        task_only=execution.get("taskSupport") == "required",
    )
    unchanged = (
        known is not None
        and known.definition == definition
        and known.stale == tool.stale
        and known.upstream_id == tool.upstream_id
        and known.name == tool.name
        and known.input_schema == tool.input_schema
    )
    return known if known is not None and unchanged else tool


def _annotations(annotations: JsonObject, dropped: list[str]) -> JsonObject:
    wrong = {key for key in _HINTS if key in annotations and not isinstance(annotations[key], bool | None)}
    if not isinstance(annotations.get("title"), str | None):
        wrong.add("title")
    if not wrong:
        return annotations
    dropped.extend(f"annotations/{key}: wrong type; dropped" for key in sorted(wrong))
    return {key: value for key, value in annotations.items() if key not in wrong}


def _name(tool: JsonObject) -> str:
    return str(tool.get("name") or "")
