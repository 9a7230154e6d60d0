"""A composite tool exists for a client exactly where every step that a run could come to is one it may make."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.catalog.build import build_catalog
from pml_gateway.catalog.model import Catalog, UpstreamListing
from pml_gateway.policy.view import View
from pml_gateway.workflow.composite import (
    COMPOSITES,
    bind_composites,
    composite_listing,
    ownership_of,
    read_composites,
    with_composites,
)
from pml_gateway.workflow.plan import Budget
from tests.support.examples import examples
from tests.support.principals import principal
from tests.support.scripted_server import tool

LEAVES = ("a", "b", "c")
NAMES = ("w0", "w1", "w2", "w3")


@st.composite
def workflows(draw: st.DrawFn) -> dict[str, dict[str, Any]]:
    """Workflows that use tools, and workflows before them."""
    made: dict[str, dict[str, Any]] = {}
    for at, name in enumerate(NAMES):
        known = [f"s:{each}" for each in LEAVES] + [f"workflows:{each}" for each in NAMES[:at]]
        used = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3))
        steps = [{"tool": each, "when": draw(st.sampled_from(["`true`", "`false`"]))} for each in used]
        made[name] = {"description": "Made up.", "steps": steps}
    return made


def catalog_with(entries: dict[str, dict[str, Any]]) -> Catalog:
    composites = read_composites(entries, Budget(50, 1000, 1.0, 1))
    listing = composite_listing(composites)
    assert listing is not None
    listings = [UpstreamListing("s", tuple(tool(name) for name in LEAVES)), listing]
    catalog = build_catalog(listings, ownership=ownership_of(["s"]))
    return with_composites(catalog, bind_composites(composites, catalog, lambda step, tool: []))


def may_run(name: str, entries: dict[str, dict[str, Any]], allowed: set[str], blacklist: set[str]) -> bool:
    """State the rule in another way than the view computes it."""
    for step in entries[name]["steps"]:
        tool_name = step["tool"]
        if tool_name in blacklist or tool_name not in allowed:
            return False
        own = tool_name.removeprefix("workflows:")
        if own != tool_name and not may_run(own, entries, allowed, blacklist):
            return False
    return True


EVERY = [f"s:{each}" for each in LEAVES] + [f"workflows:{each}" for each in NAMES]


@given(workflows(), st.sets(st.sampled_from(EVERY)), st.sets(st.sampled_from(EVERY), max_size=2))
@settings(max_examples=examples(150))
def test_a_composite_is_shown_where_all_it_could_come_to_is_allowed(
    entries: dict[str, dict[str, Any]], allowed: set[str], blacklist: set[str]
) -> None:
    catalog = catalog_with(entries)
    client = principal("client:test", allow=tuple(sorted(allowed)))
    view = View(catalog, client, sorted(blacklist))
    shown = {each.source for each in view.tools if each.upstream_id == COMPOSITES}
    assert shown == {
        source
        for name in NAMES
        if (source := f"workflows:{name}") in allowed - blacklist and may_run(name, entries, allowed, blacklist)
    }
    whole = View(catalog, principal("client:test"), ())
    assert len(whole.tools) == len(EVERY)
    for each in catalog.tools:
        assert (view.resolve(each.source) is not None) == (each in view.tools)
