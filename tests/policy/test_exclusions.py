"""Why a tool is outside a client's view."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pml_gateway.policy.principal import LOCAL
from pml_gateway.policy.rules import HidingRule
from pml_gateway.policy.view import Exclusion, View
from tests.catalog.listings import catalog_of
from tests.support.principals import principal

CATALOG = catalog_of("fs:read", "fs:write", "git:log")
ENTRIES = st.lists(st.sampled_from(("fs:*", "git__log", "*:write", "nothing:*", "*")), max_size=3).map(tuple)


def exclusions(view: View) -> list[Exclusion]:
    return [found for tool in view.catalog.tools if (found := view.exclusion(tool)) is not None]


@given(allow=ENTRIES, deny=ENTRIES, blacklist=ENTRIES)
def test_every_tool_is_either_in_the_view_or_excluded_with_a_rule(
    allow: tuple[str, ...], deny: tuple[str, ...], blacklist: tuple[str, ...]
) -> None:
    client = principal("client:x", allow=allow, deny=deny)
    excluded = {each.tool for each in exclusions(View(CATALOG, client, blacklist))}
    assert set(CATALOG.tools) - excluded == set(View(CATALOG, client, blacklist).tools)


def test_the_entry_that_matched_is_named_and_the_blacklist_comes_first() -> None:
    client = principal("client:x", allow=("fs:*",), deny=("*:write",))
    found = {each.tool.source: (each.rule, each.pattern) for each in exclusions(View(CATALOG, client, ["fs:wr*"]))}
    assert found == {"fs:write": (HidingRule.BLACKLISTED, "fs:wr*"), "git:log": (HidingRule.NOT_ALLOWED, None)}
    assert exclusions(View(CATALOG, LOCAL, [])) == []
