"""Logins at a real authorization server: first consent, renewal, revocation, refusals, and what never leaks."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.responses import JSONResponse, Response

from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.errors import ConfigurationError, InvalidInputError, UpstreamAuthError
from pml_gateway.gateway.calling import Caller
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.gateway.request import CallOptions, RequestScope
from pml_gateway.mcp.capabilities import ClientCapabilities
from pml_gateway.reports.status import gateway_status, read_logins
from pml_gateway.upstreams.auth.callback import Callback
from pml_gateway.upstreams.auth.login import Show, log_in, log_out
from pml_gateway.upstreams.auth.logins import LoginStore, StoredLogin
from tests.mcp.test_transport import gateway_to, region_server
from tests.support.authorization import AuthorizationServer, Protected, keys_in_files, protected
from tests.support.listening import listening, sse_app

pytestmark = pytest.mark.anyio

HINT = "pml upstreams login remote"


@pytest.fixture(autouse=True)
def without_a_keyring() -> Iterator[None]:
    with keys_in_files():
        yield


async def logged_in(folder: Path, stand: Protected, show: Show | None = None, **auth: Any) -> StoredLogin:
    definition = UpstreamDefinition.model_validate({"url": stand.url, **auth})
    return await log_in("remote", definition, LoginStore(folder / "auth"), show or stand.browse, timeout=20)


@asynccontextmanager
async def gateway(folder: Path, stand: Protected, **auth: Any) -> AsyncIterator[tuple[Gateway, Caller]]:
    async with gateway_to(folder, {"url": stand.url, **auth}) as opened:
        yield opened


async def call(caller: Caller, tool: str = "whoami") -> dict[str, Any]:
    with anyio.fail_after(30):
        return await caller.call(RequestScope(), f"remote__{tool}", {}, CallOptions())


async def status_of(opened: Gateway) -> dict[str, Any]:
    await read_logins(opened)
    return {**gateway_status(opened)}


def error_of(result: dict[str, Any]) -> dict[str, Any]:
    error: dict[str, Any] = result["structuredContent"]["error"]
    return error


async def test_a_first_login_opens_the_way_for_listing_and_calls(tmp_path: Path) -> None:
    async with protected() as stand:
        login = await logged_in(tmp_path, stand)
        async with gateway(tmp_path, stand) as (opened, caller):
            assert (await call(caller))["content"][0]["text"] == "did whoami"
            status = (await status_of(opened))["upstreams"][0]
    assert login.scope == "read"
    assert status["auth"]["state"] == "logged_in"
    assert {bearer for bearer in stand.bearers if bearer} == {f"Bearer {login.access_token}"}


async def test_without_a_login_calls_say_how_to_log_in_and_a_login_needs_no_restart(tmp_path: Path) -> None:
    async with protected() as stand, gateway(tmp_path, stand) as (opened, caller):
        upstream = opened.pool.upstreams["remote"]
        assert isinstance(upstream.connector.last_error, UpstreamAuthError)
        assert upstream.connector.last_error.hint == HINT
        assert (await status_of(opened))["upstreams"][0]["auth"] == {"state": "login_needed"}
        await logged_in(tmp_path, stand)
        upstream.connector.reconnect()
        assert await opened.refresh(20)
        assert (await call(caller))["content"][0]["text"] == "did whoami"


async def test_an_expired_token_is_renewed_once_for_all_who_call(tmp_path: Path) -> None:
    async with protected(AuthorizationServer(lifetimes=[0])) as stand:
        first = await logged_in(tmp_path, stand)
        before = len(stand.bearers)
        async with gateway(tmp_path, stand) as (_, caller):
            results: list[dict[str, Any]] = []

            async def one() -> None:
                results.append(await call(caller))

            async with anyio.create_task_group() as tasks:
                for _ in range(8):
                    tasks.start_soon(one)
    assert [result["content"][0]["text"] for result in results] == ["did whoami"] * 8
    assert stand.server.refreshes == 1
    assert f"Bearer {first.access_token}" not in stand.bearers[before:]


async def test_a_token_revoked_while_the_gateway_runs_is_renewed_and_the_call_repeated(tmp_path: Path) -> None:
    async with protected() as stand:
        await logged_in(tmp_path, stand)
        async with gateway(tmp_path, stand) as (_, caller):
            await call(caller)
            stand.revoke_access()
            assert (await call(caller))["content"][0]["text"] == "did whoami"
    assert stand.server.refreshes == 1


async def test_a_refresh_token_that_is_refused_asks_for_a_login_once_and_keeps_the_tools(tmp_path: Path) -> None:
    async with protected() as stand:
        await logged_in(tmp_path, stand)
        async with gateway(tmp_path, stand) as (opened, caller):
            await stand.server.revoke_token(next(iter(stand.server.access.values())))
            for _ in range(3):
                result = await call(caller)
                error = error_of(result)
                assert (result["isError"], error["code"], error["hint"]) == (True, "UPSTREAM_AUTH", HINT)
            await opened.refresh(20)
            assert len(opened.state.catalog.tools) == 2
            assert (await status_of(opened))["upstreams"][0]["auth"] == {"state": "login_needed"}
            assert stand.server.refreshes == 1
            await logged_in(tmp_path, stand)
            assert (await call(caller))["content"][0]["text"] == "did whoami"


async def test_an_authorization_server_that_is_down_is_unavailable_and_the_login_is_kept(tmp_path: Path) -> None:
    async with protected(AuthorizationServer(lifetimes=[3600])) as stand:
        await logged_in(tmp_path, stand)
        async with gateway(tmp_path, stand) as (_, caller):
            stand.revoke_access()
            stand.server.fails_with = 503
            assert error_of(await call(caller))["code"] == "UPSTREAM_UNAVAILABLE"
            stand.server.fails_with = None
            assert (await call(caller))["content"][0]["text"] == "did whoami"


async def test_two_gateways_on_one_home_send_one_refresh_request(tmp_path: Path) -> None:
    async with protected() as stand:
        await logged_in(tmp_path, stand)
        results: list[dict[str, Any]] = []

        async def one(caller: Caller) -> None:
            results.append(await call(caller))

        async with gateway(tmp_path, stand) as (_, first), gateway(tmp_path, stand) as (_, second):
            stand.revoke_access()
            stand.server.hold = anyio.Event()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one, first)
                tasks.start_soon(one, second)
                with anyio.fail_after(30):
                    while len([bearer for bearer in stand.bearers if bearer]) < 2 or not stand.server.grants[1:]:
                        await anyio.lowlevel.checkpoint()
                stand.server.hold.set()
    assert [result["content"][0]["text"] for result in results] == ["did whoami"] * 2
    assert stand.server.refreshes == 1


async def test_a_call_that_lacks_a_scope_says_which_and_the_next_login_asks_for_it(tmp_path: Path) -> None:
    async with protected() as stand:
        await logged_in(tmp_path, stand)
        async with gateway(tmp_path, stand) as (_, caller):
            error = error_of(await call(caller, "admin"))
            assert (error["code"], error["hint"]) == ("UPSTREAM_AUTH", HINT)
            assert "'admin'" in error["message"]
            assert (await call(caller))["content"][0]["text"] == "did whoami"
            again = await logged_in(tmp_path, stand)
            assert set((again.scope or "").split()) == {"read", "admin"}
            assert (await call(caller, "admin"))["content"][0]["text"] == "did admin"


async def test_denied_consent_is_told_and_the_login_before_stays(tmp_path: Path) -> None:
    async with protected() as stand:
        await logged_in(tmp_path, stand)
        stand.server.denies = True
        with pytest.raises(UpstreamAuthError, match="consent was denied: The owner said no"):
            await logged_in(tmp_path, stand)
        async with gateway(tmp_path, stand) as (_, caller):
            assert (await call(caller))["content"][0]["text"] == "did whoami"


@pytest.mark.field("A7")
@pytest.mark.parametrize(
    "forged",
    ["code=x&state=forged", "code=x", "error=access_denied&state=forged", "error=access_denied", "code=x&state="],
)
async def test_an_answer_of_another_login_is_refused_and_ends_nothing(tmp_path: Path, forged: str) -> None:
    async with protected() as stand:
        refused: list[str] = []

        async def come_first(url: str, callback: Callback) -> None:
            for _ in range(3):
                try:
                    callback.take(f"{callback.redirect_uri}?{forged}")
                except InvalidInputError as error:
                    refused.append(error.message)
            callback.take(await stand.redirected(url))

        assert (await logged_in(tmp_path, stand, come_first)).access_token in stand.server.access
        assert ["does not belong to this login" in each for each in refused] == [True] * 3


async def test_a_pasted_address_logs_in(tmp_path: Path) -> None:
    async with protected() as stand:

        async def paste(url: str, callback: Callback) -> None:
            callback.take(await stand.redirected(url))

        assert (await logged_in(tmp_path, stand, paste)).access_token in stand.server.access


async def test_nobody_who_consents_ends_the_wait(tmp_path: Path) -> None:
    async def nobody(_url: str, _callback: Callback) -> None:
        return

    async with protected() as stand:
        definition = UpstreamDefinition.model_validate({"url": stand.url})
        with pytest.raises(UpstreamAuthError, match="no login within"):
            await log_in("remote", definition, LoginStore(tmp_path), nobody, timeout=1)


async def test_a_client_registered_by_hand_is_used_and_its_secret_sent_to_the_token_endpoint_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mcp.shared.auth import OAuthClientInformationFull
    from pydantic import AnyUrl

    monkeypatch.setenv("REMOTE_SECRET", "by-hand-secret")
    async with protected() as stand:
        stand.server.rejects_registration = True
        with pytest.raises(UpstreamAuthError, match="registers no clients"):
            await logged_in(tmp_path, stand)

        async def register(url: str, callback: Callback) -> None:
            stand.server.clients["by-hand"].redirect_uris = [AnyUrl(callback.redirect_uri)]
            await stand.browse(url)

        stand.server.clients["by-hand"] = OAuthClientInformationFull(
            client_id="by-hand",
            client_secret="by-hand-secret",
            redirect_uris=[AnyUrl("http://127.0.0.1/")],
            token_endpoint_auth_method="client_secret_post",
            scope="read",
        )
        auth = {"auth": {"client_id": "by-hand", "client_secret": "${env:REMOTE_SECRET}", "scopes": ["read"]}}
        await logged_in(tmp_path, stand, register, **auth)
        assert stand.server.grants[-1]["client_secret"] == "by-hand-secret"
        assert not [bearer for bearer in stand.bearers if "by-hand-secret" in bearer]


async def test_client_credentials_need_nobody_and_are_renewed_when_they_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MACHINE_SECRET", "machine-secret")
    async with protected(AuthorizationServer(machine=("machine", "machine-secret"))) as stand:
        auth = {
            "type": "client_credentials",
            "client_id": "machine",
            "client_secret": "${env:MACHINE_SECRET}",
            "issuer": f"{stand.issuer}/",
            "scopes": "read",
        }
        async with gateway(tmp_path, stand, auth=auth) as (_, caller):
            assert (await call(caller))["content"][0]["text"] == "did whoami"
            stand.revoke_access()
            assert (await call(caller))["content"][0]["text"] == "did whoami"
            assert [grant["grant_type"] for grant in stand.server.grants] == ["client_credentials"] * 2
            stand.revoke_access()
            stand.server.machine = ("machine", "another")
            error = error_of(await call(caller))
            assert (error["code"], error["hint"]) == ("UPSTREAM_AUTH", "check servers.remote.auth")


async def test_logging_out_revokes_the_tokens_and_the_running_gateway_stops_using_them(tmp_path: Path) -> None:
    async with protected() as stand:
        await logged_in(tmp_path, stand)
        definition = UpstreamDefinition.model_validate({"url": stand.url})
        async with gateway(tmp_path, stand) as (_, caller):
            await call(caller)
            assert await log_out("remote", definition, LoginStore(tmp_path / "auth")) == (True, True)
            sent = len(stand.bearers)
            assert error_of(await call(caller))["hint"] == HINT
            assert set(stand.bearers[sent:]) == {""}
        assert await log_out("remote", definition, LoginStore(tmp_path / "auth")) == (False, False)


async def test_a_token_is_sent_to_the_url_it_was_given_for_and_no_other(tmp_path: Path) -> None:
    async with protected() as stand, protected() as other:
        await logged_in(tmp_path, stand)
        async with gateway(tmp_path, other) as (opened, _):
            assert isinstance(opened.pool.upstreams["remote"].connector.last_error, UpstreamAuthError)
        assert set(other.bearers) == {""}


class Someone:
    """A client of its own, who can be asked nothing."""

    client_id = quota_key = "someone"
    is_one_client = True
    client_capabilities = ClientCapabilities()
    answers_later = False
    log_level = "warning"

    async def ask(self, method: str, params: dict[str, Any], on_progress: object) -> dict[str, Any]:
        raise AssertionError(f"{method} is never asked")

    async def tell(self, method: str, params: dict[str, Any]) -> None:
        return

    async def let_go(self) -> None:
        return


async def test_a_session_of_one_client_is_let_in_and_refused_alike(tmp_path: Path) -> None:
    async with protected() as stand:
        await logged_in(tmp_path, stand)
        before = len(stand.bearers)
        async with gateway(tmp_path, stand, sessions="per_client") as (_, caller):
            opened = len(stand.bearers)
            result = await caller.call(RequestScope(), "remote__whoami", {}, CallOptions(audience=Someone()))
            assert result["content"][0]["text"] == "did whoami"
            assert len(stand.bearers) > opened + 1
            assert "" not in stand.bearers[before:]
            await stand.server.revoke_token(next(iter(stand.server.access.values())))
            error = error_of(await call(caller))
            assert (error["code"], error["hint"]) == ("UPSTREAM_AUTH", HINT)


async def test_a_redirect_to_another_origin_takes_no_token_with_it(tmp_path: Path) -> None:
    async with protected() as stand, protected() as other:
        await logged_in(tmp_path, stand)
        async with gateway(tmp_path, stand, headers={"X-Key": "k"}) as (opened, caller):
            await call(caller)
            stand.moved_to = other.url
            assert (await call(caller))["isError"]
            await opened.refresh(20)
        assert stand.bearers[-1] != ""
        assert other.bearers == []


async def test_a_login_with_another_client_is_another_login(tmp_path: Path) -> None:
    async with protected() as stand:
        await logged_in(tmp_path, stand)
        async with gateway(tmp_path, stand, auth={"client_id": "by-hand"}) as (opened, _):
            error = opened.pool.upstreams["remote"].connector.last_error
            assert error is not None
            assert error.hint == HINT


async def test_a_server_that_takes_no_token_in_the_end_is_not_asked_to_renew_for_ever(tmp_path: Path) -> None:
    async with protected() as stand:
        await logged_in(tmp_path, stand)
        async with gateway(tmp_path, stand) as (_, caller):
            await call(caller)
            stand.server.forgets = True
            for _ in range(4):
                error = error_of(await call(caller))
                assert (error["code"], error["hint"]) == ("UPSTREAM_AUTH", HINT)
        assert stand.server.refreshes <= 2


async def test_a_server_over_sse_is_logged_in_to_the_same_way(tmp_path: Path) -> None:
    async with protected() as stand, listening(Guard(sse_app(region_server().server()), stand)) as port:
        entry = {"url": f"http://127.0.0.1:{port}/sse"}
        definition = UpstreamDefinition.model_validate(entry)
        await log_in("remote", definition, LoginStore(tmp_path / "auth"), stand.browse, timeout=20)
        async with gateway_to(tmp_path, entry) as (_, caller):
            result = await caller.call(RequestScope(), "remote__where", {"region": "eu"}, CallOptions())
            assert result["content"][0]["text"] == "eu"


class Guard:
    """Asks for a token of the authorization server, which it names only in the header of its refusal."""

    def __init__(self, app: Any, stand: Protected) -> None:
        self.app = app
        self.stand = stand

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/metadata":
            resource = f"http://{dict(scope['headers'])[b'host'].decode()}/sse"
            document = {"resource": resource, "authorization_servers": [f"{self.stand.issuer}/"]}
            await JSONResponse(document)(scope, receive, send)
            return
        bearer = dict(scope.get("headers", ())).get(b"authorization", b"").decode()
        if scope["type"] == "http" and bearer.removeprefix("Bearer ") not in self.stand.server.access:
            metadata = f"http://{dict(scope['headers'])[b'host'].decode()}/metadata"
            challenge = f'Bearer resource_metadata="{metadata}"'
            await Response("no", 401, {"WWW-Authenticate": challenge})(scope, receive, send)
            return
        await self.app(scope, receive, send)


async def test_what_takes_no_login_says_what_to_do_instead(tmp_path: Path) -> None:
    for entry, remedy in (
        ({"command": "x"}, "servers.remote.env"),
        ({"url": "http://127.0.0.1:1/mcp", "headers": {"Authorization": "Bearer x"}}, "remove that header"),
        ({"url": "http://127.0.0.1:1/mcp", "auth": "none"}, "remove it to log in"),
    ):
        definition = UpstreamDefinition.model_validate(entry)
        with pytest.raises(ConfigurationError) as caught:
            await log_in("remote", definition, LoginStore(tmp_path), _unused, timeout=5)
        assert remedy in caught.value.hint


async def _unused(_url: str, _callback: Callback) -> None:
    raise AssertionError("no browser is needed")


async def test_no_token_code_or_secret_is_seen_anywhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "pml_gateway")
    caplog.set_level(logging.WARNING)
    seen: list[str] = []
    async with protected() as stand:
        await logged_in(tmp_path, stand)
        async with gateway(tmp_path, stand) as (opened, caller):
            stand.revoke_access()
            seen.append(json.dumps(await call(caller)))
            await stand.server.revoke_token(next(iter(stand.server.access.values())))
            seen.append(json.dumps([await call(caller), await status_of(opened)]))
            try:
                await opened.pool.upstreams["remote"].request("tools/call", {"name": "whoami", "arguments": {}})
            except UpstreamAuthError as error:
                seen.append("".join(traceback.format_exception(error)))
        stand.server.fails_with = 400
        with pytest.raises(UpstreamAuthError) as caught:
            await logged_in(tmp_path, stand)
        seen.append("".join(traceback.format_exception(caught.value)))
        seen.append(repr(LoginStore(tmp_path / "auth").load("remote", _record(tmp_path))))
    seen += [record.getMessage() + str(record.exc_info) for record in caplog.records]
    seen += _files(tmp_path)
    assert len(stand.server.issued) > 4
    assert [secret for secret in stand.server.issued for text in seen if secret in text] == []


def _files(folder: Path) -> list[str]:
    return [path.read_text(encoding="utf-8", errors="replace") for path in folder.rglob("*") if path.is_file()]


def _record(folder: Path) -> Path:
    return next((folder / "auth").glob("*.login"))
