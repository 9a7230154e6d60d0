"""Listings become a catalog: nothing is dropped for its form, and what did not change is taken over."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pml_gateway.catalog.build import Prefix, build_catalog
from pml_gateway.catalog.model import UpstreamListing
from pml_gateway.types import JsonObject
from tests.catalog.listings import JSON, listing, nested, only_tool, raw_tool

RAW_TOOLS: st.SearchStrategy[JsonObject] = st.dictionaries(
    st.sampled_from(
        ("name", "title", "description", "annotations", "icons", "execution", "_meta", "inputSchema", "outputSchema")
    ),
    JSON,
)


@given(listings=st.lists(st.lists(RAW_TOOLS, max_size=4), max_size=3))
def test_no_tool_is_dropped_for_its_form(listings: list[list[JsonObject]]) -> None:
    catalog = build_catalog([UpstreamListing(f"s{i}", tuple(tools)) for i, tools in enumerate(listings)])
    expected = {(f"s{i}", str(tool.get("name") or "")) for i, tools in enumerate(listings) for tool in tools}
    assert {(tool.upstream_id, tool.name) for tool in catalog.tools} == expected
    assert len(catalog.tools) == len(expected)
    assert len(catalog.fingerprint) == 16


def test_a_tool_of_nothing_at_all_is_listed() -> None:
    (tool,) = build_catalog([UpstreamListing("s", ({},))]).tools
    assert tool.definition == {"name": "s__", "inputSchema": {"type": "object"}}
    assert (tool.description, tool.title, tool.source) == ("", "", "s:")


def test_everything_sound_is_kept_as_it_came() -> None:
    raw = raw_tool(
        "read",
        "Reads.",
        title="Read",
        annotations={"readOnlyHint": True, "title": "Read a file", "x-vendor": 1},
        icons=[{"src": "data:,", "sizes": ["48x48"], "mimeType": "image/png", "theme": "dark"}],
        execution={"taskSupport": "optional"},
        _meta={"vendor/key": {"a": [None, 1.5]}},
        outputSchema={"type": "object"},
    )
    tool = only_tool(**raw)
    assert tool.definition == {**raw, "name": "server__read"}
    assert tool.repairs == ()
    assert tool.input_schema is raw["inputSchema"]
    assert not tool.task_only
    assert not tool.stale


def test_fields_that_no_version_knows_are_left_out() -> None:
    assert set(only_tool(version="1", parameters={}).definition) == {"name", "inputSchema"}


@pytest.mark.parametrize(
    ("field", "value", "kept", "reason"),
    [
        ("title", 5, None, "title: not a string"),
        ("description", ["x"], None, "description: not a string"),
        ("annotations", "readOnly", None, "annotations: not an object"),
        ("_meta", [], None, "_meta: not an object"),
        ("icons", {"src": "x"}, None, "icons: not a list"),
        ("execution", True, None, "execution: not an object"),
        ("_meta", {"a": nested(5_000)}, None, "_meta: not JSON, or nested absurdly deep"),
        ("_meta", {"a": float("nan")}, None, "_meta: not JSON, or nested absurdly deep"),
        (
            "annotations",
            {"readOnlyHint": "yes", "title": "T", "openWorldHint": None},
            {"title": "T"},
            "annotations/readOnlyHint: wrong type; dropped",
        ),
        ("annotations", {"title": 5}, {}, "annotations/title: wrong type; dropped"),
        ("execution", {"taskSupport": "maybe"}, {}, "execution/taskSupport: wrong type; dropped"),
        ("icons", [{"src": 5}, {"src": "a"}], [{"src": "a"}], "icons/0: no object with a src; dropped"),
        ("icons", ["a"], None, "icons/0: no object with a src; dropped"),
        ("icons", [{"src": "a", "sizes": "48x48"}], [{"src": "a"}], "icons/0/sizes: wrong type; dropped"),
        ("icons", [{"src": "a", "theme": "pink"}], [{"src": "a"}], "icons/0/theme: wrong type; dropped"),
        ("outputSchema", {"type": 5}, None, "outputSchema dropped: /type: not a list of JSON Schema types; dropped"),
    ],
)
def test_a_field_of_the_wrong_type_is_dropped_with_the_reason(field: str, value: Any, kept: Any, reason: str) -> None:
    tool = only_tool(**{field: value})
    assert tool.definition.get(field) == kept
    assert tool.repairs == (reason,)


def test_absent_and_null_fields_need_no_reason() -> None:
    tool = only_tool(title=None, description=None, annotations=None, icons=None, _meta=None, outputSchema=None)
    assert tool.repairs == ()


@pytest.mark.parametrize(("name", "renamed"), [("a__b", False), ("read", False), ("read file", True), ("x" * 80, True)])
def test_a_name_that_had_to_change_is_a_reason(name: str, renamed: bool) -> None:
    tool = only_tool(name=name)
    assert [reason.startswith("name: ") for reason in tool.repairs] == [True] * renamed


def test_the_order_is_that_of_the_configuration_and_of_each_server() -> None:
    listings = [listing("z", "c", "a"), listing("empty"), listing("b", "z", "y")]
    catalog = build_catalog(listings)
    assert [tool.source for tool in catalog.tools] == ["z:c", "z:a", "b:z", "b:y"]
    assert catalog.upstream_ids == ("z", "empty", "b")
    assert build_catalog(listings).fingerprint == catalog.fingerprint


def test_a_tool_that_its_server_lists_twice_is_listed_once_as_it_came_first() -> None:
    catalog = build_catalog([listing("a", raw_tool("read", "first"), raw_tool("read", "second"))])
    assert [tool.description for tool in catalog.tools] == ["first"]


def test_unchanged_tools_are_taken_over_and_changed_ones_are_not() -> None:
    before = build_catalog([listing("a", "read", "write"), listing("b", "read")])
    after = build_catalog(
        [listing("b", "read"), listing("a", raw_tool("read", "changed"), "write", "new")],
        earlier=before.assignments,
        previous=before,
    )
    old = {tool.source: tool for tool in before.tools}
    new = {tool.source: tool for tool in after.tools}
    assert new["b:read"] is old["b:read"]
    assert new["a:write"] is old["a:write"]
    assert new["a:read"].description == "changed"
    assert after.fingerprint != before.fingerprint


class Schema(dict[str, Any]):
    """A schema that counts how often it is walked through."""

    walks = 0

    def items(self) -> Any:
        self.walks += 1
        return super().items()


@pytest.mark.parametrize("prefix", ["always", "never"])
@pytest.mark.parametrize("stale", [False, True])
def test_what_a_server_said_once_is_repaired_once(prefix: Prefix, stale: bool) -> None:
    schema = Schema({"properties": {"a": {"type": "strng"}}})
    raw = raw_tool("read it", inputSchema=schema)
    before = build_catalog([listing("a", raw)])
    walks = schema.walks
    assert walks
    after = build_catalog([listing("b", "read"), listing("a", raw, stale=stale)], prefix=prefix, previous=before)
    assert schema.walks == walks
    fresh = build_catalog([listing("b", "read"), listing("a", raw, stale=stale)], prefix=prefix)
    assert after.tools[1] == before.tools[0] or (prefix, stale) != ("always", False)
    for now, new in zip(after.tools, fresh.tools, strict=True):
        assert (now.definition, now.input_schema) == (new.definition, new.input_schema)
        assert (now.repairs, now.stale, now.qualified_name) == (new.repairs, new.stale, new.qualified_name)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"_meta": {"level": 1}}, {"_meta": {"level": True}}),
        ({"title": "T"}, {"title": 5}),
        ({"inputSchema": {"oneOf": [{"required": ["a"]}, {}]}}, {"inputSchema": {"oneOf": [{}, {}]}}),
        ({"inputSchema": {"type": "object"}}, {"inputSchema": {"type": ["object", "null"]}}),
    ],
)
def test_a_change_that_python_or_the_repair_would_hide_is_seen(before: JsonObject, after: JsonObject) -> None:
    first = build_catalog([listing("a", raw_tool("read", **before))])
    second = build_catalog([listing("a", raw_tool("read", **after))], previous=first)
    assert second.tools[0] is not first.tools[0]
    assert second.fingerprint != first.fingerprint


def test_a_repair_that_changed_is_told() -> None:
    first = build_catalog([listing("a", raw_tool("read", title=5))])
    second = build_catalog([listing("a", raw_tool("read"))], previous=first)
    assert (first.tools[0].repairs, second.tools[0].repairs) == (("title: not a string",), ())


def test_a_stale_listing_marks_its_tools_and_changes_nothing_a_client_sees() -> None:
    fresh = build_catalog([listing("a", "read"), listing("b", "read")])
    stale = build_catalog([listing("a", "read", stale=True), listing("b", "read")], previous=fresh)
    assert [tool.stale for tool in stale.tools] == [True, False]
    assert stale.tools[1] is fresh.tools[1]
    assert stale.fingerprint == fresh.fingerprint
    assert [tool.definition for tool in stale.tools] == [tool.definition for tool in fresh.tools]


def test_a_tool_that_only_runs_as_a_task_is_marked() -> None:
    assert only_tool(execution={"taskSupport": "required"}).task_only


@pytest.mark.parametrize("schema", [None, True, {"type": "string"}, {"type": ["array"]}, {"default": nested(5_000)}])
def test_a_schema_that_no_object_can_meet_checks_nothing(schema: object) -> None:
    tool = only_tool(inputSchema=schema)
    assert tool.input_schema is tool.definition["inputSchema"]
    assert tool.input_schema == {"type": "object"}


def test_an_original_schema_that_had_to_be_repaired_is_kept_for_checks() -> None:
    original = {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}
    tool = only_tool(inputSchema=original)
    assert tool.input_schema is original
    assert tool.definition["inputSchema"] == {"type": "object", "properties": {}}


def test_by_name_finds_exactly_the_qualified_name() -> None:
    catalog = build_catalog([listing("a", "read")])
    assert catalog.by_name("a__read") is catalog.tools[0]
    assert catalog.by_name("read") is None


def test_five_thousand_levels_anywhere_still_make_a_catalog_that_can_be_written() -> None:
    deep = nested(5_000)
    tool = only_tool(inputSchema=deep, outputSchema=deep, _meta=deep, annotations=deep, execution=deep, icons=[deep])
    assert json.loads(json.dumps(tool.definition))["name"] == "server__tool"
