"""The examples of a catalog's tools: the owner's, then shipped ones; found out once for every listing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pml_gateway.catalog.build import build_catalog
from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.example_queries.library import ExampleLibrary, ExampleOrigin
from pml_gateway.example_queries.shipped import ServerTools, ShippedExamples
from pml_gateway.example_queries.sources import ToolExamples, packages_of, tool_digest
from pml_gateway.index.text import MAX_EXAMPLES
from pml_gateway.types import JsonObject
from tests.catalog.listings import listing, raw_tool
from tests.example_queries.test_shipped import FILES, shipped, shipped_file

__all__ = ["shipped", "shipped_file"]


@pytest.fixture
def library(tmp_path: Path) -> ExampleLibrary:
    return ExampleLibrary(tmp_path)


def catalog(**changes: str) -> list[JsonObject]:
    return [raw_tool(name, text) for name, text in {**FILES, **changes}.items()]


def test_the_owners_come_before_those_that_are_shipped(library: ExampleLibrary, shipped: ShippedExamples) -> None:
    examples = ToolExamples(library, shipped)
    tools = build_catalog([listing("my-files", *catalog()), listing("other", "search")]).tools
    first = examples.of(tools, {})
    assert [[example.origin for example in each] for each in first] == [[ExampleOrigin.SHIPPED] * 3] * 4 + [[]]
    library.put(tool_digest(tools[0]), [f"own {number}" for number in range(MAX_EXAMPLES - 1)], ExampleOrigin.OWNER)
    then = examples.of(tools, {})
    assert [example.text for example in then[0][-2:]] == ["own 14", "files read file"]
    assert len(then[0]) == MAX_EXAMPLES
    assert then[1:] == first[1:]


def test_threads_that_ask_for_different_catalogs_do_not_meet(
    library: ExampleLibrary, shipped: ShippedExamples, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = ToolExamples(library, shipped)
    before = build_catalog([listing("files", *catalog()), listing("other", "search")])
    examples.of(before.tools, {})
    after = build_catalog(
        [listing("files", *catalog(search="Another one.")), listing("other", "search")], previous=before
    )
    recognise = shipped.examples_of

    def meanwhile(listings: Sequence[ServerTools]) -> list[tuple[tuple[str, ...], ...]]:
        monkeypatch.setattr(shipped, "examples_of", recognise)
        examples.of(build_catalog([listing("files", *catalog())]).tools, {})
        return recognise(listings)

    monkeypatch.setattr(shipped, "examples_of", meanwhile)
    assert [len(each) for each in examples.of(after.tools, {})] == [3, 3, 3, 0, 0]


def test_a_changed_definition_has_lost_the_owners_examples(library: ExampleLibrary, shipped: ShippedExamples) -> None:
    examples = ToolExamples(library, shipped)
    before = build_catalog([listing("files", *catalog())])
    library.put(tool_digest(before.tools[0]), ["own"], ExampleOrigin.OWNER)
    assert examples.of(before.tools, {})[0][0].text == "own"
    after = build_catalog([listing("files", *catalog(read_file="Counts the stars of the milky way."))], previous=before)
    assert examples.of(after.tools, {})[0] == ()
    assert examples.of(before.tools, {})[0][0].text == "own"


def test_listings_that_stay_are_not_looked_at_again(
    library: ExampleLibrary, shipped: ShippedExamples, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    once = ToolExamples(library, shipped)
    look = shipped.examples_of

    def looking(listings: Sequence[ServerTools]) -> list[tuple[tuple[str, ...], ...]]:
        looked.append(len(listings))
        return look(listings)

    monkeypatch.setattr(shipped, "examples_of", looking)
    before = build_catalog([listing("files", *catalog()), listing("other", "one")])
    once.of(before.tools, {})
    once.of(before.tools, {})
    after = build_catalog([listing("files", *catalog()), listing("other", "one", "two")], previous=before)
    once.of(after.tools, {})
    assert looked == [2, 0, 1]


def test_packages_are_those_that_commands_run() -> None:
    servers = {
        "a": UpstreamDefinition(command="npx", args=("-y", "@acme/files@1.2", "/tmp")),
        "b": UpstreamDefinition(command="python", args=("server.py",)),
        "c": UpstreamDefinition(url="https://example.com/mcp"),
    }
    assert packages_of(servers) == {"a": "@acme/files"}
