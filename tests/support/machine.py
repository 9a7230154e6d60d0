"""The gateway process of a machine in this process: its clients attach over socket pairs, its servers are in memory."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

from pml_gateway import __version__
from pml_gateway.errors import GatewayError
from pml_gateway.gateway.shared import SharedResources, open_shared
from pml_gateway.local.endpoint import Endpoint
from pml_gateway.local.listening import HttpListener
from pml_gateway.local.machine import Machine, ProcessLifetime
from pml_gateway.local.profiles import Profiles
from pml_gateway.owner.connection import accept
from pml_gateway.owner.operations import OfProcess
from pml_gateway.owner.sockets import result_of
from pml_gateway.upstreams.dialogue.local_clients import LocalClients
from tests.support.memory import MemoryStreams, paths_in
from tests.support.scripted_server import ScriptedServer

ANNOUNCED = {"roots": {"listChanged": True}, "sampling": {}, "elicitation": {}}
"""What real clients say that they can be asked."""

MAX_LINE = 1024 * 1024


@dataclass
class Attached:
    """One client behind a bridge, a line at a time. `notices` are those for its bridge, `told` those for itself."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    notices: list[dict[str, Any]] = field(default_factory=list)
    told: list[dict[str, Any]] = field(default_factory=list)
    last_id: int = 0

    async def send(self, message: Mapping[str, Any]) -> None:
        self.writer.write(json.dumps(message).encode() + b"\n")
        await self.writer.drain()

    async def line(self) -> bytes:
        with anyio.fail_after(20):
            return await self.reader.readuntil()

    async def notice(self, name: str) -> Any:
        """The next notice of that name for the bridge."""
        while True:
            for at, notice in enumerate(self.notices):
                if name in notice:
                    return self.notices.pop(at)
            await self._read()

    async def next_told(self, method: str) -> dict[str, Any]:
        """The next request or notification of that method for the client."""
        while True:
            for at, message in enumerate(self.told):
                if message.get("method") == method:
                    return self.told.pop(at)
            await self._read()

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The answer to one request: its result, or its whole error."""
        request_id = await self.begin(method, params)
        return await self.answer(request_id)

    async def begin(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        self.last_id += 1
        await self.send({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": dict(params or {})})
        return self.last_id

    async def answer(self, request_id: int) -> dict[str, Any]:
        while True:
            for at, message in enumerate(self.told):
                if message.get("id") == request_id and "method" not in message:
                    del self.told[at]
                    result: dict[str, Any] = message.get("result", message)
                    return result
            await self._read()

    async def call(self, tool: str, **arguments: Any) -> str:
        """The text of a tool's result."""
        result = await self.request("tools/call", {"name": tool, "arguments": arguments})
        return str(result["content"][0]["text"])

    async def introduce(self, announced: Mapping[str, Any] = ANNOUNCED, name: str = "test") -> dict[str, Any]:
        """The handshake."""
        answer = await self.request(
            "initialize",
            {
                "protocolVersion": "2025-06-18",
                "capabilities": dict(announced),
                "clientInfo": {"name": name, "version": "1"},
            },
        )
        await self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer

    async def tools(self) -> list[str]:
        return [tool["name"] for tool in (await self.request("tools/list"))["tools"]]

    async def _read(self) -> None:
        line = await self.line()
        if line.startswith(b"!"):
            self.notices.append(json.loads(line[1:]))
        else:
            self.told.append(json.loads(line))


@dataclass
class TestMachine:
    """A machine's gateway and what it has in common."""

    machine: Machine
    profiles: Profiles
    shared: SharedResources
    life: ProcessLifetime
    home: Path
    tasks: anyio.abc.TaskGroup
    listening: HttpListener
    up_request: Path

    __test__ = False

    @asynccontextmanager
    async def line(self, first: bytes) -> AsyncIterator[Attached]:
        """A connection whose first line this is."""
        ours, theirs = socket.socketpair()
        self.tasks.start_soon(self.machine.serve, theirs)
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=MAX_LINE)
        try:
            writer.write(first + b"\n")
            yield Attached(reader, writer)
        finally:
            # Without waiting for what is still to be written: the other side may read nothing.
            writer.transport.abort()

    def connected(self, first: Mapping[str, Any]) -> AbstractAsyncContextManager[Attached]:
        """As `line`, of a JSON object."""
        return self.line(json.dumps(first).encode())

    @asynccontextmanager
    async def attached(
        self,
        name: str = "one",
        *,
        folder: Path | None = None,
        environ: Mapping[str, str] | None = None,
        version: str = __version__,
        state: Mapping[str, Any] | None = None,
        replaced: bool = False,
        introduced: bool = True,
        **options: str,
    ) -> AsyncIterator[Attached]:
        """A client of this name (its secret), in a folder and with variables of its own."""
        hello = {
            "attach": 1,
            "version": version,
            "secret": name.ljust(40, "."),
            "pid": 1,
            "folder": str(folder or self.home),
            "environ": {"PML_HOME": str(self.home), "HOME": str(self.home), "PATH": "/usr/bin", **(environ or {})},
            "options": options,
            "state": state,
            "replaced": replaced,
        }
        async with self.connected(hello) as client:
            if introduced:
                await client.notice("attached")
                await client.introduce(name=name)
            yield client

    async def command(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """The result of an operation asked on the socket, or its error as a text."""
        async with self.connected({"operation": {"name": operation, "arguments": arguments}}) as client:
            line = await client.line()
        try:
            asked: OfProcess[dict[str, Any]] = OfProcess(operation)
            return result_of(asked, line)
        except GatewayError as error:
            return {"error": str(error)}


@asynccontextmanager
async def open_machine(
    home: Path, upstreams: Mapping[str, ScriptedServer], streams: MemoryStreams | None = None, **sections: Any
) -> AsyncIterator[TestMachine]:
    """The gateway of a home whose configuration has these servers, and other sections as given."""
    servers = {name: {"command": f"in-memory-{name}"} for name in upstreams}
    content = {**sections, "servers": {**servers, **sections.get("servers", {})}}
    (home / "config.yaml").write_text(json.dumps(content), encoding="utf-8")
    paths, up_request = paths_in(home), home / "gateway.up"
    life = ProcessLifetime("client", str(up_request))
    async with (
        open_shared(paths, open_streams=streams or MemoryStreams(upstreams), local=LocalClients()) as shared,
        anyio.create_task_group() as tasks,
    ):
        profiles = Profiles(tasks, shared, paths)
        listening = HttpListener(tasks, shared, life.ending)
        config = home / "config.yaml"
        machine = Machine(profiles, shared, listening, paths, life, str(config))
        endpoint = Endpoint.of(home, config)
        with endpoint.listen() as listener:
            tasks.start_soon(accept, listener, machine.serve, tasks)
            yield TestMachine(machine, profiles, shared, life, home, tasks, listening, up_request)
            tasks.cancel_scope.cancel()
            endpoint.withdraw()
