"""Names and URIs of offers: kept, told apart, stable, and every one of them leads back to its own server."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mcp.shared.uri_template import UriTemplate

from pml_gateway.catalog.fields import offer_for_version, sound_offer
from pml_gateway.catalog.ownership import Ownership
from pml_gateway.catalog.prompts_and_resources import OfferKind, OfferTable, Route, build_offers
from pml_gateway.catalog.public_uris import with_public_uris
from pml_gateway.catalog.uris import canonical, matches_template, readings
from pml_gateway.mcp.capabilities import ServerCapabilities
from pml_gateway.mcp.listing import Offers

SERVERS = ("a", "b", "c d/ü")
URIS = st.one_of(
    st.from_regex(r"[a-z]{1,3}://[a-z]{0,2}(/[a-z0-9%.]{0,3}){0,3}(\?[a-z]=1)?", fullmatch=True),
    st.sampled_from(["x://1", "file:///a", "urn:x:1", "pml://a/x://1", "pml://b:2/x://1", "not a uri", "é"]),
)
LISTINGS = st.fixed_dictionaries({server: st.lists(URIS, max_size=6, unique=True) for server in SERVERS})


def offering(uris: list[str], templates: list[str] | None = None, **extra: Any) -> Offers:
    return Offers(
        resources=tuple({"uri": uri, "name": uri} for uri in uris),
        templates=tuple({"uriTemplate": each, "name": each} for each in templates or ()),
        capabilities=ServerCapabilities({"resources": {}}),
        **extra,
    )


def anybody(_upstream_id: str, _name: str) -> bool:
    return True


@given(LISTINGS, LISTINGS)
def test_every_listed_uri_leads_to_its_own_server_whatever_others_list(
    before: dict[str, list[str]], now: dict[str, list[str]]
) -> None:
    first = build_offers({server: offering(uris) for server, uris in before.items()})
    table = build_offers({server: offering(uris) for server, uris in now.items()}, first.names)
    resources = table.of_kind(OfferKind.RESOURCE)
    assert len({each.public for each in resources}) == len(resources) == sum(map(len, now.values()))
    for each in resources:
        assert table.routes(each.public, anybody) == [Route(each.upstream_id, each.name)]
        assert table.public_uri(each.upstream_id, each.name) == each.public
        earlier = first.names[OfferKind.RESOURCE].get((each.upstream_id, each.name))
        assert earlier in (None, each.public)


@given(LISTINGS, URIS, st.sampled_from(SERVERS))
@example({"a": [], "b": [], "c d/ü": ["x://1", "pml://a/x://1", "a://"]}, "x://1", "a")
def test_any_uri_in_an_answer_leads_back_to_the_server_that_gave_it(
    listed: dict[str, list[str]], uri: str, server: str
) -> None:
    templates = ["x://{a}", "file:///{+path}"]
    table = build_offers({each: offering(uris, templates) for each, uris in listed.items()})
    if uri.startswith(("http:", "https:")):
        return
    result = with_public_uris({"content": [{"type": "resource_link", "name": "n", "uri": uri}]}, server, table)
    assert table.routes(result["content"][0]["uri"], anybody)[0] in (Route(server, uri), Route(server, canonical(uri)))


VALUES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@pytest.mark.parametrize(
    "template",
    [
        "x://{a}",
        "x://{a}/fixed/{b}",
        "file:///{+a}",
        "x://h{/a,b}",
        "x://h{?a,b}",
        "x://h{a}{#b}",
        "x://h{.a}/{b}",
        "x://h{;a,b}",
        "x://h?k=1{&a,b}",
    ],
)
@given(VALUES, VALUES)
def test_what_a_template_expands_to_fits_it(template: str, a: str, b: str) -> None:
    assert matches_template(template, UriTemplate.parse(template).expand({"a": a, "b": b}))


@pytest.mark.parametrize(
    ("template", "uri"),
    [("x://{a}", "x://a/b"), ("x://{a}/end", "x://a/other"), ("x://{a}", "y://a"), ("x://fixed", "x://fixed/more")],
)
def test_other_uris_do_not_fit(template: str, uri: str) -> None:
    assert not matches_template(template, uri)


def test_the_template_that_fits_most_closely_is_asked_first() -> None:
    table = build_offers({"b": offering([], ["x://docs/{page}"]), "a": offering([], ["x://{+any}"])})
    assert table.routes("x://docs/1", anybody)[0] == Route("b", "x://docs/1")
    assert table.routes("x://other", anybody)[0] == Route("a", "x://other")


def test_an_unlisted_uri_goes_to_the_server_of_its_origin_or_to_nobody() -> None:
    table = build_offers({"a": offering(["x://host/1"]), "b": offering(["y://host/1"])})
    assert table.routes("y://host/2", anybody) == [Route("b", "y://host/2")]
    assert table.routes("z://host/2", anybody) == []


def test_a_renamed_prompt_has_its_own_servers_id_in_front_and_no_other_has() -> None:
    prompts = {"a": ("p", "b__p"), "b": ("p",)}
    table = build_offers(
        {server: Offers(prompts=tuple({"name": name} for name in names)) for server, names in prompts.items()}
    )
    public = {(each.upstream_id, each.name): each.public for each in table.offers}
    assert public == {("a", "p"): "p", ("a", "b__p"): "a__b__p", ("b", "p"): "b__p"}
    earlier = {OfferKind.PROMPT: {("a", "b__p"): "b__p"}}
    again = build_offers({"a": Offers(prompts=({"name": "b__p"},))}, earlier, Ownership(("a", "b")))
    assert [each.public for each in again.offers] == ["a__b__p"]


NOTES = ("notes", "notes:///{path}")


@pytest.mark.parametrize(
    "uri", ["notes:///diary", "NOTES:///diary", "notes:///%64iary", "notes:///x/../diary", " notes:///diary"]
)
def test_what_lies_in_the_template_of_another_server_is_its_own(uri: str) -> None:
    for servers in (("notes", "evil"), ("evil", "notes")):
        listed = {"notes": offering([], ["notes:///{path}"]), "evil": offering([uri, "evil://1"])}
        table = build_offers({server: listed[server] for server in servers})
        assert table.routes(uri, anybody)[0].upstream_id == "notes"
        assert table.routes("notes:///diary", anybody) == [Route("notes", "notes:///diary")]
        public = {each.name: each.public for each in table.of_kind(OfferKind.RESOURCE)}
        assert public == {uri: f"pml://evil/{uri}", "evil://1": "evil://1"}
        assert table.routes(f"pml://evil/{uri}", anybody) == [Route("evil", uri)]
        assert [(each.upstream_id, each.uri, each.owner_id, each.template) for each in table.claims] == [
            ("evil", uri, *NOTES)
        ]


@pytest.mark.parametrize("template", ["notes:///d{rest}", "notes:///diary{+x}", "notes:///{all}", "notes:///diary"])
def test_a_part_of_another_servers_template_is_not_taken_by_a_closer_one(template: str) -> None:
    table = build_offers({"mine": offering([], ["notes:///{path}"]), "evil": offering([], [template])})
    assert [each.public for each in table.offers] == ["notes:///{path}", f"pml://evil/{template}"]
    assert [route.upstream_id for route in table.routes("notes:///diary", anybody)] == ["mine"]
    assert table.routes("pml://evil/notes:///dia", anybody)[0].upstream_id == "evil"


@pytest.mark.parametrize(
    "wide", ["{+all}", "{all}", "file:///{path}", "file:///{+path}", "file:{+all}", "{scheme}:///{path}"]
)
def test_a_wide_template_takes_nothing_that_a_server_before_it_lists(wide: str) -> None:
    table = build_offers({"files": offering(["file:///a", "file:///b"]), "evil": offering([], [wide])})
    assert [each.public for each in table.of_kind(OfferKind.RESOURCE)] == ["file:///a", "file:///b"]
    for uri in ("file:///a", "file://localhost/a", "FILE:/a"):
        assert table.routes(uri, anybody)[0] == Route("files", "file:///a")
    assert table.claims == ()


@pytest.mark.parametrize("wide", ["{+all}", "{all}", "{scheme}:///{path}"])
def test_a_template_without_a_scheme_claims_nothing(wide: str) -> None:
    table = build_offers({"evil": offering([], [wide]), "files": offering(["file:///a"])})
    assert table.routes("file:///a", anybody) == [Route("files", "file:///a")]
    assert table.routes("file:///new", anybody)[0].upstream_id == "files"
    assert table.claims == ()


def test_an_address_of_another_server_is_no_servers_own_uri() -> None:
    table = build_offers({"evil": offering(["pml://notes/notes:///a", "PML://notes/x"]), "notes": offering([])})
    assert [route.upstream_id for route in table.routes("pml://notes/notes:///a", anybody)] == ["notes"]
    assert [route.upstream_id for route in table.routes("pml://evil/pml://notes/notes:///a", anybody)] == ["evil"]
    assert len(table.claims) == 2


def test_a_foreign_uri_loses_a_name_it_had_and_everything_else_keeps_its_own() -> None:
    evil = offering(["notes:///diary", "evil://1"])
    before = build_offers({"notes": offering(["notes:///a"]), "evil": evil})
    assert [each.public for each in before.offers] == ["notes:///a", "notes:///diary", "evil://1"]
    after = build_offers({"notes": offering(["notes:///a"], ["notes:///{path}"]), "evil": evil}, before.names)
    public = [each.public for each in after.of_kind(OfferKind.RESOURCE)]
    assert public == ["notes:///a", "pml://evil/notes:///diary", "evil://1"]
    again = build_offers({"notes": offering(["notes:///a"], ["notes:///{path}"]), "evil": evil}, after.names)
    assert again.names == after.names


def test_nobody_answers_in_the_place_of_a_server_that_is_away() -> None:
    notes = offering(["memo://1"], ["notes:///{path}"])
    known = build_offers({"notes": notes, "evil": offering([])})
    evil = offering(["notes:///diary", "evil://1"], ["{+all}"])
    table = build_offers({"notes": None, "evil": evil}, known.names)
    for uri in ("notes:///diary", "NOTES:///other", "memo://1", "MEMO://1"):
        assert table.routes(uri, anybody) == []
    assert table.routes("else://1", anybody) == [Route("evil", "else://1")]


def test_a_name_waits_for_an_owner_that_is_away() -> None:
    first = build_offers({"a": offering(["x://1"]), "b": offering([])})
    away = build_offers({"a": None, "b": offering(["x://1"])}, first.names)
    assert [each.public for each in away.offers] == ["pml://b/x://1"]


@pytest.mark.parametrize(
    "written",
    ["s://private/x", "S://private/x", "s://%70rivate/x", "s://%2570rivate/x", "s://private/./x", "s://a/../private/x"],
)
def test_one_uri_has_many_spellings(written: str) -> None:
    assert "s://private/x" in readings(written)


def test_wrongly_typed_fields_are_left_out_and_versions_get_what_they_know() -> None:
    raw = {
        "name": 3,
        "title": "T",
        "size": True,
        "mimeType": ["text"],
        "annotations": {"priority": 7, "audience": ["user"]},
        "icons": [{"src": "https://example.com/i.png"}, "broken"],
        "uri": "x://1",
    }
    sound = sound_offer(raw, "resources")
    assert sound == {
        "title": "T",
        "annotations": {"audience": ["user"]},
        "icons": [{"src": "https://example.com/i.png"}],
        "name": "x://1",
    }
    assert offer_for_version(sound, "2024-11-05") == {"annotations": {"audience": ["user"]}, "name": "x://1"}


def test_an_empty_table_has_no_route() -> None:
    assert OfferTable().routes("x://1", anybody) == []


@pytest.mark.field("B13")
@pytest.mark.parametrize(
    ("template", "asked", "forwarded"),
    [
        ("KBInfo://{name}/x", "KBInfo://Bern/x", "KBInfo://Bern/x"),
        ("KBInfo://{name}/x", "kbinfo://Bern/x", "KBInfo://Bern/x"),
        ("KBInfo://{name}/x", "KBINFO://Bern/./x#y", "KBInfo://Bern/x"),
        ("Note:{+rest}", "note:A/b", "Note:A/b"),
        ("X+Y.z://h/{a}", "pml://kb/x+y.z://h/1", "X+Y.z://h/1"),
        ("note://{name}", "NOTE://A", "note://A"),
    ],
)
def test_the_scheme_is_forwarded_in_the_letters_of_the_template_and_compared_in_any(
    template: str, asked: str, forwarded: str
) -> None:
    table = build_offers(
        {
            "other": Offers(
                templates=({"uriTemplate": "other://{x}"},), capabilities=ServerCapabilities({"resources": {}})
            ),
            "kb": Offers(templates=({"uriTemplate": template},), capabilities=ServerCapabilities({"resources": {}})),
        }
    )
    assert table.routes(asked, lambda _upstream_id, _name: True) == [Route("kb", forwarded)]
    assert table.is_same(Route("kb", forwarded), asked.removeprefix("pml://kb/"))
