"""A client that can be asked something takes sessions of its own, and is told there of the resources it follows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types
import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError

from pml_gateway.mcp.sdk import connection_of
from tests.gateway.test_resource_subscriptions import subscribe, unsubscribe
from tests.support.asking import Person
from tests.support.scripted_server import EVERY_METHOD, ScriptedServer, resource, text_result, tool
from tests.support.serving import Serving, serving
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:The logging capability is deprecated")]


class TellingUpstream(ScriptedServer):
    """It tells the session that calls `mine` of what that session follows, and with `all` every session of its own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            tools=[tool("mine"), tool("all")],
            methods=EVERY_METHOD,
            resources=[resource("x://a"), resource("x://b")],
            **options,
        )
        self.followed: dict[Any, set[str]] = {}
        self.answer, self.handler = self.note, self.tell

    async def note(self, ctx: Any, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        own = self.followed.setdefault(connection_of(ctx), set())
        if method == "resources/subscribe" and params["uri"] not in self.refused:
            own.add(params["uri"])
        if method == "resources/unsubscribe":
            own.discard(params["uri"])
        if method == "resources/subscribe" and params["uri"] in self.refused:
            raise MCPError(-32050, "not today")
        return None

    async def tell(self, ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        mine = connection_of(ctx)
        for connection, uris in list(self.followed.items()):
            for uri in sorted(uris) if call["name"] == "all" or connection is mine else ():
                await connection.notify("notifications/resources/updated", {"uri": uri})
        return text_result("told")


@asynccontextmanager
async def following(served: Serving, name: str, **options: Any) -> AsyncIterator[tuple[Client, list[str]]]:
    """A client that can be asked something, and what it was told."""
    told: list[str] = []

    async def note(message: Any) -> None:
        if isinstance(message, mcp_types.ResourceUpdatedNotification):
            told.append(str(message.params.uri))

    async with Person(name).client(served.url, modern=False, message_handler=note, **options) as client:
        # The stream of notices is opened beside the session, which its first use waits for.
        await client.list_prompts()
        yield client, told


async def test_what_a_server_tells_the_session_of_a_call_reaches_the_client_whose_call_it_is(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, {"up": TellingUpstream()}) as served,
        following(served, "ada") as (ada, told_ada),
        following(served, "bob") as (bob, told_bob),
    ):
        await subscribe(ada, "x://a")
        await subscribe(bob, "x://a")
        await ada.call_tool("up__mine", {})
        await until(lambda: told_ada == ["x://a"])
        await bob.call_tool("up__mine", {})
        await until(lambda: told_bob == ["x://a"])
        assert told_ada == ["x://a"]


async def test_a_change_that_every_session_is_told_of_is_told_once(tmp_path: Path) -> None:
    up = TellingUpstream()
    async with serving(tmp_path, {"up": up}) as served, following(served, "ada") as (ada, told):
        await subscribe(ada, "x://a")
        # The shared session, and its own.
        await until(lambda: sum("x://a" in uris for uris in up.followed.values()) == 2)
        for count in (1, 2):
            await ada.call_tool("up__all", {})
            await until(lambda count=count: len(told) >= count)
        await unsubscribe(ada, "x://a")
        await subscribe(ada, "x://b")
        await until(lambda: sorted(map(sorted, filter(None, up.followed.values()))) == [["x://b"]] * 2)
        await ada.call_tool("up__all", {})
        await until(lambda: "x://b" in told)
        assert told == ["x://a", "x://a", "x://b"]


async def test_a_session_that_a_call_opens_later_follows_as_well(tmp_path: Path) -> None:
    up = TellingUpstream()
    async with serving(tmp_path, {"up": up}) as served, following(served, "ada") as (ada, told):
        sessions: Any = served.gateway.pool.upstreams["up"].sessions.own
        await subscribe(ada, "x://a")
        next(iter(sessions)).closing.set()
        await until(lambda: len(sessions) == 0)
        await ada.call_tool("up__mine", {})
        await until(lambda: told == ["x://a"])


async def test_a_server_that_refuses_a_client_in_its_own_session_is_quoted(tmp_path: Path) -> None:
    up = TellingUpstream()
    up.refused = {"x://b"}
    async with serving(tmp_path, {"up": up}) as served, following(served, "ada") as (ada, told):
        with pytest.raises(MCPError, match="not today"):
            await subscribe(ada, "x://b")
        await subscribe(ada, "x://a")
        await ada.call_tool("up__mine", {})
        await until(lambda: told == ["x://a"])


async def test_a_dead_session_of_a_client_keeps_its_log_level_from_no_other_server(tmp_path: Path) -> None:
    first, second = TellingUpstream(), TellingUpstream()
    async with serving(tmp_path, {"a": first, "b": second}) as served, following(served, "ada") as (ada, _):
        for name in ("a__mine", "b__mine"):
            await ada.call_tool(name, {})
        await anyio.lowlevel.checkpoint()
        for scope in first.killers:
            scope.cancel()
        await ada.set_logging_level("error")
        assert (await ada.call_tool("b__mine", {})).content[0].text == "told"  # type: ignore[union-attr]
