"""How long edits and changed listings hold the gateway's event loop, and when the new list is served.

    python -m benchmarks.run_reload [--tools 700 5000 20000] [--servers 20] [--runs 5] [--quick]

The gateway runs in this process, in front of servers in memory whose answers are JSON in pages. A ticker on the same
event loop wakes every two milliseconds; how late it wakes at most, from the edit until everything that follows from it
is done (the new list, the whole list, a search, the index, the manifest), is the longest stall. The processor time of
the loop's own thread between two ticks is its work: on a machine that does something else besides, stalls are longer.
Garbage collection is off meanwhile: what was there before is frozen, and what an edit leaves behind is collected after
it. Search ranks by words alone, so that no model's encoding is measured. Payloads are checked after the ticker stopped.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.shared.memory import create_client_server_memory_streams

from benchmarks.client import AnswerError
from benchmarks.harness import table
from benchmarks.metrics import median
from benchmarks.results import save
from benchmarks.synthetic import ECHO, synthetic_tools
from pml_gateway.catalog.wire import LATEST_VERSION
from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.settings import Settings
from pml_gateway.exposure.meta_tool import RESERVED
from pml_gateway.gateway.calling import Caller
from pml_gateway.gateway.gateway import Gateway, open_gateway
from pml_gateway.gateway.request import CallOptions, RequestScope, list_intent
from pml_gateway.gateway.state import GatewayState
from pml_gateway.gateway.tool_list import list_tools
from pml_gateway.meta.meta_tools import ALL_META_TOOLS
from pml_gateway.paths import Paths
from pml_gateway.serve.runtime import TURN_SECONDS
from pml_gateway.types import ExposureMode

SIZES = (700, 5_000, 20_000)
SERVERS = 20
PAGE_TOOLS = 100
"""Tools in a page, so that no message of a server is a stall by itself."""

TICK_SECONDS = 0.002
SETTLE_SECONDS = 1.0
"""How long the ticker runs on after the last answer: the manifest is written then."""

START_SECONDS = 120.0
EDIT_SECONDS = 60.0
WHOLE = RequestScope(mode=ExposureMode.FULL_PROXY)


@dataclass(slots=True)
class MemoryServer:
    """One MCP server of the handshake era; every listing has objects of its own, as if it came over a wire."""

    pages: list[str]
    decoded: list[Any] = field(default_factory=list)
    sessions: list[Any] = field(default_factory=list)

    @classmethod
    def of(cls, tools: Sequence[dict[str, Any]]) -> MemoryServer:
        """A server with these tools."""
        server = cls([])
        server.serve(tools)
        return server

    def serve(self, tools: Sequence[dict[str, Any]]) -> None:
        """List these tools from now on."""
        starts = range(0, len(tools), PAGE_TOOLS)
        self.pages = [json.dumps(tools[start : start + PAGE_TOOLS]) for start in starts]
        self.get_ready()

    def get_ready(self) -> None:
        """Decode the next listing beforehand: the gateway reads no JSON of servers in memory, so none is measured."""
        self.decoded = [json.loads(page) for page in self.pages]

    def server(self) -> Server[Any]:
        """The server of one connection."""

        async def list_page(ctx: Any, params: Any) -> Any:
            if ctx.session not in self.sessions:
                self.sessions.append(ctx.session)
            at = int((ctx.params or {}).get("cursor") or 0)
            more = {"nextCursor": str(at + 1)} if at + 1 < len(self.pages) else {}
            page, self.decoded[at] = self.decoded[at] or json.loads(self.pages[at]), None
            return {"tools": page, **more}

        async def unchecked(ctx: Any, call_next: Any) -> Any:
            # Past the SDK's models, whose checks of whole pages would be measured instead.
            return await (list_page(ctx, None) if ctx.method == "tools/list" else call_next(ctx))

        server: Server[Any] = Server("memory", version="1", on_list_tools=list_page)
        server.middleware.append(unchecked)
        return server

    async def announce(self) -> None:
        """Tell the gateway that the tools changed."""
        for session in self.sessions:
            await session.send_tool_list_changed()


class MemoryStreams:
    """Opens servers in memory by their id."""

    def __init__(self, servers: dict[str, MemoryServer]) -> None:
        self._servers = servers

    @asynccontextmanager
    async def __call__(
        self, upstream_id: str, definition: UpstreamDefinition, **options: Any
    ) -> AsyncIterator[tuple[Any, Any]]:
        server = self._servers[upstream_id].server()
        async with (
            create_client_server_memory_streams() as (client_side, (read, write)),
            anyio.create_task_group() as tasks,
        ):
            announcing = server.create_initialization_options(NotificationOptions(tools_changed=True))
            tasks.start_soon(server.run, read, write, announcing)
            yield client_side
            tasks.cancel_scope.cancel()


@dataclass(slots=True)
class Ticker:
    """Notes how late the event loop wakes it at most, and how long the loop's own thread computed in between."""

    stall: float = 0.0
    work: float = 0.0

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            due, worked = time.perf_counter() + TICK_SECONDS, time.thread_time()
            await anyio.sleep(TICK_SECONDS)
            self.stall = max(self.stall, time.perf_counter() - due)
            self.work = max(self.work, time.thread_time() - worked)


