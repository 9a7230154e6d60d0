"""Authorization servers that differ in spelling, methods and clients, on every way: the gateway logs in and renews."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp.shared.auth import OAuthClientInformationFull
from pydantic import AnyUrl

from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.upstreams.auth.login import log_in
from pml_gateway.upstreams.auth.logins import LoginStore
from tests.field.stand import Era, FieldClient, Way, gateway_client
from tests.support.authorization import keys_in_files, protected
from tests.upstreams.auth.test_interop import METADATA, Change, Changed

pytestmark = [pytest.mark.slow, pytest.mark.field("B7")]

DOCUMENT = "https://client.example/metadata.json"
BY_HAND = {"client_id": "by-hand", "client_secret": "a-secret-of-tests"}
LOGIN_SECONDS = 30
METHODS = "token_endpoint_auth_methods_supported"
BASIC, POST = "client_secret_basic", "client_secret_post"
METHOD = "token_endpoint_auth_method"


class AnyRedirect(OAuthClientInformationFull):
    """A client that may be sent back to any port, as loopback clients are."""

    def validate_redirect_uri(self, redirect_uri: AnyUrl | None) -> AnyUrl:
        assert redirect_uri is not None
        return redirect_uri


@dataclass
class Variant:
    """One authorization server and its configured client.

    Its first token has expired when the gateway starts. `sends` is the start of the header with which the client has to
    name itself, and `registers` the method that it has to ask for.
    """

    metadata: Change = dict
    registration: Change = dict
    auth: dict[str, Any] = field(default_factory=dict)
    sends: str = "Basic "
    registers: Sequence[str | None] = (None,)
    known: OAuthClientInformationFull | None = None

    def server(self) -> Changed:
        """Return the server, which knows the clients that were registered by hand."""

        def registered(given: dict[str, Any]) -> dict[str, Any]:
            method = server.registered[-1].get(METHOD) or BASIC
            server.clients[given["client_id"]].token_endpoint_auth_method = method
            return self.registration(given | {METHOD: method})

        server = Changed({METADATA: self.metadata, "/register": registered}, lifetimes=[1])
        if self.known is not None:
            server.clients[self.known.client_id] = self.known
        return server


def spelled(issuer: Any) -> Variant:
    return Variant(lambda given: given | {"issuer": issuer(given["issuer"].rstrip("/"))})


def offering(methods: list[str], asked: str | None, sends: str) -> Variant:
    return Variant(lambda given: given | {METHODS: methods}, registers=(asked,), sends=sends)


def without(*keys: str) -> Change:
    return lambda given: {key: value for key, value in given.items() if key not in keys}


def by_hand(methods: list[str], method: str, sends: str) -> Variant:
    known = AnyRedirect.model_validate(
        {**BY_HAND, "redirect_uris": ["http://127.0.0.1/"], METHOD: method, "scope": "read"}
    )
    change: Change = lambda given: given | {METHODS: methods}  # noqa: E731 - as the others of the table
    return Variant(change, auth=BY_HAND, sends=sends, registers=(), known=known)


def described(*, supported: bool) -> Variant:
    known = AnyRedirect.model_validate(
        {"client_id": DOCUMENT, "redirect_uris": ["http://127.0.0.1/"], METHOD: "none", "scope": "read"}
    )
    return Variant(
        lambda given: given | {"client_id_metadata_document_supported": supported},
        auth={"client_metadata_url": DOCUMENT},
        sends="" if supported else "Basic ",
        registers=() if supported else (None,),
        known=known,
    )


VARIANTS = {
    "issuer_without_slash": spelled(lambda issuer: issuer),
    "issuer_with_slash": spelled(lambda issuer: issuer + "/"),
    "issuer_in_capitals": spelled(lambda issuer: issuer.upper()),
    "post_alone": offering([POST], POST, ""),
    "none_alone": offering(["none"], "none", ""),
    "basic_alone": offering([BASIC], None, "Basic "),
    "basic_among_others": offering(["private_key_jwt", POST, BASIC], None, "Basic "),
    "post_before_none": offering(["none", POST], POST, ""),
    "no_methods_no_method": Variant(without(METHODS), without(METHOD)),
    "no_method": Variant(registration=without(METHOD)),
    "by_hand_basic": by_hand([BASIC], BASIC, "Basic "),
    "by_hand_post": by_hand([POST], POST, ""),
    "document": described(supported=True),
    "document_not_supported": described(supported=False),
}


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture(scope="module")
def servers() -> dict[str, Changed]:
    return {}


@pytest.fixture(scope="module")
def client(
    way: Way,
    era: Era,
    portal: BlockingPortal,
    servers: dict[str, Changed],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[FieldClient]:
    home: Path = tmp_path_factory.mktemp("home")
    configured: dict[str, Any] = {}
    with keys_in_files(), ExitStack() as stack:
        for name, variant in VARIANTS.items():
            servers[name] = server = variant.server()
            stand = stack.enter_context(portal.wrap_async_context_manager(protected(server)))
            configured[name] = {"url": stand.url, **({"auth": variant.auth} if variant.auth else {})}
            definition = UpstreamDefinition.model_validate(configured[name])

            async def login(name: str = name, definition: Any = definition, show: Any = stand.browse) -> None:
                await log_in(name, definition, LoginStore(home / "auth"), show, timeout=LOGIN_SECONDS)

            portal.call(login)
        settings = {"servers": configured, "naming": {"prefix": "always"}}
        yield stack.enter_context(gateway_client(way, era, home, settings))


@pytest.mark.parametrize("name", VARIANTS)
def test_a_login_and_its_renewal_go_through(client: FieldClient, servers: dict[str, Changed], name: str) -> None:
    variant, server = VARIANTS[name], servers[name]
    client.tools(f"{name}__whoami")
    assert client.call(f"{name}__whoami")["content"][0]["text"] == "did whoami"
    assert server.refreshes
    assert [registered.get(METHOD) for registered in server.registered] == [*variant.registers]
    for header in server.headers:
        assert header.startswith(variant.sends)
        assert bool(header) == bool(variant.sends)
