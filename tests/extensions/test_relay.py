"""Extensions of the protocol: each side is told what the other declares, and their messages pass both ways."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from mcp.shared.exceptions import MCPError

from pml_gateway.config.settings import Settings
from tests.support.raw import HandshakeSession, decoded
from tests.support.scripted_server import ScriptedServer, resource, text_result, tool
from tests.support.serving import Serving, serving
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("gateways")]

X, UI, Y = "org.example/x", "io.modelcontextprotocol/ui", "org.example/y"
SHOWS_APPS: dict[str, Any] = {UI: {"mimeTypes": ["text/html;profile=mcp-app"]}}
FULL = {"tools_exposure": "full_proxy"}
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
NOT_FOUND = -32601
OWN: dict[bool, dict[str, Any]] = {False: {}, True: {"io.modelcontextprotocol/tasks": {}}}
"""The extensions that the gateway declares itself, to servers of either era."""

CLIENTS = pytest.mark.parametrize("client", ["handshake", "2026"])
SERVERS = pytest.mark.parametrize("modern", [False, True], ids=["to handshake", "to 2026"])


class ExtendedClient:
    """A client with capabilities, of either era."""

    def __init__(self, served: Serving, capabilities: Mapping[str, Any], session: HandshakeSession | None) -> None:
        self._served = served
        self._capabilities = dict(capabilities)
        self.session = session

    async def message(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The whole answer to a request."""
        if self.session is None:
            given = dict(params or {})
            meta = {**given.pop("_meta", {}), CAPABILITIES: self._capabilities}
            return await self._served.message(method, {**given, "_meta": meta})
        session = self.session
        return await anyio.to_thread.run_sync(lambda: decoded(session.send(method, params)))

    async def result(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        message = await self.message(method, params)
        assert "result" in message, message
        result: dict[str, Any] = message["result"]
        return result

    async def declared(self) -> dict[str, Any]:
        """The capabilities that it is told of, without tasks, which the gateway has for every client."""
        told = self.session.initialized if self.session is not None else await self.result("server/discover")
        capabilities: dict[str, Any] = told["capabilities"]
        extensions = capabilities.get("extensions", {})
        extensions.pop("io.modelcontextprotocol/tasks", None)
        return capabilities if extensions else {key: capabilities[key] for key in capabilities if key != "extensions"}

    async def names(self) -> list[str]:
        return [each["name"] for each in (await self.result("tools/list"))["tools"]]


@asynccontextmanager
async def client_of(served: Serving, era: str, key: str | None = None, **capabilities: Any) -> Any:
    if era == "2026":
        yield ExtendedClient(served, capabilities, None)
        return
    async with served.handshake(key=key, capabilities=capabilities) as session:
        yield ExtendedClient(served, capabilities, session)


def extended(*tools: dict[str, Any], **options: Any) -> ScriptedServer:
    """A server with two extensions, which says what its client declared."""

    async def handler(ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        given = ctx.session.client_capabilities
        declared = given.model_dump(by_alias=True, exclude_none=True) if given is not None else {}
        return {**text_result(call["name"]), "structuredContent": declared}

    declares = {"extensions": {X: {"of": ["server"]}, Y: {}}, "experimental": {"old": {"on": True}}}
    return ScriptedServer([tool("told"), *tools], handler, declares=declares, **options)


@CLIENTS
@SERVERS
async def test_either_side_is_told_of_the_extensions_of_the_other(tmp_path: Path, client: str, modern: bool) -> None:
    upstreams = {"up": extended(modern=modern), "plain": ScriptedServer([tool("t")], modern=modern)}
    given: dict[str, Any] = {"extensions": {X: {"depth": {"of": 2}}}, "experimental": {"mine": {}}}
    async with serving(tmp_path, upstreams) as served:
        async with client_of(served, client, **given) as one:
            declared = await one.declared()
            told = (await one.result("tools/call", {"name": "told", "arguments": {}}))["structuredContent"]
        async with client_of(served, client) as other:
            told_other = (await other.result("tools/call", {"name": "told", "arguments": {}}))["structuredContent"]
    assert declared["extensions"] == {X: {"of": ["server"]}, Y: {}}
    assert declared["experimental"] == {"old": {"on": True}}
    assert told == {**given, "extensions": {**given["extensions"], **OWN[modern]}}
    assert told_other == ({"extensions": OWN[modern]} if modern else {})


@CLIENTS
@SERVERS
@pytest.mark.parametrize("where", ["server", "all"])
async def test_an_extension_that_is_switched_off_reaches_neither_side(
    tmp_path: Path, client: str, modern: bool, where: str
) -> None:
    deny = {"extensions": {"deny": [X, "old", "mine"]}}
    definition = {"command": "in-memory-up", **(deny if where == "server" else {})}
    settings = Settings.model_validate(
        {"servers": {"up": definition}, **({"upstreams": deny} if where == "all" else {})}
    )
    given: dict[str, Any] = {"extensions": {X: {}, Y: {}}, "experimental": {"mine": {}}}
    up = extended(modern=modern)
    async with (
        serving(tmp_path, {"up": up}, settings) as served,
        client_of(served, client, **given) as one,
    ):
        assert (await one.declared())["extensions"] == {Y: {}}
        assert not (await one.declared()).get("experimental")
        told = (await one.result("tools/call", {"name": "told", "arguments": {}}))["structuredContent"]
    assert told == {"extensions": {Y: {}, **OWN[modern]}}


@CLIENTS
@SERVERS
async def test_tools_for_clients_with_an_extension_exist_for_those_alone(
    tmp_path: Path, client: str, modern: bool
) -> None:
    up = ScriptedServer([tool("plain"), tool("panel", needs=UI), tool("odd", needs=X)], modern=modern)
    async with serving(tmp_path, {"up": up}, gateway=FULL) as served:
        expected: list[tuple[dict[str, Any], set[str]]] = [
            ({}, {"plain"}),
            (SHOWS_APPS, {"plain", "panel"}),
            ({X: {}}, {"plain", "odd"}),
            ({X: {}, **SHOWS_APPS}, {"plain", "panel", "odd"}),
        ]
        for extensions, names in expected:
            async with client_of(served, client, extensions=extensions) as one:
                assert {name.removeprefix("up__") for name in await one.names()} == names
                message = await one.message("tools/call", {"name": "up__panel", "arguments": {}})
                assert ("panel" in names) == (message.get("result", {}).get("isError") is not True)


@CLIENTS
@SERVERS
async def test_a_request_of_an_extension_reaches_the_server_that_knows_it(
    tmp_path: Path, client: str, modern: bool
) -> None:
    async def answer(_ctx: Any, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if params.get("fail"):
            raise MCPError(-31999, "no such thing", {"why": "test"})
        return {"by": method, "of": {"deep": [1, {"er": None}]}, "_meta": {"k": 1}}

    one = ScriptedServer([tool("a")], modern=modern, declares={"extensions": {Y: {}}}, beyond=frozenset({"y/other"}))
    two = ScriptedServer(
        [tool("b")], modern=modern, declares={"extensions": {X: {}}}, beyond=frozenset({"x/run"}), answer=answer
    )
    plain = ScriptedServer([tool("c")], modern=modern, beyond=frozenset({"x/hidden"}))
    async with (
        serving(tmp_path, {"one": one, "two": two, "plain": plain}) as served,
        client_of(served, client, extensions={X: {}}) as caller,
        client_of(served, client) as other,
    ):
        result = await caller.result("x/run", {"size": 3, "_meta": {"org.example/trace": "t"}})
        refused = await caller.message("x/run", {"fail": True})
        unknown = await caller.message("x/unknown", {"size": 3})
        undeclared = await caller.message("x/hidden", {})
        without = await other.message("x/run", {"size": 3})
    assert (result["by"], result["of"], result["_meta"]["k"]) == ("x/run", {"deep": [1, {"er": None}]}, 1)
    assert two.asked[0][1]["size"] == 3
    assert two.asked[0][1]["_meta"]["org.example/trace"] == "t"
    assert refused["error"] == {"code": -31999, "message": "no such thing", "data": {"why": "test"}}
    for each in (unknown, undeclared):
        assert each["error"]["code"] == NOT_FOUND
    # The server declares it; whether the client has to do so is up to the extension.
    assert without["result"]["by"] == "x/run"
    assert [len(each.asked) for each in (one, two, plain)] == [0, 3, 0]


@CLIENTS
async def test_a_request_that_names_a_tool_or_a_resource_is_for_its_server(tmp_path: Path, client: str) -> None:
    async def answer(_ctx: Any, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        return {"got": params.get("name") or params.get("uri")} if method == "x/run" else None

    def server(uri: str) -> ScriptedServer:
        return ScriptedServer(
            [tool("same"), tool("secret")],
            declares={"extensions": {X: {}}},
            beyond=frozenset({"x/run"}),
            answer=answer,
            methods=frozenset({"resources/list", "resources/read"}),
            resources=[resource(uri)],
        )

    upstreams = {"one": server("ui://one/a"), "two": server("ui://two/b")}
    async with (
        serving(tmp_path, upstreams, gateway={"blacklisted_tools": ["two:secret"]}) as served,
        client_of(served, client, extensions={X: {}}) as caller,
    ):
        assert (await caller.result("x/run", {"name": "two__same"}))["got"] == "same"
        assert (await caller.result("x/run", {"uri": "ui://two/b"}))["got"] == "ui://two/b"
        hidden = await caller.message("x/run", {"name": "two__secret"})
        own_name = await caller.result("x/run", {"name": "secret"})
    assert hidden.get("result", {}).get("got") != "secret"
    assert own_name["got"] == "secret"
    reached = {name: [params for method, params in each.asked if method == "x/run"] for name, each in upstreams.items()}
    assert [each.get("name") or each.get("uri") for each in reached["two"]] == ["same", "ui://two/b"]


@SERVERS
async def test_a_notification_of_a_client_reaches_the_only_server_it_can_be_for(tmp_path: Path, modern: bool) -> None:
    notice = frozenset({"notifications/x/moved"})
    one = ScriptedServer([tool("a")], modern=modern, declares={"extensions": {X: {}}}, beyond=notice)
    plain = ScriptedServer([tool("b")], modern=modern, beyond=notice)
    async with (
        serving(tmp_path, {"one": one, "plain": plain}) as served,
        client_of(served, "handshake") as without,
        client_of(served, "handshake", extensions={X: {}}) as own,
    ):
        await own.result("tools/call", {"name": "a", "arguments": {}})
        for each in (without, own):
            await anyio.to_thread.run_sync(each.session.notify, "notifications/x/moved", {"by": 2})
        await until(lambda: bool(one.asked))
    assert [(method, params["by"]) for method, params in one.asked] == [("notifications/x/moved", 2)]
    assert plain.asked == []
