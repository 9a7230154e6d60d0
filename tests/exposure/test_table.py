"""DESIGN's exposure truth table, row by row, against a reference written from its words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.catalog.model import Catalog, CatalogTool
from pml_gateway.config.settings import FullProxySettings, GatewaySection, HybridSettings, Settings
from pml_gateway.exposure.modes import JudgedTool, ListReason, ModeExposure, expose
from pml_gateway.exposure.token_count import count_tokens
from pml_gateway.gateway.state import GatewayState
from pml_gateway.gateway.tool_list import render
from pml_gateway.index.selection import Cut
from pml_gateway.meta.meta_tools import ALL_META_TOOLS
from pml_gateway.policy.principal import LOCAL
from pml_gateway.types import ExposureMode
from tests.catalog.listings import catalog_of
from tests.support.examples import examples
from tests.support.meta import LISTED

SERVERS = ("fs", "git", "mail")
TOOLS = ("read", "write", "search", "delete")
PATTERNS = (*("fs:*", "git__read", "*:delete", "mail:search", "fs:r*", "*__write", "nothing:*", "*"),)
VERSION = "2025-11-25"


@dataclass(frozen=True)
class Case:
    """One catalog with everything that decides what is listed."""

    catalog: Catalog
    scores: dict[str, float]
    mode: ExposureMode
    intent: str | None
    settings: GatewaySection

    def state(self) -> GatewayState:
        return GatewayState(Settings(gateway=self.settings), self.catalog, None, meta_tools=ALL_META_TOOLS)

    def visible(self) -> tuple[CatalogTool, ...]:
        return self.state().view(LOCAL).tools

    def select(self, intent: str) -> list[JudgedTool]:
        """The visible tools, as the index judges them."""
        scored = [(tool, self.scores[tool.qualified_name]) for tool in self.visible()]
        threshold = self.settings.hybrid.semantic_threshold
        judged = [JudgedTool(tool, score, None if score >= threshold else Cut.THRESHOLD) for tool, score in scored]
        return sorted(judged, key=lambda each: (-each.score, each.tool.qualified_name))

    def expose(self) -> ModeExposure:
        ownership = self.catalog.ownership
        return expose(self.mode, self.visible(), self.select, self.settings, self.intent, ownership=ownership)

    def listed(self) -> list[str]:
        """Names on the wire, in their order."""
        state = self.state()
        rendered = render(state, state.view(LOCAL), self.expose(), VERSION)
        return [tool["name"] for tool in json.loads(rendered)]


SCORES = st.sampled_from((0.0, 0.3, 0.49, 0.5, 0.6, 0.69, 0.7, 0.9, 1.0))
PATTERN_LISTS = st.lists(st.sampled_from(PATTERNS), max_size=3).map(tuple)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    every = [f"{server}:{tool}" for server in SERVERS for tool in TOOLS]
    catalog = catalog_of(*draw(st.lists(st.sampled_from(every), unique=True, max_size=12)))
    whitelist, blacklist = draw(PATTERN_LISTS), draw(PATTERN_LISTS)
    if draw(st.booleans()):
        blacklist = whitelist[:1] + blacklist
    hybrid = HybridSettings(
        expose_meta_tools=draw(st.booleans()),
        expose_underlying_tools=draw(st.booleans() | st.just(True)),
        apply_semantic_filter=draw(st.booleans()),
        max_underlying_tools=draw(st.integers(0, 5) | st.just(50)),
        semantic_threshold=draw(st.sampled_from((0.0, 0.5, 0.6, 0.7))),
        max_tokens=draw(st.none() | st.integers(1, 300)),
        whitelisted_tools=whitelist,
    )
    section = GatewaySection(
        hybrid=hybrid,
        blacklisted_tools=blacklist,
        full_proxy=FullProxySettings(expose_meta_tools=draw(st.booleans())),
    )
    return Case(
        catalog=catalog,
        scores={tool.qualified_name: draw(SCORES) for tool in catalog.tools},
        mode=draw(st.sampled_from(ExposureMode)),
        intent=draw(st.none() | st.just("read a file")),
        settings=section,
    )


def reference(case: Case) -> list[str]:
    """The names listed, from the table's words alone."""
    hybrid = case.settings.hybrid
    meta = LISTED

    def named_in(patterns: Sequence[str], tool: CatalogTool) -> bool:
        names = (tool.qualified_name, f"{tool.upstream_id}:{tool.name}")
        return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)

    def tokens(tool: CatalogTool) -> int:
        return count_tokens(json.dumps(tool.definition, separators=(",", ":")))

    def capped(whitelist: list[CatalogTool], best_first: list[CatalogTool]) -> list[str]:
        """Whitelisted tools count but are never cut; of the others, each one follows that there is room for."""
        kept = list(whitelist)
        for tool in (each for each in best_first if each not in whitelist):
            has_room = hybrid.max_tokens is None or sum(map(tokens, [*kept, tool])) <= hybrid.max_tokens
            if len(kept) < hybrid.max_underlying_tools and has_room:
                kept.append(tool)
        return sorted(tool.qualified_name for tool in kept)

    tools = [tool for tool in case.catalog.tools if not named_in(case.settings.blacklisted_tools, tool)]
    hits = sorted(
        (tool for tool in tools if case.scores[tool.qualified_name] >= hybrid.semantic_threshold),
        key=lambda tool: (-case.scores[tool.qualified_name], tool.qualified_name),
    )
    whitelist = [tool for tool in tools if named_in(hybrid.whitelisted_tools, tool)]
    hybrid_meta = meta if hybrid.expose_meta_tools else []
    match case.mode:
        case ExposureMode.META_ONLY:
            return meta
        case ExposureMode.SEMANTIC:
            return meta if case.intent is None else meta + capped([], hits)
        case ExposureMode.HYBRID:
            if not hybrid.expose_underlying_tools:
                return hybrid_meta
            if not hybrid.apply_semantic_filter:
                return hybrid_meta + capped(whitelist, tools)
            return hybrid_meta + capped(whitelist, hits if case.intent is not None else [])
        case ExposureMode.FULL_PROXY:
            everything = sorted(tool.qualified_name for tool in tools)
            return (meta if case.settings.full_proxy.expose_meta_tools else []) + everything


