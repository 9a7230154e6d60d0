"""Namespaces: which tools share one, what it shows of each action, and what that costs."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from pml_gateway.catalog.build import build_catalog
from pml_gateway.catalog.model import CatalogTool, UpstreamListing
from pml_gateway.catalog.ownership import Ownership
from pml_gateway.catalog.wire import encode
from pml_gateway.config.settings import NamespaceSettings, Settings
from pml_gateway.exposure.grouping import Namespace, group
from pml_gateway.exposure.meta_tool import RESERVED
from pml_gateway.exposure.namespaces import call_signature, definition
from pml_gateway.exposure.schema_text import field, inline_type, required_names
from pml_gateway.exposure.token_count import count_tokens
from pml_gateway.gateway.state import GatewayState
from pml_gateway.gateway.tool_list import render
from pml_gateway.meta.meta_tools import ALL_META_TOOLS
from pml_gateway.policy.principal import LOCAL
from pml_gateway.types import ExposureMode
from tests.support.examples import examples

READ_ONLY = {"readOnlyHint": True}

PRODUCT = Path(__file__).parents[1] / "data" / "code_intelligence.json"
SERVERS: dict[str, list[dict[str, Any]]] = json.loads(PRODUCT.read_text(encoding="utf-8"))
"""A code-intelligence product as four MCP servers: 31 tools as such servers really define them, in their own words."""


def action(name: str, required: Mapping[str, Any] | None = None, /, **more: Any) -> dict[str, Any]:
    optional = more.pop("optional", {})
    schema = {"type": "object", "properties": {**(required or {}), **optional}, "required": list(required or {})}
    return {"name": name, "description": "", "inputSchema": schema, **more}


def tools_of(servers: Mapping[str, Sequence[Mapping[str, Any]]], **naming: Any) -> tuple[CatalogTool, ...]:
    listings = [UpstreamListing(server, tuple(dict(tool) for tool in tools)) for server, tools in servers.items()]
    return build_catalog(listings, reserved=RESERVED, **naming).tools


def grouped(servers: Mapping[str, Sequence[Mapping[str, Any]]], **settings: Any) -> dict[str, Namespace]:
    tools = tools_of(servers)
    taken = {*RESERVED, *(tool.qualified_name for tool in tools)}
    return group(tools, NamespaceSettings(**settings), taken=taken, ownership=Ownership(tuple(servers)))


def one(*actions: dict[str, Any]) -> Namespace:
    (namespace,) = grouped({"up": actions}).values()
    return namespace


def lines(namespace: Namespace) -> list[str]:
    return str(definition(namespace)["description"]).splitlines()[1:]


def flat_and_namespaced(servers: Mapping[str, Sequence[Mapping[str, Any]]]) -> tuple[str, str]:
    """The list of every tool, and the one of the search and the namespaces, as a client gets them."""
    catalog = build_catalog([UpstreamListing(name, tuple(map(dict, tools))) for name, tools in servers.items()])
    rendered = []
    for gateway in ({"tools_exposure": "full_proxy"}, {"style": "namespaces", "meta_tools": ["search_tools"]}):
        settings = Settings.model_validate({"gateway": gateway})
        state = GatewayState(settings, catalog, None, meta_tools=ALL_META_TOOLS)
        view = state.view(LOCAL)
        exposure = state.expose(view, ExposureMode(settings.gateway.tools_exposure), None)
        rendered.append(render(state, view, exposure, "2025-11-25").decode())
    return rendered[0], rendered[1]


def test_every_upstream_is_a_namespace_and_a_configured_group_takes_its_tools_first() -> None:
    servers = {"git": [action("log"), action("diff")], "hub": [action("issue"), action("log")], "fs": [action("read")]}
    assert {name: list(namespace.actions) for name, namespace in grouped(servers).items()} == {
        "fs": ["read"],
        "git": ["log", "diff"],
        "hub": ["issue", "log"],
    }
    groups = {"history": ["*:log", "git:diff"], "rest": ["git:*"]}
    assert {name: list(namespace.actions) for name, namespace in grouped(servers, groups=groups).items()} == {
        "fs": ["read"],
        "history": ["git__log", "diff", "hub__log"],
        "hub": ["issue"],
    }


def test_reading_and_writing_can_be_split_by_what_tools_say_of_themselves() -> None:
    servers = {"fs": [action("read", annotations=READ_ONLY), action("write"), action("stat", annotations=READ_ONLY)]}
    namespaces = grouped(servers, split_by_access=True)
    assert {name: list(namespace.actions) for name, namespace in namespaces.items()} == {
        "fs_read": ["read", "stat"],
        "fs_write": ["write"],
    }
    assert definition(namespaces["fs_read"])["annotations"] == READ_ONLY
    assert "annotations" not in definition(namespaces["fs_write"])


def test_a_namespace_never_takes_a_name_that_is_given_already() -> None:
    tools = tools_of({"git": [action("git")], "fs": [action("fs"), action("fs_tools")]}, prefix="never")
    taken = {tool.qualified_name for tool in tools}

    def names(taken: set[str]) -> list[str]:
        return list(group(tools, NamespaceSettings(), taken=taken, ownership=Ownership(("git", "fs"))))

    assert names(taken) == ["fs_actions", "git_tools"]
    assert names({*taken, "git_tools", "git_actions"})[1].startswith("git_")
    assert list(grouped({"a b/é": [action("x")]})) == ["a_b__"]


def test_a_line_says_how_an_action_is_called() -> None:
    namespace = one(
        action(
            "find",
            {"query": {"type": "string"}, "in": {"type": "array", "items": {"type": "string"}}},
            optional={
                "limit": {"type": "integer"},
                "kind": {"enum": ["file", "two words", 3]},
                "since": {"type": "string", "format": "date"},
                "size": {"anyOf": [{"type": "number"}, {"type": "null"}]},
                "where": {"type": "object", "properties": {"x": {"type": "integer"}, "y": {}}, "required": ["x"]},
                "labels": {"type": "object", "additionalProperties": {"type": "boolean"}},
            },
        ),
        action("reset"),
    )
    assert lines(namespace) == [
        'find(query, in: str[], limit?: int, kind?: file|"two words"|3, since?: date, size?: float, '
        "where?: {x: int, y?: any}, labels?: {[key]: bool})",
        "reset()",
    ]
    assert call_signature(namespace, "find").startswith('up(action: "find", query, in: str[], limit?: int, ')


def test_a_name_that_could_pass_for_more_than_a_name_is_quoted() -> None:
    namespace = one(action("a", {"x)\nb(y": {"type": "string"}}), action("c\nd", {"z": {}}))
    assert lines(namespace) == ['a("x)\\nb(y")', "up__c_d(z: any)"]


def test_what_every_action_takes_in_the_same_way_is_declared_once_and_left_out_of_the_lines() -> None:
    repo = {"type": "string", "description": "Which repository.", "x-mcp-header": "Repo", "minLength": 1}
    namespace = one(
        action("log", {"repo": repo}, optional={"limit": {"type": "integer"}}),
        action("diff", {"repo": repo, "base": {"type": "string"}}, optional={"limit": {"type": "string"}}),
    )
    assert lines(namespace) == ["log(limit?: int)", "diff(base, limit?)"]
    assert definition(namespace)["inputSchema"] == {
        "type": "object",
        "properties": {"action": {"type": "string"}, "repo": {"type": "string", "description": "Which repository."}},
        "required": ["action", "repo"],
        "additionalProperties": True,
    }


def test_what_is_required_in_one_action_only_stays_in_its_line() -> None:
    path = {"type": "string"}
    namespace = one(action("read", {"path": path}), action("list", optional={"path": path}))
    assert lines(namespace) == ["read(path)", "list(path?)"]


DEEP = {
    "type": "object",
    "properties": {
        "field": {"enum": ["title", "body", "author"]},
        "operator": {"enum": ["equals", "contains", "starts_with"]},
        "value": {"type": "string", "description": "What to compare with."},
        "all_of": {"type": "array", "items": {"$ref": "#/$defs/Filter"}},
    },
    "required": ["field", "operator", "value"],
}


def test_what_a_line_cannot_say_is_declared_and_what_repeats_is_written_once() -> None:
    filtered = action("search", {"filter": {"$ref": "#/$defs/Filter"}})
    counted = action("count", {"filter": {"$ref": "#/$defs/Filter"}, "by": {"type": "string"}})
    for each in (filtered, counted):
        each["inputSchema"]["$defs"] = {"Filter": DEEP, "Unused": {"type": "object"}}
    listed = action("list", {"by": {"type": "string"}})
    schema = definition(one(filtered, counted, listed))["inputSchema"]
    assert schema["properties"]["filter"] == {"$ref": "#/$defs/Filter"}
    assert list(schema["$defs"]) == ["Filter"]
    assert schema["$defs"]["Filter"]["properties"]["all_of"]["items"] == {"$ref": "#/$defs/Filter"}
    assert "What to compare with." not in json.dumps(schema)
    assert lines(one(filtered, counted, listed)) == ["search(filter)", "count(filter, by)", "list(by)"]


def test_equal_sub_schemas_without_a_name_of_their_own_share_a_definition() -> None:
    point = {
        "type": "object",
        "properties": {axis: {"type": "object", "properties": {"value": {"type": "number"}}} for axis in "xyzuvw"},
    }
    namespace = one(
        action("move", {"start": point, "end": point}), action("mark", {"places": {"type": "array", "items": point}})
    )
    schema = definition(namespace)["inputSchema"]
    (name,) = schema["$defs"]
    assert json.dumps(schema).count('"w"') == 1
    assert schema["properties"]["places"] == {"type": "array", "items": {"$ref": f"#/$defs/{name}"}}


def test_a_parameter_called_action_is_taken_under_a_free_name() -> None:
    namespace = one(
        action("review", {"action": {"type": "string"}, "action_": {"type": "integer"}}), action("close", {"id": {}})
    )
    assert lines(namespace)[0] == "review(action__, action_: int)"


def test_different_schemas_of_one_name_are_both_declared() -> None:
    one_of = {"allOf": [{"type": "string"}, {"minLength": 1}]}
    other = {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]}
    schema = definition(one(action("a", {"of": one_of}), action("b", {"of": other})))["inputSchema"]
    assert schema["properties"]["of"] == {"anyOf": [{"allOf": [{"type": "string"}, {}]}, other]}


def test_a_declared_parameter_admits_what_every_action_takes_under_its_name() -> None:
    nested = {"type": "object", "properties": {"at": {"allOf": [{"type": "object"}]}}}
    namespace = one(action("a", {"where": nested}), action("b", {"where": {"type": "string"}}), action("c"))
    schema = definition(namespace)["inputSchema"]
    values: tuple[Any, ...] = ({"at": {}}, "here")
    for value in values:
        Draft202012Validator(schema).validate({"action": "a", "where": value})
    assert lines(namespace) == ["a(where)", "b(where)", "c()"]


def test_a_purpose_is_said_where_it_is_short_beside_the_definition_and_adds_something() -> None:
    long = "Estimates what a change of the given symbols would affect, in the order of their risk. " * 8
    namespace = one(
        action("impact", {"symbols": {}}) | {"description": long},
        action("get_weather") | {"description": "Get the weather. " + "More of the same. " * 40},
        action("ping") | {"description": "Says whether the server lives."},
    )
    assert lines(namespace) == [
        "impact(symbols: any) Estimates what a change of the given symbols would affect",
        "get_weather()",
        "ping()",
    ]


def test_a_code_intelligence_product_costs_a_fifth_of_its_list() -> None:
    assert [len(tools) for tools in SERVERS.values()] == [9, 3, 7, 12]
    flat, namespaced = flat_and_namespaced(SERVERS)
    assert len(flat) >= 17_000
    assert count_tokens(namespaced) <= 0.20 * count_tokens(flat)


def test_every_required_field_of_every_action_is_shown_with_its_type() -> None:
    for namespace in grouped(SERVERS).values():
        shown = definition(namespace)
        hoisted = shown["inputSchema"]["properties"]
        for line, tool in zip(lines(namespace), namespace.actions.values(), strict=True):
            schema = tool.definition["inputSchema"]
            for name in required_names(schema):
                shown_field = field(name, inline_type(schema["properties"][name], schema), required=True)
                assert name in hoisted or shown_field in line.partition("(")[2], (tool.name, name)


def test_a_choice_that_refers_to_itself_is_declared() -> None:
    tree = {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/tree"}}, {"type": "string"}]}
    walk = action("walk", {"tree": {"$ref": "#/$defs/tree"}})
    walk["inputSchema"]["$defs"] = {"tree": tree}
    assert "tree" in definition(one(walk, action("stop")))["inputSchema"]["properties"]


def test_the_same_tools_give_the_same_bytes_whatever_order_their_servers_come_in() -> None:
    shuffled = dict(random.Random(1).sample(list(SERVERS.items()), len(SERVERS)))
    assert flat_and_namespaced(SERVERS)[1] == flat_and_namespaced(shuffled)[1]


NAMES = st.text(string.ascii_lowercase + "_", min_size=1, max_size=8)
SCHEMAS = st.recursive(
    st.sampled_from(
        [
            {},
            True,
            {"type": "string"},
            {"type": "integer", "minimum": 1},
            {"enum": ["a", None, 1]},
            {"type": ["string", "null"]},
            {"$ref": "#/$defs/node"},
            {"$ref": "#/nowhere"},
        ]
    ),
    lambda inner: st.one_of(
        st.builds(lambda item: {"type": "array", "items": item}, inner),
        st.builds(lambda fields: {"type": "object", "properties": fields}, st.dictionaries(NAMES, inner, max_size=4)),
        st.builds(lambda branches: {"anyOf": branches}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda branches: {"allOf": branches}, st.lists(inner, min_size=1, max_size=2)),
    ),
    max_leaves=8,
)
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}


@st.composite
def listings(draw: st.DrawFn) -> list[dict[str, Any]]:
    made = []
    for name in draw(st.lists(NAMES, min_size=1, max_size=5, unique=True)):
        properties = draw(st.dictionaries(st.one_of(NAMES, st.just("action")), SCHEMAS, max_size=5))
        required = [key for key in properties if draw(st.booleans())]
        schema = {"type": "object", "properties": properties, "required": required, "$defs": {"node": NODE}}
        made.append({"name": name, "description": draw(st.text(max_size=60)), "inputSchema": schema})
    return made


@settings(max_examples=examples(60))
@given(listings())
def test_any_namespace_is_a_plain_object_schema_whose_references_all_lead_somewhere(made: list[dict[str, Any]]) -> None:
    namespace = one(*made)
    shown = definition(namespace)
    schema = shown["inputSchema"]
    Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    assert not {"oneOf", "anyOf", "allOf", "$ref"} & schema.keys()
    for reference in set(_references(schema)):
        assert reference.removeprefix("#/$defs/") in schema["$defs"]
    assert encode(shown) == encode(definition(one(*made)))
    assert len(lines(namespace)) == len(made)


def _references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [found for item in value for found in _references(item)]
    if not isinstance(value, dict):
        return []
    own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
    return own + [found for item in value.values() for found in _references(item)]


@pytest.mark.parametrize(
    "given_name", ["read_file", "readFile", "read-file", "READ FILE", "up__read_file", "up:read_file"]
)
def test_an_action_is_found_however_its_name_is_written(given_name: str) -> None:
    assert one(action("read_file"), action("read")).find(given_name) == "read_file"


def test_names_that_two_actions_share_when_written_loosely_are_not_guessed() -> None:
    namespace = one(action("read_file"), action("readFile"))
    assert [namespace.find(name) for name in ("readFile", "read_file", "readfile")] == ["readFile", "read_file", None]
