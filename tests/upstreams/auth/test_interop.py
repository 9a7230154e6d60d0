"""Authorization servers that spell their issuer in another way, list other methods, or leave out defaults."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.errors import UpstreamAuthError
from pml_gateway.upstreams.auth.interop import method_for, same_issuer
from pml_gateway.upstreams.auth.login import log_in
from pml_gateway.upstreams.auth.logins import LoginStore, StoredLogin
from tests.support.authorization import AuthorizationServer, Protected, keys_in_files, protected

pytestmark = [pytest.mark.anyio, pytest.mark.field("B7")]

Change = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.fixture(autouse=True)
def without_a_keyring() -> Iterator[None]:
    with keys_in_files():
        yield


class Changed(AuthorizationServer):
    """Changes its JSON answers by path; keeps what was registered, and how each token request named its client."""

    def __init__(self, changes: dict[str, Change], **more: Any) -> None:
        super().__init__(**more)
        self.changes = changes
        self.registered: list[dict[str, Any]] = []
        self.headers: list[str] = []

    def app(self, issuer: str) -> Any:
        inner = super().app(issuer)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await inner(scope, receive, send)
                return
            if scope["path"] == "/token":
                self.headers.append(dict(scope["headers"]).get(b"authorization", b"").decode())
            change = self.changes.get(scope["path"])
            start: dict[str, Any] = {}
            body = bytearray()

            async def receive_noting() -> Any:
                message = await receive()
                if scope["path"] == "/register" and message.get("body"):
                    self.registered.append(json.loads(message["body"]))
                return message

            async def send_changed(message: Any) -> None:
                if message["type"] == "http.response.start":
                    start.update(message)
                    return
                body.extend(message.get("body", b""))
                if message.get("more_body"):
                    return
                content = bytes(body)
                if change is not None and start["status"] < 300:
                    content = json.dumps(change(json.loads(content))).encode()
                kept = [header for header in start["headers"] if header[0] != b"content-length"]
                headers = [*kept, (b"content-length", str(len(content)).encode())]
                await send({**start, "headers": headers})
                await send({"type": "http.response.body", "body": content})

            await inner(scope, receive_noting, send_changed)

        return app


METADATA = "/.well-known/oauth-authorization-server"


async def logged_in(folder: Path, stand: Protected, **auth: Any) -> StoredLogin:
    definition = UpstreamDefinition.model_validate({"url": stand.url, **auth})
    return await log_in("remote", definition, LoginStore(folder / "auth"), stand.browse, timeout=20)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("https://h", "https://h/", True),
        ("https://h", "https://h:443", True),
        ("http://h:80/", "http://h", True),
        ("https://H.Example", "https://h.example/", True),
        ("HTTPS://h/a", "https://h/a", True),
        ("https://h/a%7Eb", "https://h/a~b", True),
        ("https://h/a%2fb", "https://h/a%2Fb", True),
        ("https://h/a/../b", "https://h/b", True),
        ("https://h/a", "https://h/a/", False),
        ("https://h/a", "https://h/A", False),
        ("https://h/a", "https://h", False),
        ("https://h", "https://h.evil", False),
        ("https://h", "http://h", False),
        ("https://h:444", "https://h", False),
        ("https://h", "https://h?x", False),
        ("https://h", "https://u@h", False),
        ("https://h/a%2Fb", "https://h/a/b", False),
        ("https://h:99999", "https://h", False),
    ],
)
def test_issuers_are_compared_as_urls(one: str, other: str, same: bool) -> None:
    assert same_issuer(one, other) is same
    assert same_issuer(other, one) is same


@pytest.mark.parametrize("spelled", [lambda issuer: issuer + "/", lambda issuer: issuer, lambda issuer: issuer.upper()])
async def test_a_login_goes_through_where_the_issuer_is_spelled_in_another_way(
    tmp_path: Path, spelled: Callable[[str], str]
) -> None:
    def respell(given: dict[str, Any]) -> dict[str, Any]:
        return given | {"issuer": spelled(given["issuer"].rstrip("/"))}

    server = Changed({METADATA: respell})
    async with protected(server) as stand:
        assert (await logged_in(tmp_path, stand)).access_token


async def test_a_login_is_refused_where_the_issuer_is_another_one(tmp_path: Path) -> None:
    server = Changed({METADATA: lambda given: given | {"issuer": given["issuer"].rstrip("/") + "/tenant"}})
    async with protected(server) as stand:
        with pytest.raises(UpstreamAuthError, match="issuer"):
            await logged_in(tmp_path, stand)


@pytest.mark.parametrize(
    ("offered", "asked"),
    [
        (["client_secret_post"], "client_secret_post"),
        (["client_secret_basic"], None),
        (["client_secret_post", "client_secret_basic"], None),
        (["none", "client_secret_post"], "client_secret_post"),
        (["private_key_jwt", "client_secret_post"], "client_secret_post"),
        (["none"], "none"),
        (["private_key_jwt"], None),
        (None, None),
    ],
)
def test_a_registration_asks_for_a_method_that_is_offered(offered: list[str] | None, asked: str | None) -> None:
    assert method_for(offered) == asked


@pytest.mark.parametrize("method", ["client_secret_post", "none"])
async def test_the_method_that_a_server_offers_is_registered_and_used(tmp_path: Path, method: str) -> None:
    changed = {METADATA: lambda given: given | {"token_endpoint_auth_methods_supported": [method]}}
    server = Changed(changed)
    async with protected(server) as stand:
        assert (await logged_in(tmp_path, stand)).access_token
    assert server.registered[0]["token_endpoint_auth_method"] == method
    assert server.headers[0] == ""


async def test_a_secret_without_a_method_is_sent_as_the_default_says(tmp_path: Path) -> None:
    def forget_methods(given: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in given.items() if key != "token_endpoint_auth_methods_supported"}

    def forget_method(given: dict[str, Any]) -> dict[str, Any]:
        server.clients[given["client_id"]].token_endpoint_auth_method = "client_secret_basic"
        return {key: value for key, value in given.items() if key != "token_endpoint_auth_method"}

    server = Changed({METADATA: forget_methods, "/register": forget_method})
    async with protected(server) as stand:
        assert (await logged_in(tmp_path, stand)).access_token
    assert server.headers[0].startswith("Basic ")


async def test_a_metadata_document_comes_before_a_registration(tmp_path: Path) -> None:
    address = "https://client.example/metadata.json"
    seen: list[str] = []
    server = Changed({METADATA: lambda given: given | {"client_id_metadata_document_supported": True}})

    async def show(url: str, _callback: Any) -> None:
        seen.append(url)
        raise UpstreamAuthError("seen")

    async with protected(server) as stand:
        definition = UpstreamDefinition.model_validate({"url": stand.url, "auth": {"client_metadata_url": address}})
        with pytest.raises(UpstreamAuthError, match="seen"):
            await log_in("remote", definition, LoginStore(tmp_path / "auth"), show, timeout=20)
    assert "client_id=https%3A%2F%2Fclient.example%2Fmetadata.json" in seen[0]
    assert server.registered == []
