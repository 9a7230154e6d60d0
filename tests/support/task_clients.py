"""Clients of tasks in the form of either era, and a server whose call they wait for."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest

from pml_gateway.gateway import shared_tasks
from pml_gateway.serve import tasks
from pml_gateway.storage import replicas as replica_store
from tests.support.raw import HandshakeSession, decoded
from tests.support.replicas import KEYS, replicas
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import Serving
from tests.support.task_server import TASKS
from tests.support.waiting import eventually

CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
DECLARED: dict[str, Any] = {"extensions": {TASKS: {}}}
ABLE: dict[str, Any] = {"elicitation": {"form": {}}}


@dataclass
class SlowServer:
    """A server whose tool `slow` ends when it is let, and `broken` fails."""

    go: anyio.Event = field(default_factory=anyio.Event)
    cancelled: int = 0
    modern: bool | None = False

    def server(self) -> ScriptedServer:
        async def handler(ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
            match call["name"]:
                case "slow":
                    try:
                        await self.go.wait()
                    except anyio.get_cancelled_exc_class():
                        self.cancelled += 1
                        raise
                    return text_result(f"done {call['arguments'].get('number', '')}".strip())
                case "broken":
                    return {**text_result("no luck"), "isError": True}
            return text_result(call["name"])

        return ScriptedServer([tool(name) for name in ("slow", "broken", "quick")], handler, modern=self.modern)


@pytest.fixture
async def slow() -> SlowServer:
    return SlowServer()


class CoreClient:
    """A client of 2025-11-25 that asks for tasks."""

    def __init__(self, session: HandshakeSession) -> None:
        self.session = session

    async def message(self, method: str, **params: Any) -> dict[str, Any]:
        return await anyio.to_thread.run_sync(lambda: decoded(self.session.send(method, params)))

    async def result(self, method: str, **params: Any) -> dict[str, Any]:
        message = await self.message(method, **params)
        assert "result" in message, message
        result: dict[str, Any] = message["result"]
        return result

    async def task(self, name: str, ttl: int | None = None, **arguments: Any) -> dict[str, Any]:
        """The task that a call becomes."""
        asked = {} if ttl is None else {"ttl": ttl}
        created = await self.result("tools/call", name=name, arguments=arguments, task=asked)
        assert set(created) == {"task"}, created
        task: dict[str, Any] = created["task"]
        return task

    async def until(self, status: str, task_id: str) -> None:
        """Wait until a task has this status."""

        async def has_it() -> bool:
            return str((await self.result("tasks/get", taskId=task_id))["status"]) == status

        await eventually(has_it)


@asynccontextmanager
async def core(served: Serving, key: str | None = None, **capabilities: Any) -> AsyncIterator[CoreClient]:
    async with served.handshake(key=key, capabilities=capabilities) as session:
        yield CoreClient(session)


class ModernClient:
    """A client of 2026-07-28 that declares the extension."""

    def __init__(self, served: Serving, key: str | None = None, **capabilities: Any) -> None:
        self._served = served
        self._key = key
        self._meta = {CAPABILITIES: {**DECLARED, **capabilities}}

    async def message(self, method: str, **params: Any) -> dict[str, Any]:
        return await self._served.message(method, {**params, "_meta": self._meta}, key=self._key)

    async def result(self, method: str, **params: Any) -> dict[str, Any]:
        message = await self.message(method, **params)
        assert "result" in message, message
        result: dict[str, Any] = message["result"]
        return result

    async def until(self, status: str, task_id: str) -> dict[str, Any]:
        """Wait until a task has this status, and return it."""
        seen: list[dict[str, Any]] = []

        async def has_it() -> bool:
            seen.append(await self.result("tasks/get", taskId=task_id))
            return str(seen[-1]["status"]) == status

        await eventually(has_it)
        return seen[-1]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls become tasks after a moment."""
    monkeypatch.setattr(tasks, "PROMOTE_SECONDS", 0.2)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateways look every moment at each other and at tasks."""
    monkeypatch.setattr(shared_tasks, "REFRESH_SECONDS", 0.1)
    for module in (shared_tasks, replica_store):
        monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(replica_store, "RETURN_SECONDS", 0.5)


@asynccontextmanager
async def two(
    folder: Path, up: ScriptedServer, sections: dict[str, Any]
) -> AsyncIterator[tuple[Serving, Serving, CoreClient, CoreClient]]:
    """Two gateways, and a session of anna at each."""
    async with (
        replicas(folder, {"up": up}, **sections) as (one, other),
        core(one, KEYS["anna"], **ABLE) as here,
        core(other, KEYS["anna"], **ABLE) as there,
    ):
        yield one, other, here, there


@asynccontextmanager
async def notified(client: CoreClient) -> AsyncIterator[list[dict[str, Any]]]:
    """The states of tasks that a session is notified of."""
    states: list[dict[str, Any]] = []
    headers = {**client.session.headers, "accept": "text/event-stream"}
    async with (
        httpx2.AsyncClient(timeout=60) as http,
        http.stream("GET", client.session.url, headers=headers) as it,
        anyio.create_task_group() as group,
    ):

        async def listen() -> None:
            async for line in it.aiter_lines():
                message = json.loads(line[6:]) if line.startswith("data: {") else {}
                if message.get("method") == "notifications/tasks/status":
                    states.append(message["params"])

        group.start_soon(listen)
        yield states
        group.cancel_scope.cancel()
