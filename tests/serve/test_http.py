"""The gateway over HTTP: what clients get listed, by endpoint, key, intent and mode, and who is let in; both eras."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest

from tests.support.memory import settings_for
from tests.support.meta import LISTED as META
from tests.support.raw import HandshakeSession, post_modern
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import serving

pytestmark = pytest.mark.anyio

INTENT = "read the contents of a file"
KEY_A, KEY_B = "key-of-client-a-0123456789", "key-of-client-b-0123456789"


def upstreams() -> dict[str, ScriptedServer]:
    return {
        "fs": ScriptedServer(
            [
                tool("read_file", "Read the contents of a file from disk.", {"path": {"type": "string"}}),
                tool("write_file", "Write text to a file on disk.", {"path": {"type": "string"}}),
            ]
        ),
        "chat": ScriptedServer([tool("send_message", "Send a chat message to a channel."), tool("list_channels")]),
    }


async def test_each_endpoint_lists_its_own_mode_and_an_unknown_one_is_404(tmp_path: Path) -> None:
    async with serving(tmp_path, upstreams()) as served:
        assert await served.names() == META
        assert await served.names("/meta_only") == META
        assert await served.names("/full_proxy") == sorted(
            ["fs__read_file", "fs__write_file", "chat__send_message", "chat__list_channels"]
        )
        response = await anyio.to_thread.run_sync(lambda: post_modern(f"{served.url}/everything", "tools/list"))
        assert response.status_code == 404


async def test_full_proxy_keeps_schemas_that_model_apis_refuse_and_other_modes_merge_them(tmp_path: Path) -> None:
    either = [{"required": ["phone"]}, {"required": ["email"]}]
    contact = {"phone": {"type": "string"}, "email": {"type": "string"}}
    sound = {"type": "object", "properties": contact, "allOf": [{"anyOf": either}], "if": True, "then": True}
    broken = {"properties": {"phone": 1}, "anyOf": either}
    tools = [{"name": "sound", "inputSchema": sound}, {"name": "broken", "inputSchema": broken}]
    async with serving(tmp_path, {"one": ScriptedServer(tools)}) as served:
        flat = {
            one["name"]: one["inputSchema"] for one in (await served.result("tools/list", {}, "/full_proxy"))["tools"]
        }
        assert flat["one__sound"] == sound
        assert "anyOf" not in flat["one__broken"]
        listed = await served.result("tools/list", {"query": "sound"}, "/hybrid")
    (merged,) = [one["inputSchema"] for one in listed["tools"] if one["name"] == "one__sound"]
    assert merged == {"type": "object", "properties": contact, "if": True, "then": True}


@pytest.mark.parametrize("mode", ["semantic", "hybrid"])
async def test_the_intent_comes_from_the_first_source_that_has_one(tmp_path: Path, mode: str) -> None:
    sections: dict[str, Any] = {"gateway": {"intent": "send a chat message", "tools_exposure": mode}}
    async with serving(tmp_path, upstreams(), **sections) as served:
        read, write = [*META, "fs__read_file"], [*META, "chat__send_message"]

        def only(names: list[str], wanted: str, unwanted: str) -> bool:
            return wanted in names and unwanted not in names

        by_query = await served.names("?query=send+a+chat+message", {"query": INTENT})
        assert only(by_query, "fs__read_file", "chat__send_message"), by_query
        by_meta = await served.names("", {"_meta": {"pml-gateway/query": INTENT}})
        assert only(by_meta, "fs__read_file", "chat__send_message"), by_meta
        by_url = await served.names("?query=read+the+contents+of+a+file")
        assert only(by_url, "fs__read_file", "chat__send_message"), by_url
        configured = await served.names()
        assert only(configured, "chat__send_message", "fs__read_file"), configured
        assert read[:3] == write[:3] == configured[:3]


async def test_a_clients_own_intent_beats_the_gateways(tmp_path: Path) -> None:
    clients = {"a": {"key": "${env:PML_TEST_KEY_A}", "intent": INTENT, "mode": "semantic"}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PML_TEST_KEY_A", KEY_A)
        async with serving(tmp_path, upstreams(), gateway={"intent": "send a chat message"}, clients=clients) as served:
            names = await served.names("/full_proxy", key=KEY_A)
    assert names[: len(META)] == META, "the key's mode wins over the endpoint's"
    assert "fs__read_file" in names
    assert "chat__send_message" not in names


async def test_the_same_selection_gives_the_same_bytes(tmp_path: Path) -> None:
    async with serving(tmp_path, upstreams()) as served:

        def body(query: str) -> bytes:
            return post_modern(f"{served.url}/semantic", "tools/list", {"query": query}).content

        first, again = [await anyio.to_thread.run_sync(body, INTENT) for _ in range(2)]
        other_words = await anyio.to_thread.run_sync(body, "read  the contents of a   file")
        assert first == again == other_words


async def test_lists_forbid_caching_and_are_private_when_they_depend_on_the_client(tmp_path: Path) -> None:
    async with serving(tmp_path, upstreams()) as served:
        plain = await served.result("tools/list")
        by_intent = await served.result("tools/list", {"query": INTENT}, "/semantic")
    assert (plain["ttlMs"], plain["cacheScope"]) == (0, "public")
    assert (by_intent["ttlMs"], by_intent["cacheScope"]) == (0, "private")


async def test_a_handshake_session_keeps_the_mode_it_was_opened_with(tmp_path: Path) -> None:
    async with serving(tmp_path, upstreams()) as served, served.handshake("/full_proxy") as session:
        other_path = await anyio.to_thread.run_sync(lambda: session.result("tools/list", url=f"{served.url}/meta_only"))
        assert "fs__read_file" in [tool["name"] for tool in other_path["tools"]]


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_every_handshake_version_gets_the_fields_it_knows(tmp_path: Path, version: str) -> None:
    rich = tool(
        "rich",
        title="Rich",
        annotations={"readOnlyHint": True},
        outputSchema={"type": "object", "properties": {"x": {"type": "integer"}}},
        icons=[{"src": "https://example.org/i.png"}],
        _meta={"k": 1},
    )
    async with (
        serving(tmp_path, {"one": ScriptedServer([rich])}) as served,
        served.handshake("/full_proxy", version=version) as session,
    ):
        assert session.initialized["protocolVersion"] == version
        [listed] = (await anyio.to_thread.run_sync(lambda: session.result("tools/list")))["tools"]
    fields = {
        "2024-11-05": set(),
        "2025-03-26": {"annotations"},
        "2025-06-18": {"annotations", "title", "outputSchema", "_meta"},
        "2025-11-25": {"annotations", "title", "outputSchema", "_meta", "icons"},
    }
    assert set(listed) == {"name", "description", "inputSchema"} | fields[version]


async def test_two_keys_see_two_catalogs_and_a_hidden_tool_answers_like_an_unknown_one(tmp_path: Path) -> None:
    clients = {
        "a": {"key": "${env:PML_TEST_KEY_A}", "allow": ["fs:*"]},
        "b": {"key": "${env:PML_TEST_KEY_B}", "deny": ["fs:*"], "mode": "full_proxy"},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PML_TEST_KEY_A", KEY_A)
        patch.setenv("PML_TEST_KEY_B", KEY_B)
        async with serving(tmp_path, upstreams(), clients=clients) as served:
            assert await served.names("/full_proxy", key=KEY_A) == ["fs__read_file", "fs__write_file"]
            assert await served.names(key=KEY_B) == ["chat__list_channels", "chat__send_message"]
            refused = await anyio.to_thread.run_sync(lambda: post_modern(served.url, "tools/list"))
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"].startswith("Bearer")
            wrong = await anyio.to_thread.run_sync(lambda: post_modern(served.url, "tools/list", key="x" * 30))
            assert wrong.content == refused.content

            overview = await served.call("search_tools", {"query": "*"}, key=KEY_A)
            row = {"server": "fs", "tools": 2, "about": "read_file, write_file"}
            assert overview["structuredContent"] == {"servers": [row], "total_tools": 2}
            found = await served.call("search_tools", {"query": "send a message to a channel"}, key=KEY_A)
            assert "chat" not in str(found)
            # Names of equal length that resemble no visible tool: only the name may differ.
            for paths in (
                ("chat__send_message", "qqqq__wwww_zzzzzzz"),
                ("chat:send_message", "qqqq:wwww_zzzzzzz"),
                ("send_message", "wwww_zzzzzzz"),
            ):
                hidden, unknown = paths
                for request in (
                    lambda name: {"name": name, "arguments": {}},
                    lambda name: {"name": "call_tool", "arguments": {"name": name}},
                    lambda name: {"name": "tool_schema", "arguments": {"names": [name]}},
                ):
                    answers = [
                        str(await served.message("tools/call", request(name), key=KEY_A)).replace(name, "NAME")
                        for name in (hidden, unknown)
                    ]
                    assert answers[0] == answers[1]


@pytest.mark.parametrize("pattern", ["fs__read_file", "fs:read_file", "*read*"])
async def test_a_blacklisted_tool_is_nowhere_on_any_path(tmp_path: Path, pattern: str) -> None:
    servers = upstreams()
    sections: dict[str, Any] = {
        "gateway": {
            "blacklisted_tools": [pattern],
            "hybrid": {"whitelisted_tools": ["fs:*"], "apply_semantic_filter": False},
        }
    }
    async with serving(tmp_path, servers, **sections) as served:
        for mode in ("meta_only", "semantic", "hybrid", "full_proxy"):
            assert "fs__read_file" not in await served.names(f"/{mode}", {"query": INTENT})
        for spelling in (
            "fs__read_file",
            "fs:read_file",
            "fs/read_file",
            "fs.read_file",
            "mcp__fs__read_file",
            "read_file",
        ):
            for message in (
                {"name": spelling, "arguments": {"path": "x"}},
                {"name": "call_tool", "arguments": {"name": spelling, "arguments": {"path": "x"}}},
                {"name": "call", "arguments": {"operation": spelling, "input": {"path": "x"}}},
                {"name": "tool_schema", "arguments": {"names": [spelling]}},
            ):
                result = await served.result("tools/call", message)
                assert result["structuredContent"]["error"]["code"] == "NOT_FOUND", (spelling, message)
        for query in (INTENT, "fs__read_file", "fs:*", "*file*", "*"):
            assert "read_file" not in str(
                (await served.call("search_tools", {"query": query}))["structuredContent"].get("hits")
            )
        assert servers["fs"].calls == []


async def test_direct_calls_listed_refuses_what_is_not_listed_but_call_tool_still_reaches_it(tmp_path: Path) -> None:
    async with serving(tmp_path, upstreams(), gateway={"direct_calls": "listed"}) as served:
        refused = await served.call("fs__read_file", {"path": "x"})
        assert refused["structuredContent"]["error"]["code"] == "FORBIDDEN"
        assert "call_tool" in refused["structuredContent"]["error"]["hint"]
        reached = await served.call("call_tool", {"name": "fs__read_file", "arguments": {"path": "x"}})
        assert reached["content"][0]["text"].startswith("read_file")
        assert (await served.call("fs__read_file", {"path": "x"}, "/full_proxy"))["content"][0]["text"].startswith(
            "read"
        )


async def test_a_mode_change_needs_no_restart_and_tells_only_clients_whose_list_changed(tmp_path: Path) -> None:
    servers = upstreams()
    async with serving(tmp_path, servers) as served:
        assert await served.names() == META
        changed = settings_for(servers, gateway={"tools_exposure": "full_proxy"})
        await served.gateway.updates.apply_settings(changed)
        assert len(await served.names()) == 4
        assert await served.names("/meta_only") == META
        assert servers["fs"].opened == 1, "changing the mode touches no upstream session"


async def test_a_session_of_one_client_does_not_exist_for_another(tmp_path: Path) -> None:
    clients = {"a": {"key": "${env:PML_TEST_KEY_A}"}, "b": {"key": "${env:PML_TEST_KEY_B}"}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PML_TEST_KEY_A", KEY_A)
        patch.setenv("PML_TEST_KEY_B", KEY_B)
        async with serving(tmp_path, upstreams(), clients=clients) as served, served.handshake(key=KEY_A) as session:

            def with_other_key() -> tuple[int, bytes]:
                session.headers["authorization"] = f"Bearer {KEY_B}"
                foreign = session.send("tools/list")
                known = session.headers["mcp-session-id"]
                session.headers["mcp-session-id"] = "0" * 32
                unknown = session.send("tools/list")
                session.headers |= {"mcp-session-id": known, "authorization": f"Bearer {KEY_A}"}
                assert foreign.content == unknown.content
                return foreign.status_code, foreign.content

            status, _ = await anyio.to_thread.run_sync(with_other_key)
            assert status == 404
            assert isinstance(session, HandshakeSession)


async def test_dns_rebinding_is_refused_and_bodies_are_limited(tmp_path: Path) -> None:
    async with serving(tmp_path, upstreams(), http={"max_body_bytes": 2000}) as served:

        def status(headers: dict[str, str], padding: int = 0) -> int:
            params = {"cursor": "x" * padding} if padding else {}
            return post_modern(served.url, "tools/list", params, headers=headers).status_code

        assert await anyio.to_thread.run_sync(status, {}) == 200
        assert await anyio.to_thread.run_sync(status, {"host": "evil.example"}) == 421
        assert await anyio.to_thread.run_sync(status, {"origin": "https://evil.example"}) == 403
        assert await anyio.to_thread.run_sync(status, {"host": "localhost:evil.example"}) == 421
        assert await anyio.to_thread.run_sync(status, {"origin": "http://localhost:1.evil.example"}) == 403
        assert await anyio.to_thread.run_sync(status, {"origin": "null"}) == 403
        assert await anyio.to_thread.run_sync(status, {}, 5000) == 413


async def test_a_request_has_one_host_header(tmp_path: Path) -> None:
    async with serving(tmp_path, upstreams()) as served:
        parts = urlsplit(served.url)

        async def answered(*hosts: str) -> bytes:
            assert parts.hostname
            assert parts.port
            async with await anyio.connect_tcp(parts.hostname, parts.port) as stream:
                lines = [*(f"host: {host}" for host in hosts), "content-length: 0", "connection: close", "", ""]
                await stream.send("\r\n".join(["POST /mcp HTTP/1.1", *lines]).encode())
                with anyio.fail_after(30):
                    return (await stream.receive()).split(b" ")[1]

        assert await answered("localhost") != b"421"
        assert await answered("localhost", "localhost") == b"421"
        assert await answered("localhost", "evil.example") == b"421"
        assert await answered("evil.example", "localhost") == b"421"


async def test_a_removed_key_ends_its_open_streams(tmp_path: Path) -> None:
    from httpx2 import AsyncClient
    from mcp.client.client import Client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.client.subscriptions import SubscriptionLost

    key = "key-of-client-a-0123456789"
    upstream = ScriptedServer([tool("t")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PML_TEST_KEY_A", key)
        patch.setenv("PML_TEST_KEY_B", key[::-1])
        both = {"a": {"key": "${env:PML_TEST_KEY_A}"}, "b": {"key": "${env:PML_TEST_KEY_B}"}}
        async with (
            serving(tmp_path, {"up": upstream}, clients=both) as served,
            AsyncClient(headers={"Authorization": f"Bearer {key}"}) as http,
            Client(streamable_http_client(served.url, http_client=http)) as client,
        ):
            with anyio.fail_after(30):
                async with client.listen(tools_list_changed=True) as subscription:
                    only_b = settings_for({"up": upstream}, clients={"b": both["b"]})
                    await served.gateway.updates.apply_settings(only_b)
                    with pytest.raises((SubscriptionLost, StopAsyncIteration)):
                        await subscription.__anext__()
