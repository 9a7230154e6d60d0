"""Listings and JSON for the tests of catalog, exposure and policy."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from pml_gateway.catalog.build import build_catalog
from pml_gateway.catalog.model import Catalog, CatalogTool, UpstreamListing
from pml_gateway.types import JsonObject

EMPTY_OBJECT: JsonObject = {"type": "object", "properties": {}}


def raw_tool(name: str, description: str = "", **fields: Any) -> JsonObject:
    """A tool as an upstream lists it."""
    return {"name": name, "description": description, "inputSchema": EMPTY_OBJECT, **fields}


def listing(upstream_id: str, *tools: str | JsonObject, stale: bool = False) -> UpstreamListing:
    """A listing of tools, given whole or by name."""
    raw = tuple(raw_tool(tool) if isinstance(tool, str) else tool for tool in tools)
    return UpstreamListing(upstream_id, raw, stale=stale)


def catalog_of(*names: str) -> Catalog:
    """A catalog of `server:tool` names, servers in the order of their first tool."""
    servers: dict[str, list[str]] = {}
    for name in names:
        server, _, tool = name.partition(":")
        servers.setdefault(server, []).append(tool)
    return build_catalog([listing(server, *tools) for server, tools in servers.items()])


def only_tool(**fields: Any) -> CatalogTool:
    """The one tool of a catalog, built from these raw fields."""
    raw = {"name": "tool", "inputSchema": EMPTY_OBJECT, **fields}
    return build_catalog([UpstreamListing("server", (raw,))]).tools[0]


def nested(levels: int, *, key: str = "items") -> JsonObject:
    """A schema in a schema in a schema."""
    schema: JsonObject = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", key: schema}
    return schema


KEYWORDS = (
    *("type", "properties", "required", "items", "prefixItems", "additionalItems", "additionalProperties", "enum"),
    *("const", "oneOf", "anyOf", "allOf", "not", "if", "then", "else", "$ref", "$defs", "definitions", "$schema"),
    *("$id", "$anchor", "default", "description", "title", "pattern", "patternProperties", "minLength", "maximum"),
    *("multipleOf", "uniqueItems", "dependentRequired", "dependencies", "dependentSchemas", "format", "examples"),
    *("propertyNames", "contains", "maxContains", "minItems", "unevaluatedProperties", "x-extra", "$dynamicRef"),
    *("$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "contentSchema", "readOnly", "exclusiveMinimum"),
)
WORDS = (
    *("object", "array", "string", "integer", "number", "boolean", "null", "a", "b", "a/b", "~", "#", "#/$defs/a"),
    *("#/properties/a", "#/properties", "#/missing", "http://json-schema.org/draft-07/schema#", "", "(", "é"),
)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(WORDS)
    | st.text(max_size=6)
)


def _containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = st.sampled_from(KEYWORDS) | st.sampled_from(WORDS) | st.text(max_size=4)
    return st.lists(children, max_size=3) | st.dictionaries(keys, children, max_size=5)


JSON = st.recursive(SCALARS, _containers, max_leaves=20)
"""Any JSON value, with the words of JSON Schema in it more often than chance would put them there."""

SCHEMA_LIKE: st.SearchStrategy[JsonObject] = st.dictionaries(st.sampled_from(KEYWORDS), JSON, max_size=7)
"""Objects that look like schemas; values have the right type only sometimes."""


def _sound_containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(("a", "b", "c"))
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(("object", "array", "string", "integer", "null")),
            "properties": st.dictionaries(names, children, max_size=3),
            "required": st.lists(names, max_size=2, unique=True),
            "additionalProperties": st.booleans(),
            "items": children,
            "oneOf": st.lists(children, min_size=1, max_size=3),
            "anyOf": st.lists(children, min_size=1, max_size=3),
            "allOf": st.lists(children, min_size=1, max_size=2),
            "not": children,
            "if": children,
            "then": children,
            "contains": children,
            "maxContains": st.integers(0, 2),
            "pattern": st.sampled_from(("^a", "b$", "x")),
            "patternProperties": st.dictionaries(st.sampled_from(("^a", "b")), children, max_size=1),
            "unevaluatedProperties": st.just(False),
            "enum": st.lists(st.sampled_from(("a", 1, None, {"pattern": "x"})), min_size=1, max_size=3),
            "$ref": st.sampled_from(("#/$defs/a", "#/$defs/b")),
            "uniqueItems": st.booleans(),
        },
    )


SUB_SCHEMAS: st.SearchStrategy[Any] = st.recursive(st.just({}) | st.booleans(), _sound_containers, max_leaves=8)


@st.composite
def sound_schemas(draw: st.DrawFn) -> JsonObject:
    """A legal root schema of an object, with two definitions to refer to."""
    schema: JsonObject = dict(draw(_sound_containers(SUB_SCHEMAS)))
    definitions = {"a": draw(SUB_SCHEMAS), "b": {"type": draw(st.sampled_from(("string", "object")))}}
    return {**schema, "type": "object", "$defs": definitions}


ARGUMENTS: st.SearchStrategy[JsonObject] = st.dictionaries(
    st.sampled_from(("a", "b", "c", "ab")),
    st.recursive(
        st.none() | st.sampled_from(("a", "b", "x", 1)),
        lambda children: st.lists(children, max_size=3) | st.dictionaries(st.sampled_from(("a", "b")), children),
        max_leaves=6,
    ),
    max_size=3,
)
