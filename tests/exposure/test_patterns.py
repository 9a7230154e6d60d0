"""Entries of white- and blacklists are about tools: their qualified names and their `server:tool`."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pml_gateway.catalog.build import Prefix, build_catalog
from pml_gateway.catalog.model import Catalog
from pml_gateway.catalog.ownership import Ownership
from pml_gateway.exposure.meta_tool import RESERVED
from pml_gateway.exposure.patterns import compile_grants, compile_patterns, unmatched, without_grants
from tests.catalog.listings import catalog_of, listing

CATALOG = catalog_of("fs:read_file", "fs:write_file", "git:read", "git:Read", "a__b:c", "a:b__c", "web:get[0]")


def matching(*entries: str) -> list[str]:
    patterns = compile_patterns(entries)
    return [tool.source for tool in CATALOG.tools if patterns.matches(tool)]


@pytest.mark.parametrize(
    ("entry", "sources"),
    [
        ("fs__read_file", ["fs:read_file"]),
        ("fs:read_file", ["fs:read_file"]),
        ("fs:*", ["fs:read_file", "fs:write_file"]),
        ("fs__*", ["fs:read_file", "fs:write_file"]),
        ("*:read*", ["fs:read_file", "git:read"]),
        ("*_file", ["fs:read_file", "fs:write_file"]),
        ("git:?ead", ["git:read", "git:Read"]),
        ("git:[R]ead", ["git:Read"]),
        ("git:[!R]ead", ["git:read"]),
        (" git:read ", ["git:read"]),
        ("git:READ", []),
        ("Fs:*", []),
        ("read", []),
        ("read_file", []),
        ("fs", []),
        ("fs.read_file", []),
        ("mcp__fs__read_file", []),
        ("a:b__c", ["a:b__c"]),
        ("a__b:c", ["a__b:c"]),
        ("a__b__c", ["a__b:c", "a:b__c"]),
        ("web:get[0]", ["web:get[0]"]),
        ("", []),
        ("   ", []),
        ("[", []),
        ("*", [tool.source for tool in CATALOG.tools]),
    ],
)
def test_an_entry_matches_exactly_these_tools(entry: str, sources: list[str]) -> None:
    assert matching(entry) == sources


def test_several_entries_match_what_any_of_them_matches() -> None:
    assert matching("git:Read", "fs:w*", "*:write_file", "") == ["fs:write_file", "git:Read"]
    assert matching() == []


def test_a_tool_is_matched_under_its_own_name_however_it_is_listed() -> None:
    long = "x" * 100
    catalog = build_catalog([listing("fs", "read file", long)], prefix="never")
    for entry in ("fs:read file", f"fs:{long}", "fs:*"):
        assert any(compile_patterns([entry]).matches(tool) for tool in catalog.tools)
    assert compile_patterns(["read_file"]).matches(catalog.tools[0])


def admitted(catalog: Catalog, *entries: str) -> list[str]:
    grants = compile_grants(entries, catalog.ownership)
    return [tool.source for tool in catalog.tools if grants.admits(tool)]


@pytest.mark.parametrize("prefix", ["always", "on_collision", "never"])
@pytest.mark.parametrize(
    ("entry", "sources"),
    [
        ("github:*", ["github:read"]),
        ("github__*", ["github:read"]),
        ("github__re*", ["github:read"]),
        ("github__read", ["github:read"]),
        ("github__steal", []),
        ("git*", ["github:read", "git:log"]),
        ("github*", ["github:read"]),
        ("*:read", ["github:read"]),
        ("read", []),
        ("re*", []),
        ("log", []),
        ("*__steal", ["evil:github__steal"]),
        ("evil:github__steal", ["evil:github__steal"]),
        ("*", ["github:read", "git:log", "evil:github__steal", "evil:gitlog"]),
    ],
)
def test_a_server_is_let_in_by_no_name_that_it_chose(prefix: Prefix, entry: str, sources: list[str]) -> None:
    listings = [listing("github", "read"), listing("git", "log"), listing("evil", "github__steal", "gitlog")]
    assert admitted(build_catalog(listings, prefix=prefix), entry) == sources


@pytest.mark.parametrize("entry", ["read", "re*", "fs:read", "fs__read"])
def test_names_without_a_server_are_certain_where_there_is_one_server(entry: str) -> None:
    assert admitted(build_catalog([listing("fs", "read")], prefix="never"), entry) == ["fs:read"]
    disabled = Ownership(("fs", "other"))
    several = build_catalog([listing("fs", "read")], prefix="never", ownership=disabled)
    assert admitted(several, entry) == (["fs:read"] if "fs" in entry else [])


def test_a_shortened_name_admits_its_own_tool_alone() -> None:
    catalog = build_catalog([listing("fs", "x" * 100), listing("evil", "y" * 100)])
    name = catalog.tools[0].qualified_name
    assert admitted(catalog, name) == [catalog.tools[0].source]


def test_rules_of_a_server_are_not_about_one_whose_id_begins_with_it() -> None:
    catalog = build_catalog([listing("a", "b_x", "c"), listing("a__b", "x")])
    assert admitted(catalog, "a__*") == ["a:b_x", "a:c"]
    assert admitted(catalog, "a__b*") == ["a__b:x"]
    assert admitted(catalog, "a__b__*") == ["a__b:x"]


@pytest.mark.parametrize("prefix", ["on_collision", "never"])
def test_a_denial_still_means_a_tool_by_the_name_that_it_was_refused(prefix: Prefix) -> None:
    listings = [listing("github"), listing("evil", "github__steal", "call_tool")]
    catalog = build_catalog(listings, prefix=prefix, reserved=RESERVED)
    assert [tool.qualified_name for tool in catalog.tools] == ["evil__github__steal", "evil__call_tool"]
    for entry in ("github__steal", "github__*", "evil:github__steal", "evil__github__steal"):
        assert compile_patterns([entry]).matches(catalog.tools[0])
    assert compile_patterns(["call_tool"]).matches(catalog.tools[1])


def test_a_denial_still_means_a_tool_by_the_name_that_told_it_from_its_twin() -> None:
    # Both are `github__ent_` by their characters; the second was told apart by a hash behind it.
    listings = [listing("github__ent"), listing("github", "github__ent:", "github__ent/")]
    catalog = build_catalog(listings, prefix="never")
    assert [tool.qualified_name for tool in catalog.tools] == ["github__ent_", "github_ent_10a8d66a"]
    assert all(compile_patterns(["github__ent*"]).matches(tool) for tool in catalog.tools)


def test_entries_that_give_nothing_say_which_tools_they_name() -> None:
    listings = [listing("fs", "read", "stat"), listing("github"), listing("evil", "github__steal")]
    catalog = build_catalog(listings, prefix="never")
    found = without_grants(["read", "fs:stat", "github__*", "gti:*"], catalog.tools, catalog.ownership)
    assert found == {"read": ["fs:read"], "github__*": [], "gti:*": []}


def test_entries_without_a_tool_are_named() -> None:
    assert unmatched(["fs:*", "fs:read", "gti:*", "*", "fs"], CATALOG.tools, ()) == ["fs:read", "gti:*", "fs"]
    assert unmatched(["fs", "gti"], CATALOG.tools, ("fs",)) == ["gti"]


@given(entries=st.lists(st.text(st.sampled_from("fsgitread_:*?[]!-^|()\\+."), max_size=8), max_size=6))
def test_any_entries_match_as_shell_globs_do(entries: list[str]) -> None:
    wanted = [entry.strip() for entry in entries if entry.strip()]
    expected = [
        tool.source
        for tool in CATALOG.tools
        if any(
            name == entry or fnmatchcase(name, entry)
            for name in (tool.qualified_name, tool.source, f"{tool.upstream_id}__{tool.name}")
            for entry in wanted
        )
    ]
    assert matching(*entries) == expected
