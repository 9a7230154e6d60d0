"""What do clients cost that wait for one long task? Memory of the process for each, and threads.

    python -m benchmarks.run_waiting [--clients 1000] [--no-save]

One server in memory runs the call; each client asks for the result of its task with `tasks/result`, and gets it at the
end. A server of the SDK that only waits is measured beside it. The limits are those that were promised: no thread, and
8 kB each in addition to what the SDK takes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import tempfile
import threading
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from benchmarks.client import AnswerError
from benchmarks.harness import table
from benchmarks.results import save
from pml_gateway.config.load import LoadedSettings
from pml_gateway.mcp.sdk import create_context_streams
from pml_gateway.serve.runtime import open_runtime
from tests.support.memory import MemoryStreams, paths_in, settings_for
from tests.support.scripted_server import ScriptedServer, text_result, tool

MAX_BYTES = 8 * 1024
SECONDS = 120.0


class Session:
    """One session of 2025-11-25, as raw messages."""

    def __init__(self, to_gateway: Any, from_gateway: Any) -> None:
        self._to_gateway = to_gateway
        self._from_gateway = from_gateway
        self._next = 0

    async def ask(self, method: str, params: dict[str, Any]) -> None:
        """Send one request, and wait for nothing."""
        self._next += 1
        await self.send(JSONRPCRequest(jsonrpc="2.0", id=self._next, method=method, params=params))

    async def send(self, message: JSONRPCMessage) -> None:
        await self._to_gateway.send(SessionMessage(message))

    async def answer(self) -> dict[str, Any]:
        """The next answer."""
        while True:
            message = (await self._from_gateway.receive()).message
            if isinstance(message, JSONRPCResponse):
                return message.result
            if not isinstance(message, JSONRPCNotification):
                raise AnswerError(f"{message}")


async def waiting(session: Session, clients: int, wanted: dict[str, Any], go: anyio.Event) -> tuple[float, int]:
    """Bytes for each client that waits for a result, and threads that all of them take; each gets it at the end."""
    gc.collect()
    tracemalloc.start()
    before, threads, tasks = tracemalloc.get_traced_memory()[0], threading.active_count(), len(asyncio.all_tasks())
    for _ in range(clients):
        await session.ask("tasks/result", wanted)
    with anyio.fail_after(SECONDS):
        while len(asyncio.all_tasks()) < tasks + clients:  # noqa: ASYNC110  # requests that wait make no event
            await anyio.sleep(0.05)
    await anyio.sleep(1)
    gc.collect()
    after, more_threads = tracemalloc.get_traced_memory()[0], threading.active_count() - threads
    tracemalloc.stop()
    go.set()
    with anyio.fail_after(SECONDS):
        for _ in range(clients):
            if (await session.answer()).get("content") != text_result("done")["content"]:
                raise AnswerError("a client got something else")
    return (after - before) / clients, max(more_threads, 0)


@asynccontextmanager
async def connected(server: Server[Any], clients: int) -> AsyncIterator[Session]:
    """A session with a server, whose answers wait until they are read."""
    to_server, read = create_context_streams[SessionMessage | Exception](0)
    write, from_server = create_context_streams[SessionMessage](2 * clients)
    async with to_server, read, write, from_server, anyio.create_task_group() as serving:
        serving.start_soon(server.run, read, write, server.create_initialization_options())
        session = Session(to_server, from_server)
        client = {"clientInfo": {"name": "waiting", "version": "1"}, "capabilities": {}}
        await session.ask("initialize", {**client, "protocolVersion": "2025-11-25"})
        await session.answer()
        await session.send(JSONRPCNotification(jsonrpc="2.0", method="notifications/initialized"))
        yield session
        serving.cancel_scope.cancel()


async def of_gateway(clients: int, folder: Path) -> tuple[float, int]:
    """Of a gateway, whose server runs the call."""
    go = anyio.Event()

    async def handler(_ctx: Any, _call: dict[str, Any]) -> dict[str, Any]:
        await go.wait()
        return text_result("done")

    upstreams = {"up": ScriptedServer([tool("slow")], handler)}
    loaded = LoadedSettings(settings_for(upstreams), origins={}, warnings=(), files=())
    opening = open_runtime(
        loaded, paths_in(folder), identity="waiting", load=lambda: loaded, open_streams=MemoryStreams(upstreams)
    )
    async with opening as runtime, connected(runtime.server, clients) as session:
        await session.ask("tools/call", {"name": "up__slow", "arguments": {}, "task": {"ttl": 600_000}})
        wanted = {"taskId": (await session.answer())["task"]["taskId"]}
        await anyio.sleep(3)  # what starts in the background is not counted
        return await waiting(session, clients, wanted, go)


async def of_sdk(clients: int) -> tuple[float, int]:
    """Of a server of the SDK that does nothing but wait."""
    go = anyio.Event()

    async def handler(_ctx: Any, _params: Any) -> dict[str, Any]:
        await go.wait()
        return text_result("done")

    server: Server[Any] = Server("bare")
    server.add_request_handler("tasks/result", mcp_types.GetTaskPayloadRequestParams, handler)
    async with connected(server, clients) as session:
        return await waiting(session, clients, {"taskId": "x"}, go)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--no-save", action="store_true")
    given = parser.parse_args(argv)
    # The first run fills caches.
    bare = [asyncio.run(of_sdk(given.clients))[0] for _ in range(2)][-1]
    with tempfile.TemporaryDirectory() as folder:
        whole, threads = asyncio.run(of_gateway(given.clients, Path(folder)))
    found = {"bytes_each": round(whole), "of_sdk": round(bare), "of_gateway": round(whole - bare), "threads": threads}
    print(table([found]))
    if not given.no_save:
        save("waiting", {"clients": given.clients}, found)
    return int(found["of_gateway"] > MAX_BYTES or threads > 0)


if __name__ == "__main__":
    raise SystemExit(main())
