"""Rules reach prompts and resources as they reach tools, however a URI is written."""

from __future__ import annotations

import pytest

from pml_gateway.catalog.ownership import Ownership
from pml_gateway.catalog.prompts_and_resources import OfferKind, build_offers
from pml_gateway.exposure.patterns import compile_patterns
from pml_gateway.mcp.capabilities import ServerCapabilities
from pml_gateway.mcp.listing import Offers
from pml_gateway.policy.prompts_and_resources import OfferView
from tests.support.principals import granting

URIS = ("file:///pub/x", "file:///pub/dir/", "file:///etc/passwd", "dir://x/", "urn:a:1")
FILES = Offers(
    prompts=({"name": "review"}, {"name": "delete_all"}),
    resources=tuple({"uri": uri} for uri in URIS),
    capabilities=ServerCapabilities({"resources": {}}),
)


def view(allow: list[str], *denied: str) -> OfferView:
    table = build_offers({"fs": FILES, "other": FILES})
    allowed = granting(allow, Ownership(("fs", "other")))
    return OfferView(table, allowed, (compile_patterns(denied),))


@pytest.mark.parametrize("uri", URIS)
def test_whoever_may_see_a_whole_server_sees_every_uri_of_it(uri: str) -> None:
    assert view(["fs:*"]).permits("fs", uri)
    assert view([f"fs:{uri}"]).permits("fs", uri)
    assert not view(["fs:*"]).permits("other", uri)


@pytest.mark.parametrize("denied", ["fs:*", "fs__*", "*", "*:file://*", "file:///etc/*", "fs:file:///etc/passwd"])
def test_a_deny_in_any_form_takes_away(denied: str) -> None:
    assert not view(["*"], denied).permits("fs", "file:///etc/passwd")


def test_an_allowed_folder_is_left_by_no_spelling() -> None:
    seen = view(["fs:file:///pub/*"])
    assert seen.permits("fs", "file:///pub/x")
    assert seen.permits("fs", "file:///pub/dir/")
    for uri in ("file:///pub/../etc/passwd", "file:///pub/%2e%2e/etc/passwd", "file:///pub/..\\etc/passwd"):
        assert not seen.permits("fs", uri)


def test_prompts_are_matched_by_server_and_name() -> None:
    seen = view(["*"], "*:delete_*")
    assert [each.public for each in seen.listed(OfferKind.PROMPT)] == ["review", "other__review"]
    assert seen.find(OfferKind.PROMPT, "delete_all") is None
    assert view(["delete_all"]).listed(OfferKind.PROMPT) == ()
