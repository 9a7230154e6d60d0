"""Finished lists bypass the SDK's own checks, so every definition must be what each protocol version allows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp_types.methods import serialize_server_result
from mcp_types.version import KNOWN_PROTOCOL_VERSIONS

from pml_gateway.catalog.build import build_catalog
from pml_gateway.catalog.model import UpstreamListing
from pml_gateway.catalog.wire import LATEST_VERSION, allowed_fields, decoded_items, encode, tool_for_version
from pml_gateway.exposure.meta_tool import RESERVED
from pml_gateway.types import JsonObject
from tests.catalog.listings import JSON, SCHEMA_LIKE, only_tool, sound_schemas
from tests.support.examples import examples
from tests.support.meta import meta_tool_definitions

HINTS = ("title", "readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint", "vendor")
ICONS = st.fixed_dictionaries(
    {"src": st.just("data:,") | JSON},
    optional={
        "mimeType": st.just("image/png") | JSON,
        "sizes": st.just(["any"]) | JSON,
        "theme": st.sampled_from(("dark", "light")) | JSON,
        "vendor": JSON,
    },
)
RAW_TOOLS: st.SearchStrategy[JsonObject] = st.fixed_dictionaries(
    {"name": st.sampled_from(("read", "write file", "größe")) | JSON, "inputSchema": sound_schemas() | SCHEMA_LIKE},
    optional={
        "title": st.just("Title") | JSON,
        "description": st.just("Does it.") | JSON,
        "annotations": st.dictionaries(st.sampled_from(HINTS), st.booleans() | st.none() | JSON) | JSON,
        "icons": st.lists(ICONS | JSON, max_size=3) | JSON,
        "execution": st.fixed_dictionaries({"taskSupport": st.just("optional") | JSON, "vendor": JSON}) | JSON,
        "_meta": st.dictionaries(st.text(max_size=5), JSON, max_size=3) | JSON,
        "outputSchema": sound_schemas() | SCHEMA_LIKE | JSON,
        "unknown": JSON,
    },
)


def serialized(tools: list[JsonObject], version: str) -> Any:
    """What the SDK would put on the wire for this list."""
    result: JsonObject = {"tools": tools}
    if version == LATEST_VERSION:
        result |= {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    written = serialize_server_result("tools/list", version, result)
    assert written.keys() == result.keys()
    return written["tools"]


def without_null_keywords(tool: JsonObject) -> JsonObject:
    """The SDK's models leave null out of the objects they know; `"default": null` is legal in a schema all the same."""
    objects = ("inputSchema", "outputSchema", "_meta")
    return {
        key: {name: item for name, item in value.items() if item is not None} if key in objects else value
        for key, value in tool.items()
    }


@settings(max_examples=examples(150))
@given(raw=RAW_TOOLS)
def test_the_sdk_accepts_every_definition_in_every_version_and_changes_nothing(raw: JsonObject) -> None:
    (listed,) = build_catalog([UpstreamListing("server", (raw,))]).tools
    for version in KNOWN_PROTOCOL_VERSIONS:
        tool = tool_for_version(listed.definition, version)
        (written,) = serialized([tool], version)
        assert without_null_keywords(written) == without_null_keywords(tool)
        assert json.loads(encode(tool)) == tool
        assert tool.keys() <= allowed_fields(version)


@pytest.mark.parametrize("version", KNOWN_PROTOCOL_VERSIONS)
def test_the_sdk_accepts_the_meta_tools_and_changes_nothing(version: str) -> None:
    tools = [tool_for_version(definition, version) for definition in meta_tool_definitions(RESERVED, ["github"])]
    assert serialized(tools, version) == tools


def test_each_version_gets_the_fields_it_knows() -> None:
    old = {"name", "description", "inputSchema"}
    assert [allowed_fields(version) for version in KNOWN_PROTOCOL_VERSIONS] == [
        old,
        old | {"annotations"},
        old | {"annotations", "title", "outputSchema", "_meta"},
        old | {"annotations", "title", "outputSchema", "_meta", "icons", "execution"},
        old | {"annotations", "title", "outputSchema", "_meta", "icons"},
    ]


@pytest.mark.parametrize("schema", [{"type": "array"}, {}, {"type": ["object", "null"]}, {"anyOf": [{}]}])
def test_outputs_that_are_no_objects_are_listed_from_2026_on(schema: JsonObject) -> None:
    definition = only_tool(outputSchema=schema).definition
    assert [
        version for version in KNOWN_PROTOCOL_VERSIONS if "outputSchema" in tool_for_version(definition, version)
    ] == [LATEST_VERSION]


def test_keys_that_no_version_defines_are_left_out_of_annotations_icons_and_execution() -> None:
    definition = only_tool(
        annotations={"readOnlyHint": True, "vendor": 1},
        icons=[{"src": "a", "vendor": 1}],
        execution={"taskSupport": "optional", "vendor": 1},
    ).definition
    tool = tool_for_version(definition, "2025-11-25")
    assert tool["annotations"] == {"readOnlyHint": True}
    assert tool["icons"] == [{"src": "a"}]
    assert tool["execution"] == {"taskSupport": "optional"}
    assert definition["annotations"] == {"readOnlyHint": True, "vendor": 1}


def test_a_tool_that_only_runs_as_a_task_is_listed_as_one_that_may() -> None:
    definition = only_tool(execution={"taskSupport": "required"}).definition
    assert tool_for_version(definition, "2025-11-25")["execution"] == {"taskSupport": "optional"}


def test_a_definition_is_written_in_ascii_without_blanks() -> None:
    assert encode({"name": "größe", "list": [1, None, True]}) == b'{"name":"gr\\u00f6\\u00dfe","list":[1,null,true]}'


@pytest.mark.parametrize("items", [[], [{}], [{"a": "],["}, {"b": [1, {"c": "ü"}]}, {}]])
def test_an_array_is_read_item_by_item_as_it_was_written(items: list[JsonObject]) -> None:
    assert list(decoded_items(encode(items))) == items
