"""Of what a server has, a client that sees the server is given its own answer, and any other client is asked for none.

What is hidden as a whole decides nothing: the answers of other servers would tell that it exists.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pml_gateway.catalog.ownership import Ownership
from pml_gateway.catalog.prompts_and_resources import build_offers
from pml_gateway.exposure.patterns import compile_patterns
from pml_gateway.mcp.capabilities import ServerCapabilities
from pml_gateway.mcp.listing import Offers
from pml_gateway.policy.prompts_and_resources import OfferView
from tests.support.principals import granting


def offers(*uris: str, template: str = "") -> Offers:
    templates = ({"uriTemplate": template, "name": "t"},) if template else ()
    return Offers(
        resources=tuple({"uri": uri, "name": uri} for uri in uris),
        templates=templates,
        capabilities=ServerCapabilities({"resources": {}}),
    )


def asked(
    uri: str, upstreams: dict[str, Offers], allow: Sequence[str] = ("*",), deny: Sequence[str] = ()
) -> list[tuple[str, str]]:
    ownership = Ownership(tuple(upstreams))
    view = OfferView(build_offers(upstreams), granting(allow, ownership), (compile_patterns(deny),))
    return [(route.upstream_id, route.uri) for route in view.routes(uri)]


PRIVATE = "file:///srv/private/x"
RULES = [
    (("*",), ("fs:file:///srv/private/*",)),
    (("*",), ("fs:*",)),
    (("other:*", "fs:file:///srv/public/*"), ()),
]


OTHERS = [offers("other://x"), offers("file:///tmp/x"), offers("any://{a}", template="{+any}")]


@pytest.mark.parametrize("other", OTHERS)
def test_nobody_answers_for_a_template_that_the_client_sees(other: Offers) -> None:
    both = {"fs": offers(template="file:///{+path}"), "other": other}
    assert asked(PRIVATE, both)[0] == ("fs", PRIVATE)
    assert asked(PRIVATE, both, deny=("fs:file:///srv/private/*",)) == []


@pytest.mark.parametrize(("allow", "deny"), RULES)
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("fs", [offers(PRIVATE), offers(template="file:///srv/private/{x}")])
def test_what_is_hidden_decides_nothing(fs: Offers, other: Offers, allow: Sequence[str], deny: Sequence[str]) -> None:
    assert asked(PRIVATE, {"fs": fs, "other": other})[0] == ("fs", PRIVATE)
    absent = {"fs": offers(), "other": other} if deny != ("fs:*",) else {"other": other}
    assert asked(PRIVATE, {"fs": fs, "other": other}, allow, deny) == asked(PRIVATE, absent, allow, deny)


@pytest.mark.parametrize(("allow", "deny"), [RULES[0], RULES[2]])
def test_a_server_that_is_left_alone_is_not_asked_for_anothers(allow: Sequence[str], deny: Sequence[str]) -> None:
    both = {"fs": offers("file:///srv/public/a"), "other": offers("other://x")}
    assert asked(PRIVATE, both) == [("fs", PRIVATE)]
    assert asked(PRIVATE, both, allow, deny) == []


def test_of_two_with_the_same_template_the_permitted_one_is_asked() -> None:
    both = {"one": offers(template="file:///{+path}"), "two": offers(template="file:///{+path}")}
    assert asked(PRIVATE, both, deny=("one:*",)) == [("two", PRIVATE)]


@pytest.mark.parametrize(
    "uri", [f"pml://inner/{PRIVATE}", f"pml://gw/pml://inner/{PRIVATE}", "pml://a/pml://b/file:/srv/private/x"]
)
def test_what_is_denied_is_denied_through_a_gateway_behind_this_one(uri: str) -> None:
    one = {"gw": offers("file:///srv/public/a")}
    assert asked(uri, one)
    assert asked(uri, one, deny=("file:///srv/private/*",)) == []
    assert asked("pml://inner/file:///srv/public/b", one, deny=("file:///srv/private/*",))
