"""What models send to meta-tools: used as it was meant, named in the result, or refused with what to write."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.config.settings import KNOWN_META_TOOLS
from pml_gateway.exposure.vocabulary import CLIENT_KEYS
from pml_gateway.fastmcp import Exposure
from tests.support.fastmcp_server import FastMCPServing, connected, fastmcp_of
from tests.support.memory import settings_for
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio

TEXT, NUMBER, TRUTH = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
STATES = {"enum": ["open", "closed"]}


def tracker() -> ScriptedServer:
    async def answer(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        given = {"tool": call["name"], "given": call["arguments"]}
        return {"content": [{"type": "text", "text": json.dumps(given)}], "structuredContent": given}

    reads = {"annotations": {"readOnlyHint": True}}
    tags = {"type": "array", "items": TEXT}
    where = {"type": "object", "properties": {"page": NUMBER}}
    return ScriptedServer(
        [
            tool(
                "list_issues",
                "List the issues.",
                {"state": STATES, "limit": NUMBER, "open": TRUTH, "tags": tags, "where": where},
                **reads,
            ),
            tool("create_user", "Create a user.", {"name": TEXT, "email": TEXT}),
            tool("shout", "Shout a text.", {"input": TEXT, "query": TEXT, "sessionId": TEXT}, **reads),
            tool("merge", "Merge objects.", {"parameters": {"type": "object"}, "deep": TRUTH}),
            tool("calculate", "Calculate.", {"operation": TEXT, "a": NUMBER, "b": NUMBER}, **reads),
            tool("note", "Take a note.", {"title": TEXT, "description": TEXT}),
        ],
        handler=answer,
    )


Served = Serving | FastMCPServing
BOTH = pytest.mark.parametrize("host", ["gateway", "fastmcp"])
"""A gateway in front of the tracker, and the tracker as a FastMCP server with an `Exposure`: one contract."""


@asynccontextmanager
async def served_by(host: str, folder: Path) -> AsyncIterator[tuple[Served, ScriptedServer]]:
    if host == "gateway":
        async with served_tracker(folder) as served:
            yield served
        return
    upstream = tracker()
    server = fastmcp_of(upstream, "tracker")
    server.add_transform(Exposure(meta_tools=KNOWN_META_TOOLS, settings={"search": {"ranking": "lexical"}}))
    async with connected(server) as client:
        yield client, upstream


@asynccontextmanager
async def served_tracker(folder: Path, **gateway: Any) -> AsyncIterator[tuple[Serving, ScriptedServer]]:
    upstream = tracker()
    upstreams = {"tracker": upstream}
    async with serving(folder, upstreams, settings_for(upstreams, gateway=gateway)) as served:
        yield served, upstream


def plain(text: str) -> str:
    """A text whatever the tools are called in it: FastMCP gives them no prefix."""
    return text.replace("tracker__", "")


def error_of(result: dict[str, Any]) -> dict[str, Any]:
    assert result.get("isError"), result
    found: dict[str, Any] = result["structuredContent"]["error"]
    return found


ISSUES = "tracker__list_issues"
CLOSED = {"state": "closed"}
UNDERSTOOD: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    *(({"name": ISSUES, key: CLOSED}, "list_issues", CLOSED) for key in ("args", "parameters", "params", "input")),
    *(({key: ISSUES, "arguments": CLOSED}, "list_issues", CLOSED) for key in ("tool", "operation", "tool_name")),
    ({"toolName": ISSUES, "Arguments": json.dumps(CLOSED)}, "list_issues", CLOSED),
    ({"name": ISSUES, "state": "closed"}, "list_issues", CLOSED),
    *(({"name": ISSUES, "arguments": {key: CLOSED}}, "list_issues", CLOSED) for key in ("arguments", "args", "input")),
    *(
        ({"name": ISSUES, "arguments": sent}, "list_issues", CLOSED)
        for sent in ([CLOSED], json.dumps(json.dumps(CLOSED)), f"```json\n{json.dumps(CLOSED)}\n```")
    ),
    ({"name": ISSUES, "arguments": []}, "list_issues", {}),
    ({"name": [ISSUES], "arguments": CLOSED}, "list_issues", CLOSED),
    ({"name": "call_tool", "arguments": {"name": ISSUES, "arguments": CLOSED}}, "list_issues", CLOSED),
    ({ISSUES: CLOSED}, "list_issues", CLOSED),
    ({"namespace": "tracker", "tool": "list_issues", "args": CLOSED}, "list_issues", CLOSED),
    ({"server": ["tracker"], "tool": "list_issues", "args": CLOSED}, "list_issues", CLOSED),
    ({"name": ISSUES, "state": "closed", "limit": 3}, "list_issues", {"state": "closed", "limit": 3}),
    ({"tool": ISSUES, "limit": "3"}, "list_issues", {"limit": 3}),
    ({"tool": "tracker__create_user", "email": "b@x"}, "create_user", {"email": "b@x"}),
    ({"name": "/tracker/list_issues", "arguments": CLOSED}, "list_issues", CLOSED),
    ({"server": "tracker", "tool": "list_issues", "arguments": CLOSED}, "list_issues", CLOSED),
    ({"server_name": "tracker", "tool_name": ISSUES, "arguments": CLOSED}, "list_issues", CLOSED),
    ({"name": ISSUES, "arguments": None, "args": CLOSED, "if_none_match": None}, "list_issues", CLOSED),
    ({"type": "function", "function": {"name": ISSUES, "arguments": json.dumps(CLOSED)}}, "list_issues", CLOSED),
    ({"method": "tools/call", "params": {"name": ISSUES, "arguments": CLOSED}}, "list_issues", CLOSED),
    ({"type": "tool_use", "name": ISSUES, "input": CLOSED}, "list_issues", CLOSED),
    ({"arguments": {"name": ISSUES, "arguments": CLOSED}}, "list_issues", CLOSED),
    # Words of the call that are parameters of the tool, and can be nothing else.
    ({"name": "tracker__shout", "input": "hey"}, "shout", {"input": "hey"}),
    ({"name": "tracker__shout", "query": "a", "input": "b"}, "shout", {"query": "a", "input": "b"}),
    ({"name": "tracker__shout", "input": {"query": "a"}}, "shout", {"query": "a"}),
    ({"name": "tracker__calculate", "operation": "add", "a": 1}, "calculate", {"operation": "add", "a": 1}),
    ({"tool": "tracker__calculate", "operation": "add"}, "calculate", {"operation": "add"}),
    ({"name": "tracker__note", "title": "a", "description": "b"}, "note", {"title": "a", "description": "b"}),
]


@BOTH
async def test_a_call_in_any_words_is_the_call_that_was_meant(host: str, tmp_path: Path) -> None:
    async with served_by(host, tmp_path) as (served, upstream):
        for sent, name, arguments in UNDERSTOOD:
            result = await served.call("call_tool", sent)
            assert result.get("structuredContent") == {"tool": name, "given": arguments}, (sent, result)
        batch = await served.call("call_batch", {"calls": [sent for sent, _, _ in UNDERSTOOD]})
    results = [slot.get("result") for slot in batch["structuredContent"]["slots"]]
    assert results == [{"tool": name, "given": arguments} for _, name, arguments in UNDERSTOOD]
    assert len(upstream.calls) == 2 * len(UNDERSTOOD)


REFUSED: list[tuple[dict[str, Any], str, dict[str, Any] | None]] = [
    ({"name": ISSUES, "argumens": CLOSED}, 'write "arguments" instead of "argumens"', {"arguments": CLOSED}),
    ({"name": ISSUES, "data": CLOSED}, 'write "arguments" instead of "data"', {"arguments": CLOSED}),
    ({"name": ISSUES, "arguments": {"limit": 1}, "args": CLOSED}, 'keep "arguments", and leave out "args"', None),
    ({"name": ISSUES, "arguments": {}, "args": CLOSED}, 'keep "args", and leave out "arguments"', None),
    ({"name": ISSUES, "arguments": {"limit": 1}, "state": "closed"}, 'put "state" into "arguments"', None),
    ({"name": ISSUES, "stat": "closed"}, 'put it into "arguments" as "state"', {"arguments": CLOSED}),
    ({"name": ISSUES, "arguments": {"stat": "closed"}}, 'write "state" instead of "stat"', None),
    ({"name": ISSUES, "arguments": {"stat": "open", "state": "closed"}}, 'leave out "stat"', None),
    ({"name": ISSUES, "arguments": {"limitt": "many"}}, 'write "limit" instead of "limitt"', None),
    ({"name": ISSUES, "arguments": {"tags": ""}}, "expected tracker__list_issues", None),
    (
        {"action": ISSUES, "arguments": CLOSED},
        'write "name" instead of "action"',
        {"name": ISSUES, "arguments": CLOSED},
    ),
    ({"name": ISSUES, "arguments": {"colour": "red"}}, 'leave out "colour"', None),
    ({"name": ISSUES, "arguments": "closed"}, 'write "arguments": {', None),
    (
        {"tool": "tracker__create_user", "name": "bob"},
        'write "name": "tracker__create_user", and put "name" into "arguments"',
        {"name": "tracker__create_user", "arguments": {"name": "bob"}},
    ),
    (
        {"name": "tracker__create_user", "email": "b@x"},
        'put "email" into "arguments"',
        {"name": "tracker__create_user", "arguments": {"email": "b@x"}},
    ),
    ({"name": "All issues", "tool": ISSUES}, 'keep "tool", and leave out "name"', None),
    ({"name": "tracker__merge", "parameters": {"deep": True}}, 'write "arguments" instead of "parameters"', None),
    ({"name": "tracker__shout", "query": "a", "sessionId": "s"}, 'put "sessionId" into "arguments"', None),
    ({"name": "tracker__shout", "arguments": {"query": "a"}, "sessionId": "s"}, 'put "sessionId" into', None),
]


@BOTH
async def test_what_may_be_meant_in_two_ways_or_in_none_is_refused_with_what_to_write(
    host: str, tmp_path: Path
) -> None:
    async with served_by(host, tmp_path) as (served, upstream):
        batch = await served.call("call_batch", {"calls": [*(sent for sent, _, _ in REFUSED), {"name": ISSUES}]})
        slots = batch["structuredContent"]["slots"]
        assert [slot["ok"] for slot in slots] == [False] * len(REFUSED) + [True]
        for (sent, hint, corrected), slot in zip(REFUSED, slots, strict=False):
            for error in (error_of(await served.call("call_tool", sent)), slot["error"]):
                assert (error["code"], error["retryable"]) == ("INVALID_INPUT", False)
                assert plain(hint) in plain(error["hint"]), (sent, error)
                if corrected is not None:
                    assert error["details"]["corrected"] == {"name": ISSUES, **corrected}
        assert [call["arguments"] for call in upstream.calls] == [{}]
        for again in (corrected for _, _, corrected in REFUSED if corrected is not None):
            assert not (await served.call("call_tool", {"name": ISSUES, **again})).get("isError")


@BOTH
async def test_keys_that_clients_add_are_left_out_and_named(host: str, tmp_path: Path) -> None:
    added = {key: sorted(values)[0] if values else "x" for key, values in CLIENT_KEYS.items()}
    pointers = {f"/{key}" for key in added}
    call = {"name": ISSUES, "arguments": CLOSED}
    async with served_by(host, tmp_path) as (served, upstream):
        one = await served.call("call_tool", {**call, **added})
        found = await served.call("search_tools", {"query": "issues", **added})
        batch = await served.call("call_batch", {"calls": [{**call, **added}], "toolCallId": "x"})
        step = {"tool": ISSUES, "arguments": CLOSED, "description": "List them."}
        run = await served.call("execute_workflow", {"steps": [step], "sessionId": "x"})
    assert {**one["structuredContent"]}["given"] == CLOSED
    assert set(one["_meta"]["pml-gateway/ignored_keys"]) == pointers
    assert set(found["_meta"]["pml-gateway/ignored_keys"]) == pointers
    assert found["structuredContent"]["hits"]
    assert set(batch["_meta"]["pml-gateway/ignored_keys"]) == {*(f"/calls/0{each}" for each in pointers), "/toolCallId"}
    assert set(run["_meta"]["pml-gateway/ignored_keys"]) == {"/steps/0/description", "/sessionId"}
    assert [each["arguments"] for each in upstream.calls] == [CLOSED] * 3


@BOTH
async def test_an_action_of_another_value_than_clients_give_it_is_no_key_of_theirs(host: str, tmp_path: Path) -> None:
    async with served_by(host, tmp_path) as (served, upstream):
        error = error_of(await served.call("call_tool", {"name": ISSUES, "arguments": {}, "action": "close"}))
    assert "unknown key 'action'" in error["message"]
    assert upstream.calls == []


SAME: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("search_tools", {"q": "list issues", "top_k": "1"}, {"query": "list issues", "limit": 1}),
    ("search", {"search_query": "list issues", "k": 1, "verbosity": "name"}, {"query": "list issues", "limit": 1}),
    ("search_tools", {"query": None, "server": "tracker"}, {"query": "*", "server": ["tracker"]}),
    ("search_tools", {"arguments": {"query": "list issues", "limit": 1}}, {"query": "list issues", "limit": 1}),
    (
        "search_tools",
        {"keywords": ["list issues"], "servers": ["tracker"], "k": 1},
        {"query": "list issues", "limit": 1},
    ),
    ("tool_schema", {"tool": ISSUES}, {"names": [ISSUES]}),
    ("schema", {"names": json.dumps([ISSUES]), "format": "JSON"}, {"names": [ISSUES]}),
    ("tool_schema", {"tools": f"{ISSUES}, tracker__note"}, {"names": [ISSUES, "tracker__note"]}),
]


@BOTH
async def test_every_meta_tool_reads_the_same_words(host: str, tmp_path: Path) -> None:
    async with served_by(host, tmp_path) as (served, _):
        for name, sent, same_as in SAME:
            found, expected = await served.call(name, sent), await served.call(name, same_as)
            names = [_named(answer["structuredContent"]) for answer in (found, expected)]
            assert names[0] == names[1], sent
            assert names[0], sent


def _named(answer: dict[str, Any]) -> list[str]:
    if "menu" in answer:
        return [line.partition("(")[0] for line in answer["menu"]]
    return [one["name"] for one in answer.get("hits") or answer["tools"]]


@BOTH
async def test_batches_and_workflows_are_read_as_text_and_by_other_words(host: str, tmp_path: Path) -> None:
    call = {"tool": ISSUES, "args": CLOSED}
    async with served_by(host, tmp_path) as (served, upstream):
        batches: list[dict[str, Any]] = [
            {"calls": json.dumps([call])},
            {"requests": [json.dumps(call)], "concurrency": "2"},
            {"tool_calls": call},
        ]
        for each in batches:
            assert (await served.call("batch", each))["structuredContent"]["failed"] == 0
        runs: list[dict[str, Any]] = [
            {"steps": json.dumps([{"name": ISSUES, "input": CLOSED}]), "return": '["0"]', "trace": "false"},
            {"tasks": {"tool": ISSUES, "parameters": json.dumps(CLOSED), "when": None, "transform": None}},
            {"steps": [{"tool": ISSUES, "state": "closed", "timeout": "5"}], "onError": "stop", "dryRun": "false"},
        ]
        for each in runs:
            answer = (await served.call("execute_workflow", each))["structuredContent"]
            assert answer.get("status") == "completed", answer
    assert [each["arguments"] for each in upstream.calls] == [CLOSED] * 6


UNREAD: list[tuple[str, dict[str, Any], str]] = [
    ("search_tools", {"query": "x", "limt": 3}, 'write "limit" instead of "limt"'),
    ("search_tools", {"query": "x", "q": "y"}, 'keep "query", and leave out "q"'),
    ("search_tools", {"query": "x", "colour": "red"}, 'leave out "colour"'),
    ("search_tools", {"query": "x", "limit": "many"}, 'write "limit": 5'),
    ("search_tools", {"query": "x", "detail": "signatures"}, 'write "detail": "signature"'),
    ("tool_schema", {"nam": ISSUES}, 'write "names" instead of "nam"'),
    ("call_batch", {"name": ISSUES, "arguments": {}}, 'put the call into a list under "calls"'),
    ("call_batch", {"calls": [{"name": ISSUES}], "dry_run": True}, 'leave out "dry_run"'),
    ("call_batch", {"calls": {"a": {"name": ISSUES}}}, "for example"),
    ("execute_workflow", {"tool": ISSUES}, 'put the call into a list under "steps"'),
    ("execute_workflow", {"steps": [{"tool": ISSUES, "argumets": {}}]}, 'write "arguments" instead of "argumets"'),
    (
        "execute_workflow",
        {"steps": [{"tool": ISSUES}, {"transform": "$0", "etag": "x"}]},
        'leave out "etag"',
    ),
    ("execute_workflow", {"steps": [{"tool": ISSUES}], "dry_run": "yes"}, 'write "dry_run": true'),
    ("read_result", {"ref": "ref_x", "pth": "a"}, 'write "path" instead of "pth"'),
]


@BOTH
async def test_what_no_meta_tool_reads_is_refused_with_what_to_write(host: str, tmp_path: Path) -> None:
    async with served_by(host, tmp_path) as (served, upstream):
        for name, sent, hint in UNREAD:
            error = error_of(await served.call(name, sent))
            assert error["code"] == "INVALID_INPUT"
            assert hint in error["hint"], (sent, error)
            assert "dry_run" not in error["hint"] or "dry_run" in sent
    assert upstream.calls == []


@BOTH
async def test_only_the_second_call_of_an_id_is_refused(host: str, tmp_path: Path) -> None:
    calls = [
        {"id": "a", "name": ISSUES, "arguments": CLOSED},
        {"id": "a", "name": ISSUES},
        {"id": "3", "name": ISSUES},
        {"name": ISSUES},
        {"id": {"x": 1}, "name": ISSUES},
    ]
    async with served_by(host, tmp_path) as (served, upstream):
        answer = (await served.call("call_batch", {"calls": calls}))["structuredContent"]
    assert [(slot["id"], slot["ok"]) for slot in answer["slots"]] == [
        ("a", True),
        ("a", False),
        ("3", True),
        ("3_", True),
        ("4", False),
    ]
    assert answer["slots"][0]["result"]["given"] == CLOSED
    assert "'a'" in answer["slots"][1]["error"]["message"]
    assert answer["failed"] == 2
    assert len(upstream.calls) == 3


COERCED: dict[str, Any] = {
    "limit": "3",
    "open": "true",
    "tags": "bug",
    "where": '{"page": "2"}',
    "state": None,
}


@BOTH
async def test_values_that_can_be_read_in_one_way_are_and_the_result_says_so(host: str, tmp_path: Path) -> None:
    expected = {"limit": 3, "open": True, "tags": ["bug"], "where": {"page": 2}}
    paths = {"/limit", "/open", "/tags", "/where", "/where/page", "/state"}
    async with served_by(host, tmp_path) as (served, upstream):
        one = await served.call("call_tool", {"name": ISSUES, "arguments": COERCED})
        batch = await served.call("call_batch", {"calls": [{"name": ISSUES, "arguments": COERCED}]})
        run = await served.call("execute_workflow", {"steps": [{"tool": ISSUES, "arguments": COERCED}]})
        await served.call(ISSUES, {"limit": "3"})
    assert set(one["_meta"]["pml-gateway/coerced"]) == paths
    assert one["_meta"]["pml-gateway/coerced"]["/limit"] == "text read as integer"
    assert set(batch["_meta"]["pml-gateway/coerced"]) == {f"/calls/0/arguments{path}" for path in paths}
    assert set(run["_meta"]["pml-gateway/coerced"]) == {f"/steps/0/arguments{path}" for path in paths}
    assert [each["arguments"] for each in upstream.calls] == [expected] * 3 + [{"limit": "3"}]


async def test_composites_take_values_as_tools_do(tmp_path: Path) -> None:
    upstream = tracker()
    workflows = {
        "closed": {
            "description": "Lists closed issues.",
            "input": {"type": "object", "properties": {"limit": NUMBER}},
            "steps": [{"tool": ISSUES, "arguments": {"state": "closed", "limit": "$input.limit"}}],
        }
    }
    settings = settings_for({"tracker": upstream}, workflows=workflows)
    async with serving(tmp_path, {"tracker": upstream}, settings) as served:
        for name, sent in (("workflows__closed", {"limit": "2"}), ("call_tool", {"name": "closed", "limit": "2"})):
            result = await served.call(name, sent)
            assert result["_meta"]["pml-gateway/coerced"] == {"/limit": "text read as integer"}
    assert [each["arguments"] for each in upstream.calls] == [{"state": "closed", "limit": 2}] * 2


@BOTH
async def test_values_that_may_be_read_in_two_ways_are_refused(host: str, tmp_path: Path) -> None:
    async with served_by(host, tmp_path) as (served, upstream):
        for arguments in ({"tags": "a, b"}, {"limit": "3.5"}, {"open": "yes"}, {"where": "[1]"}, {"limit": "five"}):
            error = error_of(await served.call("call_tool", {"name": ISSUES, "arguments": arguments}))
            assert error["details"]["errors"][0]["path"] == f"/{next(iter(arguments))}"
    assert upstream.calls == []


NAMESPACED = {"style": "namespaces", "namespaces": {"split_by_access": True}}


async def test_slots_steps_and_calls_may_name_a_namespace_with_an_action(tmp_path: Path) -> None:
    action = {"tool": "tracker_read", "arguments": {"action": "list_issues", **CLOSED, "toolCallId": "c"}}
    flat = {"tool": "tracker_read", "action": "list_issues", **CLOSED}
    async with served_tracker(tmp_path, **NAMESPACED) as (served, upstream):
        batch = await served.call("call_batch", {"calls": [action, flat]})
        steps = [{"id": "a", **action}, {"id": "b", "tool": "tracker_write", "arguments": {"action": "note"}}]
        steps[1]["arguments"] = {"action": "note", "title": "$a.given.state"}
        run = await served.call("execute_workflow", {"steps": steps})
        one = await served.call("call_tool", flat)
        dry = await served.call("execute_workflow", {"steps": steps, "dry_run": True})
    assert batch["structuredContent"]["failed"] == 0
    assert batch["_meta"]["pml-gateway/ignored_keys"] == ["/calls/0/arguments/toolCallId"]
    assert run["structuredContent"]["status"] == "completed"
    assert one["structuredContent"]["given"] == CLOSED
    assert dry["structuredContent"]["valid"] is True
    given = [(call["name"], call["arguments"]) for call in upstream.calls]
    issues = ("list_issues", CLOSED)
    assert given == [issues, issues, issues, ("note", {"title": "closed"}), issues]


async def test_an_action_of_the_other_half_is_pointed_to(tmp_path: Path) -> None:
    action = {"action": "note", "title": "x"}
    async with served_tracker(tmp_path, **NAMESPACED) as (served, upstream):
        errors = [
            error_of(await served.call("tracker_read", action)),
            error_of(await served.call("call_tool", {"name": "tracker_read", "arguments": action})),
        ]
        batch = await served.call("call_batch", {"calls": [{"name": "tracker_read", "arguments": action}]})
        errors.append(batch["structuredContent"]["slots"][0]["error"])
    for error in errors:
        assert 'tracker_write(action: "note", title?, description?)' in error["hint"]
    assert errors[0]["details"]["namespaces"] == ["tracker_write"]
    assert upstream.calls == []


async def test_unknown_fields_of_an_action_are_named_or_refused(tmp_path: Path) -> None:
    async with served_tracker(tmp_path, style="namespaces") as (served, upstream):
        kept = await served.call("tracker", {"action": "list_issues", **CLOSED, "toolCallId": "c"})
        error = error_of(await served.call("tracker", {"action": "list_issues", "stat": "closed"}))
        coerced = await served.call("tracker", {"action": "list_issues", "limit": "2"})
    assert kept["_meta"]["pml-gateway/ignored_keys"] == ["/toolCallId"]
    assert coerced["_meta"]["pml-gateway/coerced"] == {"/limit": "text read as integer"}
    assert 'write "state" instead of "stat"' in error["hint"]
    assert error["details"]["errors"][0]["path"] == "/stat"
    assert [each["arguments"] for each in upstream.calls] == [CLOSED, {"limit": 2}]
