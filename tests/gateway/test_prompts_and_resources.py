"""Prompts, resources and completions pass through the gateway as if it were not there, for those who may see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.shared.exceptions import MCPError

from pml_gateway.exposure.token_count import count_tokens
from tests.support.scripted_server import EVERY_METHOD, ScriptedServer, prompt, resource, template, tool
from tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio

VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]


class Asking:
    """One client of either era."""

    def __init__(self, served: Serving, version: str, **options: Any) -> None:
        self.served, self.version, self.options = served, version, options

    async def message(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """The whole answer, result or error."""
        if self.version == "2026-07-28":
            headers = {"mcp-name": str((params or {})["uri"])} if "uri" in (params or {}) else {}
            return await self.served.message(method, params, headers=headers, **self.options)
        from tests.support.raw import decoded

        async with self.served.handshake(version=self.version, **self.options) as session:
            return decoded(await anyio.to_thread.run_sync(lambda: session.send(method, params)))

    async def result(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """The result of a request that must succeed."""
        message = await self.message(method, params)
        assert "result" in message, message
        result: dict[str, Any] = message["result"]
        return result


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["old upstream", "new upstream"])
def modern(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.slow
async def test_everything_offered_is_listed_and_answers(tmp_path: Path, version: str, modern: bool) -> None:
    upstream = ScriptedServer(
        methods=EVERY_METHOD,
        modern=modern,
        page_size=2,
        prompts=[prompt(f"p{index}", arguments=[{"name": "a", "required": True}]) for index in range(5)],
        resources=[resource("file:///a", size=3, mimeType="text/plain", annotations={"priority": 0.5})],
        templates=[template("file:///{name}")],
        unlisted={"file:///b"},
    )
    async with serving(tmp_path, {"up": upstream}) as served:
        await served.gateway.refresh(30)
        ask = Asking(served, version)
        prompts = (await ask.result("prompts/list"))["prompts"]
        assert [each["name"] for each in prompts] == ["p0", "p1", "p2", "p3", "p4"]
        listed = (await ask.result("resources/list"))["resources"]
        assert listed == [
            {"uri": "file:///a", "name": "a", "size": 3, "mimeType": "text/plain", "annotations": {"priority": 0.5}}
        ]
        templates = await ask.result("resources/templates/list")
        assert templates["resourceTemplates"][0]["uriTemplate"] == "file:///{name}"
        got = await ask.result("prompts/get", {"name": "p3", "arguments": {"a": "1"}})
        assert got["messages"][0]["content"]["text"] == "up p3 [('a', '1')]"
        for uri in ("file:///a", "file:///b"):
            assert (await ask.result("resources/read", {"uri": uri}))["contents"] == [{"uri": uri, "text": f"up {uri}"}]
        ref = {"type": "ref/resource", "uri": "file:///{name}"}
        completed = await ask.result("completion/complete", {"ref": ref, "argument": {"name": "name", "value": ""}})
        assert completed["completion"]["values"] == ["up", "file:///{name}"]
        modern_fields = {"resultType", "ttlMs", "cacheScope"}
        assert modern_fields & templates.keys() == (modern_fields if version == "2026-07-28" else set())


async def test_an_upstreams_errors_reach_the_client_as_they_are(tmp_path: Path, version: str) -> None:
    async def refuse(_ctx: Any, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        if method == "prompts/get":
            raise MCPError(-32602, "a is missing", {"argument": "a"})
        if method == "resources/read":
            raise MCPError(-32002, "gone", {"uri": params["uri"]})
        return None

    upstream = ScriptedServer(methods=EVERY_METHOD, prompts=[prompt("p")], resources=[resource("x://a")], answer=refuse)
    async with serving(tmp_path, {"up": upstream}) as served:
        await served.gateway.refresh(30)
        ask = Asking(served, version)
        missing = (await ask.message("prompts/get", {"name": "p"}))["error"]
        assert missing == {"code": -32602, "message": "a is missing", "data": {"argument": "a"}}
        gone = (await ask.message("resources/read", {"uri": "x://a"}))["error"]
        assert gone == {"code": -32002, "message": "gone", "data": {"uri": "x://a"}}


async def test_names_that_two_servers_use_are_told_apart_and_stay_so(tmp_path: Path) -> None:
    async def link(_ctx: Any, _call: dict[str, Any]) -> dict[str, Any]:
        uris = ("x://same/1", "x://other/2", "https://example.com/page")
        return {"content": [{"type": "resource_link", "name": "n", "uri": uri} for uri in uris]}

    def offering(name: str) -> ScriptedServer:
        return ScriptedServer(
            methods=EVERY_METHOD,
            tools=[tool("t")],
            handler=link,
            id=name,
            prompts=[prompt("review")],
            resources=[resource("x://same/1")],
            templates=[template("x://other/{id}")],
            unlisted={"x://other/2"},
        )

    a, b = offering("a"), offering("b")
    for order in ({"a": a, "b": b}, {"b": b, "a": a}):
        async with serving(tmp_path, order) as served:
            await served.gateway.refresh(30)
            ask = Asking(served, "2026-07-28")
            names = {each["name"] for each in (await ask.result("prompts/list"))["prompts"]}
            assert names == {"review", "b__review"}
            got = await ask.result("prompts/get", {"name": "b__review"})
            assert got["messages"][0]["content"]["text"].startswith("b review")
            completion = {"ref": {"type": "ref/prompt", "name": "b__review"}, "argument": {"name": "a", "value": ""}}
            assert (await ask.result("completion/complete", completion))["completion"]["values"] == ["b", "review"]
            uris = {each["uri"] for each in (await ask.result("resources/list"))["resources"]}
            assert uris == {"x://same/1", "pml://b/x://same/1"}
            templates = (await ask.result("resources/templates/list"))["resourceTemplates"]
            assert {each["uriTemplate"] for each in templates} == {"x://other/{id}", "pml://b/x://other/{id}"}
            linked = await served.call("b__t", path="/full_proxy")
            links = [each["uri"] for each in linked["content"]]
            assert links == ["pml://b/x://same/1", "pml://b/x://other/2", "https://example.com/page"]
            for uri in links[:2]:
                (contents,) = (await ask.result("resources/read", {"uri": uri}))["contents"]
                assert contents == {"uri": uri, "text": f"b {uri.removeprefix('pml://b/')}"}
            (contents,) = (await ask.result("resources/read", {"uri": "x://other/2"}))["contents"]
            assert contents["text"] == "a x://other/2"


async def test_a_hidden_offer_is_found_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "key-of-a-narrow-client-1"
    monkeypatch.setenv("PML_TEST_NARROW", key)
    upstreams = {
        name: ScriptedServer(
            methods=EVERY_METHOD,
            tools=[tool("t")],
            id=name,
            prompts=[prompt(f"{name}-prompt")],
            resources=[resource(f"{name}://shown"), resource(f"{name}://private/x")],
            templates=[template(f"{name}://{{+path}}")],
            unlisted={f"{name}://private/y", "pub://%70rivate/y"},
            instructions=f"Use {name} \x1b[8mwith \u202ecare.\u200b",
        )
        for name in ("pub", "secret")
    }
    narrow = {"key": "${env:PML_TEST_NARROW}", "allow": ["pub:*"], "deny": ["pub:pub://private/*"]}
    async with serving(tmp_path, upstreams, clients={"narrow": narrow}) as served:
        await served.gateway.refresh(30)
        for upstream in upstreams.values():
            upstream.asked.clear()
        for version in ("2025-06-18", "2026-07-28"):
            ask = Asking(served, version, key=key)
            for method in ("prompts/list", "resources/list", "resources/templates/list"):
                told = str(await ask.result(method))
                assert "pub" in told
                assert "secret" not in told
                assert "//private" not in told
            hidden = [
                "secret://shown",
                "pml://secret/secret://shown",
                "pub://private/x",
                "pub://private/y",
                "pub://%70rivate/y",
                "PUB://private/y",
                "pub://a/../private/y",
                "pml://pub/pub://private/y",
            ]
            for uri in hidden:
                for method in ("resources/read", "resources/subscribe"):
                    if method == "resources/subscribe" and version == "2026-07-28":
                        continue
                    refused = (await ask.message(method, {"uri": uri}))["error"]
                    unknown = (await ask.message(method, {"uri": "pub://no-such"}))["error"]
                    assert unknown["message"] == "Resource not found: pub://no-such"
                    assert refused == {**unknown, "message": f"Resource not found: {uri}", "data": {"uri": uri}}
            refused = (await ask.message("prompts/get", {"name": "secret-prompt"}))["error"]
            assert refused == {"code": -32602, "message": "Unknown prompt: secret-prompt"}
            ref = {"type": "ref/resource", "uri": "secret://{+path}"}
            params = {"ref": ref, "argument": {"name": "path", "value": ""}}
            assert "not found" in (await ask.message("completion/complete", params))["error"]["message"]
        discovered = await Asking(served, "2026-07-28", key=key).result("server/discover")
        assert "Use pub with care." in discovered["instructions"]
        assert "secret" not in discovered["instructions"]
        assert upstreams["secret"].asked == []
        assert [params for _, params in upstreams["pub"].asked if "rivate" in str(params.get("uri"))] == []


async def test_only_what_some_server_offers_is_announced(tmp_path: Path) -> None:
    plain = ScriptedServer([tool("t")])
    async with serving(tmp_path / "plain", {"up": plain}) as served:
        await served.gateway.refresh(30)
        discovered = await served.result("server/discover")
        assert not {"prompts", "resources", "completions"} & discovered["capabilities"].keys()
    full = ScriptedServer(methods=EVERY_METHOD, instructions="Be kind. " * 900, prompts=[prompt("p")])
    async with serving(tmp_path / "full", {"up": full}) as served:
        await served.gateway.refresh(30)
        async with served.handshake() as session:
            capabilities = session.initialized["capabilities"]
            assert capabilities["prompts"] == {"listChanged": True}
            assert capabilities["resources"] == {"subscribe": True, "listChanged": True}
            assert capabilities["completions"] == {}
            told = session.initialized["instructions"]
            assert 350 < count_tokens(told) <= 400
            assert told.endswith("Be kind. […]")
    # Before the server is up, the manifest knows.
    full.hang = True
    async with serving(tmp_path / "full", {"up": full}) as served:
        assert (await served.result("server/discover"))["capabilities"]["completions"] == {}
        assert [each["name"] for each in (await served.result("prompts/list"))["prompts"]] == ["p"]


async def test_a_hidden_server_that_never_answered_is_announced_by_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PML_TEST_NARROW", "key-of-a-narrow-client-1")
    upstreams = {"pub": ScriptedServer([tool("t")]), "secret": ScriptedServer([tool("t")], refuse=True)}
    for rules in ({"allow": ["pub:*"]}, {"deny": ["secret:*"]}):
        narrow = {"key": "${env:PML_TEST_NARROW}", **rules}
        async with serving(tmp_path, upstreams, clients={"narrow": narrow}) as served:
            await served.gateway.refresh(30)
            discovered = await served.result("server/discover", key="key-of-a-narrow-client-1")
            assert not {"prompts", "resources", "completions"} & discovered["capabilities"].keys()
    some = {"key": "${env:PML_TEST_NARROW}", "allow": ["pub:*", "secret:a-prompt"]}
    async with serving(tmp_path, upstreams, clients={"narrow": some}) as served:
        discovered = await served.result("server/discover", key="key-of-a-narrow-client-1")
        assert discovered["capabilities"]["prompts"] == {"listChanged": True}


async def test_one_change_lists_that_kind_anew_and_no_other(tmp_path: Path, modern: bool) -> None:
    upstream = ScriptedServer(methods=EVERY_METHOD, modern=modern, prompts=[prompt("p")], resources=[resource("x://a")])
    async with serving(tmp_path, {"up": upstream}) as served:
        await served.gateway.refresh(30)
        tools, resources = upstream.lists, upstream.count("resources/list")
        upstream.prompts.append(prompt("q"))
        for _ in range(3):
            await upstream.announce("prompts")
        with anyio.fail_after(30):
            while len((await served.result("prompts/list"))["prompts"]) < 2:
                await anyio.lowlevel.checkpoint()
        assert (upstream.lists, upstream.count("resources/list")) == (tools, resources)
