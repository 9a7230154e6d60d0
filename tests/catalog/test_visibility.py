"""What servers list for some clients only exists for these clients, whatever other servers list."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pml_gateway.catalog.build import build_catalog
from pml_gateway.catalog.model import UpstreamListing
from pml_gateway.catalog.prompts_and_resources import OfferKind, build_offers
from pml_gateway.catalog.visibility import NOTHING, Variants, Visibility, build_visibility
from pml_gateway.mcp.capabilities import ServerCapabilities
from pml_gateway.mcp.listing import Difference, Offers, difference, with_more
from pml_gateway.policy.rules import HidingRule
from pml_gateway.policy.view import View
from tests.support.principals import principal

NAMES = st.lists(st.sampled_from("abcdef"), max_size=4, unique=True)
SETS = ("", "ask", "sample")
"""What clients can be asked; nothing for the first."""

LISTINGS = st.fixed_dictionaries({server: st.fixed_dictionaries(dict.fromkeys(SETS, NAMES)) for server in ("x", "y")})


def listing(names: list[str]) -> tuple[tuple[dict[str, Any], ...], Offers]:
    tools = tuple({"name": name, "inputSchema": {"type": "object"}} for name in names)
    prompts = tuple({"name": f"p{name}"} for name in names)
    resources = tuple({"uri": f"{name}://r", "name": name} for name in names)
    return tools, Offers(
        prompts=prompts,
        resources=resources,
        capabilities=ServerCapabilities({"prompts": {}, "resources": {}} if names else {"resources": {}}),
    )


@given(LISTINGS)
def test_each_client_sees_of_every_server_exactly_what_it_lists_for_clients_of_its_abilities(
    listed: dict[str, dict[str, list[str]]],
) -> None:
    variants: dict[str, Variants] = {}
    for server, by_abilities in listed.items():
        base = listing(by_abilities[""])
        differences = {key: difference(*listing(names), base=base) for key, names in by_abilities.items() if key}
        variants[server] = Variants(*base, differences)
    merged = {key: with_more(each.tools, each.offers, each.differences.values()) for key, each in variants.items()}
    catalog = replace(
        build_catalog([UpstreamListing(key, tools) for key, (tools, _) in merged.items()]),
        offers=build_offers({key: offers for key, (_, offers) in merged.items()}),
        visibility=build_visibility(variants),
    )
    for client_capabilities in (*SETS, "never met"):
        client = principal("c", client_capabilities=client_capabilities)
        view = View(catalog, client, ())
        expected = {
            (server, name) for server, names in listed.items() for name in names.get(client_capabilities, names[""])
        }
        assert {(tool.upstream_id, tool.name) for tool in view.tools} == expected
        own = {(offer.upstream_id, offer.name) for kind in OfferKind for offer in view.offers.listed(kind)}
        uris = {(server, f"{name}://r") for server, name in expected}
        assert own == {(server, f"p{name}") for server, name in expected} | uris
        for server, names in listed.items():
            said = view.said[server]
            assert said is not None
            given_names = names.get(client_capabilities, names[""])
            assert said.capabilities.offers("prompts") == bool(given_names or names[""])
        excluded = [found for tool in catalog.tools if (found := view.exclusion(tool)) is not None]
        assert {each.tool for each in excluded} == set(catalog.tools) - set(view.tools)
        assert {each.rule for each in excluded} <= {HidingRule.CAPABILITIES}


def test_servers_that_list_the_same_for_all_clients_have_no_gates() -> None:
    visibility = build_visibility({"x": Variants(*listing(["a"]), {"ask": Difference()})})
    assert visibility == Visibility()
    assert visibility.absent_for("ask") == visibility.absent_for("") == NOTHING


def test_clients_for_whom_the_same_exists_are_one_group() -> None:
    base = listing(["a"])
    more = difference(*listing(["a", "b"]), base=base)
    visibility = build_visibility({"x": Variants(*base, {"ask": more, "ask and roots": more, "roots": Difference()})})
    assert visibility.group("ask") == visibility.group("ask and roots") != ""
    assert visibility.group("roots") == visibility.group("never met") == visibility.group("") == ""
