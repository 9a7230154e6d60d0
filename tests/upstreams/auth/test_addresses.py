"""Where a login may go: a server's metadata lead nowhere that is unencrypted or further in than the server itself."""

from __future__ import annotations

import ipaddress
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.errors import UpstreamAuthError
from pml_gateway.mcp.network import Network
from pml_gateway.upstreams.auth.addresses import (
    MAX_ANSWER_BYTES,
    AddressZone,
    CheckedTransport,
    LoginAddresses,
    login_client,
    zone_of,
)
from pml_gateway.upstreams.auth.login import log_in
from pml_gateway.upstreams.auth.logins import LoginStore, StoredLogin
from pml_gateway.upstreams.auth.oauth import refreshed
from pml_gateway.working_directory import WorkingDirectory
from tests.support.authorization import AuthorizationServer, Protected, protected
from tests.support.listening import listening
from tests.upstreams.auth.test_oauth import call, error_of, gateway, logged_in, without_a_keyring

pytestmark = pytest.mark.anyio
__all__ = ["without_a_keyring"]

PUBLIC, PRIVATE, LOOPBACK = "93.184.215.14", "10.1.2.3", "127.0.0.1"
METADATA = "169.254.169.254"


class Names:
    """Names and the addresses that they resolve to, one after the other; addresses resolve to themselves."""

    def __init__(self, **hosts: str | list[str]) -> None:
        self.hosts = {
            name.replace("_", "."): [found] if isinstance(found, str) else found for name, found in hosts.items()
        }
        self.asked: list[str] = []

    async def __call__(self, host: str, _port: int) -> Sequence[str]:
        self.asked.append(host)
        if host not in self.hosts:
            return [str(ipaddress.ip_address(host))]
        found = self.hosts[host]
        return (found.pop(0) if len(found) > 1 else found[0]).split()


@pytest.mark.parametrize(
    ("address", "zone"),
    [
        ("8.8.8.8", AddressZone.PUBLIC),
        ("2606:4700::1111", AddressZone.PUBLIC),
        ("10.0.0.1", AddressZone.PRIVATE),
        ("172.16.9.9", AddressZone.PRIVATE),
        ("192.168.0.1", AddressZone.PRIVATE),
        ("100.64.0.1", AddressZone.PRIVATE),
        ("fd00::1", AddressZone.PRIVATE),
        ("127.8.8.8", AddressZone.LOOPBACK),
        ("::1", AddressZone.LOOPBACK),
        (METADATA, AddressZone.FORBIDDEN),
        ("fe80::1%eth0", AddressZone.FORBIDDEN),
        ("0.0.0.0", AddressZone.FORBIDDEN),
        ("::", AddressZone.FORBIDDEN),
        ("224.0.0.1", AddressZone.FORBIDDEN),
        ("ff02::1", AddressZone.FORBIDDEN),
        ("192.0.0.192", AddressZone.FORBIDDEN),
        ("168.63.129.16", AddressZone.FORBIDDEN),
        ("::7f00:1", AddressZone.PRIVATE),
        ("::ffff:0:a00:1", AddressZone.PRIVATE),
        ("64:ff9b:1::a00:1", AddressZone.PRIVATE),
        ("fec0::1", AddressZone.PRIVATE),
        ("2606:4700::1111", AddressZone.PUBLIC),
    ],
)
def test_every_address_lies_somewhere(address: str, zone: AddressZone) -> None:
    assert zone_of(address) is zone