@dataclass(slots=True)
class Scene:
    """One running gateway, its servers, and what they list."""

    gateway: Gateway
    servers: dict[str, MemoryServer]
    tools: dict[str, list[dict[str, Any]]]
    settings: Settings

    def expected(self) -> dict[str, str]:
        """Descriptions by the name that clients see, of the servers in the settings."""
        prefixed = self.settings.naming.prefix == "always"
        return {
            f"{server}__{tool['name']}" if prefixed else tool["name"]: tool["description"]
            for server in self.settings.servers
            for tool in self.tools[server]
        }

    def change(self, number: int) -> None:
        """Let one server describe one tool in other words."""
        first = self.tools["server0"]
        first[-1] = {**first[-1], "description": f"Changed for the {number + 1}. time."}
        self.servers["server0"].serve(first)

    def last(self) -> str:
        """The name of the last tool of all."""
        server = list(self.settings.servers)[-1]
        name = str(self.tools[server][-1]["name"])
        return f"{server}__{name}" if self.settings.naming.prefix == "always" else name

    def check(self, tools_json: bytes) -> None:
        """The whole list has exactly these tools."""
        listed = {tool["name"]: tool.get("description", "") for tool in json.loads(tools_json)}
        if listed != self.expected():
            raise AnswerError(f"{len(listed)} tools listed instead of {len(self.expected())}, or not the right ones")

    async def reload(self, **sections: Any) -> None:
        """Edit the settings."""
        edited = self.settings.model_dump()
        for name, section in sections.items():
            edited[name] = section if name == "servers" else {**edited[name], **section}
        self.settings = await anyio.to_thread.run_sync(Settings.model_validate, edited)
        await self.gateway.reload(self.settings)


Edit = Callable[[Scene, int], Awaitable[None]]
"""Makes the nth edit of its kind; every one differs from the one before."""


async def edit_intent(scene: Scene, number: int) -> None:
    """Another intent, which names one tool of the last server."""
    last = list(scene.settings.servers)[-1]
    await scene.reload(gateway={"intent": f"{last}__{scene.tools[last][number + 1]['name']}"})


async def edit_limits(scene: Scene, number: int) -> None:
    """Another limit of the listed tools."""
    await scene.reload(gateway={"hybrid": {"max_underlying_tools": 10 + number}})


async def add_or_remove_server(scene: Scene, number: int) -> None:
    """One server more, or one less again."""
    servers = {name: {"command": f"in-memory-{name}"} for name in scene.tools}
    if "extra" in scene.settings.servers:
        del servers["extra"]
    await scene.reload(servers=servers)


async def edit_naming(scene: Scene, number: int) -> None:
    """Names with their server, or bare again."""
    bare = scene.settings.naming.prefix == "never"
    await scene.reload(naming={"prefix": "always" if bare else "never"})


async def change_listing(scene: Scene, number: int) -> None:
    """One description of one server, announced."""
    await scene.servers["server0"].announce()


EDITS: dict[str, Edit] = {
    "intent": edit_intent,
    "limit": edit_limits,
    "server added or removed": add_or_remove_server,
    "naming": edit_naming,
    "one list_changed": change_listing,
}
SAME_TOOLS = ("intent", "limit")
"""The edits after which the whole list is as before, so that the new list is that of the configured mode."""


async def listed(gateway: Gateway, scope: RequestScope) -> bytes:
    """The list that a client gets."""
    settings = gateway.state.settings.gateway
    return (await list_tools(gateway, scope, list_intent(None, scope, settings), LATEST_VERSION)).tools_json


async def new_list(gateway: Gateway, scope: RequestScope, before: bytes) -> bytes:
    """The first list that differs from the one before, asked for after every change of the gateway's state."""
    changed = anyio.Event()

    def on_swap(_before: GatewayState, _after: GatewayState) -> None:
        changed.set()

    stop = gateway.current.on_swap(on_swap)
    try:
        with anyio.fail_after(EDIT_SECONDS):
            while (now := await listed(gateway, scope)) == before:
                await changed.wait()
                changed = anyio.Event()
    finally:
        stop()
    return now


