"""The requests of a catalog's tools: the owner's, then shipped ones; found out once for every listing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pml_gateway.catalog.build import build_catalog
from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.index.text import MAX_REQUESTS
from pml_gateway.requests.library import RequestLibrary, RequestOrigin
from pml_gateway.requests.shipped import ServerTools, ShippedRequests
from pml_gateway.requests.sources import ToolRequests, packages_of, tool_digest
from pml_gateway.types import JsonObject
from tests.catalog.listings import listing, raw_tool
from tests.requests.test_shipped import FILES, shipped

__all__ = ["shipped"]


@pytest.fixture
def library(tmp_path: Path) -> RequestLibrary:
    return RequestLibrary(tmp_path)


def catalog(**changes: str) -> list[JsonObject]:
    return [raw_tool(name, text) for name, text in {**FILES, **changes}.items()]


def test_the_owners_come_before_those_that_are_shipped(library: RequestLibrary, shipped: ShippedRequests) -> None:
    requests = ToolRequests(library, shipped)
    tools = build_catalog([listing("my-files", *catalog()), listing("other", "search")]).tools
    first = requests.of(tools, {})
    assert [[request.origin for request in each] for each in first] == [[RequestOrigin.SHIPPED] * 3] * 4 + [[]]
    library.put(tool_digest(tools[0]), [f"own {number}" for number in range(MAX_REQUESTS - 1)], RequestOrigin.OWNER)
    then = requests.of(tools, {})
    assert [request.text for request in then[0][-2:]] == ["own 14", "files read file"]
    assert len(then[0]) == MAX_REQUESTS
    assert then[1:] == first[1:]


def test_threads_that_ask_for_different_catalogs_do_not_meet(
    library: RequestLibrary, shipped: ShippedRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = ToolRequests(library, shipped)
    before = build_catalog([listing("files", *catalog()), listing("other", "search")])
    requests.of(before.tools, {})
    after = build_catalog(
        [listing("files", *catalog(search="Another one.")), listing("other", "search")], previous=before
    )
    recognise = shipped.requests_of

    def meanwhile(listings: Sequence[ServerTools]) -> list[tuple[tuple[str, ...], ...]]:
        monkeypatch.setattr(shipped, "requests_of", recognise)
        requests.of(build_catalog([listing("files", *catalog())]).tools, {})
        return recognise(listings)

    monkeypatch.setattr(shipped, "requests_of", meanwhile)
    assert [len(each) for each in requests.of(after.tools, {})] == [3, 3, 3, 0, 0]


def test_a_changed_definition_has_lost_the_owners_requests(library: RequestLibrary, shipped: ShippedRequests) -> None:
    requests = ToolRequests(library, shipped)
    before = build_catalog([listing("files", *catalog())])
    library.put(tool_digest(before.tools[0]), ["own"], RequestOrigin.OWNER)
    assert requests.of(before.tools, {})[0][0].text == "own"
    after = build_catalog([listing("files", *catalog(read_file="Counts the stars of the milky way."))], previous=before)
    assert requests.of(after.tools, {})[0] == ()
    assert requests.of(before.tools, {})[0][0].text == "own"


def test_listings_that_stay_are_not_looked_at_again(
    library: RequestLibrary, shipped: ShippedRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    once = ToolRequests(library, shipped)
    look = shipped.requests_of

    def looking(listings: Sequence[ServerTools]) -> list[tuple[tuple[str, ...], ...]]:
        looked.append(len(listings))
        return look(listings)

    monkeypatch.setattr(shipped, "requests_of", looking)
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
