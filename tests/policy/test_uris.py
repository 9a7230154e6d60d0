"""Rules about resources hold however a URI, or the rule, is written, and whoever reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.catalog.ownership import Ownership
from pml_gateway.catalog.prompts_and_resources import OfferKind, Route, build_offers
from pml_gateway.catalog.uris import MAX_URI, canonical, readings
from pml_gateway.exposure.patterns import compile_patterns
from pml_gateway.mcp.capabilities import ServerCapabilities
from pml_gateway.mcp.listing import Offers
from pml_gateway.policy.prompts_and_resources import OfferView
from tests.support.principals import granting
from tests.support.uris import file_of, node_readers, path_after_decoding, path_in_python, variation

DENIED = "file:///srv/private/x"
OWNERSHIP = Ownership(("fs",))
SEEDS = st.integers(0, 2**64 - 1)


def offering(*uris: str, templates: tuple[str, ...] = ()) -> Offers:
    return Offers(
        resources=tuple({"uri": uri} for uri in uris),
        templates=tuple({"uriTemplate": each} for each in templates),
        capabilities=ServerCapabilities({"resources": {}}),
    )


def view(*denied: str, allow: tuple[str, ...] = ("*",), offers: Offers | None = None) -> OfferView:
    table = build_offers({"fs": offers or offering(templates=("file:///{+path}",))})
    return OfferView(table, granting(allow, OWNERSHIP), (compile_patterns(denied),))


@pytest.fixture(scope="module")
def node() -> Iterator[Callable[[str], list[str]]]:
    with node_readers() as read:
        yield read


def files(uri: str, node: Callable[[str], list[str]]) -> set[str]:
    """What some reader opens for a URI."""
    paths = [path_in_python(uri), path_after_decoding(uri), *node(uri)]
    return {file_of(path) for path in paths if path is not None}


FOLDER = view("fs:file:///srv/private/*")
FILE = view("file:///srv/private/x")
ALLOWED = view(allow=("fs:file:///pub/*",))


@settings(max_examples=300)
@given(SEEDS)
def test_what_any_reader_takes_for_a_denied_file_is_denied(node: Callable[[str], list[str]], seed: int) -> None:
    uri = variation(DENIED, Random(seed), changes=4)
    opened = files(uri, node)
    if any(each.startswith("/srv/private/") for each in opened):
        assert FOLDER.routes(uri) == [], uri
    if "/srv/private/x" in opened:
        assert FILE.routes(uri) == [], uri
    for route in FOLDER.routes(uri):
        assert not any(each.startswith("/srv/private/") for each in files(route.uri, node)), (uri, route)
    for route in FILE.routes(uri):
        assert "/srv/private/x" not in files(route.uri, node), (uri, route)


@settings(max_examples=300)
@given(SEEDS)
def test_no_spelling_leaves_an_allowed_folder(node: Callable[[str], list[str]], seed: int) -> None:
    uri = variation("file:///pub/y/../x", Random(seed), changes=4)
    for route in ALLOWED.routes(uri):
        assert all(f"{each}/".startswith("/pub/") for each in files(route.uri, node)), (uri, route)


@settings(max_examples=300)
@given(SEEDS, st.sampled_from([DENIED, "res://b/c", "note:///ä/%2F?q=a%20b#c", "https://u@h:443/x", "urn:a:b"]))
def test_a_canonical_uri_is_canonical_and_stays_what_it_was(seed: int, uri: str) -> None:
    written = variation(uri, Random(seed), changes=4)
    form = canonical(written)
    assert canonical(form) == form
    assert readings(form) <= readings(written)


@pytest.mark.parametrize(
    "uri",
    [
        "file://localhost/srv/private/x",
        "file:/srv/private/x",
        "file:srv/private/x",
        "file:////srv/private/x",
        "file:///srv/pri\tvate/x",
        "file:///srv/pri%09vate/x",
        "file://anything/srv/private/x",
        "FILE:///srv/private/x",
        "file:///srv/%70rivate/x",
        "file:///srv/%2570rivate/x",
        "file:///srv%2Fprivate%2fx",
        "file:\\\\h\\srv\\private\\x",
        "file:///srv/./a/..%2fprivate//x",
        "file:///srv/private/x/",
        "file:///srv/private/x?y=1#z",
        "file:///srv/private/y/%252e%252e/x",
        "/srv/private/x",
        "pml://fs/file://localhost/srv/private/x",
        "PML://fs/file:/srv/private/x",
    ],
)
def test_a_denied_file_is_reached_by_no_spelling(uri: str) -> None:
    assert FILE.routes(uri) == []
    assert FOLDER.routes(uri) == []


@pytest.mark.parametrize(
    "uri",
    [
        "res://b#x",
        "res://b?",
        "res://b/",
        "RES://B",
        "res://%62",
        "res://b#",
        "res://b?#x",
        "res://u@b",
        "res://b:",
        "res://b%23x",
    ],
)
def test_other_schemes_have_no_spelling_around_a_deny_either(uri: str) -> None:
    everything = offering("res://c", templates=("res://{name}", "{+all}"))
    assert view("fs:res://b", offers=everything).routes(uri) == []
    assert view("fs:res://c", offers=everything).routes(uri) != []


@pytest.mark.parametrize(
    "rule",
    [
        "fs:file:///srv/private/*",
        "fs:file:/srv/private/*",
        "fs:file://localhost/srv/private/*",
        "fs__FILE:///srv/./private/*",
        "fs:file:///srv/%70rivate/*",
        "*:file:///srv//private/*",
        "file://h/srv/private/*",
        "file:///*/private/*",
        "file://*/private/*",
        "file://local*/srv/private/*",
        "f*:file:///srv/privat[e]/?",
        "file:*",
        "file://*",
        "*private*",
        "pml://fs/file:/srv/private/*",
        "fs:file:///srv/private/x?#y",
        "fs:file:///SRV/../srv/private/*",
    ],
)
def test_a_rule_means_the_same_however_it_is_written(rule: str) -> None:
    for uri in (DENIED, "file://localhost/srv/private/x", "file:/srv/%70rivate/x"):
        assert view(rule).routes(uri) == []
        assert view(allow=(rule,)).permits("fs", uri) or not rule.startswith(("fs", "*", "f*"))
    assert view("*:file:///srv/%5Bprivate]/*").routes(DENIED) != []


def test_a_wildcard_in_a_uri_is_a_character() -> None:
    seen = view("fs:file:///a/%2A")
    assert seen.routes("file:///a/*") == []
    assert seen.routes("file:///a/b") != []


def test_a_folder_is_denied_with_all_in_it() -> None:
    for uri in ("file:///srv/private/", "file:///srv/private", "file:///srv/private/."):
        assert FOLDER.routes(uri) == []
    assert FOLDER.routes("file:///srv/private2") != []


def test_what_a_server_lists_is_asked_for_in_its_words_and_anything_else_in_canonical_form() -> None:
    seen = view(offers=offering("FILE://localhost/a%41", "note://a", templates=("file:///{+path}", "note://{Name}")))
    for uri in ("FILE://localhost/a%41", "file:///aA", "pml://fs/file:/aA"):
        assert seen.routes(uri) == [Route("fs", "FILE://localhost/a%41")]
    for uri in ("file://h/b/../c%7e?", "FILE:/./c~#x", "pml://fs/file:///c~"):
        assert seen.routes(uri) == [Route("fs", "file:///c~")]
    assert seen.routes("note://World/%7e%2f") == [Route("fs", "note://World/~%2F")]


def test_lookalikes_that_a_server_lists_stay_apart() -> None:
    both = offering("note://a#1", "note://a#2", "note://b")
    for hidden, shown in (("note://a#1", "note://a#2"), ("note://a#2", "note://a#1")):
        seen = view(f"fs:{hidden}", offers=both)
        assert [each.public for each in seen.listed(OfferKind.RESOURCE)] == [shown, "note://b"]
        assert seen.routes(shown) == [Route("fs", shown)]
        assert not view(allow=(f"fs:{hidden}",), offers=both).permits("fs", shown)
    for rule in ("fs:note://a", "fs:note://*"):
        assert not any(view(rule, offers=both).permits("fs", each) for each in ("note://a#1", "note://a#2"))
    assert view(offers=both).routes("note://a#3") == [Route("fs", "note://a")]


def test_what_is_there_for_others_only_is_hidden_in_every_spelling_and_nothing_else() -> None:
    table = build_offers({"fs": offering("note://a#1", "note://a#2", "file:///a")})
    seen = OfferView(
        table, granting(["*"], OWNERSHIP), (), absent=frozenset({("fs", "note://a#1"), ("fs", "file:///a")})
    )
    assert seen.routes("note://a#1") == []
    assert seen.routes("note://a") == []
    assert seen.routes("note://a#2") == [Route("fs", "note://a#2")]
    assert seen.routes("file://localhost/a") == []


@pytest.mark.parametrize(
    "uri",
    ["file:///a\x00", "file:///a%00b", "res://a\tb", "res://a\x7f", "note:\x9ba", "x://\ud800", f"x://{'a' * MAX_URI}"],
)
def test_control_characters_lead_nowhere(uri: str) -> None:
    offers = offering("res://a", uri, templates=("{+all}",))
    assert view(offers=offers).routes(uri) == []
    assert [each.name for each in view(offers=offers).listed(OfferKind.RESOURCE)] == ["res://a"]
