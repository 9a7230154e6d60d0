"""Clients with and without apps and tasks, in front of servers with and without.

Where both sides have an extension, all is as without a gateway. What it adds where one side has it and the other does
not is in `ADDED`, which was written from the specifications of apps and of tasks.
"""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.to_thread
import httpx2
import pytest

from benchmarks.machine.client import Silent, start_client
from pml_gateway.mcp.capabilities import APP_TYPE, APPS, TASKS
from tests.support.listening import listening
from tests.support.process import over_stdio, running_gateway, write_settings
from tests.support.raw import MODERN, HandshakeSession, decoded, post_modern
from tests.support.task_server import SUPPORT, Era, TaskServer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

KINDS = ("none", "apps", "tasks", "both")
SECONDS = 200
"""On an idle machine, a test takes a tenth of this."""

VERSION = {"old": "2025-11-25", "new": MODERN}
INVALID_PARAMS, NO_CAPABILITY = -32602, -32021

Outcome = Any
"""What a client saw of one operation, without what differs in every run."""

NOT_OF_THE_PAGE: Outcome = {**{name: [None, None] for name in SUPPORT}, "work": ["page", None]}
"""The tools without the one that is not for a model; clients without apps ignore the page of another."""

ADDED: Mapping[tuple[str, Era, bool, bool], Outcome] = {
    # operation, era, whether the client has the extension of the operation, and whether the server has it
    ("list", "old", False, True): NOT_OF_THE_PAGE,
    ("list", "new", False, True): NOT_OF_THE_PAGE,
    # A client without tasks gets the result of a tool that only runs as one: the gateway waits for it.
    ("required", "old", False, True): ["only", None],
    ("required", "new", False, True): ["only", None],
    # The gateway has tasks for every client of 2025-11-25 that asks for one, whatever its server has.
    ("required", "old", True, False): "completed",
    ("task", "old", True, False): ["working", "completed", "work"],
    ("cancel", "old", True, False): ["completed", INVALID_PARAMS],
    ("notification", "old", True, False): ["completed"],
    # Clients are told so. What none has asked for is unknown, and no tasks are for those that declare none.
    ("cancel", "old", False, False): INVALID_PARAMS,
    ("cancel", "new", True, False): INVALID_PARAMS,
    ("cancel", "new", False, False): NO_CAPABILITY,
}
"""Outcomes that are not those without a gateway."""


def has(kind: str, extension: str) -> bool:
    return kind in (extension, "both")


class Client(Protocol):
    """A client of one era, over one transport."""

    async def message(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]: ...

    def told(self, method: str) -> list[dict[str, Any]]: ...


@dataclass
class Told(Silent):
    """The notifications that arrived."""

    all: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def told(self, method: str, params: dict[str, Any]) -> None:
        self.all.append((method, params))

    def of(self, method: str) -> list[dict[str, Any]]:
        return [params for each, params in self.all if each == method]


