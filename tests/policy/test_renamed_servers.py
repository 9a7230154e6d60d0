"""A renamed server: its new name opens nothing that was closed, and closes nothing that was open."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pml_gateway.catalog.build import Prefix, build_catalog
from pml_gateway.catalog.model import Catalog, UpstreamListing
from pml_gateway.catalog.prompts_and_resources import OfferKind, build_offers
from pml_gateway.config.rename import renamed_pattern
from pml_gateway.config.settings import NamingSettings
from pml_gateway.mcp.listing import Offers
from pml_gateway.policy.client import Client
from pml_gateway.policy.view import View
from pml_gateway.workflow.composite import ownership_of
from tests.support.examples import examples
from tests.support.scripted_server import tool

LONG = "a_very_long_name_of_a_tool_that_no_client_would_ever_show_whole"
TOOLS = ("read", "write", "a.b", "a_b", "old__read", LONG)
ALIKE = {("new", "a.b"), ("new", "a_b")}
URI = "file:///private/key"
OFFERS = Offers(prompts=({"name": "write"},), resources=({"uri": URI, "name": "k"},), has_resources=True)
LIMIT = 40

BEFORE = ("old", "other")
STARTS = ("old", "old__", "old:", "OLD__", "other__", "other:", "o", "ol?__", "[!n]*__", "*", "")
ENDS = ("*", "", "read", "write", "re*", "a_b", "a.b", "?_b", LONG, LONG[:30] + "*", "*_*", URI, "file:///private/*")
PATTERNS = st.builds(lambda start, end: start + end, st.sampled_from(STARTS), st.sampled_from(ENDS)).filter(bool)
RULES = st.lists(PATTERNS, max_size=3)


def catalog_of(servers: tuple[str, ...], prefix: Prefix, former: dict[str, str], before: Catalog | None) -> Catalog:
    """Two servers alike; with what is known from before, as a manifest keeps it, or without."""
    ownership = ownership_of(servers, former)
    known = before or Catalog()
    moved = {(former.get(owner, owner), own): name for (owner, own), name in known.assignments.items()}
    catalog = build_catalog(
        [UpstreamListing(each, tuple(map(tool, TOOLS))) for each in servers],
        prefix=prefix,
        max_length=LIMIT,
        earlier=moved,
        ownership=ownership,
    )
    offers = build_offers(dict.fromkeys(servers, OFFERS), ownership=ownership)
    return Catalog(
        catalog.tools, catalog.upstream_ids, catalog.assignments, catalog.former, offers, ownership=ownership
    )


def seen(view: View, former: dict[str, str]) -> set[tuple[str, str]]:
    """What a view shows, under the ids of now."""
    shown = [(each.upstream_id, each.name) for each in view.tools]
    shown += [(each.upstream_id, each.name) for kind in OfferKind for each in view.offers.listed(kind)]
    return {(former.get(owner, owner), own) for owner, own in shown}


@given(
    st.one_of(st.just(["*"]), RULES), RULES, RULES, st.sampled_from(["always", "on_collision", "never"]), st.booleans()
)
@example(["*"], ["old__*"], [], "always", False)
@example(["old:*"], [], ["old__write"], "never", True)
@settings(max_examples=examples(150))
def test_a_client_sees_of_a_renamed_server_what_it_saw_before(
    allow: list[str], deny: list[str], blacklist: list[str], prefix: Prefix, is_remembered: bool
) -> None:
    former = {"old": "new"}
    before = catalog_of(BEFORE, prefix, {}, None)
    after = catalog_of(("new", "other"), prefix, former, before if is_remembered else None)
    was = View(before, Client("client:c", allow=tuple(allow), deny=tuple(deny)), blacklist)

    naming = NamingSettings(prefix=prefix, max_length=LIMIT)

    def rewritten(patterns: list[str], *, takes_away: bool) -> list[str]:
        return [renamed_pattern(each, "old", "new", naming, takes_away=takes_away) or each for each in patterns]

    edited = rewritten(allow, takes_away=False), rewritten(deny, takes_away=True), rewritten(blacklist, takes_away=True)
    for given_now, denied_now, hidden_now in ((allow, deny, blacklist), edited):
        now = View(after, Client("client:c", allow=tuple(given_now), deny=tuple(denied_now)), hidden_now)
        assert seen(now, {}) <= seen(was, former)
        # Who had a name that two tools are spelled like is known from the manifest alone, and one of them has it.
        assert is_remembered is False or seen(now, {}) - ALIKE == seen(was, former) - ALIKE
        for each in [each for each in before.tools if is_remembered and each.name not in ("a.b", "a_b")]:
            meant, found = was.resolve(each.qualified_name), now.resolve(each.qualified_name)
            expected = None if meant is None else (former.get(meant.upstream_id, meant.upstream_id), meant.name)
            assert (None if found is None else (found.upstream_id, found.name)) == expected


def test_no_server_can_take_the_former_name_of_another() -> None:
    ownership = ownership_of(("new", "other"), {"old": "new"})
    stranger = UpstreamListing("other", (tool("old__read"),))
    catalog = build_catalog([UpstreamListing("new", (tool("read"),)), stranger], prefix="never", ownership=ownership)

    found = View(catalog, Client("client:c"), []).resolve("old__read")

    assert found is not None
    assert found.upstream_id == "new"


def test_denials_and_grants_by_either_name_are_about_the_server_of_now() -> None:
    catalog = catalog_of(("new", "other"), "always", {"old": "new"}, None)
    for name in ("old", "new"):
        by_all = View(catalog, Client("client:c", allow=(f"{name}__*",)), [])
        assert {each.upstream_id for each in by_all.tools} == {"new"}
        assert by_all.sees_all_of("new")
        assert not View(catalog, Client("client:c", deny=(f"{name}:read",)), []).sees_all_of("new")
        assert by_all.offers.may_permit("new")
        assert not View(catalog, Client("client:c", deny=(f"{name}__*",)), []).offers.may_permit("new")


def test_a_uri_that_names_a_server_by_its_old_name_leads_to_it_alone() -> None:
    ownership = ownership_of(("new", "other"), {"old": "new"})
    stranger = Offers(resources=({"uri": f"pml://old/{URI}", "name": "x"},), has_resources=True)
    table = build_offers({"new": OFFERS, "other": stranger}, ownership=ownership)

    routes = table.routes("pml://old/file:///elsewhere", lambda _server, _name: True)

    assert [(route.upstream_id, route.uri) for route in routes] == [("new", "file:///elsewhere")]
    assert [claim.upstream_id for claim in table.claims] == ["other"]
    assert not View(
        Catalog(offers=table, ownership=ownership), Client("client:c", deny=(f"old:{URI}",)), []
    ).offers.permits("new", URI)
