"""A tool's `_meta` names resources by the URIs under which clients reach them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pml_gateway.catalog.build import build_catalog
from pml_gateway.catalog.model import Catalog, UpstreamListing
from pml_gateway.catalog.prompts_and_resources import build_offers
from pml_gateway.catalog.public_uris import with_public_meta
from pml_gateway.mcp.capabilities import ServerCapabilities
from pml_gateway.mcp.listing import Offers

URI = "ui://view/main.html"


def catalog(meta: Any, previous: Catalog | None = None) -> Catalog:
    tools = ({"name": "show", "inputSchema": {"type": "object"}, "_meta": meta},)
    offers = Offers(resources=({"uri": URI, "name": "view"},), capabilities=ServerCapabilities({"resources": {}}))
    built = build_catalog([UpstreamListing("a", tools), UpstreamListing("b", tools)], previous=previous)
    return with_public_meta(replace(built, offers=build_offers({"a": offers, "b": offers})), previous)


@pytest.mark.parametrize(
    "meta",
    [
        {"openai/outputTemplate": URI, "other": URI},
        {"ui/resourceUri": URI, "ui": {"resourceUri": URI, "visibility": ["model"]}},
    ],
)
def test_a_resource_of_the_second_server_is_named_by_its_public_uri(meta: dict[str, Any]) -> None:
    first, second = catalog(meta).tools
    assert first.definition["_meta"] == meta
    mapped = second.definition["_meta"]
    public = f"ui://pml/b/{URI}"
    assert mapped.get("openai/outputTemplate", public) == mapped.get("ui/resourceUri", public) == public
    assert mapped.get("ui", {"resourceUri": public})["resourceUri"] == public
    # Whatever else it says is the server's own affair.
    assert mapped.get("other", URI) == URI


def test_an_unchanged_tool_is_taken_over() -> None:
    before = catalog({"ui": {"resourceUri": URI}})
    after = catalog({"ui": {"resourceUri": URI}}, before)
    assert [one is other for one, other in zip(before.tools, after.tools, strict=True)] == [True, True]
    assert catalog({"ui": {"resourceUri": 3}}).tools[1].definition["_meta"] == {"ui": {"resourceUri": 3}}
