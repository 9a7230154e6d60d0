"""The demo's gateway, and a client's tour of it: what each mode lists, a search, a direct call, a call by name."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import anyio
from mcp.client.client import Client
from mcp_types import CallToolResult, TextContent, Tool

from pml_gateway.config.load import LoadedSettings
from pml_gateway.config.settings import HttpSettings, Settings
from pml_gateway.demo.definitions import demo_servers
from pml_gateway.errors import UpstreamTimeoutError
from pml_gateway.exposure.token_count import TOKENIZER, count_tokens
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.paths import Paths
from pml_gateway.serve.http.server import serve_http
from pml_gateway.serve.runtime import open_runtime
from pml_gateway.serve.signals import first_signal
from pml_gateway.text import first_sentence, shortened, shown_score
from pml_gateway.types import MODES, ExposureMode, JsonObject

INTENT = "keep notes about a project and search its files"
START_SECONDS = 30.0
READABLE = 70
"""Maximum number of characters of a tool's summary, so that it fits on a line of a usual terminal."""


@dataclass(frozen=True, slots=True)
class ModeRow:
    """The number of tools that one mode lists, and their tokens."""

    label: str
    tools: int
    tokens: int


@dataclass(frozen=True, slots=True)
class TourStop:
    """One request of the tour and its answer, shortened for people."""

    title: str
    request: str
    answer: str


@dataclass(frozen=True, slots=True)
class DemoReport:
    """The findings of the whole tour."""

    url: str
    tokenizer: str
    intent: str
    catalog_tools: int
    servers: dict[str, int]
    modes: list[ModeRow]
    steps: list[TourStop]

    def as_json(self) -> JsonObject:
        """Return the report as plain JSON."""
        return asdict(self)


@asynccontextmanager
async def running_demo(folder: Path, port: int) -> AsyncIterator[str]:
    """Run the demo's gateway over HTTP with all state in `folder`; yield its URL once every server has answered."""
    settings = Settings.model_validate(
        {
            "servers": demo_servers(folder / "work"),
            "http": {"port": port},
            "gateway": {"hybrid": {"max_underlying_tools": 20, "whitelisted_tools": ["calc:current_time"]}},
        }
    )
    loaded = LoadedSettings(settings, origins={}, warnings=(), files=())
    paths = Paths.from_environ({"PML_HOME": str(folder / "home"), "HOME": os.environ.get("HOME", str(folder))})
    stop, listening, complete = anyio.Event(), anyio.Event(), anyio.Event()

    async def on_open(gateway: Gateway) -> None:
        if await gateway.refresh(START_SECONDS) and await gateway.wait_for_search(START_SECONDS):
            complete.set()

    opener = partial(open_runtime, loaded, paths, identity="demo", load=lambda: loaded, on_open=on_open)
    urls: list[str] = []

    def on_listening(url: str) -> None:
        urls.append(url)
        listening.set()

    async with anyio.create_task_group() as tasks:

        async def serve() -> None:
            async with first_signal() as signalled:
                tasks.start_soon(stop_on, signalled)
                await serve_http(opener, HttpSettings(port=port), on_listening, stop)
            # A signal ended the gateway: the tasks that wait for it end as well.
            tasks.cancel_scope.cancel()

        async def stop_on(signalled: anyio.Event) -> None:
            await signalled.wait()
            stop.set()

        tasks.start_soon(serve)
        with anyio.move_on_after(2 * START_SECONDS):
            await listening.wait()
            await complete.wait()
        if not complete.is_set():
            tasks.cancel_scope.cancel()
            raise UpstreamTimeoutError(f"the demo did not start within {2 * START_SECONDS:g} s; is the machine busy?")
        try:
            yield urls[0]
        finally:
            stop.set()
    if not complete.is_set():
        # A signal ended the gateway before it had started, so no code inside could end with it.
        raise KeyboardInterrupt


async def walk_through(url: str) -> DemoReport:
    """Take the tour as a client of the demo gateway, and return its answers."""
    modes = [await _mode_row(url, mode) for mode in ExposureMode]
    async with Client(url) as client:
        full = await _client_tools(f"{url}/full_proxy")
        overview = _data(await client.call_tool("search_tools", {"query": "*"}))
        servers = {row["server"]: row["tools"] for row in overview["servers"]}
        found = await client.call_tool("search_tools", {"query": "monthly payment for a mortgage", "limit": 3})
        direct = await client.call_tool("files__list_directory", {"path": "projects"})
        by_name = await client.call_tool(
            "call_tool", {"name": "calc__evaluate_expression", "arguments": {"expression": "(17 + 25) * 100 / 7"}}
        )
    hits = "\n".join(
        f"{shown_score(hit['score'])}  {hit['name']}\n      {first_sentence(hit['description'], READABLE)}"
        for hit in _data(found)["hits"]
    )
    steps = [
        TourStop("A search", 'search_tools(query="monthly payment for a mortgage", limit=3)', hits),
        TourStop(
            "A direct call of a tool that is not listed", 'files__list_directory(path="projects")', _shown(direct)
        ),
        TourStop(
            "A call through call_tool",
            'call_tool(name="calc__evaluate_expression", arguments={"expression": "(17 + 25) * 100 / 7"})',
            _shown(by_name),
        ),
    ]
    return DemoReport(url, TOKENIZER, INTENT, len(full), servers, modes, steps)


async def _mode_row(url: str, mode: ExposureMode) -> ModeRow:
    reads_intent = MODES[mode].reads_intent
    endpoint = f"{url}/{mode}" + (f"?query={INTENT.replace(' ', '+')}" if reads_intent else "")
    listed = await _client_tools(endpoint)
    text = json.dumps([tool.model_dump(by_alias=True, exclude_none=True) for tool in listed], separators=(",", ":"))
    return ModeRow(f"{mode} *" if reads_intent else str(mode), len(listed), count_tokens(text))


async def _client_tools(url: str) -> list[Tool]:
    async with Client(url) as client:
        return (await client.list_tools()).tools


def _data(result: CallToolResult) -> JsonObject:
    return result.structured_content or {}


def _shown(result: CallToolResult) -> str:
    text = "\n".join(item.text for item in result.content if isinstance(item, TextContent))
    return shortened(text, 400)
