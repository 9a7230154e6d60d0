"""Namespaces as clients use them: what is listed, where calls end up, what is refused before anything is sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from mcp.client.client import Client

from tests.support.memory import settings_for
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio

TEXT = {"type": "string"}
BESIDE = ["search_tools", "call_batch", "execute_workflow", "read_result"]


def files(**extra: Any) -> ScriptedServer:
    read = {
        "type": "object",
        "properties": {"file_path": TEXT, "limit": {"type": "integer", "minimum": 1}, "action": TEXT},
        "required": ["file_path"],
        **extra,
    }
    return ScriptedServer(
        [
            {"name": "read_file", "description": "Read a file.", "inputSchema": read},
            tool("delete_file", properties={"path": TEXT}),
            tool("stat", properties={"path": TEXT}, annotations={"readOnlyHint": True}),
        ]
    )


def notes() -> ScriptedServer:
    return ScriptedServer([tool("add", properties={"text": TEXT}), tool("find", properties={"query": TEXT})])


def namespaced(upstreams: Mapping[str, ScriptedServer], /, **gateway: Any) -> Any:
    return settings_for(upstreams, gateway={"style": "namespaces", **gateway})


def error_of(result: dict[str, Any]) -> dict[str, Any]:
    assert result["isError"] is True
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
    found: dict[str, Any] = result["structuredContent"]["error"]
    return found


@pytest.mark.parametrize("path", ["", "/meta_only", "/hybrid"])
async def test_the_search_and_one_tool_per_upstream_are_listed_in_both_eras(tmp_path: Path, path: str) -> None:
    upstreams = {"notes": notes(), "fs": files()}
    async with serving(tmp_path, upstreams, namespaced(upstreams)) as served:
        modern = (await served.result("tools/list", path=path))["tools"]
        async with served.handshake(path) as session:
            old = (await anyio.to_thread.run_sync(lambda: session.result("tools/list")))["tools"]
    assert [one["name"] for one in modern] == [*BESIDE, "fs", "notes"]
    assert modern == old
    assert all(one["inputSchema"]["type"] == "object" for one in modern)


async def test_semantic_and_full_proxy_list_what_they_always_do(tmp_path: Path) -> None:
    upstreams = {"notes": notes()}
    async with serving(tmp_path, upstreams, namespaced(upstreams)) as served:
        assert await served.names("/full_proxy") == ["notes__add", "notes__find"]
        assert "notes" not in await served.names("/semantic")
        assert not (await served.call("notes", {"action": "add", "text": "x"}, "/full_proxy")).get("isError")


async def test_hybrid_lists_its_tools_beside_the_namespaces_and_caps_count_those_only(tmp_path: Path) -> None:
    upstreams = {"notes": notes(), "fs": files()}
    settings = namespaced(
        upstreams,
        tools_exposure="hybrid",
        hybrid={"whitelisted_tools": ["notes:add"], "apply_semantic_filter": False, "max_underlying_tools": 2},
    )
    async with serving(tmp_path, upstreams, settings) as served:
        assert await served.names() == [*BESIDE, "fs", "notes", "notes__add", "notes__find"]
    hidden = namespaced(upstreams, tools_exposure="hybrid", hybrid={"expose_meta_tools": False})
    async with serving(tmp_path, upstreams, hidden) as served:
        assert await served.names() == []


async def test_the_originals_are_listed_as_legacy_on_request(tmp_path: Path) -> None:
    upstreams = {"notes": notes()}
    settings = namespaced(
        upstreams, legacy_tools=True, tools_exposure="hybrid", hybrid={"whitelisted_tools": ["notes:find"]}
    )
    async with serving(tmp_path, upstreams, settings) as served:
        listed = (await served.result("tools/list"))["tools"]
    assert [one["name"] for one in listed] == [*BESIDE, "notes", "notes__add", "notes__find"]
    assert listed[-2]["description"] == "[Legacy — prefer notes] The add tool."
    assert listed[-1]["description"] == "The find tool."


SCRIPT: list[tuple[str, str, dict[str, Any]]] = [
    ("fs", "read_file", {"file_path": "a.txt", "limit": 3}),
    ("fs", "read_file", {"file_path": "ü b"}),
    ("notes", "add", {"text": "remember"}),
    ("fs", "delete_file", {"path": "a.txt"}),
    ("notes", "find", {"query": "remember"}),
    ("notes", "find", {}),
]


async def _direct(served: Serving, server: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return await served.call(f"{server}__{name}", arguments)


async def _through_call_tool(served: Serving, server: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return await served.call("call_tool", {"name": f"{server}__{name}", "arguments": arguments})


async def _through_namespace(served: Serving, server: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return await served.call(server, {"action": name, **arguments})


async def _in_a_workflow(served: Serving, server: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    steps = [{"id": "one", "tool": f"{server}__{name}", "arguments": arguments}]
    answer = await served.call("execute_workflow", {"steps": steps, "return": "final"})
    assert answer["structuredContent"]["status"] == "completed"
    return {"content": None}


async def _by_handshake(served: Serving, server: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    async with served.handshake() as session:
        params = {"name": server, "arguments": {"action": name, "params": arguments}}
        return await anyio.to_thread.run_sync(lambda: session.result("tools/call", params))


@pytest.mark.slow
async def test_one_script_makes_the_same_upstream_requests_whichever_way_it_calls(tmp_path: Path) -> None:
    seen = []
    ways = (_direct, _through_call_tool, _through_namespace, _by_handshake, _in_a_workflow)
    for position, way in enumerate(ways):
        upstreams = {"notes": notes(), "fs": files()}
        async with serving(tmp_path / str(position), upstreams, namespaced(upstreams)) as served:
            texts = [(await way(served, *step))["content"] for step in SCRIPT]
        calls = [(call["name"], call["arguments"]) for name in upstreams for call in upstreams[name].calls]
        seen.append((texts, calls))
    assert seen[0] == seen[1] == seen[2] == seen[3]
    assert [calls for _, calls in seen] == [seen[0][1]] * len(ways)
    assert len(seen[0][1]) == len(SCRIPT)


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"filePath": "a"}, {"file_path": "a"}),
        ({"file-path": "a"}, {"file_path": "a"}),
        ({"path": "a"}, {"file_path": "a"}),
        ({"filename": "a", "top_k": 2}, {"file_path": "a", "limit": 2}),
        ({"arguments": {"filePath": "a"}}, {"file_path": "a"}),
        ({"file_path": "a", "action_": "x"}, {"file_path": "a", "action": "x"}),
        ({"params": {"file_path": "a", "action": "x"}}, {"file_path": "a", "action": "x"}),
        ({"arguments": '{"filePath": "a"}'}, {"file_path": "a"}),
        ({"file_path": "a", "toolCallId": "call_1"}, {"file_path": "a"}),
    ],
)
async def test_another_spelling_is_accepted_where_the_tool_has_that_field(
    tmp_path: Path, given: dict[str, Any], sent: dict[str, Any]
) -> None:
    upstreams = {"fs": files()}
    async with serving(tmp_path, upstreams, namespaced(upstreams)) as served:
        result = await served.call("fs", {"action": "readFile", **given})
    assert not result.get("isError")
    assert [call["arguments"] for call in upstreams["fs"].calls] == [sent]


async def test_a_tool_that_takes_any_field_gets_every_field_as_it_came(tmp_path: Path) -> None:
    upstreams = {"fs": files(additionalProperties=True)}
    given = {"file_path": "a", "filePath": "b", "params": {"c": 1}}
    async with serving(tmp_path, upstreams, namespaced(upstreams)) as served:
        await served.call("fs", {"action": "read_file", **given})
    assert [call["arguments"] for call in upstreams["fs"].calls] == [given]


@pytest.mark.parametrize(
    ("given", "path", "message"),
    [
        ({}, "/action", "missing"),
        ({"action": 7}, "/action", "integer instead of a string"),
        ({"action": "red_file", "file_path": "a"}, "/action", "no action 'red_file'"),
        ({"action": "read_file"}, "/file_path", "missing"),
        ({"action": "read_file", "file_path": 5}, "/file_path", "integer instead of string"),
        ({"action": "read_file", "filePath": [1]}, "/filePath", "array instead of string"),
        ({"action": "read_file", "params": {"file_path": "a", "limit": 0}}, "/params/limit", "minimum"),
        ({"action": "read_file", "file_path": "a", "limit": True}, "/limit", "boolean instead of integer"),
        ({"action": "read_file", "file_path": "a", "params": {"file_path": "b"}}, "/params/file_path", "given twice"),
    ],
)
async def test_a_wrong_call_is_told_where_and_how_and_reaches_no_upstream(
    tmp_path: Path, given: dict[str, Any], path: str, message: str
) -> None:
    upstreams = {"fs": files()}
    async with serving(tmp_path, upstreams, namespaced(upstreams)) as served:
        error = error_of(await served.call("fs", given))
    assert (error["code"], error["retryable"]) == ("INVALID_INPUT", False)
    (fault,) = error["details"]["errors"]
    assert fault["path"] == path
    assert message in fault["message"]
    assert path in error["message"]
    assert "read_file" in error["hint"]
    assert upstreams["fs"].calls == []


async def test_the_error_of_an_action_carries_its_signature(tmp_path: Path) -> None:
    upstreams = {"fs": files()}
    async with serving(tmp_path, upstreams, namespaced(upstreams)) as served:
        error = error_of(await served.call("fs", {"action": "read_file"}))
    assert error["details"]["signature"] == 'fs(action: "read_file", file_path, limit?: int, action_?)'


async def test_what_a_client_may_not_use_is_no_action_and_leaks_nowhere(tmp_path: Path) -> None:
    upstreams = {"fs": files(), "notes": notes()}
    settings = namespaced(upstreams, blacklisted_tools=["fs:delete_*", "notes:*"])
    async with serving(tmp_path, upstreams, settings) as served:
        listed = await served.result("tools/list")
        texts = [json.dumps(listed)]
        for given in ({}, {"action": "delete_file"}, {"action": "delete_fil"}, {"action": "fs__delete_file"}):
            texts.append(json.dumps(error_of(await served.call("fs", given))).replace("delete_fil", "", 1))
        unknown = error_of(await served.call("notes", {"action": "add"}))
    assert not any("delete_file" in text or "notes" in text for text in texts[1:2])
    assert "delete" not in texts[0]
    assert "notes" not in [one["name"] for one in listed["tools"]]
    assert unknown["code"] == "NOT_FOUND"
    assert upstreams["fs"].calls == upstreams["notes"].calls == []


async def test_a_hidden_action_answers_as_one_that_does_not_exist(tmp_path: Path) -> None:
    upstreams = {"fs": files()}
    async with serving(tmp_path, upstreams, namespaced(upstreams, blacklisted_tools=["fs:delete_file"])) as served:
        hidden = error_of(await served.call("fs", {"action": "delete_file", "path": "x"}))
        unknown = error_of(await served.call("fs", {"action": "rename_file", "path": "x"}))
    assert json.dumps(hidden).replace("delete_file", "rename_file") == json.dumps(unknown)


async def test_a_bare_name_that_is_also_a_namespace_still_calls_the_tool(tmp_path: Path) -> None:
    upstreams = {"fetch": ScriptedServer([tool("fetch", properties={"url": TEXT}), tool("head")])}
    async with serving(tmp_path, upstreams, namespaced(upstreams)) as served:
        await served.call("fetch", {"url": "u"})
        await served.call("fetch", {"action": "fetch", "url": "v"})
    assert [call["arguments"] for call in upstreams["fetch"].calls] == [{"url": "u"}, {"url": "v"}]


async def test_no_tool_takes_the_namespace_of_another_server(tmp_path: Path) -> None:
    upstreams = {"fs": ScriptedServer([tool("notes")]), "notes": notes()}
    settings = settings_for(upstreams, gateway={"style": "namespaces"}, naming={"prefix": "never"})
    async with serving(tmp_path, upstreams, settings) as served:
        assert await served.names() == [*BESIDE, "fs", "notes"]
        assert error_of(await served.call("notes", {"text": "x"}))["code"] == "INVALID_INPUT"
        await served.call("notes", {"action": "add", "text": "x"})
        await served.call("fs__notes")
    assert [call["name"] for call in upstreams["fs"].calls] == ["notes"]
    assert [call["name"] for call in upstreams["notes"].calls] == ["add"]


async def test_strict_direct_calls_allow_what_is_listed_and_nothing_else(tmp_path: Path) -> None:
    upstreams = {"notes": notes()}
    settings = namespaced(upstreams, direct_calls="listed")
    async with serving(tmp_path, upstreams, settings) as served:
        assert not (await served.call("notes", {"action": "add", "text": "x"})).get("isError")
        assert not (await served.call("search_tools", {"query": "*"})).get("isError")
        for name, arguments in (("notes__add", {"text": "x"}), ("call_tool", {"name": "notes__add"})):
            error = error_of(await served.call(name, arguments))
            assert (error["code"], error["hint"]) == ("FORBIDDEN", "call it as an action of its namespace")
        for path in ("/full_proxy", "/semantic"):
            assert error_of(await served.call("notes", {"action": "add"}, path))["code"] == "FORBIDDEN"
    assert len(upstreams["notes"].calls) == 1


async def test_a_search_says_how_its_hits_are_called_as_actions(tmp_path: Path) -> None:
    upstreams = {"notes": notes()}
    async with serving(tmp_path, upstreams, namespaced(upstreams)) as served:
        result = await served.call("search_tools", {"query": "notes:add"})
    hit = result["structuredContent"]["hits"][0]
    assert (hit["name"], hit["signature"]) == ("notes__add", 'notes(action: "add", text?)')


async def test_progress_reaches_the_caller_of_an_action_and_cancelling_reaches_the_upstream(tmp_path: Path) -> None:
    started, cancelled = anyio.Event(), anyio.Event()

    async def work(ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        if call["name"] == "report":
            await ctx.session.report_progress(1, 2, "half")
            return text_result("done")
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()
        raise AssertionError

    upstreams = {"up": ScriptedServer([tool("report"), tool("wait")], work)}
    async with serving(tmp_path, upstreams, namespaced(upstreams)) as served:
        for mode in ("legacy", "auto"):
            async with Client(served.url, mode=mode) as client, anyio.create_task_group() as tasks:
                seen: list[tuple[float, float | None, str | None]] = []

                async def note(progress: float, total: float | None, message: str | None) -> None:
                    seen.append((progress, total, message))  # noqa: B023

                await client.call_tool("up", {"action": "report"}, progress_callback=note)
                assert seen == [(1, 2, "half")], mode
                tasks.start_soon(client.call_tool, "up", {"action": "wait"})
                with anyio.fail_after(30):
                    await started.wait()
                tasks.cancel_scope.cancel()
            with anyio.fail_after(30):
                await cancelled.wait()
            started, cancelled = anyio.Event(), anyio.Event()


async def test_a_client_is_told_when_the_actions_of_a_namespace_change(tmp_path: Path) -> None:
    changed = anyio.Event()

    async def on_message(message: Any) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            changed.set()

    upstreams = {"notes": notes()}
    async with (
        serving(tmp_path, upstreams, namespaced(upstreams)) as served,
        Client(served.url, mode="legacy", message_handler=on_message) as client,
    ):
        before = (await client.list_tools()).tools[-1].description
        upstreams["notes"].tools.append(tool("remove"))
        await upstreams["notes"].announce_change()
        with anyio.fail_after(30):
            await changed.wait()
        after = (await client.list_tools()).tools[-1].description
    assert "remove(" not in (before or "")
    assert "remove(" in (after or "")


async def test_a_stored_result_can_be_passed_to_an_action(tmp_path: Path) -> None:
    async def answer(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        return text_result("long " * 2000 if call["name"] == "find" else "ok")

    upstreams = {"notes": ScriptedServer(notes().tools, answer)}
    settings = settings_for(
        upstreams, gateway={"style": "namespaces"}, references={"mode": "meta", "threshold_tokens": 50}
    )
    async with serving(tmp_path, upstreams, settings) as served:
        assert await served.names() == [*BESIDE, "notes"]
        stored = (await served.call("notes", {"action": "find", "query": "x"}))["structuredContent"]
        await served.call("notes", {"action": "add", "text": {"$ref": stored["ref"]}})
        error = error_of(await served.call("notes", {"action": "add", "text": {"$ref": f"ref_{'A' * 22}"}}))
    assert upstreams["notes"].calls[-1]["arguments"] == {"text": "long " * 2000}
    assert len(upstreams["notes"].calls) == 2
    assert error["code"] == "NOT_FOUND"


async def test_composite_tools_are_actions_as_well(tmp_path: Path) -> None:
    upstreams = {"notes": notes()}
    steps = [{"id": "add", "tool": "notes__add", "arguments": {"text": "$input.text"}}]
    schema = {"type": "object", "properties": {"text": TEXT}, "required": ["text"]}
    composite = {"description": "Add a note.", "input": schema, "steps": steps}
    settings = settings_for(upstreams, gateway={"style": "namespaces"}, workflows={"note_it": composite})
    async with serving(tmp_path, upstreams, settings) as served:
        names = await served.names()
        await served.call(names[-1], {"action": "note_it", "text": "x"})
        error = error_of(await served.call(names[-1], {"action": "note_it"}))
    assert upstreams["notes"].calls[0]["arguments"] == {"text": "x"}
    assert len(upstreams["notes"].calls) == 1
    assert error["code"] == "INVALID_INPUT"


async def test_two_clients_with_different_rights_get_different_namespaces(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("ONE_KEY", "one-" * 8)
    monkeypatch.setenv("TWO_KEY", "two-" * 8)
    upstreams = {"fs": files(), "notes": notes()}
    settings = settings_for(
        upstreams,
        gateway={"style": "namespaces", "namespaces": {"split_by_access": True}},
        clients={
            "one": {"key": "${env:ONE_KEY}"},
            "two": {"key": "${env:TWO_KEY}", "allow": ["fs:*"], "deny": ["*:delete_*", "*:read_*"]},
        },
    )
    async with serving(tmp_path, upstreams, settings) as served:
        one = await served.names(headers={"authorization": f"Bearer {'one-' * 8}"})
        two = await served.names(headers={"authorization": f"Bearer {'two-' * 8}"})
    assert one == [*BESIDE, "fs_read", "fs_write", "notes_write"]
    assert two == [*BESIDE, "fs_read"]