async def measured(scene: Scene, kind: str, number: int) -> tuple[float, float, float]:
    """The longest stall and work of the loop, and the time until the new list, of one edit; in seconds."""
    gateway, caller = scene.gateway, Caller(scene.gateway)
    scope = RequestScope() if kind in SAME_TOOLS else WHOLE
    before = await listed(gateway, scope)
    if kind == "one list_changed":
        scene.change(number)
    for server in scene.servers.values():
        server.get_ready()
    gc.collect()
    gc.freeze()
    gc.disable()
    ticker = Ticker()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ticker.run)
            await anyio.sleep(10 * TICK_SECONDS)
            ticker.stall = ticker.work = 0.0
            began = time.perf_counter()
            await EDITS[kind](scene, number)
            # A limit shows in the settings alone where no intent selects as many tools.
            now = await (listed(gateway, scope) if kind == "limit" else new_list(gateway, scope, before))
            seconds = time.perf_counter() - began
            whole = await listed(gateway, WHOLE)
            wanted = scene.last()
            search = partial(caller.call, RequestScope(), "search_tools", {"query": wanted}, CallOptions())
            await search()
            if not await gateway.indexer.wait(EDIT_SECONDS):
                raise AnswerError("no index in time")
            found = await search()
            await anyio.sleep(SETTLE_SECONDS)
            tasks.cancel_scope.cancel()
    finally:
        gc.enable()
        gc.unfreeze()
    scene.check(whole)
    if found["structuredContent"]["hits"][0]["name"] != wanted:
        raise AnswerError(f"{wanted} is not found first")
    if kind == "intent" and str(scene.settings.gateway.intent).encode() not in now:
        raise AnswerError(f"{scene.settings.gateway.intent} is not listed")
    return ticker.stall, ticker.work, seconds


def scattered(tools: int, servers: int) -> dict[str, list[dict[str, Any]]]:
    """Tools shared out to so many servers, and to one more that is added and removed; bare names are legal as well."""
    share = tools // servers
    spare = len(RESERVED) + 1
    synthetic = synthetic_tools((servers + 1) * share + spare)
    made = [tool for tool in synthetic if tool["name"] != ECHO and tool["name"] not in RESERVED]
    found = {f"server{number}": made[number * share : (number + 1) * share] for number in range(servers)}
    return {**found, "extra": made[servers * share : (servers + 1) * share]}


async def measure_size(tools: int, servers: int, runs: int) -> list[dict[str, Any]]:
    """One row for each kind of edit."""
    shares = scattered(tools, servers)
    running = {name: MemoryServer.of(share) for name, share in shares.items()}
    settings = Settings.model_validate(
        {
            "servers": {name: {"command": f"in-memory-{name}"} for name in shares if name != "extra"},
            "gateway": {
                "tools_exposure": "hybrid",
                "intent": "find a document",
                "full_proxy": {"expose_meta_tools": False},
            },
            "search": {"ranking": "lexical"},
        }
    )
    rows = []
    with tempfile.TemporaryDirectory(prefix="pml-") as folder:
        paths = Paths.from_environ({"PML_HOME": folder, "HOME": folder})
        async with open_gateway(
            settings, paths, identity="reload", meta_tools=ALL_META_TOOLS, open_streams=MemoryStreams(running)
        ) as gateway:
            if not await gateway.refresh(START_SECONDS) or not await gateway.indexer.wait(START_SECONDS):
                raise AnswerError("the servers were not listed in time")
            scene = Scene(gateway, running, shares, settings)
            scene.check(await listed(gateway, WHOLE))
            for kind in EDITS:
                series = [await measured(scene, kind, number) for number in range(runs + 1)][1:]
                stalls, works, waits = zip(*series, strict=True)
                rows.append(
                    {
                        "tools": tools,
                        "edit": kind,
                        "runs": runs,
                        "stall_p50_ms": median(stalls) * 1000,
                        "stall_max_ms": max(stalls) * 1000,
                        "work_max_ms": max(works) * 1000,
                        "new_list_p50_ms": median(waits) * 1000,
                        "new_list_max_ms": max(waits) * 1000,
                    }
                )
    return rows


async def run(arguments: argparse.Namespace) -> None:
    """Measure, print, save."""
    sizes, runs = arguments.tools, arguments.runs
    if arguments.quick:
        sizes, runs = [100], 1
    rows = [row for size in sizes for row in await measure_size(size, arguments.servers, runs)]
    print(table(rows))
    if not arguments.no_save and not arguments.quick:
        settings = {"tools": list(sizes), "servers": arguments.servers, "runs": runs, "page_tools": PAGE_TOOLS}
        print(save("reload", settings, {"edits": rows}))


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description="How long edits hold the event loop, and when the new list is served.")
    parser.add_argument("--tools", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--servers", type=int, default=SERVERS)
    parser.add_argument("--runs", type=int, default=5, help="edits of each kind, after one that warms up")
    parser.add_argument("--quick", action="store_true", help="tiny counts: shows that it runs, measures nothing")
    parser.add_argument("--no-save", action="store_true", help="print only")
    # As `pml serve` does.
    sys.setswitchinterval(TURN_SECONDS)
    anyio.run(run, parser.parse_args())


if __name__ == "__main__":
    main()
