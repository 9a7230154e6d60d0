"""The same recorded agent script sends the same upstream requests, whichever way its calls are made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio

SCRIPT: list[tuple[str, dict[str, Any]]] = [
    ("issues__search", {"query": "grüezi", "limit": 2, "filter": {"labels": ["a", None], "open": True}}),
    ("issues__get", {"id": 7}),
    ("files__write", {"path": "out/7.md", "content": 'costs $$5 and $x, {"a": 1.0}'}),
    ("issues__get", {"id": 8}),
]
"""What an agent called, with the values that it read in earlier answers."""


def upstreams() -> dict[str, ScriptedServer]:
    async def issues(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        found = {"items": [{"id": 7}, {"id": 8}]}
        structured = found if call["name"] == "search" else {"id": call["arguments"]["id"], "path": "out/7.md"}
        return {"content": [], "structuredContent": structured}

    words = {"query": {"type": "string"}, "limit": {"type": "integer"}, "filter": {"type": "object"}}
    text = {"path": {"type": "string"}, "content": {"type": "string"}}
    listed = [tool("search", properties=words), tool("get", properties={"id": {"type": "integer"}})]
    return {"issues": ScriptedServer(listed, issues), "files": ScriptedServer([tool("write", properties=text)])}


async def directly(served: Serving) -> None:
    for name, arguments in SCRIPT:
        await served.call(name, arguments)


async def by_name(served: Serving) -> None:
    for name, arguments in SCRIPT:
        await served.call("call_tool", {"name": name.replace("__", ":"), "arguments": arguments})


async def by_namespace(served: Serving) -> None:
    for name, arguments in SCRIPT:
        namespace, _, action = name.partition("__")
        result = await served.call(namespace, {"action": action, **arguments})
        assert not result.get("isError"), result


async def as_a_batch(served: Serving) -> None:
    calls = [{"name": name, "arguments": arguments} for name, arguments in SCRIPT]
    await served.call("call_batch", {"calls": calls, "max_parallel": 1})


async def as_a_workflow(served: Serving) -> None:
    _, (_, get), (_, write), (_, last) = SCRIPT
    assert (get["id"], write["path"], last["id"]) == (7, "out/7.md", 8)
    content = write["content"].replace("$", "$$")
    steps = [
        {"id": "found", "tool": SCRIPT[0][0], "arguments": SCRIPT[0][1]},
        {"id": "first", "tool": "issues__get", "arguments": {"id": "$found.items[0].id"}},
        {"id": "out", "tool": "files__write", "arguments": {"path": "$first.path", "content": content}},
        {"tool": "issues__get", "arguments": {"id": "$0.items[1].id"}, "depends_on": ["out"]},
    ]
    result = await served.call("execute_workflow", {"steps": steps})
    assert result["structuredContent"]["status"] == "completed"


@pytest.mark.parametrize("way", [directly, by_name, by_namespace, as_a_batch, as_a_workflow])
async def test_every_way_sends_the_same_requests(tmp_path: Path, way: Any) -> None:
    fakes = upstreams()
    style = "namespaces" if way is by_namespace else "tools"
    async with serving(tmp_path, fakes, gateway={"style": style}) as served:
        await way(served)
    sent = {name: [(call["name"], call["arguments"]) for call in fake.calls] for name, fake in fakes.items()}
    expected: dict[str, list[tuple[str, dict[str, Any]]]] = {"issues": [], "files": []}
    for name, arguments in SCRIPT:
        server, _, action = name.partition("__")
        expected[server].append((action, arguments))
    assert sent == expected