@settings(max_examples=examples(600))
@given(case=cases())
def test_every_mode_lists_what_the_table_says(case: Case) -> None:
    assert case.listed() == reference(case)


@settings(max_examples=examples(300))
@given(case=cases(), random=st.randoms(use_true_random=False))
def test_the_same_selection_gives_the_same_bytes_in_whatever_order_hits_arrive(case: Case, random: Any) -> None:
    """Hits that all fit may come in any order."""
    exposure = case.expose()
    shuffled = [JudgedTool(listed.tool, listed.score or 0.0) for listed in exposure.tools]
    random.shuffle(shuffled)
    roomy = case.settings.hybrid.model_copy(update={"max_underlying_tools": 50, "max_tokens": None})
    again = expose(
        ExposureMode.SEMANTIC,
        case.visible(),
        lambda intent: shuffled,
        GatewaySection(hybrid=roomy.model_copy(update={"semantic_threshold": 0.0})),
        "read",
        ownership=case.catalog.ownership,
    )
    state = case.state()
    same = ModeExposure(exposure.meta_tools, again.tools)
    view = state.view(LOCAL)
    assert render(state, view, same, VERSION) == render(case.state(), view, exposure, VERSION)


@given(case=cases())
def test_a_blacklisted_tool_is_listed_in_no_mode(case: Case) -> None:
    patterns = case.settings.blacklisted_tools
    banned = {
        tool.qualified_name
        for tool in case.catalog.tools
        if any(fnmatchcase(name, entry) for name in (tool.source, tool.qualified_name) for entry in patterns)
    }
    assert not banned & set(case.listed())


