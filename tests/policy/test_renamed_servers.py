"""A renamed server: its new name opens nothing that was closed, and closes nothing that was open."""

from __future__ import annotations

from pathlib import Path

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from pml_gateway.catalog.build import Prefix, build_catalog
from pml_gateway.catalog.manifest import Manifest, ManifestEntry
from pml_gateway.catalog.model import Catalog, UpstreamListing
from pml_gateway.catalog.prompts_and_resources import OfferKind, build_offers
from pml_gateway.config.document import parse
from pml_gateway.config.edits.rename import Renaming
from pml_gateway.config.settings import Settings
from pml_gateway.mcp.capabilities import ServerCapabilities
from pml_gateway.mcp.listing import Offers
from pml_gateway.policy.view import View
from pml_gateway.setup.servers import newly_given, renamed
from pml_gateway.workflow.composite import ownership_of
from tests.support.examples import examples
from tests.support.principals import principal
from tests.support.scripted_server import tool

LONG = "a_very_long_name_of_a_tool_that_no_client_would_ever_show_whole"
TOOLS = ("read", "write", "a.b", "a_b", "old__read", LONG)
URI = "file:///private/key"
OFFERS = Offers(
    prompts=({"name": "write"},),
    resources=({"uri": URI, "name": "k"},),
    capabilities=ServerCapabilities({"resources": {}}),
)
LIMIT = 40

STARTS = ("old", "old__", "old:", "OLD__", "other__", "other:", "o", "ol?__", "[!n]*__", "*", "", "pml://old/")
ENDS = ("*", "", "read", "write", "re*", "a_b", "a.b", "?_b", LONG, LONG[:30] + "*", "*_*", URI, "file:///private/*")
PATTERNS = st.builds(lambda start, end: start + end, st.sampled_from(STARTS), st.sampled_from(ENDS)).filter(bool)
RULES = st.lists(PATTERNS, max_size=3)


def catalog_of(servers: tuple[str, ...], prefix: Prefix, known: Manifest) -> Catalog:
    """Two servers alike, with what a manifest knows of them."""
    ownership = ownership_of(servers)
    catalog = build_catalog(
        [UpstreamListing(each, tuple(map(tool, TOOLS))) for each in servers],
        prefix=prefix,
        max_length=LIMIT,
        earlier=known.names,
        former=known.former_names,
        ownership=ownership,
    )
    offers = build_offers(dict.fromkeys(servers, OFFERS), known.offer_names, ownership=ownership)
    return Catalog(
        catalog.tools, catalog.upstream_ids, catalog.assignments, catalog.former, offers, ownership=ownership
    )


def manifest_of(catalog: Catalog) -> Manifest:
    entries = {each: ManifestEntry("", (), 0.0) for each in catalog.upstream_ids}
    return Manifest(entries, catalog.assignments, catalog.offers.names, catalog.former)


def seen(view: View) -> set[tuple[str, str]]:
    """What a view shows, under the new id."""
    shown = [(each.upstream_id, each.name) for each in view.tools]
    shown += [(each.upstream_id, each.name) for kind in OfferKind for each in view.offers.listed(kind)]
    return {("new" if owner == "old" else owner, own) for owner, own in shown}


@given(st.one_of(st.just(["*"]), RULES), RULES, RULES, st.sampled_from(["always", "on_collision", "never"]))
@example(["*"], ["old__*"], [], "always")
@example(["old:*"], [], ["old__write"], "never")
@example(["*"], [], ["old__read"], "always")
@settings(max_examples=examples(150))
def test_a_client_sees_of_a_renamed_server_what_it_saw_before(
    allow: list[str], deny: list[str], blacklist: list[str], prefix: Prefix
) -> None:
    before = catalog_of(("old", "other"), prefix, Manifest())
    known = manifest_of(before)
    after = catalog_of(("new", "other"), prefix, known.copied("old", "new"))
    names = known.names_beginning_with("old")
    renaming = Renaming("old", "new", names, frozenset({"other"}))
    assume(not any(map(renaming.opens, allow)))

    def renamed(patterns: list[str], *, takes_away: bool) -> tuple[str, ...]:
        return tuple(entry for each in patterns for entry in renaming.entries(each, takes_away=takes_away))

    was = View(before, principal("client:c", allow=tuple(allow), deny=tuple(deny)), blacklist)
    client = principal("client:c", allow=renamed(allow, takes_away=False), deny=renamed(deny, takes_away=True))
    now = View(after, client, renamed(blacklist, takes_away=True))

    # Without a server `old`, the other one's tool is not called as if it were that one's.
    assert seen(now) - {("other", "old__read")} == seen(was) - {("other", "old__read")}
    for each in [each for each in before.tools if each.upstream_id == "old"]:
        step = renamed([each.qualified_name], takes_away=False)[0]
        found = now.resolve(step)
        if each in was.tools:
            assert found is not None
            assert (found.upstream_id, found.name) == ("new", each.name)
        else:
            # The name of a tool that is denied may be the own name of another one, which the old name then meant.
            assert found is None or (found.upstream_id, found.name) != ("new", each.name)


def test_a_server_whose_id_begins_with_the_old_one_keeps_its_rules() -> None:
    renaming = Renaming("git", "g", others=frozenset({"git__hub"}))
    assert renaming.entries("git__hub__*") == ("git__hub__*",)
    assert renaming.entries("git__hub__*", takes_away=True) == ("g__hub__*", "git__hub__*")


RULES_TEXT = """\
rules:
  - match: { tool: "git:push", where: "force" } # never
    do: deny
  - match:
      server: git
    do: ask
  - match: { server: [git, "g*t", other], tool: ["git__log", "*:log"] }
    do: allow
  - match: { tool: "*__push" }
    do: deny
servers: { git: { command: git } }
"""


def test_rules_about_calls_follow_a_renamed_server() -> None:
    text = renamed(RULES_TEXT, Renaming("git", "code"), Path("config.yaml"))
    values = parse(text, "user", Path("config.yaml")).values
    assert [rule["match"] for rule in values["rules"]] == [
        {"tool": "code:push", "where": "force"},
        {"server": ["code", "git"]},
        {"server": ["code", "code", "g*t", "other"], "tool": ["code__log", "*:log"]},
        {"tool": "*__push"},
    ]
    assert "# never" in text and list(values["servers"]) == ["code"]


def test_rules_that_allow_calls_of_a_server_by_its_new_name_alone_are_told() -> None:
    given = [
        {"match": {"server": "c*"}, "do": "allow"},
        {"match": {"tool": "code:*"}, "do": "allow"},
        {"match": {"server": "c*"}, "do": "deny"},
    ]
    told = newly_given(Settings.model_validate({"rules": given}), Renaming("git", "code"))
    assert told == ["rules.1.match.tool: 'code:*'", "rules.0.match.server: 'c*'"]
