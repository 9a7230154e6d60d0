"""Capabilities are kept as both sides declare them, and combined for the other side."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import mcp_types
import pytest

from pml_gateway.mcp.capabilities import (
    EVERYTHING,
    MAX_IDENTIFIERS,
    MAX_SETTINGS,
    NO_CAPABILITIES,
    UNKNOWN,
    ClientCapabilities,
    ServerCapabilities,
    announcement,
    read_client,
    read_server,
    union,
    without_extensions,
)

EXTENSIONS: dict[str, dict[str, Any]] = {
    "io.modelcontextprotocol/ui": {"mimeTypes": ["text/html"]},
    "org.example/x": {"deep": {"er": 1}},
}
BESIDE: dict[str, Any] = {"extensions": EXTENSIONS, "experimental": {"org.example/y": {"on": True}}}
ASKABLE: dict[str, Any] = {"elicitation": {"form": {}}, "sampling": {"tools": {}}, "roots": {"listChanged": True}}


def test_what_a_client_declares_is_read_alike_from_json_and_from_the_sdk() -> None:
    given = {**ASKABLE, **BESIDE}
    for one in (read_client(given), read_client(mcp_types.ClientCapabilities.model_validate(given))):
        assert one.declared == given
        assert one.announced == given
        assert one.plain.announced == ASKABLE
        assert one.extended == BESIDE
    assert read_client({"roots": None, "unknown": {}, "sampling": {"else": {}}}).declared == {"sampling": {}}
    for nothing in (None, {}, {"roots": 5}, [5], "roots"):
        assert read_client(nothing) == NO_CAPABILITIES  # type: ignore[arg-type]  # what a client may send


def test_clients_that_differ_in_extensions_only_are_asked_alike() -> None:
    plain, extended = read_client(ASKABLE), read_client({**ASKABLE, **BESIDE})
    assert plain != extended
    assert plain == extended.plain
    assert not read_client(BESIDE)
    assert all(map(EVERYTHING.announces, ASKABLE))
    assert union(plain, extended).declared == union(extended, plain).declared == {**ASKABLE, **BESIDE}


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ({"a/x": {}}, {"a/y": {"on": True}}, {"a/x": {}, "a/y": {"on": True}}),
        ({"a/x": {"types": ["p", "q"]}}, {"a/x": {"types": ["q", "r"]}}, {"a/x": {"types": ["p", "q", "r"]}}),
        ({"a/x": {"of": {"on": False}}}, {"a/x": {"of": {"on": True, "n": 1}}}, {"a/x": {"of": {"on": True, "n": 1}}}),
        ({"a/x": {"n": 1}}, {"a/x": {"n": 2}}, {"a/x": {"n": 1}}),
        ({"a/x": {"n": [1]}}, {"a/x": {"n": {"m": 2}}}, {"a/x": {"n": [1]}}),
    ],
)
def test_settings_of_extensions_are_combined(one: dict[str, Any], other: dict[str, Any], both: dict[str, Any]) -> None:
    clients = union(ClientCapabilities({"extensions": one}), ClientCapabilities({"extensions": other}))
    servers = union(ServerCapabilities({"extensions": one}), ServerCapabilities({"extensions": other}))
    assert clients.declared == servers.declared == {"extensions": both}


def test_extensions_that_are_too_large_are_not_passed_on_and_others_are() -> None:
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"er": deep}
    given: dict[str, Any] = {"a/large": {"text": "x" * MAX_SETTINGS}, "a/long" * 1000: {}, "a/small": {"on": True}}
    kept = {"extensions": {"a/small": {"on": True}}}
    assert read_client({"extensions": given}).announced == kept
    assert read_server(mcp_types.ServerCapabilities(extensions=given)).announced == kept
    assert not read_server(mcp_types.ServerCapabilities(extensions={"a/deep": deep})).is_extended
    many: dict[str, Any] = {f"a/{number}": {} for number in range(MAX_IDENTIFIERS + 5)}
    assert len(read_client({"extensions": many}).announced["extensions"]) == MAX_IDENTIFIERS
    # However many peers there are, each of them is told of.
    both = union(read_client({"extensions": many}), read_client({"extensions": {"b/other": {}}}))
    assert "b/other" in both.announced["extensions"]


def test_extensions_that_are_no_maps_are_not_passed_on() -> None:
    others: list[Any] = [["a/x"], "a/x", {}]
    for given in others:
        assert "extensions" not in ClientCapabilities({"extensions": given, "roots": {}}).announced
        assert not ServerCapabilities({"extensions": given}).is_extended


def test_long_lists_of_settings_are_not_compared_with_each_other() -> None:
    one, other = ({"extensions": {"a/x": {"n": [*range(start, start + 60_000)]}}} for start in (0, 60_000))
    assert union(ServerCapabilities(one), ServerCapabilities(other)).declared == one


def test_extensions_that_are_switched_off_are_left_out() -> None:
    kept = {"extensions": {"org.example/x": {"deep": {"er": 1}}}, "experimental": BESIDE["experimental"]}
    assert without_extensions({**ASKABLE, **BESIDE}, {"io.modelcontextprotocol/ui"}) == {**ASKABLE, **kept}
    everything = {"io.modelcontextprotocol/ui", "org.example/x", "org.example/y"}
    assert without_extensions({**ASKABLE, **BESIDE}, everything) == ASKABLE
    assert without_extensions({"extensions": ["x"]}, everything) == {"extensions": ["x"]}


def test_what_a_server_declares_is_asked_by_name() -> None:
    given = mcp_types.ServerCapabilities.model_validate({"resources": {"subscribe": True}, "logging": {}, **BESIDE})
    server = read_server(given)
    assert server.declared == {"resources": {"subscribe": True}, "logging": {}, **BESIDE}
    for name, part, is_offered in (
        ("resources", "", True),
        ("resources", "subscribe", True),
        ("resources", "listChanged", False),
        ("logging", "", True),
        ("extensions", "org.example/x", True),
        ("tools", "", False),
        ("tools", "listChanged", False),
    ):
        assert server.offers(name, part) is is_offered
    assert not read_server(None).declared


def test_clients_are_told_of_everything_that_some_server_offers() -> None:
    servers = [
        ServerCapabilities({"tools": {}, "resources": {}, "logging": {}}),
        ServerCapabilities({"resources": {"subscribe": True}, "completions": {}, **BESIDE}),
        ServerCapabilities(),
    ]
    own = {"tools": {"listChanged": True}, "prompts": {"of": "the SDK"}}
    everything = {"prompts", "resources", "completions", *BESIDE}
    for some in permutations(servers):
        told = announcement(own, some)
        assert told == {
            "tools": {"listChanged": True},
            "resources": {"subscribe": True, "listChanged": True},
            "completions": {},
            **BESIDE,
        }
    assert announcement(own, servers[:1])["resources"] == {"subscribe": False, "listChanged": True}
    assert announcement({}, [*servers, UNKNOWN]).keys() == everything
    assert announcement(own, []) == {"tools": {"listChanged": True}}


@pytest.mark.parametrize(
    ("more", "base", "gained"),
    [
        ({"resources": {}}, {}, {"resources": {"subscribe": False}}),
        ({"resources": {}}, {"resources": {"subscribe": True}}, {}),
        ({"resources": {"subscribe": True}}, {"resources": {}}, {"resources": {"subscribe": True}}),
        ({"prompts": {"listChanged": True}}, {"prompts": {}}, {}),
        ({"prompts": {}, "completions": {}}, {"prompts": {}}, {"completions": {}}),
        (BESIDE, {}, BESIDE),
        (BESIDE, BESIDE, {}),
    ],
)
def test_a_server_has_more_for_some_clients_only_if_those_are_told_of_it(
    more: dict[str, Any], base: dict[str, Any], gained: dict[str, Any]
) -> None:
    assert ServerCapabilities(more).beyond(ServerCapabilities(base)).declared == gained