@given(case=cases())
def test_whitelisted_tools_are_never_cut_and_count_towards_the_cap(case: Case) -> None:
    exposure = expose(
        ExposureMode.HYBRID, case.visible(), case.select, case.settings, "read", ownership=case.catalog.ownership
    )
    whitelisted = [listed for listed in exposure.tools if listed.reason is ListReason.WHITELISTED]
    hybrid = case.settings.hybrid
    if hybrid.expose_underlying_tools:
        expected = {
            tool.qualified_name
            for tool in case.visible()
            if any(
                fnmatchcase(name, entry)
                for name in (tool.source, tool.qualified_name)
                for entry in hybrid.whitelisted_tools
            )
        }
        assert {listed.tool.qualified_name for listed in whitelisted} == expected
    assert len(exposure.tools) <= max(len(whitelisted), hybrid.max_underlying_tools)


def make_case(mode: ExposureMode, intent: str | None = None, **hybrid: Any) -> Case:
    catalog = catalog_of("fs:read", "fs:write", "git:log", "git:diff")
    scores = {"fs__read": 0.9, "fs__write": 0.65, "git__log": 0.7, "git__diff": 0.1}
    return Case(catalog, scores, mode, intent, GatewaySection(hybrid=HybridSettings(**hybrid)))


def test_meta_only_lists_the_meta_tools_in_their_fixed_order() -> None:
    assert make_case(ExposureMode.META_ONLY, "read").listed() == LISTED


def test_semantic_lists_hits_by_name_and_says_that_an_intent_chose_them() -> None:
    case = make_case(ExposureMode.SEMANTIC, "read")
    assert case.listed() == [*LISTED, "fs__read", "fs__write", "git__log"]
    assert case.expose().selected_by_intent
    assert [(listed.reason, listed.score) for listed in case.expose().tools] == [
        (ListReason.HIT, 0.9),
        (ListReason.HIT, 0.65),
        (ListReason.HIT, 0.7),
    ]
    assert not make_case(ExposureMode.SEMANTIC).expose().selected_by_intent


def test_the_lowest_scores_are_cut_first() -> None:
    assert make_case(ExposureMode.SEMANTIC, "read", max_underlying_tools=2).listed() == [
        *LISTED,
        "fs__read",
        "git__log",
    ]
    one = count_tokens(json.dumps(make_case(ExposureMode.META_ONLY).catalog.tools[0].definition, separators=(",", ":")))
    assert make_case(ExposureMode.SEMANTIC, "read", max_tokens=one).listed() == [*LISTED, "fs__read"]


def test_without_the_filter_the_intent_is_ignored_and_catalog_order_decides() -> None:
    options = {"apply_semantic_filter": False, "max_underlying_tools": 3, "whitelisted_tools": ("git:diff",)}
    expected = [*LISTED, "fs__read", "fs__write", "git__diff"]
    assert make_case(ExposureMode.HYBRID, None, **options).listed() == expected
    assert make_case(ExposureMode.HYBRID, "diff", **options).listed() == expected
    assert not make_case(ExposureMode.HYBRID, "diff", **options).expose().selected_by_intent


def test_whitelisted_tools_that_exceed_the_cap_leave_no_room_for_hits() -> None:
    case = make_case(ExposureMode.HYBRID, "read", whitelisted_tools=("git:*",), max_underlying_tools=1)
    assert case.listed() == [*LISTED, "git__diff", "git__log"]


def test_a_hit_that_is_whitelisted_does_not_take_the_place_of_another() -> None:
    case = make_case(ExposureMode.HYBRID, "read", whitelisted_tools=("fs:read",), max_underlying_tools=2)
    assert case.listed() == [*LISTED, "fs__read", "git__log"]


@pytest.mark.parametrize("mode", list(ExposureMode))
def test_each_mode_is_served_for_an_empty_catalog(mode: ExposureMode) -> None:
    case = Case(Catalog(), {}, mode, "read", GatewaySection())
    assert case.listed() == ([] if mode is ExposureMode.FULL_PROXY else LISTED)
