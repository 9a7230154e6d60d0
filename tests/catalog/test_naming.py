"""Every tool gets a name that clients accept, of its own, for good."""

from __future__ import annotations

import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pml_gateway.catalog.build import Prefix, assign_names, build_catalog
from pml_gateway.catalog.model import Catalog, UpstreamListing
from pml_gateway.catalog.ownership import Ownership
from pml_gateway.exposure.meta_tool import RESERVED
from pml_gateway.exposure.patterns import compile_grants, compile_patterns
from pml_gateway.policy.principal import LOCAL
from pml_gateway.policy.view import View
from tests.catalog.listings import listing
from tests.support.principals import principal

LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
PREFIXES: tuple[Prefix, ...] = ("always", "on_collision", "never")

ANY_TEXT = st.text(st.characters(), max_size=90)
SIMILAR = st.sampled_from(("a", "a__b", "b__c", "c", "a b", "a.b", "a_b", "é", "ü", "", "search_tools", "x" * 200))
NAMES = ANY_TEXT | SIMILAR
OWNERS = st.lists(st.tuples(NAMES, NAMES), max_size=25)


def names_of(
    *listings: UpstreamListing,
    prefix: Prefix = "always",
    earlier: dict[tuple[str, str], str] | None = None,
    reserved: frozenset[str] = frozenset(),
) -> list[str]:
    catalog = build_catalog(listings, prefix=prefix, earlier=earlier, reserved=reserved)
    return [tool.qualified_name for tool in catalog.tools]


@given(owners=OWNERS, prefix=st.sampled_from(PREFIXES), max_length=st.integers(16, 64))
def test_any_names_become_legal_and_unique(owners: list[tuple[str, str]], prefix: Prefix, max_length: int) -> None:
    ownership = Ownership(tuple(dict(owners)))
    names = assign_names(
        owners, prefix=prefix, max_length=max_length, reserved=RESERVED, earlier={}, ownership=ownership
    )
    assert names.keys() == set(owners)
    assert len(set(names.values())) == len(names)
    assert all(LEGAL.match(name) and len(name) <= max_length for name in names.values())
    assert not RESERVED & set(names.values())


@given(first=OWNERS, later=OWNERS, gone=st.integers(0, 10), prefix=st.sampled_from(PREFIXES), random=st.randoms())
def test_names_given_once_stay_whatever_is_added_removed_or_reordered(
    first: list[tuple[str, str]],
    later: list[tuple[str, str]],
    gone: int,
    prefix: Prefix,
    random: Random,
) -> None:
    def assigned(
        owners: list[tuple[str, str]], earlier: dict[tuple[str, str], str], ownership: Ownership
    ) -> dict[tuple[str, str], str]:
        return assign_names(
            owners, prefix=prefix, max_length=64, reserved=RESERVED, earlier=earlier, ownership=ownership
        )

    before = assigned(first, {}, Ownership(tuple(dict(first))))
    owners = [*first[gone:], *later]
    random.shuffle(owners)
    ownership = Ownership(tuple(dict([*first, *later])))
    after = assigned(owners, before, ownership)
    # Only to a server that its name begins with does a tool lose it.
    kept = {owner: name for owner, name in before.items() if ownership.allows(name, owner[0])}
    assert {owner: after[owner] for owner in first[gone:] if owner in kept} == {
        owner: kept[owner] for owner in first[gone:] if owner in kept
    }
    assert len(set((kept | after).values())) == len(kept | after)


@given(
    owners=OWNERS,
    prefix=st.sampled_from(PREFIXES),
    limits=st.lists(st.integers(16, 70), min_size=2, max_size=4),
    later=OWNERS,
)
def test_a_tool_is_called_and_ruled_by_every_name_that_it_ever_had(
    owners: list[tuple[str, str]], prefix: Prefix, limits: list[int], later: list[tuple[str, str]]
) -> None:
    ownership = Ownership(tuple(dict([*owners, *later])))
    catalog, given_names = Catalog(), dict[tuple[str, str], list[str]]()
    for number, limit in enumerate(limits):
        servers: dict[str, list[str]] = {}
        for server, name in dict.fromkeys([*owners, *(later if number else ())]):
            servers.setdefault(server, []).append(name)
        catalog = build_catalog(
            [listing(server, *names) for server, names in servers.items()],
            prefix=prefix,
            max_length=limit,
            reserved=RESERVED,
            earlier=catalog.assignments,
            former=catalog.former,
            previous=catalog,
            ownership=ownership,
        )
        for tool in catalog.tools:
            given_names.setdefault((tool.upstream_id, tool.name), []).append(tool.qualified_name)
            assert len(tool.qualified_name) <= limit
    view = View(catalog, LOCAL, ())
    for tool in catalog.tools:
        for name in given_names[tool.upstream_id, tool.name]:
            assert view.resolve(name) is tool
            assert compile_patterns([name]).matches(tool)
            if ownership.of(name) == tool.upstream_id:
                assert compile_grants([name], ownership).admits(tool)


def test_names_are_long_again_where_the_limit_is_raised_and_the_short_ones_still_call() -> None:
    long = "do_" * 18
    names, catalog = [], Catalog()
    for limit in (64, 52, 64):
        catalog = build_catalog(
            [listing("up", long)], max_length=limit, earlier=catalog.assignments, former=catalog.former
        )
        names.append(catalog.tools[0].qualified_name)
    assert names[0] == names[2] == f"up__{long}"
    assert len(names[1]) == 52
    assert catalog.tools[0].former_names == (names[1],)


