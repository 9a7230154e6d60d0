"""Every tool gets a name that clients accept, of its own, for good."""

from __future__ import annotations

import re
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.catalog.build import Prefix, assign_names, build_catalog
from pml_gateway.catalog.model import UpstreamListing
from pml_gateway.catalog.ownership import Ownership
from pml_gateway.exposure.meta_tool import RESERVED
from tests.catalog.listings import listing

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


@settings(deadline=None)
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


@settings(deadline=None)
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
