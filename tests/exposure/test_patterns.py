"""Entries of white- and blacklists are about tools: their qualified names and their `server:tool`."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.catalog.build import build_catalog
from pml_gateway.exposure.patterns import compile_patterns, unmatched
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
        ("a__b__c", ["a__b:c"]),
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


def test_entries_without_a_tool_are_named() -> None:
    assert unmatched(["fs:*", "fs:read", "gti:*", "*"], CATALOG.tools) == ["fs:read", "gti:*"]


@settings(deadline=None)
@given(entries=st.lists(st.text(st.sampled_from("fsgitread_:*?[]!-^|()\\+."), max_size=8), max_size=6))
def test_any_entries_match_as_shell_globs_do(entries: list[str]) -> None:
    wanted = [entry.strip() for entry in entries if entry.strip()]
    expected = [
        tool.source
        for tool in CATALOG.tools
        if any(
            name == entry or fnmatchcase(name, entry) for name in (tool.qualified_name, tool.source) for entry in wanted
        )
    ]
    assert matching(*entries) == expected