@given(address=st.ip_addresses(v=4))
def test_an_address_lies_where_it_does_however_it_is_written(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    for written in (f"::ffff:{address}", str(ipaddress.IPv6Address((0x64FF9B << 96) | number))):
        assert zone_of(written) is zone_of(str(address))


async def allows(addresses: LoginAddresses, url: str) -> bool:
    try:
        await addresses.of(httpx2.URL(url))
    except UpstreamAuthError as error:
        assert f"--allow {error.details['login_origin']}" in error.hint
        return False
    return True


NAMES = {
    "mcp_example": PUBLIC,
    "mcp_corp": PRIVATE,
    "localhost": LOOPBACK,
    "idp_example": PUBLIC,
    "idp_corp": PRIVATE,
    "inner_example": PRIVATE,
    "mixed_example": f"{PUBLIC} {LOOPBACK}",
    "cloud_example": METADATA,
}


@pytest.mark.parametrize(
    ("server", "places", "other_places"),
    [
        (
            "https://mcp.example/mcp",
            [
                "https://mcp.example/token",
                "https://mcp.example:8443/",
                "https://idp.example:444/",
                f"https://{PUBLIC}/",
            ],
            [
                "http://mcp.example/",
                "http://idp.example/",
                "http://localhost/",
                "https://localhost/",
                "https://127.0.0.1:9/",
                "https://[::1]/",
                "https://[::ffff:127.0.0.1]/",
                "https://inner.example/",
                "https://mixed.example/",
                "https://cloud.example/",
                f"https://{PRIVATE}/",
                "ftp://idp.example/",
            ],
        ),
        (
            "http://mcp.example:8080/mcp",
            ["http://mcp.example:8080/token", "https://mcp.example/", "https://idp.example/"],
            ["http://mcp.example/", "http://mcp.example:8081/", "http://127.0.0.1:8080/", "https://inner.example/"],
        ),
        (
            "http://mcp.corp/mcp",
            ["http://mcp.corp/token", "https://idp.corp/", "https://idp.example/"],
            ["http://idp.corp/", "http://mcp.corp:81/", "https://localhost/", "https://cloud.example/"],
        ),
        (
            "http://localhost:3000/mcp",
            ["http://127.0.0.1:4000/", "http://[::1]/", "https://idp.corp/", "https://idp.example/"],
            [
                "http://idp.corp/",
                "http://127.0.0.2/",
                "http://10.0.0.1/",
                "https://cloud.example/",
                f"http://{METADATA}/",
            ],
        ),
        ("https://localhost/mcp", ["https://127.0.0.1/"], ["http://127.0.0.1/", "http://localhost/"]),
    ],
)
async def test_a_login_goes_where_it_is_encrypted_and_never_further_in_than_its_server(
    server: str, places: list[str], other_places: list[str]
) -> None:
    at = LoginAddresses("s", server, resolve=Names(**NAMES))
    assert [url for url in places if not await allows(at, url)] == []
    assert [url for url in other_places if await allows(at, url)] == []
    owner = LoginAddresses("s", server, allowed=other_places, resolve=Names(**NAMES))
    assert [url for url in other_places if not await allows(owner, url)] == [], "the owner may allow each"


async def test_a_server_on_the_internet_stays_one_whatever_its_name_resolves_to_later() -> None:
    names = Names(mcp_example=[PUBLIC, PRIVATE, LOOPBACK], idp_example=[PUBLIC, PRIVATE])
    addresses = LoginAddresses("s", "https://mcp.example/mcp", resolve=names)
    for _ in range(3):
        assert await allows(addresses, "https://mcp.example/mcp")
    assert await allows(addresses, "https://idp.example/")
    assert not await allows(addresses, "https://idp.example/"), "its name leads further in now"
    assert addresses.zone == AddressZone.PUBLIC
    remembered = LoginAddresses("s", "https://mcp.example/mcp", zone=addresses.zone, resolve=Names(mcp_example=PRIVATE))
    assert not await allows(remembered, f"https://{PRIVATE}/"), "also after a restart"


async def test_the_connection_goes_to_the_address_that_was_checked_in_the_name_that_was_asked_for() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse(Request(scope).headers["host"])(scope, receive, send)

    async with listening(app) as port:
        # The first address refuses, and the next is tried.
        names = Names(login_test=["::1 127.0.0.1", METADATA])
        addresses = LoginAddresses("s", f"http://login.test:{port}/mcp", resolve=names)
        async with httpx2.AsyncClient(transport=CheckedTransport(addresses, ssl.create_default_context())) as client:
            response = await client.get(f"http://login.test:{port}/token")
        assert response.text == f"login.test:{port}"
        assert str(response.request.url) == f"http://login.test:{port}/token"
        assert names.asked == ["login.test"]


async def test_a_place_is_named_as_no_other_can_be() -> None:
    addresses = LoginAddresses("s", "https://mcp.example/mcp", resolve=Names(**NAMES))
    with pytest.raises(UpstreamAuthError, match=r"http://xn--dp-goc\.example:81, which"):
        await addresses.of(httpx2.URL("http://іdp.example:81/"))
    for url in ("http://[::1]:80/x", "HTTP://LOCALHOST:80/"):
        with pytest.raises(UpstreamAuthError, match=r"http://(\[::1\]|localhost), which"):
            await addresses.of(httpx2.URL(url))


async def test_an_answer_without_end_is_not_taken() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await Response(b"x" * (MAX_ANSWER_BYTES + 1))(scope, receive, send)

    async with listening(app) as port:
        url = f"http://127.0.0.1:{port}/"
        async with login_client(LoginAddresses("s", url), Network.of(WorkingDirectory.here())) as client:
            with pytest.raises(httpx2.StreamError, match="larger than"):
                await client.get(url)


async def test_where_a_proxy_connects_what_it_is_asked_for_is_checked_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("through the proxy")(scope, receive, send)

    async with listening(app) as port:
        network = Network.of(WorkingDirectory(Path("/"), {"http_proxy": f"http://127.0.0.1:{port}"}))
        addresses = LoginAddresses("s", "http://mcp.example/mcp", resolve=Names(**NAMES))
        async with login_client(addresses, network) as client:
            assert (await client.get("http://mcp.example/x")).text == "through the proxy"
            with pytest.raises(UpstreamAuthError, match=METADATA):
                await client.get(f"http://{METADATA}/latest")


def test_what_needs_no_proxy_makes_none() -> None:
    assert not Network.of(WorkingDirectory(Path("/"), {"no_proxy": "localhost"})).has_proxy


def hostile(target: str, *, by: str) -> Starlette:
    """A server whose metadata lead elsewhere at one of the steps of a login."""

    async def answer(request: Request) -> Response:
        own = str(request.base_url).rstrip("/")
        if "oauth-protected-resource" in request.url.path:
            issuer = target if by == "issuer" else own
            return JSONResponse({"resource": f"{own}/mcp", "authorization_servers": [issuer]})
        if "well-known" in request.url.path:
            endpoints = {f"{each}_endpoint": f"{own}/{each}" for each in ("authorization", "token", "registration")}
            return JSONResponse(
                {
                    "issuer": own,
                    **endpoints,
                    **({f"{by}_endpoint": target} if by != "issuer" else {}),
                    "response_types_supported": ["code"],
                    "code_challenge_methods_supported": ["S256"],
                }
            )
        if request.url.path == "/registration":
            asked = await request.json()
            return JSONResponse({**asked, "client_id": "c", "token_endpoint_auth_method": "none"}, 201)
        metadata = target if by == "resource" else f"{own}/.well-known/oauth-protected-resource"
        return Response("", 401, {"www-authenticate": f'Bearer resource_metadata="{metadata}"'})

    app = Starlette()
    app.add_route("/{path:path}", answer, methods=["GET", "POST"])
    return app


@pytest.mark.parametrize("by", ["resource", "issuer", "authorization", "token", "registration", "revocation"])
@pytest.mark.parametrize("target", [f"http://{METADATA}/latest", f"https://{METADATA}/x", "http://192.0.2.1:81/x"])
async def test_no_step_of_a_login_follows_metadata_to_any_address(tmp_path: Path, target: str, by: str) -> None:
    shown: list[str] = []

    async def show(url: str, _callback: Any) -> None:
        shown.append(url)

    async with listening(hostile(target, by=by)) as port:
        definition = UpstreamDefinition.model_validate({"url": f"http://127.0.0.1:{port}/mcp"})
        with anyio.fail_after(20), pytest.raises(UpstreamAuthError) as caught:
            await log_in("remote", definition, LoginStore(tmp_path), show, timeout=15)
    origin = target.rpartition("/")[0]
    assert f"sends its login to {origin}, which is" in caught.value.message
    assert caught.value.hint == f"if that is right: pml upstreams login remote --allow {origin}"
    assert shown == [], "no browser is sent there either"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address")
async def test_what_the_owner_allows_is_used_and_renewed_in_the_background(tmp_path: Path) -> None:
    async with protected(AuthorizationServer(), mcp_host="127.0.0.2") as stand:
        with pytest.raises(UpstreamAuthError, match="not encrypted"):
            await logged_in(tmp_path, stand)
        login = await allowed_login(tmp_path, stand)
        assert login.allowed == (stand.issuer,)
        stand.revoke_access()
        async with gateway(tmp_path, stand) as (_, caller):
            assert (await call(caller))["content"][0]["text"] == "did whoami"
        assert stand.server.refreshes == 1
        with pytest.raises(UpstreamAuthError, match="not encrypted") as caught:
            await refreshed("remote", login.model_copy(update={"allowed": ()}), WorkingDirectory.here())
        assert caught.value.hint == f"if that is right: pml upstreams login remote --allow {stand.issuer}"


async def allowed_login(folder: Path, stand: Protected) -> StoredLogin:
    definition = UpstreamDefinition.model_validate({"url": stand.url})
    store = LoginStore(folder / "auth")
    return await log_in("remote", definition, store, stand.browse, timeout=20, allowed=[stand.issuer])


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address")
async def test_credentials_go_to_the_issuer_that_the_owner_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MACHINE_SECRET", "m4chine-s3cret")
    server = AuthorizationServer(machine=("machine", "m4chine-s3cret"))
    async with protected(server, mcp_host="127.0.0.2") as stand:
        auth = {"type": "client_credentials", "client_id": "machine", "client_secret": "${env:MACHINE_SECRET}"}
        async with gateway(tmp_path, stand, auth={**auth, "issuer": stand.issuer}) as (_, caller):
            result = await call(caller)
            assert not result.get("isError"), error_of(result)
