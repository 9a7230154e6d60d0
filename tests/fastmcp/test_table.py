"""The exposure truth table over FastMCP servers: the same reference as for the gateway, with real searches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from pml_gateway.config.settings import KNOWN_META_TOOLS
from pml_gateway.fastmcp import Exposure
from tests.exposure.test_table import Case, cases, reference
from tests.support.examples import examples
from tests.support.fastmcp_server import connected, fastmcp_of
from tests.support.scripted_server import ScriptedServer, tool

pytestmark = pytest.mark.anyio


def searched(exposure: Exposure, intent: str) -> Case:
    """The tools that were asked about last, with their scores for an intent; those that are cut are below any."""
    state = exposure.snapshots.kept[-1].state
    view = next(iter(state.cached.views.values()))
    scores = dict.fromkeys((each.qualified_name for each in state.catalog.tools), -1.0)
    scores |= {each.tool.qualified_name: each.score for each in state.select(view, intent) if each.cut is None}
    section = state.settings.gateway
    return Case(state.catalog, scores, section.tools_exposure, section.intent, section)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases())
async def test_every_mode_lists_what_the_table_says(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PML_HOME", str(tmp_path))
    names = [each.source.replace(":", "_") for each in case.catalog.tools]
    scripted = ScriptedServer([tool(name, f"{name.replace('_', ' ')} a file.") for name in names])
    root = fastmcp_of(scripted, "root", ())
    for system in dict.fromkeys(each.upstream_id for each in case.catalog.tools):
        own = [{**each, "name": each["name"].removeprefix(f"{system}_")} for each in scripted.tools]
        mine = [each for each, name in zip(own, names, strict=True) if name.startswith(f"{system}_")]
        root.mount(fastmcp_of(scripted, system, mine), namespace=system)
    section = case.settings.model_dump(exclude={"tools_exposure", "intent", "meta_tools"})
    exposure = Exposure(
        case.mode,
        case.intent,
        meta_tools=KNOWN_META_TOOLS,
        settings={"gateway": section, "search": {"ranking": "lexical"}},
    )
    root.add_transform(exposure)
    async with connected(root) as client:
        assert await client.names() == await client.names()
        listed = await client.names()
        known = searched(exposure, "read a file")
    assert listed == reference(replace(known, intent=case.intent))
