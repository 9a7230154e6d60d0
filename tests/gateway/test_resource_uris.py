"""Through a gateway: denied resources are reached by no spelling, and answers are in the client's words."""

from __future__ import annotations

import logging
from pathlib import Path
from random import Random
from typing import Any

import anyio
import anyio.to_thread
import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError

from tests.gateway.test_resource_subscriptions import active, session, subscribe, unsubscribe
from tests.support.raw import HandshakeSession, decoded
from tests.support.scripted_server import EVERY_METHOD, ScriptedServer, resource, template, tool
from tests.support.serving import serving
from tests.support.uris import file_of, path_after_decoding, path_in_python, variation
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

LIMIT = 30
READS = 300
SECRET = "/srv/private/x"


def careless(*uris: str, templates: tuple[str, ...] = ("file:///{+path}", "res://{name}", "{+all}")) -> ScriptedServer:
    """A server that reads URIs in every careless way, and has one secret among its files."""

    async def read(_ctx: Any, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        if method != "resources/read":
            return None
        uri = params["uri"]
        paths = [path_in_python(uri), path_after_decoding(uri)]
        is_secret = any(path is not None and file_of(path) == SECRET for path in paths)
        text = "secret" if is_secret else f"read {uri}"
        return {"contents": [{"uri": uri, "text": text}], "ttlMs": 0, "cacheScope": "private"}

    return ScriptedServer(
        methods=EVERY_METHOD,
        tools=[tool("t")],
        resources=[resource(uri) for uri in uris],
        templates=[template(each) for each in templates],
        answer=read,
    )


async def ask(raw: HandshakeSession, method: str, uri: str) -> dict[str, Any]:
    return await anyio.to_thread.run_sync(lambda: decoded(raw.send(method, {"uri": uri})))


@pytest.mark.parametrize("rule", ["fs:file:///srv/private/*", "file://localhost/srv/./%70rivate/x"])
async def test_a_careless_server_is_never_asked_for_what_is_denied(tmp_path: Path, rule: str) -> None:
    random = Random(rule)
    uris = [f"file://{SECRET}", *(variation(f"file://{SECRET}", random, changes=4) for _ in range(READS))]
    upstream = careless("file:///srv/pub/x")
    async with serving(tmp_path, {"fs": upstream}, gateway={"blacklisted_tools": [rule]}) as served:
        await served.gateway.refresh(LIMIT)
        async with served.handshake() as raw:
            for uri in uris:
                if "\ud800" in uri:
                    continue
                answer = await ask(raw, "resources/read", uri)
                assert "error" in answer or answer["result"]["contents"][0]["text"] != "secret", uri
            assert "result" in await ask(raw, "resources/read", "file:///srv/pub/x")
    assert any(method == "resources/read" for method, _ in upstream.asked)


async def test_a_denied_resource_is_reached_by_no_spelling_of_another_scheme(tmp_path: Path) -> None:
    upstream = careless("res://b", "res://c")
    async with serving(tmp_path, {"fs": upstream}, gateway={"blacklisted_tools": ["fs:res://b"]}) as served:
        await served.gateway.refresh(LIMIT)
        async with served.handshake() as raw:
            for uri in ("res://b", "res://b#x", "res://b?", "res://b/", "RES://B", "res://%62", "pml://fs/res://b#x"):
                for method in ("resources/read", "resources/subscribe"):
                    refused = (await ask(raw, method, uri))["error"]
                    assert refused["message"] == f"Resource not found: {uri}"
            assert (await ask(raw, "resources/read", "res://c#x"))["result"]["contents"][0]["uri"] == "res://c#x"
    assert [params["uri"] for method, params in upstream.asked if method == "resources/read"] == ["res://c"]


@pytest.mark.field("A3")
async def test_a_denied_page_is_read_subscribed_to_and_completed_in_no_spelling(tmp_path: Path) -> None:
    upstream = careless("https://wiki.corp/secret/x", templates=("https://wiki.corp/{+path}",))
    denied = {"blacklisted_tools": ["fs:https://wiki.corp/secret/*"]}
    async with serving(tmp_path, {"fs": upstream}, gateway=denied) as served:
        await served.gateway.refresh(LIMIT)
        async with served.handshake() as raw:
            for uri in (
                "https://wiki.corp/secret/x",
                "https:wiki.corp/a/%2e%2e/secret/x",
                "https:\\\\wi\u00adki\u3002corp:0443\\secret\\x",
            ):
                for method in ("resources/read", "resources/subscribe"):
                    assert (await ask(raw, method, uri))["error"]["message"] == f"Resource not found: {uri}"
                params = {"ref": {"type": "ref/resource", "uri": uri}, "argument": {"name": "path", "value": "a"}}
                answer = await anyio.to_thread.run_sync(raw.send, "completion/complete", params)
                assert "error" in decoded(answer)
            asked = "HTTPS:/wiki.corp:443/secret/../a#b"
            assert (await ask(raw, "resources/read", asked))["result"]["contents"][0]["uri"] == asked
    forwarded = [params for method, params in upstream.asked if method.startswith(("resources/", "completion/"))]
    assert [params["uri"] for params in forwarded if "uri" in params] == ["https://wiki.corp/a"]


async def test_contents_have_the_uri_that_was_asked_for(tmp_path: Path) -> None:
    upstream = careless("FILE://localhost/listed", "note://a#1", "note://a#2")
    other = careless("other://x", templates=())
    for upstreams in ({"fs": upstream}, {"fs": upstream, "other": other}):
        async with serving(tmp_path, upstreams) as served:
            await served.gateway.refresh(LIMIT)
            async with served.handshake() as raw:
                for uri, forwarded in (
                    ("file:/listed", "FILE://localhost/listed"),
                    ("FILE://localhost/listed", "FILE://localhost/listed"),
                    ("file://h/a/../%62?", "file:///b"),
                    ("file:///a\tb", "file:///ab"),
                    ("pml://fs/file:/b", "file:///b"),
                    ("note://a#2", "note://a#2"),
                    ("note://a#1", "note://a#1"),
                    ("res://World#x", "res://World"),
                ):
                    contents = (await ask(raw, "resources/read", uri))["result"]["contents"]
                    assert contents == [{"uri": uri, "text": f"read {forwarded}"}]


async def test_control_characters_are_refused_by_name(tmp_path: Path) -> None:
    upstream = careless("res://b")
    async with serving(tmp_path, {"fs": upstream}) as served:
        await served.gateway.refresh(LIMIT)
        async with served.handshake() as raw:
            for uri, character in (("res://a\tb", "U+0009"), ("file:///a%00", "U+0000"), ("x:\x9b", "U+009B")):
                for method in ("resources/read", "resources/subscribe"):
                    refused = (await ask(raw, method, uri))["error"]
                    assert refused["code"] == -32602
                    assert f"contains {character}, a control character" in refused["message"]
    assert "resources/read" not in [method for method, _ in upstream.asked]


@pytest.mark.parametrize("modern", [False, True])
async def test_updates_have_the_uri_that_was_subscribed_to(tmp_path: Path, modern: bool) -> None:
    upstream = ScriptedServer(
        methods=EVERY_METHOD,
        modern=modern,
        resources=[resource("FILE:///a"), resource("note://a#1"), resource("note://a#2")],
        templates=[template("file:///{path}")],
        unlisted={"file:///b"},
    )
    async with serving(tmp_path, {"fs": upstream}) as served:
        await served.gateway.refresh(LIMIT)
        async with session(served) as (client, told), Client(served.url) as second:
            await subscribe(client, "file://localhost/a")
            await subscribe(client, "file:/b")
            await subscribe(client, "note://a#2")
            await until(lambda: active(upstream) == ["FILE:///a", "file:///b", "note://a#2"])
            async with second.listen(resource_subscriptions=["file:/a"]) as stream:
                for uri in ("FILE:///a", "file:///b", "note://a#1", "note://a#2"):
                    await upstream.announce_update(uri)
                await until(lambda: sorted(told) == ["file://localhost/a", "file:/b", "note://a#2"])
                with anyio.fail_after(LIMIT):
                    assert getattr(await stream.__anext__(), "uri", None) == "file:/a"
            await unsubscribe(client, "file:/b")
            await until(lambda: active(upstream) == ["FILE:///a", "note://a#2"])


async def test_a_completion_of_a_resource_finds_it_however_it_is_written(tmp_path: Path) -> None:
    upstream = ScriptedServer(methods=EVERY_METHOD, resources=[resource("FILE:///a"), resource("file:///secret")])
    denied = {"blacklisted_tools": ["file:///secret"]}
    async with serving(tmp_path, {"fs": upstream}, gateway=denied) as served:
        await served.gateway.refresh(LIMIT)
        async with Client(served.url) as client:

            async def complete(uri: str) -> list[str]:
                import mcp_types

                ref = mcp_types.ResourceTemplateReference(uri=uri)
                return (await client.complete(ref, {"name": "path", "value": ""})).completion.values

            assert await complete("file://localhost/a") == ["up", "FILE:///a"]
            for uri in ("file:/secret", "file:///other"):
                with pytest.raises(MCPError, match="Resource not found"):
                    await complete(uri)


async def test_a_server_does_not_answer_for_what_lies_in_the_template_of_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def listing(name: str, **offers: Any) -> ScriptedServer:
        return ScriptedServer(methods=EVERY_METHOD, id=name, unlisted={"notes:///diary"}, **offers)

    upstreams = {
        "notes": listing("notes", templates=[template("notes:///{path}")]),
        "evil": listing("evil", resources=[resource("notes:///diary")], templates=[template("notes:///d{rest}")]),
    }
    with caplog.at_level(logging.WARNING):
        async with serving(tmp_path, upstreams) as served:
            await served.gateway.refresh(LIMIT)
            async with served.handshake() as raw:
                for uri, text in (
                    ("notes:///diary", "notes notes:///diary"),
                    ("NOTES:///%64iary", "notes notes:///diary"),
                    ("pml://evil/notes:///diary", "evil notes:///diary"),
                ):
                    contents = (await ask(raw, "resources/read", uri))["result"]["contents"]
                    assert contents == [{"uri": uri, "text": text}]
                listed = await anyio.to_thread.run_sync(lambda: decoded(raw.send("resources/list")))
                assert [each["uri"] for each in listed["result"]["resources"]] == ["pml://evil/notes:///diary"]
    warned = [record.getMessage() for record in caplog.records if "of server notes covers" in record.getMessage()]
    assert len(warned) == 1
    assert "server evil lists 'notes:///" in warned[0]
