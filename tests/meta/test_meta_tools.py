"""The published meta-tools: their names, and what each is called besides."""

from __future__ import annotations

from collections import Counter

from pml_gateway.config.settings import META_TOOLS, Settings
from pml_gateway.exposure.instructions import NO_SYSTEMS
from pml_gateway.meta.meta_tools import ALL_META_TOOLS


def test_each_name_that_the_settings_know_is_one_meta_tool_in_the_order_of_lists() -> None:
    assert [tool.name for tool in ALL_META_TOOLS] == list(META_TOOLS)
    assert [tool.definition(NO_SYSTEMS)["name"] for tool in ALL_META_TOOLS] == list(META_TOOLS)


def test_no_name_or_alias_stands_for_two_meta_tools() -> None:
    names = Counter(name for tool in ALL_META_TOOLS for name in (tool.name, *tool.aliases))
    assert set(names.values()) == {1}
    assert ALL_META_TOOLS.names == names.keys()


def test_a_definition_beside_namespaces_has_the_name_of_its_tool() -> None:
    settings = Settings.model_validate({"gateway": {"meta_tools": META_TOOLS}, "references": {"mode": "all"}})
    listed = [definition["name"] for definition in ALL_META_TOOLS.definitions_beside_namespaces(settings, NO_SYSTEMS)]
    assert listed == ["search_tools", "call_batch", "execute_workflow", "read_result", "gateway_info"]
