"""Nothing that a client can ask tells what is hidden from what does not exist, by whatever way it asks."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from tests.extensions.test_relay import X, client_of
from tests.support.machine import open_machine
from tests.support.memory import settings_for
from tests.support.scripted_server import PROMPTS, RESOURCES, ScriptedServer, prompt, resource, tool
from tests.support.serving import serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("gateways")]

Ask = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]

HIDING = ["open:secret*", "open:res://open/secret", "closed:*"]
PAGE = "ui://closed/view.html"
TOOLS = ("secret_write", "hidden_tool", "refresh_view")
NAMES = (
    *TOOLS,
    "open__secret_write",
    "open:refresh_view",
    "open__refresh_view",
    "closed__hidden_tool",
    "closed:hidden_tool",
)
URIS = ("res://open/secret", "res://open/%73ecret", PAGE, f"ui://pml/closed/{PAGE}", f"pml://closed/{PAGE}")
PROMPT_NAMES = ("secret_prompt", "open__secret_prompt", "closed_prompt", "closed__closed_prompt")
EXTENDED: dict[str, Any] = {"extensions": {X: {}}}
PASSING = re.compile(r'\\*"request_id\\*": ?\\*"[^"\\]*\\*",?')


def servers(*, with_hidden: bool) -> dict[str, ScriptedServer]:
    """A server with a part that is hidden, and one that is hidden as a whole; or neither of the two."""

    def offering(uris: list[str], names: list[str], tools: list[dict[str, Any]], about: str) -> ScriptedServer:
        async def answer(_ctx: Any, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
            asked = json.dumps(params)
            if method == "resources/read" and params["uri"] in uris:
                return {"contents": [{"uri": params["uri"], "text": "t"}], "ttlMs": 0, "cacheScope": "private"}
            if method == "x/run" and not re.search("secret|hidden|closed|refresh", asked):
                return {"ran": True}
            if method in ("resources/read", "x/run"):
                raise MCPError(-32602, "nothing of that name")
            return None

        return ScriptedServer(
            tools,
            declares={"extensions": {X: {}}},
            beyond=frozenset({"x/run"}),
            methods=PROMPTS | RESOURCES | {"completion/complete", "resources/subscribe"},
            prompts=list(map(prompt, names)),
            resources=list(map(resource, uris)),
            answer=answer,
            instructions=about,
        )

    view = {"_meta": {"ui": {"resourceUri": PAGE, "visibility": ["app"]}}}
    unseen = [tool("secret_write", "Write the secret."), tool("refresh_view", "Refresh the view.", **view)]
    more = with_hidden
    open_server = offering(
        ["res://open/pub", *["res://open/secret"] * more],
        ["pub_prompt", *["secret_prompt"] * more],
        [tool("pub_read", "Read what is public."), *unseen * more],
        "Public things.",
    )
    closed = offering([PAGE], ["closed_prompt"], [tool("hidden_tool", "Hide the view.")], "Closed things.")
    return {"open": open_server, **({"closed": closed} if with_hidden else {})}


def requests() -> list[tuple[str, dict[str, Any]]]:
    """Everything that a client may ask, about what is hidden, and of what there is."""
    calls: list[tuple[str, dict[str, Any]]] = []
    for name in NAMES:
        step = {"id": "a", "tool": name, "arguments": {}}
        calls += [
            (name, {}),
            ("tool_schema", {"names": [name]}),
            ("call_tool", {"name": name, "arguments": {}}),
            ("call_batch", {"calls": [{"name": name, "arguments": {}}]}),
            ("execute_workflow", {"steps": [step]}),
            ("execute_workflow", {"steps": [step], "dry_run": True}),
            ("search_tools", {"query": name}),
            ("search_tools", {"query": f"{name[:-2]}*"}),
        ]
    calls += [("search_tools", {"query": text}) for text in ("write the secret", "refresh the view", "*", "closed:*")]
    calls += [
        ("search_tools", {"query": "view", "server": "closed"}),
        ("execute_workflow", {"intent": "hide the view"}),
    ]
    asked: list[tuple[str, dict[str, Any]]] = []
    asked += [("tools/call", {"name": name, "arguments": arguments}) for name, arguments in calls]
    asked += [(f"{kind}/list", {}) for kind in ("tools", "prompts", "resources", "resources/templates")]
    for name in PROMPT_NAMES:
        complete = {"ref": {"type": "ref/prompt", "name": name}, "argument": {"name": "a", "value": ""}}
        asked += [("prompts/get", {"name": name}), ("completion/complete", complete)]
    for uri in URIS:
        complete = {"ref": {"type": "ref/resource", "uri": uri}, "argument": {"name": "a", "value": ""}}
        asked += [(f"resources/{verb}", {"uri": uri}) for verb in ("read", "subscribe")]
        asked += [("completion/complete", complete)]
    for each in (*NAMES, *PROMPT_NAMES):
        asked += [("x/run", params) for params in ({"name": each}, {"of": {"tool": each}}, {"tool_names": [each]})]
    for uri in URIS:
        asked += [("x/run", params) for params in ({"uri": uri}, {"ref": {"uri": uri}}, {"resources": {uri: 1}})]
    return asked


@asynccontextmanager
async def over_http(folder: Path, era: str, upstreams: dict[str, ScriptedServer], mode: str) -> AsyncIterator[Ask]:
    clients = {"c": {"key": "${env:KEY_OF_C}", "deny": HIDING}}
    settings = settings_for(upstreams, gateway={"tools_exposure": mode}, clients=clients)
    async with (
        serving(folder, upstreams, settings) as served,
        client_of(served, era, key="k" * 40, **EXTENDED) as client,
    ):
        yield client.message


@asynccontextmanager
async def on_machine(folder: Path, upstreams: dict[str, ScriptedServer], mode: str) -> AsyncIterator[Ask]:
    gateway = {"tools_exposure": mode, "blacklisted_tools": HIDING}
    async with open_machine(folder, upstreams, gateway=gateway) as opened, opened.attached(introduced=False) as client:
        await client.notice("attached")
        await client.introduce(EXTENDED)
        yield client.request


@pytest.mark.slow
@pytest.mark.timeout(300)  # hundreds of requests, one after the other
@pytest.mark.parametrize(
    ("way", "mode"),
    [("2026", "full_proxy"), ("handshake", "hybrid"), ("handshake", "meta_only"), ("machine", "full_proxy")],
)
async def test_what_is_hidden_answers_as_what_does_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, mode: str
) -> None:
    monkeypatch.setenv("KEY_OF_C", "k" * 40)
    told: list[list[str]] = []
    for with_hidden in (True, False):
        folder = tmp_path / str(with_hidden)
        folder.mkdir()
        upstreams = servers(with_hidden=with_hidden)
        opened = on_machine(folder, upstreams, mode) if way == "machine" else over_http(folder, way, upstreams, mode)
        async with opened as ask:
            answers = [await ask(*request) for request in requests()]
        told.append([PASSING.sub("", json.dumps({**each, "id": 0}, sort_keys=True)) for each in answers])
        called = [call["name"] for each in upstreams.values() for call in each.calls]
        assert not set(called) & set(TOOLS)
    assert [each for each in zip(requests(), *told, strict=True) if each[1] != each[2]] == []