class OverHttp:
    """A client over HTTP; that of the handshake era listens on the stream of its session."""

    def __init__(self, url: str, era: Era, capabilities: Mapping[str, Any]) -> None:
        self._url = url
        self._meta = {"io.modelcontextprotocol/clientCapabilities": dict(capabilities)}
        self._notices = Told()
        self._http = httpx2.Client()
        self._session = HandshakeSession(url, capabilities=capabilities) if era == "old" else None
        if self._session is not None:
            is_open = threading.Event()
            threading.Thread(target=self._listen, args=(self._session, is_open), daemon=True).start()
            assert is_open.wait(SECONDS)

    def _listen(self, session: HandshakeSession, is_open: threading.Event) -> None:
        headers = {**session.headers, "accept": "text/event-stream"}
        with suppress(httpx2.HTTPError), httpx2.stream("GET", self._url, headers=headers, timeout=None) as stream:
            is_open.set()
            for line in stream.iter_lines():
                message = json.loads(line[6:]) if line.startswith("data: {") else {}
                self._notices.told(message.get("method", ""), message.get("params") or {})

    async def message(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        return await anyio.to_thread.run_sync(lambda: self._sent(method, params))

    def _sent(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        if self._session is not None:
            return decoded(self._session.send(method, params))
        headers = {"mcp-name": str(params["taskId"])} if "taskId" in params else None
        sent = {**params, "_meta": self._meta}
        return decoded(post_modern(self._url, method, sent, headers=headers, client=self._http))

    def told(self, method: str) -> list[dict[str, Any]]:
        return self._notices.of(method)

    def close(self) -> None:
        self._http.close()
        if self._session is not None:
            self._session.__exit__()


@asynccontextmanager
async def over_http(url: str, era: Era, capabilities: Mapping[str, Any]) -> AsyncIterator[Client]:
    client = await anyio.to_thread.run_sync(lambda: OverHttp(url, era, capabilities))
    try:
        yield client
    finally:
        await anyio.to_thread.run_sync(client.close)


class OverStdio:
    """A client that starts its gateway, or the bridge to it."""

    def __init__(self, ask: Callable[..., Any], notices: Told) -> None:
        self._ask = ask
        self._notices = notices

    async def message(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = await self._ask(method, dict(params))
        return answer

    def told(self, method: str) -> list[dict[str, Any]]:
        return self._notices.of(method)


@asynccontextmanager
async def started(
    entry: Mapping[str, Any], folder: Path, era: Era, capabilities: Mapping[str, Any]
) -> AsyncIterator[Client]:
    notices = Told()
    async with anyio.create_task_group() as tasks:
        session = await start_client(
            tasks,
            "raw",
            [entry["command"], *entry["args"]],
            folder=folder,
            environment=entry["env"],
            version=VERSION[era],
            announced=capabilities,
            person=notices,
        )
        try:
            await session.open()
            yield OverStdio(session.request, notices)
        finally:
            await session.leave()


@dataclass(frozen=True)
class Side:
    """One client in front of one server, by the names that it knows there."""

    client: Client
    era: Era
    has_tasks: bool
    server_has_tasks: bool
    names: Callable[[str], str]
    uris: Mapping[str, str]

    async def call(self, tool: str, *, as_task: bool = False, **arguments: Any) -> dict[str, Any]:
        asked: dict[str, Any] = {"task": {}} if as_task and self.has_tasks and self.era == "old" else {}
        return await self.client.message("tools/call", {"name": self.names(tool), "arguments": arguments, **asked})

    async def ended(self, task_id: str, *statuses: str) -> dict[str, Any]:
        """The state of a task, once it is one of these."""
        states: list[dict[str, Any]] = []

        async def has_ended() -> bool:
            message = await self.client.message("tasks/get", {"taskId": task_id})
            assert "result" in message, message
            states.append(message["result"])
            return message["result"]["status"] in statuses

        await eventually(has_ended)
        return states[-1]


def shown(message: Mapping[str, Any]) -> list[Any]:
    """The text of a result, and the code of an error."""
    result, error = message.get("result") or {}, message.get("error") or {}
    content = result.get("content") or [{}]
    return [content[0].get("text"), error.get("code")]


def task_in(message: Mapping[str, Any]) -> dict[str, Any] | None:
    result = message.get("result") or {}
    task: dict[str, Any] | None = result if result.get("resultType") == "task" else result.get("task")
    return task


async def tools_listed(side: Side) -> Outcome:
    listed = (await side.client.message("tools/list", {}))["result"]["tools"]
    found = {}
    for each in listed:
        for name in (*SUPPORT, "refresh"):
            if each["name"] == side.names(name):
                ui = (each.get("_meta") or {}).get("ui") or {}
                page = "page" if ui.get("resourceUri") == side.uris["page"] else ui.get("resourceUri")
                found[name] = [page, ui.get("visibility")]
    return found


async def resource_read(side: Side) -> Outcome:
    read = {}
    for name, uri in side.uris.items():
        message = await side.client.message("resources/read", {"uri": uri})
        [content] = (message.get("result") or {}).get("contents") or [{}]
        read[name] = [content.get("text"), content.get("mimeType"), content.get("_meta"), content.get("uri") == uri]
    return {name: each for name, each in read.items() if each[0] is not None}


async def plain_call(side: Side) -> Outcome:
    return shown(await side.call("never"))


async def required_call(side: Side) -> Outcome:
    message = await side.call("only", as_task=True)
    task = task_in(message)
    return shown(message) if task is None else (await side.ended(task["taskId"], "completed"))["status"]


async def task_followed(side: Side) -> Outcome:
    message = await side.call("work", as_task=True)
    if (task := task_in(message)) is None:
        return shown(message)
    state = await side.ended(task["taskId"], "completed")
    result = state.get("result")
    if side.era == "old":
        result = (await side.client.message("tasks/result", {"taskId": task["taskId"]}))["result"]
        assert result["_meta"]["io.modelcontextprotocol/related-task"] == {"taskId": task["taskId"]}
    return [task["status"], state["status"], shown({"result": result})[0]]


async def task_cancelled(side: Side) -> Outcome:
    if not side.has_tasks or (task := task_in(await side.call("work", as_task=True, polls=100_000))) is None:
        return shown(await side.client.message("tasks/cancel", {"taskId": "unknown"}))[1]
    if not side.server_has_tasks:
        await side.ended(task["taskId"], "completed")
    answer = await side.client.message("tasks/cancel", {"taskId": task["taskId"]})
    return [(await side.ended(task["taskId"], "completed", "cancelled"))["status"], shown(answer)[1]]


async def status_told(side: Side) -> Outcome:
    if side.era == "new" or not side.has_tasks:
        return "not listened for"
    task = task_in(await side.call("work", as_task=True))
    if task is None:
        return "no task"
    await side.ended(task["taskId"], "completed")

    def statuses() -> list[str]:
        told = side.client.told("notifications/tasks/status")
        return [each["status"] for each in told if each["taskId"] == task["taskId"]]

    async def was_told() -> bool:
        return "completed" in statuses()

    await eventually(was_told)
    return ["completed"]


OPERATIONS: Mapping[str, tuple[str, Callable[[Side], Awaitable[Outcome]]]] = {
    "list": ("apps", tools_listed),
    "resource": ("apps", resource_read),
    "call": ("", plain_call),
    "required": ("tasks", required_call),
    "task": ("tasks", task_followed),
    "cancel": ("tasks", task_cancelled),
    "notification": ("tasks", status_told),
}
"""Each with the extension that it belongs to."""


def capabilities_of(kind: str, era: Era) -> dict[str, Any]:
    """What a client declares; one of 2025-11-25 declares no tasks, and asks for them."""
    apps = {APPS: {"mimeTypes": [APP_TYPE]}} if has(kind, "apps") else {}
    tasks: dict[str, Any] = {TASKS: {}} if has(kind, "tasks") and era == "new" else {}
    return {"extensions": {**apps, **tasks}} if apps or tasks else {}


def side_of(client: Client, era: Era, kind: str, server: str, prefix: str = "") -> Side:
    uris = {"page": f"ui://{server}/view.html", "note": f"note://{server}"}
    tasks = has(kind, "tasks"), has(server, "tasks")
    return Side(client, era, *tasks, lambda tool: prefix + tool, uris)


async def outcomes(side: Side) -> dict[str, Outcome]:
    return {name: await operation(side) for name, (_, operation) in OPERATIONS.items()}


@asynccontextmanager
async def servers_of(era: Era) -> AsyncIterator[tuple[dict[str, TaskServer], dict[str, str]]]:
    """A server of each kind, and where each listens."""
    servers = {
        kind: TaskServer(
            era,
            declares=has(kind, "tasks"),
            notifies=era == "old",
            page=f"ui://{kind}/view.html" if has(kind, "apps") else "",
            note=f"note://{kind}",
        )
        for kind in KINDS
    }
    async with AsyncExitStack() as stack:
        urls = {
            kind: f"http://127.0.0.1:{await stack.enter_async_context(listening(server.scripted.http_app()))}/mcp"
            for kind, server in servers.items()
        }
        yield servers, urls


@pytest.mark.timeout(240)  # four clients, each with a process of its own, in front of four servers
@pytest.mark.parametrize("era", ["old", "new"])
@pytest.mark.parametrize("transport", ["http", "stdio", "bridge"])
async def test_every_client_meets_every_server(tmp_path: Path, transport: str, era: Era) -> None:
    seen: dict[tuple[str, str], dict[str, Outcome]] = {}
    with anyio.fail_after(SECONDS):
        async with servers_of(era) as (servers, urls):
            expected = await expected_outcomes(era, urls)
            entries = {server: {"url": url} for server, url in urls.items()}
            settings = {"servers": entries, "gateway": {"tools_exposure": "full_proxy"}}
            async with through(tmp_path, transport, settings) as opened:
                for kind in KINDS:
                    async with opened(era, capabilities_of(kind, era)) as client:
                        await until_listed(client)
                        for server in KINDS:
                            side = side_of(client, era, kind, server, f"{server}__")
                            seen[kind, server] = await outcomes(side)
            running = [work.id for each in servers.values() for work in each.tasks.values() if not work.ended.is_set()]
    differing = [
        f"client {kind}, server {server}, {name}: {seen[kind, server][name]}, expected {wanted}"
        for (kind, server), each in expected.items()
        for name, wanted in each.items()
        if seen[kind, server][name] != wanted
    ]
    assert not differing, "\n".join(differing)
    assert not running


async def expected_outcomes(era: Era, urls: Mapping[str, str]) -> dict[tuple[str, str], dict[str, Outcome]]:
    """What each kind of client sees of each kind of server without a gateway, or as `ADDED` says."""
    expected: dict[tuple[str, str], dict[str, Outcome]] = {}
    for kind in KINDS:
        for server, url in urls.items():
            async with over_http(url, era, capabilities_of(kind, era)) as client:
                direct = await outcomes(side_of(client, era, kind, server))
            for name, (extension, _) in OPERATIONS.items():
                cell = (name, era, has(kind, extension), has(server, extension))
                direct[name] = ADDED.get(cell, direct[name])
            expected[kind, server] = direct
    return expected


async def until_listed(client: Client) -> None:
    async def lists_all() -> bool:
        names = {tool["name"] for tool in (await client.message("tools/list", {}))["result"]["tools"]}
        uris = {each["uri"] for each in (await client.message("resources/list", {}))["result"]["resources"]}
        return all(f"{kind}__work" in names and f"note://{kind}" in uris for kind in KINDS)

    await eventually(lists_all)


Open = Callable[[Era, Mapping[str, Any]], AbstractAsyncContextManager[Client]]


@asynccontextmanager
async def through(home: Path, transport: str, settings: Mapping[str, Any]) -> AsyncIterator[Open]:
    """A gateway with these settings, and how a client reaches it."""
    with ExitStack() as stack:
        if transport == "http":
            gateway = await anyio.to_thread.run_sync(stack.enter_context, running_gateway(home, settings))
            yield partial(over_http, gateway.url)
        else:
            write_settings(home, settings)
            entry = stack.enter_context(over_stdio("bridge" if transport == "bridge" else "stdio", home))
            yield partial(started, entry, home)
