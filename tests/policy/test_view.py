"""A view answers as if the tools its client may not see did not exist."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.catalog.build import build_catalog
from pml_gateway.catalog.model import Catalog
from pml_gateway.policy.principal import LOCAL
from pml_gateway.policy.view import View
from tests.catalog.listings import catalog_of, listing
from tests.support.examples import examples
from tests.support.principals import principal

SERVERS = ("fs", "git", "git__x", "mail")
TOOLS = ("read", "write", "x__read", "delete_all", "Read", "fs:read")
PATTERNS = ("*", "fs:*", "git:*", "git__x:*", "*:read", "*:delete_*", "mail__*", "fs__read", "git:x__read", "none:*")


def view_of(catalog: Catalog, *, allow: tuple[str, ...] = ("*",), deny: tuple[str, ...] = ()) -> View:
    return View(catalog, principal("client:test", allow=allow, deny=deny), ())


def resolved(view: View, name: str) -> str | None:
    tool = view.resolve(name)
    return None if tool is None else tool.source


@pytest.mark.parametrize(
    "name",
    [
        *("github__create-issue", "github:create-issue", "github/create-issue", "github.create-issue"),
        *("mcp__github__create-issue", "mcp__pml__github__create-issue", "create-issue", "/github/create-issue"),
        *("github__create_issue", "GITHUB__CREATE-ISSUE", "github-create-issue", "github.createIssue", "Create-Issue"),
    ],
)
def test_every_spelling_of_a_tool_finds_it(name: str) -> None:
    assert resolved(view_of(catalog_of("github:create-issue", "fs:read")), name) == "github:create-issue"


@pytest.mark.parametrize("name", ["", "github", "github__", "mcp__create-issue", "fs__create-issue", "create", "issue"])
def test_other_names_find_nothing(name: str) -> None:
    assert view_of(catalog_of("github:create-issue", "fs:read")).resolve(name) is None


@pytest.mark.parametrize("name", ["readFile", "Read-File", "READ_FILE", "fs__READFILE", "search-tools", "searchTools"])
def test_other_spellings_of_several_or_of_a_meta_tool_find_nothing(name: str) -> None:
    view = view_of(catalog_of("fs:read_file", "docs:read-file", "docs:search__tools"))
    assert view.resolve(name) is None


@pytest.mark.parametrize(
    "name", ["GitHub-Steal", "git-hub.steal", "GITHUB STEAL", "mcp__x__github__steal", "github__Steal"]
)
def test_no_spelling_leads_from_one_server_to_another(name: str) -> None:
    view = view_of(catalog_of("github:read", "evil:github-steal", "evil:githubSteal", "evil:steal"))
    assert resolved(view, name) is None


def test_a_tool_listed_under_another_name_is_still_found_under_its_own() -> None:
    long = "read " * 40
    view = View(build_catalog([listing("my server", long)]), LOCAL, ())
    for name in (view.tools[0].qualified_name, f"my server:{long}", f"mcp__my server__{long}", long):
        assert view.resolve(name) is view.tools[0]


def test_a_bare_name_that_two_visible_tools_share_finds_neither() -> None:
    catalog = catalog_of("fs:read", "git:read", "git:log")
    assert view_of(catalog).resolve("read") is None
    assert resolved(view_of(catalog), "log") == "git:log"


def test_a_bare_name_is_unambiguous_when_the_others_are_hidden() -> None:
    catalog = catalog_of("fs:read", "git:read")
    assert resolved(view_of(catalog, deny=("git:*",)), "read") == "fs:read"
    assert resolved(View(catalog, LOCAL, ("fs:read",)), "read") == "git:read"


def test_the_qualified_name_wins_over_every_other_spelling() -> None:
    catalog = build_catalog([listing("a__b", "c"), listing("a", "b__c")])
    assert resolved(View(catalog, LOCAL, ()), "a__b__c") == "a__b:c"
    assert resolved(View(catalog, LOCAL, ()), "a:b__c") == "a:b__c"
    assert resolved(View(catalog, LOCAL, ("a__b:*",)), "a__b__c") is None


def test_a_tool_cannot_take_or_blur_the_spelling_of_another_servers_tool() -> None:
    view = View(
        build_catalog([listing("evil", "github:create", "mcp__github__create"), listing("github", "create")]), LOCAL, ()
    )
    assert resolved(view, "github:create") == "github:create"
    assert resolved(view, "mcp__github__create") == "github:create"
    assert resolved(view, "evil:github:create") == "evil:github:create"


def test_allow_is_narrowed_by_deny_and_by_the_blacklist() -> None:
    catalog = catalog_of("fs:read", "fs:write", "fs:delete_all", "git:read")
    client = principal("client:a", allow=("fs:*",), deny=("*:delete_*",))
    assert [tool.source for tool in View(catalog, client, ("fs__write",)).tools] == ["fs:read"]


def test_closest_names_are_visible_ones_best_first() -> None:
    catalog = catalog_of("github:create_issue", "github:create_issue_comment", "fs:read")
    assert view_of(catalog).closest("github__create_isue")[0] == "github__create_issue"
    assert view_of(catalog).closest("creat_issue") == ["github__create_issue"]
    assert view_of(catalog).closest("CREATE_ISSUE")[0] == "github__create_issue"
    assert view_of(catalog, deny=("github:*",)).closest("github__create_isue") == []
    assert len(view_of(catalog_of(*(f"s:tool_{i}" for i in range(20)))).closest("s__tool_")) == 3
    assert view_of(Catalog()).closest("read") == []


def test_servers_and_mask_count_visible_tools_only() -> None:
    view = view_of(catalog_of("fs:read", "fs:write", "git:log"), deny=("git:*", "fs:write"))
    assert view.servers == {"fs": 1}
    assert view.mask.tolist() == [True, False, False]
    assert view.mask.dtype == np.bool_
    assert view_of(catalog_of("fs:read"), allow=()).mask.tolist() == [False]


PATTERN_LISTS = st.lists(st.sampled_from(PATTERNS), max_size=3).map(tuple)
TOOL_SETS = st.lists(
    st.tuples(st.sampled_from(SERVERS), st.sampled_from(TOOLS)).map(":".join), unique=True, max_size=14
)
QUERIES = (
    *TOOLS,
    *(f"{server}{separator}{tool}" for server in SERVERS for tool in TOOLS for separator in (":", "/", ".", "__")),
    *(f"mcp__{server}__{tool}" for server in SERVERS for tool in TOOLS),
    *("git__x__rad", "fs_read", "delete", "", "mail", "x"),
)


@settings(max_examples=examples(150))
@given(names=TOOL_SETS, allow=PATTERN_LISTS, deny=PATTERN_LISTS, blacklist=PATTERN_LISTS)
def test_a_hidden_tool_cannot_be_told_from_one_that_does_not_exist(
    names: list[str], allow: tuple[str, ...], deny: tuple[str, ...], blacklist: tuple[str, ...]
) -> None:
    everything = catalog_of(*names)
    client = principal("client:test", allow=allow, deny=deny)
    view = View(everything, client, blacklist)
    visible = {tool.source for tool in view.tools}
    listings = [
        listing(server, *(name.split(":", 1)[1] for name in names if name in visible and name.startswith(f"{server}:")))
        for server in everything.upstream_ids
    ]
    # Names given once stay, so both catalogs use the same.
    without = View(build_catalog(listings, earlier=everything.assignments), LOCAL, ())
    assert view.names == without.names
    assert view.servers == without.servers
    assert [tool.source for tool in view.tools] == [tool.source for tool in without.tools]
    assert int(view.mask.sum()) == int(without.mask.sum())
    for query in (*QUERIES, *(tool.qualified_name for tool in everything.tools)):
        assert resolved(view, query) == resolved(without, query)
        assert view.closest(query) == without.closest(query)
        assert set(view.closest(query)) <= view.names
