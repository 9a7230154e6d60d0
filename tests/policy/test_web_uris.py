"""Rules about resources of the web hold for every spelling that a WHATWG parser takes for the same URL."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from random import Random
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.catalog.ownership import Ownership
from pml_gateway.catalog.prompts_and_resources import OfferKind, build_offers
from pml_gateway.catalog.uris import canonical, readings
from pml_gateway.exposure.patterns import compile_patterns
from pml_gateway.mcp.capabilities import ServerCapabilities
from pml_gateway.mcp.listing import Offers
from pml_gateway.policy.prompts_and_resources import OfferView
from tests.support.principals import granting
from tests.support.uris import node_readers, web_variation

pytestmark = pytest.mark.field("A3")

OWNERSHIP = Ownership(("web",))
SEEDS = st.integers(0, 2**64 - 1)


def view(*denied: str, allow: tuple[str, ...] = ("*",), templates: tuple[str, ...] = ("{+url}",)) -> OfferView:
    offers = Offers(
        templates=tuple({"uriTemplate": each} for each in templates), capabilities=ServerCapabilities({"resources": {}})
    )
    table = build_offers({"web": offers})
    return OfferView(table, granting(allow, OWNERSHIP), (compile_patterns(denied),))


@pytest.fixture(scope="module")
def node() -> Iterator[Callable[[str], str | None]]:
    with node_readers() as read:
        yield lambda uri: next((each for each in read(uri) if "://" in each), None)


@pytest.mark.parametrize(
    "uri",
    [
        "https://wiki.corp/secret/x",
        "https:/wiki.corp/secret/x",
        "https:wiki.corp/secret/x",
        "https:///wiki.corp/secret/x",
        "https:\\\\wiki.corp\\secret\\x",
        "https:/\\wiki.corp/secret/x",
        "https:\\wiki.corp/secret/x",
        "https://wiki.corp:443/secret/x",
        "https://wiki.corp:0443/secret/x",
        "https://wiki.corp:000443/secret/x",
        "https://wiki.corp:/secret/x",
        "https://WIKI.Corp/secret/x",
        "HTTPS://wiki.corp/secret/x",
        "https://wiki.corp./secret/x",
        "https://wiki.corp.:443/secret/x",
        "https://wi\u00adki.corp/secret/x",
        "https://wi\u200bki.corp/secret/x",
        "https://wiki\u2060.corp/secret/x",
        "https://\ufeffwiki.corp/secret/x",
        "https://wiki\u3002corp/secret/x",
        "https://\uff57\uff49\uff4b\uff49.corp/secret/x",
        "https://w%69ki.corp/secret/x",
        "https://wi%C2%ADki.corp/secret/x",
        "https://wiki%2Ecorp/secret/x",
        "https://user:pass@wiki.corp/secret/x",
        "https://evil.example@wiki.corp/secret/x",
        "https://a@b@wiki.corp/secret/x",
        "https://wiki.corp/secret/x#y",
        "https://wiki.corp/secret/x?",
        "https://wiki.corp/secret/x/",
        "https://wiki.corp/secret/%78",
        "https://wiki.corp/%73ecret/x",
        "https://wiki.corp/a/../secret/x",
        "https://wiki.corp/a/%2e%2e/secret/x",
        "https://wiki.corp/a/.%2E/secret/x",
        "https://wiki.corp/./secret/./x",
        "https://wiki.corp/a\\..\\secret\\x",
        "https://wiki.corp\\secret\\x",
        "https://wiki.corp/secret/y/../x",
        "https://wiki.corp/secret\\x",
        " https://wiki.corp/secret/x ",
        "ht\ttps://wiki.corp/secret/x",
        "https://wi\nki.corp/secret/x",
        "https:/\t/wiki.corp/sec\rret/x",
        "https://wiki.corp/a/.\t./secret/x",
        "\x01https://wiki.corp/secret/x",
        "pml://web/https:wiki.corp/secret/x",
        "pml://web/https:\\\\WIKI\u3002corp:0443/secret/x",
    ],
)
def test_a_denied_page_is_reached_by_no_spelling(uri: str) -> None:
    for rule in ("web:https://wiki.corp/secret/x", "web:https://wiki.corp/secret/*", "https://*.corp/secret/*"):
        assert view(rule).routes(uri) == [], rule
    assert view(allow=("web:https://docs.corp/*",)).routes(uri) == []


@pytest.mark.parametrize(
    ("rule", "host"),
    [
        (rule, host)
        for rule, hosts in {
            "169.254.169.254": (
                "2852039166",
                "0xa9fea9fe",
                "0251.0376.0251.0376",
                "0xA9.254.0251.254",
                "169.16689662",
                "169.254.43518",
                "025177524776",
                "\uff11\uff16\uff19.254.169.254",
                "169\u3002254\u3002169\u3002254",
                "169.254.169.254.",
                "[::ffff:169.254.169.254]",
                "[::FFFF:a9fe:a9fe]",
                "[0:0:0:0:0:ffff:a9fe:a9fe]",
            ),
            "127.0.0.1": ("127.1", "127.0.1", "2130706433", "0x7f.1", "017700000001", "0x7f000001", "%31%32%37.1"),
            "[::1]": ("[0:0:0:0:0:0:0:1]", "[0::1]", "[::0001]", "[::0.0.0.1]", "u@[::1]:80"),
            "[fd00::a]": ("[FD00::A]", "[fd00:0:0::000a]", "[fd00:0::0:a]"),
            "b\u00fccher.example": (
                "xn--bcher-kva.example",
                "B\u00dcCHER.example",
                "bu\u0308cher.example",
                "b%C3%BCcher.example",
                "XN--BCHER-KVA.example.",
            ),
            "xn--bcher-kva.example": ("b\u00fccher.example", "xn--bcher-kva\uff0eexample"),
            "*.b\u00fccher.example": ("a.xn--bcher-kva.example", "A.b\u00fccher.example"),
            "*.xn--bcher-kva.example": ("a.b\u00fccher.example", "a.BU\u0308CHER.example"),
            "169.254.*": ("2852039166", "0xa9.0xfe.1"),
        }.items()
        for host in hosts
    ],
)
def test_a_denied_host_is_reached_by_no_spelling_of_its_name_or_address(rule: str, host: str) -> None:
    for path in ("/*", "/latest/x"):
        assert view(f"web:http://{rule}{path}").routes(f"http://{host}/latest/x") == [], path
    assert view("web:http://other/*").routes(f"http://{host}/latest/x") != []


@pytest.mark.parametrize("scheme", ["http", "https", "ws", "wss", "ftp"])
def test_every_scheme_of_the_web_is_compared_so(scheme: str) -> None:
    for uri in (f"{scheme}:/H/a/..\\b", f"{scheme}:h/b", f"{scheme.upper()}:\\\\H\\b"):
        assert canonical(uri) == f"{scheme}://h/b"
        assert view(f"{scheme}://h/*").routes(uri) == []
        assert [route.uri for route in view().routes(uri)] == [f"{scheme}://h/b"]


@pytest.mark.parametrize(
    "rule",
    [
        "web:https:/wiki.corp/secret/*",
        "web:https:\\\\wiki.corp\\secret\\*",
        "web:https://WIKI.corp:0443/secret/*",
        "web:https://wi\u00adki.corp/secret/*",
        "web:https://u@wiki.corp/a/%2e%2e/secret/?",
        "pml://web/https:wiki.corp/secret/*",
        "*:https://wiki.corp./secret/x",
    ],
)
def test_a_rule_means_the_same_however_it_is_written(rule: str) -> None:
    uri = "https://wiki.corp/secret/x"
    assert view(rule).routes(uri) == []
    assert [route.uri for route in view(rule).routes("https://wiki.corp/open")] == ["https://wiki.corp/open"]
    assert [route.uri for route in view(allow=(rule,)).routes(uri)] == [uri]


def test_the_address_that_was_compared_is_the_one_that_is_forwarded() -> None:
    seen = view("web:https://wiki.corp/secret/*")
    for uri, forwarded in {
        "https:/docs.corp/a": "https://docs.corp/a",
        "https:\\\\u@DOCS.corp:0443\\secret\\..\\a": "https://docs.corp/a",
        "http://2130706433/a b": "http://127.0.0.1/a%20b",
        "http://b\u00fccher.example/\u00e4": "http://xn--bcher-kva.example/%C3%A4",
        "https://wiki.corp\\@docs.corp/secret/x": "https://wiki.corp/@docs.corp/secret/x",
    }.items():
        assert [route.uri for route in seen.routes(uri)] in ([forwarded], []), uri
        assert [route.uri for route in view().routes(uri)] == [forwarded]


def test_a_template_and_what_it_expands_to_are_denied_alike() -> None:
    seen = view(
        "web:https://wiki.corp/secret/*", templates=("https://wiki.corp/{+path}", "HTTPS:/WIKI.corp/secret/{id}")
    )
    assert [each.name for each in seen.listed(OfferKind.TEMPLATE)] == ["https://wiki.corp/{+path}"]
    for path in ("secret/x", "a/../secret/x", "a/%2e%2e/secret/x", "a\\..\\secret\\x", "%73ecret/x"):
        assert seen.routes(f"https://wiki.corp/{path}") == [], path
    assert [route.uri for route in seen.routes("https://wiki.corp/a/../b")] == ["https://wiki.corp/b"]


@pytest.mark.parametrize(
    "uri", ["http://[::1%25lo]/x", "http://[::1/x", "https://wiki corp/x", "https://h:99999/x", "https://", "ws://a^b/"]
)
def test_a_url_that_no_parser_of_the_web_reads_leads_nowhere_unless_it_is_listed(uri: str) -> None:
    assert view().routes(uri) == []
    assert view().routes(f"pml://web/{uri}") == []
    offers = Offers(resources=({"uri": uri},), capabilities=ServerCapabilities({"resources": {}}))
    listing = OfferView(build_offers({"web": offers}), granting(("*",), OWNERSHIP), ())
    assert [route.uri for route in listing.routes(uri)] == [uri]


def named(uri: str) -> tuple[str, str, str, str]:
    """The resource that a URL of Node's names: scheme, host with port, decoded path with `//` folded, and query."""
    parts = urlsplit(uri)
    return (
        parts.scheme,
        parts.netloc.rstrip("."),
        re.sub("//+", "/", unquote(parts.path)).rstrip("/"),
        unquote(parts.query),
    )