@pytest.mark.parametrize("rule", ["deny", "blacklist"])
def test_a_rule_with_the_name_of_the_first_limit_holds_where_no_manifest_knows_it(rule: str) -> None:
    long = "do things " * 9
    (before,) = build_catalog([listing("my up", long)]).tools
    catalog = build_catalog([listing("my up", long)], max_length=52)
    (now,) = catalog.tools
    assert before.qualified_name != now.qualified_name
    denies = [before.qualified_name]
    view = View(catalog, principal("c", deny=tuple(denies if rule == "deny" else ())), denies if rule != "deny" else ())
    assert view.tools == ()
    assert View(catalog, principal("c", allow=tuple(denies)), ()).resolve(before.qualified_name) is now


def test_a_name_that_a_tool_had_is_given_to_no_other() -> None:
    before = build_catalog([listing("up", "do_" * 30)], max_length=24, prefix="never")
    (short,) = before.tools
    after = build_catalog(
        [listing("other", short.qualified_name), listing("up", "do_" * 30)],
        max_length=90,
        prefix="never",
        earlier=before.assignments,
        former=before.former,
    )
    found = View(after, LOCAL, ()).resolve(short.qualified_name)
    assert found is not None
    assert found.upstream_id == "up"


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        ("resolve-library-id", "docs__resolve-library-id"),
        ("API-post-search", "docs__API-post-search"),
        ("Read", "docs__Read"),
        ("list", "docs__list"),
        ("read file", "docs__read_file"),
        ("größe", "docs__gr__e"),
        ("検索", "docs____"),
    ],
)
def test_real_names_keep_their_shape_behind_the_server_id(tool: str, expected: str) -> None:
    assert names_of(listing("docs", tool)) == [expected]


def test_a_name_of_200_characters_is_shortened_with_a_hash_of_its_owner() -> None:
    long = "read_" * 40
    first, second = names_of(listing("a", long), listing("b", long), prefix="never")
    assert len(first) == len(second) == 64
    assert first[:55] == second[:55] == long[:55]
    assert first != second
    assert names_of(listing("a", long), prefix="never") == [first]


def test_a_double_underscore_in_ids_and_names_collides_without_harm() -> None:
    first, second = names_of(listing("a__b", "c"), listing("a", "b__c"))
    assert first == "a__b__c"
    assert re.fullmatch(r"a_b_c_[0-9a-f]{8}", second)


def test_names_that_differ_in_illegal_characters_only_stay_apart() -> None:
    names = names_of(listing("a", "read.file", "read file", "read_file"))
    assert names[0] == "a__read_file"
    assert len(set(names)) == 3


def test_on_collision_prefixes_only_the_second_owner() -> None:
    names = names_of(listing("a", "read"), listing("b", "read", "write"), prefix="on_collision")
    assert names == ["read", "b__read", "write"]


def test_never_prefixing_still_keeps_two_owners_apart() -> None:
    first, second = names_of(listing("a", "read"), listing("b", "read"), prefix="never")
    assert first == "read"
    assert re.fullmatch(r"read_[0-9a-f]{8}", second)


@pytest.mark.parametrize("name", sorted(RESERVED))
@pytest.mark.parametrize("prefix", ["on_collision", "never"])
def test_no_tool_takes_the_name_of_a_meta_tool(name: str, prefix: Prefix) -> None:
    (given_name,) = names_of(listing("a", name), prefix=prefix, reserved=RESERVED)
    assert given_name not in RESERVED
    assert LEGAL.match(given_name)


def test_a_new_server_in_front_does_not_rename_the_tools_of_another() -> None:
    before = build_catalog([listing("b", "read")], prefix="on_collision")
    after = build_catalog(
        [listing("a", "read"), listing("b", "read")], prefix="on_collision", earlier=before.assignments
    )
    assert [tool.qualified_name for tool in after.tools] == ["a__read", "read"]


def test_a_tool_that_goes_and_comes_back_has_its_name_again() -> None:
    first = build_catalog([listing("a", "read"), listing("b", "read")], prefix="on_collision")
    without = build_catalog([listing("a"), listing("b", "read")], prefix="on_collision", earlier=first.assignments)
    again = build_catalog(
        [listing("b", "read"), listing("a", "read")], prefix="on_collision", earlier=without.assignments
    )
    assert [tool.qualified_name for tool in without.tools] == ["b__read"]
    assert [tool.qualified_name for tool in again.tools] == ["b__read", "read"]


def test_the_names_of_a_server_that_is_no_longer_configured_are_free() -> None:
    first = build_catalog([listing("a", "read")], prefix="never")
    assert names_of(listing("b", "read"), prefix="never", earlier=dict(first.assignments)) == ["read"]


@pytest.mark.parametrize("damaged", ["", "search_tools", "né", "x" * 65])
def test_an_earlier_name_that_is_not_legal_is_given_anew(damaged: str) -> None:
    catalog = build_catalog([listing("a", "read")], reserved=RESERVED, earlier={("a", "read"): damaged})
    assert [tool.qualified_name for tool in catalog.tools] == ["a__read"]
    assert dict(catalog.assignments) == {("a", "read"): "a__read"}


def test_two_owners_of_one_earlier_name_are_taken_apart() -> None:
    earlier = {("a", "read"): "read", ("b", "read"): "read"}
    assert names_of(listing("b", "read"), listing("a", "read"), earlier=earlier) == ["b__read", "read"]
