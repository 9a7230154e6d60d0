"""Clients are told of the resources they follow and of the lists they see, once, and of nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import mcp_types
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from pml_gateway.gateway import resource_subscriptions
from pml_gateway.gateway.request import RequestScope
from pml_gateway.gateway.resource_subscriptions import ResourceFollowers
from pml_gateway.mcp.listing import ListKind
from pml_gateway.policy.principal import anonymous_at
from pml_gateway.serve import list_changes
from pml_gateway.serve.list_changes import Subscribers
from tests.support.memory import settings_for
from tests.support.principals import principal
from tests.support.raw import decoded
from tests.support.scripted_server import EVERY_METHOD, ScriptedServer, prompt, resource, tool
from tests.support.serving import Serving, serving
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

LIMIT = 30
VERSION = "2025-11-25"


@pytest.fixture(params=[False, True], ids=["old upstream", "new upstream"])
def modern(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@asynccontextmanager
async def session(served: Serving, key: str | None = None) -> AsyncIterator[tuple[Client, list[str]]]:
    """A handshake client, and what it was told: the URI of an update, or the method of another notice."""
    told: list[str] = []

    async def on_message(message: object) -> None:
        if isinstance(message, mcp_types.ResourceUpdatedNotification):
            told.append(str(message.params.uri))
        elif not isinstance(message, Exception):
            told.append(str(getattr(message, "method", message)))

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(
            streamable_http_client(served.url, http_client=http), mode="legacy", message_handler=on_message
        ) as client,
    ):
        # The stream of notices is opened beside the session, which its first use waits for.
        await client.list_prompts()
        yield client, told


async def subscribe(client: Client, uri: str) -> None:
    request = mcp_types.SubscribeRequest(params=mcp_types.SubscribeRequestParams(uri=uri))
    await client.session.send_request(request, mcp_types.EmptyResult)


async def unsubscribe(client: Client, uri: str) -> None:
    request = mcp_types.UnsubscribeRequest(params=mcp_types.UnsubscribeRequestParams(uri=uri))
    await client.session.send_request(request, mcp_types.EmptyResult)


def active(upstream: ScriptedServer) -> list[str]:
    """What the upstream is asked to tell of."""
    if not upstream.modern:
        return sorted(upstream.subscribed)
    return sorted(uri for uris in upstream.streams for uri in uris)


async def test_two_clients_share_one_subscription_that_ends_with_the_last(tmp_path: Path, modern: bool) -> None:
    upstream = ScriptedServer(methods=EVERY_METHOD, modern=modern, resources=[resource("x://a"), resource("x://b")])
    async with serving(tmp_path, {"up": upstream}) as served:
        await served.gateway.refresh(LIMIT)
        async with session(served) as (first, told_first), Client(served.url) as second:
            await subscribe(first, "x://a")
            await until(lambda: active(upstream) == ["x://a"])
            async with second.listen(resource_subscriptions=["x://a"]) as stream:
                await upstream.announce_update("x://a")
                await upstream.announce_update("x://b")
                with anyio.fail_after(LIMIT):
                    assert getattr(await stream.__anext__(), "uri", None) == "x://a"
                await until(lambda: told_first == ["x://a"])
                assert active(upstream) == ["x://a"]
                await unsubscribe(first, "x://a")
                await upstream.announce_update("x://a")
                with anyio.fail_after(LIMIT):
                    await stream.__anext__()
                assert active(upstream) == ["x://a"]
            await until(lambda: active(upstream) == [])
            assert told_first == ["x://a"]


async def test_a_lost_connection_is_subscribed_anew_and_what_may_have_been_missed_is_told(
    tmp_path: Path, modern: bool
) -> None:
    upstream = ScriptedServer(methods=EVERY_METHOD, modern=modern, resources=[resource("x://a")])
    async with serving(tmp_path, {"up": upstream}) as served:
        await served.gateway.refresh(LIMIT)
        async with session(served) as (client, told):
            await subscribe(client, "x://a")
            upstream.subscribed.clear()
            upstream.sessions.clear()
            upstream.kill()
            await until(lambda: upstream.opened >= 2 and told == ["x://a"])
            await upstream.announce_update("x://a")
            await until(lambda: told == ["x://a", "x://a"])


async def test_an_upstream_that_refuses_a_subscription_is_quoted(tmp_path: Path) -> None:
    upstream = ScriptedServer(methods=EVERY_METHOD, resources=[resource("x://a")])

    async def refuse(_ctx: Any, method: str, _params: dict[str, Any]) -> dict[str, Any] | None:
        if method == "resources/subscribe":
            raise MCPError(-32050, "not today", {"why": "holiday"})
        return None

    upstream.answer = refuse
    async with serving(tmp_path, {"up": upstream}) as served:
        await served.gateway.refresh(LIMIT)
        async with served.handshake() as raw:
            sent = await anyio.to_thread.run_sync(lambda: decoded(raw.send("resources/subscribe", {"uri": "x://a"})))
            assert sent["error"] == {"code": -32050, "message": "not today", "data": {"why": "holiday"}}


async def test_a_client_is_told_once_and_only_of_lists_it_sees_change(
    tmp_path: Path, modern: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"wide": "key-of-the-wide-client", "narrow": "key-of-the-narrow-client"}
    for name, key in keys.items():
        monkeypatch.setenv(f"PML_TEST_{name.upper()}", key)
    upstreams = {
        "a": ScriptedServer(
            methods=EVERY_METHOD, modern=modern, tools=[tool("t")], prompts=[prompt("p")], resources=[resource("x://a")]
        ),
        "b": ScriptedServer(methods=EVERY_METHOD, modern=modern, tools=[tool("t")], prompts=[prompt("q")]),
    }
    clients = {
        "wide": {"key": "${env:PML_TEST_WIDE}"},
        "narrow": {"key": "${env:PML_TEST_NARROW}", "allow": ["a:*"]},
    }
    async with serving(tmp_path, upstreams, clients=clients) as served:
        await served.gateway.refresh(LIMIT)
        async with (
            session(served, keys["wide"]) as (_, wide),
            session(served, keys["narrow"]) as (_, narrow),
        ):
            upstreams["b"].prompts.append(prompt("new"))
            for _ in range(3):
                await upstreams["b"].announce("prompts")
            await until(lambda: bool(wide))
            upstreams["a"].resources.append(resource("x://new"))
            await upstreams["a"].announce("resources")
            await until(lambda: bool(narrow) and len(wide) == 2)
            assert wide == ["notifications/prompts/list_changed", "notifications/resources/list_changed"]
            assert narrow == ["notifications/resources/list_changed"]


async def test_a_client_that_may_no_longer_see_a_resource_is_told_of_it_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "key-of-a-client-that-loses"
    monkeypatch.setenv("PML_TEST_LOSING", key)
    upstream = ScriptedServer(methods=EVERY_METHOD, resources=[resource("x://a"), resource("x://b")])
    before = {"one": {"key": "${env:PML_TEST_LOSING}"}}
    after = {"one": {"key": "${env:PML_TEST_LOSING}", "deny": ["up:x://a"]}}
    async with serving(tmp_path, {"up": upstream}, clients=before) as served:
        await served.gateway.refresh(LIMIT)
        async with session(served, key) as (client, told):
            await subscribe(client, "x://a")
            await subscribe(client, "x://b")
            await served.gateway.updates.apply_settings(settings_for({"up": upstream}, clients=after))
            await until(lambda: active(upstream) == ["x://b"])
            # The stream of notices was ended with the rights of before; the client opens it again in its own time.
            with anyio.fail_after(LIMIT):
                while "x://b" not in told:
                    await upstream.announce_update("x://a")
                    await upstream.announce_update("x://b")
            assert "x://a" not in told


async def test_a_resource_that_a_new_server_refuses_ends_no_other_subscription(tmp_path: Path) -> None:
    upstream = ScriptedServer(methods=EVERY_METHOD, modern=True, resources=[resource("x://a"), resource("x://b")])
    upstream.refused = {"x://bad"}
    async with serving(tmp_path, {"up": upstream}) as served:
        await served.gateway.refresh(LIMIT)
        async with session(served) as (client, told), session(served) as (other, told_other):
            await subscribe(client, "x://a")
            with pytest.raises(MCPError, match="no such resource"):
                await subscribe(other, "x://bad")
            await until(lambda: active(upstream) == ["x://a"])
            await upstream.announce_update("x://a")
            await until(lambda: told == ["x://a"])
            await subscribe(other, "x://b")
            await until(lambda: active(upstream) == ["x://a", "x://b"])
            await upstream.announce_update("x://b")
            await until(lambda: told_other == ["x://b"])
            assert told == ["x://a"]


async def test_a_client_that_takes_no_notices_keeps_no_other_waiting(tmp_path: Path) -> None:
    upstream = ScriptedServer(methods=EVERY_METHOD, prompts=[prompt("p")])
    told: list[str] = []

    async def never(_kind: ListKind) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            told.append("given up")

    async def note(kind: ListKind) -> None:
        told.append(kind)

    async with serving(tmp_path, {"up": upstream}) as served, anyio.create_task_group() as tasks:
        await served.gateway.refresh(LIMIT)
        subscribers = Subscribers(served.gateway, ResourceFollowers(served.gateway))
        for key, notify in (("stuck", never), ("other", note)):
            await subscribers.add(key, RequestScope(), VERSION, notify)
        tasks.start_soon(subscribers.run)
        upstream.prompts.append(prompt("new"))
        await upstream.announce("prompts")
        await until(lambda: bool(told))
        tasks.cancel_scope.cancel()
    assert told[0] == "prompts"


async def test_one_client_that_follows_too_much_costs_no_other_its_notices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource_subscriptions, "MAX_FOLLOWERS", 6)
    upstream = ScriptedServer(methods=EVERY_METHOD, resources=[resource("res://one")])
    told: list[str] = []

    async def note(uri: str) -> None:
        told.append(uri)

    async def never(_uri: str) -> None:
        return

    async with serving(tmp_path, {"up": upstream}) as served, anyio.create_task_group() as tasks:
        followers = ResourceFollowers(served.gateway)
        tasks.start_soon(followers.run)
        followers.follow(RequestScope(client=anonymous_at("b")), "res://one", note)
        flood = [
            followers.follow(RequestScope(client=anonymous_at("a")), f"res://{number}", never) for number in range(20)
        ]
        assert [each.is_given_up for each in flood] == [True] * 15 + [False] * 5
        await until(lambda: upstream.subscribed == ["res://one"])
        await upstream.announce_update("res://one")
        await until(lambda: told)
        tasks.cancel_scope.cancel()
    assert told == ["res://one"]


async def test_one_client_with_too_many_streams_costs_no_other_its_notices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_changes, "MAX_SUBSCRIBERS", 4)
    ended: list[str] = []

    async def never(_kind: ListKind) -> None:
        return

    async with serving(tmp_path, {"up": ScriptedServer([tool("t")])}) as served:
        subscribers = Subscribers(served.gateway, ResourceFollowers(served.gateway))
        for key, client in (("b1", "b"), ("a1", "a"), ("a2", "a"), ("a3", "a"), ("a4", "a"), ("b2", "b")):
            scope = RequestScope(client=principal(f"client:{client}"))
            await subscribers.add(key, scope, VERSION, never, partial(ended.append, key))
    assert ended == ["a1", "a2"]