@pytest.mark.parametrize("denied", ["https://wiki.corp/secret/x", "http://169.254.169.254/secret/x"])
@settings(max_examples=400)
@given(SEEDS)
def test_what_node_takes_for_a_denied_page_is_denied(node: Callable[[str], str | None], denied: str, seed: int) -> None:
    uri = web_variation(denied, Random(seed), changes=4)
    taken_for = node(uri)
    folder = denied.rpartition("/")[0]
    for rule in (f"web:{denied}", f"web:{folder}/*"):
        routes = view(rule).routes(uri)
        parts = 3 if rule.endswith("*") else 4
        if taken_for is not None and named(taken_for)[:parts] == named(denied)[:parts]:
            assert routes == [], (uri, rule)
        for route in routes:
            forwarded = node(route.uri)
            assert forwarded is None or named(forwarded) != named(denied), (uri, route)
            # A URL is forwarded as the one it is.
            if taken_for is not None and urlsplit(taken_for).scheme in ("http", "https", "ws", "wss", "ftp"):
                assert named(forwarded or "") == named(taken_for), (uri, route)


@settings(max_examples=400)
@given(SEEDS)
def test_no_spelling_leaves_an_allowed_site(node: Callable[[str], str | None], seed: int) -> None:
    uri = web_variation("https://docs.corp/pub/x", Random(seed), changes=4)
    for route in view(allow=("web:https://docs.corp/pub/*",)).routes(uri):
        forwarded = node(route.uri)
        assert forwarded is None or named(f"{forwarded}/")[:2] == ("https", "docs.corp"), (uri, route)
        assert forwarded is None or f"{named(forwarded)[2]}/".startswith("/pub/"), (uri, route)


@settings(max_examples=300)
@given(SEEDS, st.sampled_from(["https://u@h:443/x%2F?q=a%20b#c", "http://127.0.0.1/a", "wss://b\u00fccher.example/"]))
def test_a_canonical_url_is_canonical_and_stays_what_it_was(seed: int, uri: str) -> None:
    written = web_variation(uri, Random(seed), changes=4)
    form = canonical(written)
    assert canonical(form) == form
    assert readings(form) <= readings(written)
