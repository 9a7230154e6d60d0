"""Host and Origin headers: what a browser would find elsewhere than at the gateway is refused in every spelling."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pml_gateway.hosts import Authority, KnownHosts, read_authority, read_origin

LOOPBACK = KnownHosts(["127.0.0.1", "localhost", "::1"])


def headers(*given: tuple[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode("latin-1", "replace")) for name, value in given]


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8765",
        "LOCALHOST:1",
        "localhost.",
        "localhost.:80",
        "127.0.0.1",
        "127.0.0.1:65535",
        "[::1]",
        "[::1]:8765",
        "[0:0:0:0:0:0:0:1]:8765",
        "[0::1]",
    ],
)
def test_every_spelling_of_loopback_is_known(host: str) -> None:
    assert LOOPBACK.refused(headers(("host", host))) is None
    for scheme in ("http", "https", "HTTP"):
        assert LOOPBACK.refused(headers(("host", host), ("origin", f"{scheme}://{host}"))) is None


@pytest.mark.parametrize(
    "host",
    [
        "localhost:evil.com",
        "localhost:1.evil.com",
        "localhost:",
        "localhost:65536",
        "localhost:-1",
        "localhost: 80",
        "localhost:８０",
        "localhost:80:80",
        "localhost.evil.com",
        "evil.com",
        "localhost@evil.com",
        "evil.com#localhost",
        "localhost/",
        "localhost,evil.com",
        "localhost evil.com",
        "[::1",
        "::1",
        "[::1]evil",
        "[::1]:evil",
        "[::1%lo]",
        "",
        ".",
        "localhost..",
        "[::2]",
        "[::ffff:8.8.8.8]",
        "127.0.0.1.evil.com",
        "127.0.0.1:80.evil.com",
        "localhost\\evil.com",
        "localhost%2eevil.com",
        "ⓛocalhost",
        "localhost:80\n",
    ],
)
def test_what_only_looks_like_loopback_is_refused(host: str) -> None:
    assert LOOPBACK.refused(headers(("host", host))) == "host"
    assert LOOPBACK.refused(headers(("host", "localhost"), ("origin", f"http://{host}"))) == "origin"


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "NULL",
        "",
        "localhost",
        "//localhost",
        "http:localhost",
        "http:/localhost",
        "http://localhost/",
        "http://localhost?x",
        "http://localhost#x",
        "http://user@localhost",
        "file://",
        "http:// localhost",
        "http://localhost, http://evil.com",
        "http://localhost http://evil.com",
        "javascript://localhost",
        "ftp://localhost",
    ],
)
def test_an_origin_is_a_scheme_and_an_authority_and_nothing_else(origin: str) -> None:
    assert LOOPBACK.refused(headers(("host", "localhost"), ("origin", origin))) == "origin"


def test_there_is_exactly_one_host_and_at_most_one_origin() -> None:
    assert LOOPBACK.refused([]) == "host"
    assert LOOPBACK.refused(headers(("host", "localhost"), ("host", "localhost"))) == "host"
    assert LOOPBACK.refused(headers(("host", "localhost"), ("host", "evil.com"))) == "host"
    twice = headers(("host", "localhost"), ("origin", "http://localhost"), ("origin", "http://localhost"))
    assert LOOPBACK.refused(twice) == "origin"


def test_configured_hosts_have_the_port_they_name_and_a_star_is_any() -> None:
    known = KnownHosts(
        ["localhost"], ["gateway.example", "other.example:8443", "any.example:*"], ["https://app.example"]
    )
    for host in ("gateway.example", "GATEWAY.example.", "other.example:8443", "any.example", "any.example:1"):
        assert known.refused(headers(("host", host))) is None, host
    for host in ("gateway.example:1", "other.example", "other.example:1", "x.any.example", "any.example:1.evil.com"):
        assert known.refused(headers(("host", host))) == "host", host
    for origin in ("https://app.example", "https://app.example:443", "http://gateway.example", "https://any.example:2"):
        assert known.refused(headers(("host", "localhost"), ("origin", origin))) is None, origin
    for origin in ("http://app.example", "https://app.example:444", "https://other.example"):
        assert known.refused(headers(("host", "localhost"), ("origin", origin))) == "origin", origin


def test_an_address_of_ipv6_is_known_with_and_without_its_brackets() -> None:
    for written in ("fe80::1", "[fe80::1]"):
        assert KnownHosts([written]).refused(headers(("host", "[FE80:0::1]:8765"))) is None


def test_other_schemes_are_known_where_they_are_configured() -> None:
    known = KnownHosts(["localhost"], [], ["vscode-webview://abc"])
    assert known.refused(headers(("host", "localhost"), ("origin", "vscode-webview://abc"))) is None


PARTS = st.lists(
    st.sampled_from(
        ["localhost", "127.0.0.1", "[::1]", "evil.com", ":", "80", ".", "@", "/", "#", "?", "\\", "%2e", "[", "]", " "]
    )
    | st.text(max_size=3),
    max_size=6,
)


@given(PARTS.map("".join))
@example("localhost:1.evil.com")
@example("localhost:80@evil.com")
def test_whatever_is_known_is_a_loopback_host_and_a_number(text: str) -> None:
    if LOOPBACK.refused(headers(("host", text))) is not None:
        return
    host, colon, port = text.rpartition(":") if not text.endswith("]") and ":" in text else (text, "", "")
    assert not colon or (port.isascii() and port.isdecimal() and int(port) <= 65535)
    name = host.lower().removesuffix(".")
    assert name == "localhost" or ipaddress.ip_address(name.strip("[]")).is_loopback


@given(PARTS.map("".join), st.sampled_from(["http", "https"]))
def test_an_origin_is_known_exactly_where_its_host_is(text: str, scheme: str) -> None:
    as_host = LOOPBACK.refused(headers(("host", text)))
    as_origin = LOOPBACK.refused(headers(("host", "localhost"), ("origin", f"{scheme}://{text}")))
    assert (as_host is None) == (as_origin is None)


def test_what_is_read_is_what_was_written() -> None:
    assert read_authority("Example.COM:8080") == Authority("example.com", 8080)
    assert read_authority("[::0001]") == Authority("::1", None)
    assert read_origin("https://Example.com:443") == ("https", Authority("example.com", None))
