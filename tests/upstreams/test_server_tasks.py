"""Calls that a server runs as tasks: followed until they end, whatever the client knows of tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_types import TextContent

from pml_gateway.config.settings import Settings
from pml_gateway.errors import ErrorCode, GatewayError
from pml_gateway.mcp.tasks import TaskRequest
from pml_gateway.types import JsonObject
from pml_gateway.upstreams import connector
from pml_gateway.upstreams.upstream import Upstream
from tests.support.asking import Person
from tests.support.serving import Serving, serving
from tests.support.task_server import TASKS, Era, TaskServer
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

ERAS = pytest.mark.parametrize("era", ["old", "new"])
SECONDS = 20


class Watching:
    """Notes what it is told of a task."""

    def __init__(self) -> None:
        self.created_as: list[JsonObject] = []
        self.states: list[JsonObject] = []

    async def created(self, task: JsonObject) -> None:
        self.created_as.append(task)

    async def changed(self, task: JsonObject) -> None:
        self.states.append(task)


@asynccontextmanager
async def server_of(
    folder: Path, server: TaskServer, *, upstreams: JsonObject | None = None, **definition: Any
) -> AsyncIterator[tuple[Serving, Upstream]]:
    settings = Settings.model_validate(
        {
            "servers": {"up": {"command": "in-memory-up", **definition}},
            "gateway": {"tools_exposure": "full_proxy"},
            "upstreams": upstreams or {},
        }
    )
    with anyio.fail_after(SECONDS):
        async with serving(folder, {"up": server.scripted}, settings) as served:
            yield served, served.gateway.pool.upstreams["up"]


def call(name: str, **arguments: Any) -> JsonObject:
    return {"name": name, "arguments": arguments}


def text_of(result: JsonObject) -> str:
    return str(result["content"][0]["text"])


@ERAS
async def test_a_call_runs_as_a_task_if_that_is_wanted_and_its_result_comes_back(tmp_path: Path, era: Era) -> None:
    server, watching = TaskServer(era), Watching()
    async with server_of(tmp_path, server) as (_, up):
        result = await up.request("tools/call", call("work"), task=TaskRequest(5000, watching))
    assert text_of(result) == "work"
    assert "_meta" not in result
    [created] = watching.created_as
    assert (created["taskId"], created["status"], created["pollInterval"]) == ("server-1", "working", 20)
    assert created["ttl"] == (5000 if era == "old" else 60_000)
    assert [each["statusMessage"] for each in watching.states] == ["1 left", "completed"]
    assert watching.states[-1]["status"] == "completed"
    assert [server.calls[0].get("task")] == ([{"ttl": 5000}] if era == "old" else [None])


@ERAS
@pytest.mark.parametrize("name", ["work", "only", "never"])
async def test_a_client_without_tasks_gets_the_result_of_any_tool(tmp_path: Path, era: Era, name: str) -> None:
    server = TaskServer(era)
    async with server_of(tmp_path, server) as (served, _):
        result = await served.call(f"up__{name}")
    assert text_of(result) == name
    # A server of 2025-11-25 is asked for a task only if the tool runs in no other way.
    made = {"old": name == "only", "new": name != "never"}[era]
    assert bool(server.tasks) == made


@ERAS
async def test_signs_of_life_reach_a_client_that_waits(tmp_path: Path, era: Era) -> None:
    server, told = TaskServer(era, polls=3), list[tuple[float, str | None]]()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))

    async with server_of(tmp_path, server) as (_, up):
        await up.request("tools/call", call("only"), on_progress=on_progress)
    if era == "old":
        # The server's own progress, also after it has answered with the task.
        assert [each for each in told if each[1] == "really"] == [(98, "really"), (99, "really"), (100, "really")]
    else:
        assert told == [(1, "2 left"), (2, "1 left"), (3, "completed")]


@ERAS
async def test_the_task_is_cancelled_with_the_call(tmp_path: Path, era: Era) -> None:
    server = TaskServer(era, polls=10_000)
    async with server_of(tmp_path, server) as (_, up), anyio.create_task_group() as tasks:

        async def begin() -> None:
            await up.request("tools/call", call("only"))

        tasks.start_soon(begin)
        await until(lambda: "tasks/get" in server.asked)
        tasks.cancel_scope.cancel()
    assert server.tasks["server-1"].status == "cancelled"


async def test_a_task_that_is_created_while_its_call_is_cancelled_is_cancelled_too(tmp_path: Path) -> None:
    server = TaskServer("old", polls=10_000, creation=anyio.Event())
    async with server_of(tmp_path, server) as (_, up):
        async with anyio.create_task_group() as tasks:

            async def begin() -> None:
                await up.request("tools/call", call("only"))

            tasks.start_soon(begin)
            await until(lambda: server.calls)
            tasks.cancel_scope.cancel()
            assert server.creation is not None
            server.creation.set()
        await until(lambda: server.tasks and server.tasks["server-1"].status == "cancelled")


@ERAS
async def test_the_error_of_a_task_is_that_of_the_call(tmp_path: Path, era: Era) -> None:
    async with server_of(tmp_path, TaskServer(era)) as (served, up):
        with pytest.raises(GatewayError) as failed:
            await up.request("tools/call", call("fails"), task=TaskRequest())
        assert failed.value.details["jsonrpc_code"] == -31999
        message = await served.message("tools/call", call("up__fails"))
    assert message["error"] == {"code": -31999, "message": "it failed", "data": {"why": "test"}}


@ERAS
async def test_a_task_that_its_server_cancels_ends_the_call(tmp_path: Path, era: Era) -> None:
    server, watching = TaskServer(era, polls=10_000), Watching()
    async with server_of(tmp_path, server) as (_, up):
        with pytest.raises(GatewayError, match="the server cancelled the task") as failed:
            async with anyio.create_task_group() as tasks:

                async def cancel() -> None:
                    await until(lambda: "tasks/get" in server.asked)
                    server.tasks["server-1"].end("cancelled")

                tasks.start_soon(cancel)
                try:
                    await up.request("tools/call", call("work"), task=TaskRequest(None, watching))
                except GatewayError as error:
                    failure = error
            raise failure
    assert failed.value.code is ErrorCode.CANCELLED
    assert watching.states[-1]["status"] == "cancelled"
    assert "tasks/cancel" not in server.asked


@ERAS
async def test_a_task_that_is_lost_ends_the_call_which_is_not_made_again(tmp_path: Path, era: Era) -> None:
    server = TaskServer(era, polls=10_000)
    async with server_of(tmp_path, server) as (_, up):
        with pytest.raises(GatewayError, match="Task not found") as failed:
            async with anyio.create_task_group() as tasks:

                async def forget() -> None:
                    await until(lambda: "tasks/get" in server.asked)
                    server.tasks.clear()

                tasks.start_soon(forget)
                try:
                    await up.request("tools/call", call("only"))
                except GatewayError as error:
                    failure = error
            raise failure
    assert "jsonrpc_code" not in failed.value.details
    assert len(server.calls) == 1


@ERAS
async def test_a_server_that_dies_ends_the_call_which_is_not_made_again(tmp_path: Path, era: Era) -> None:
    server = TaskServer(era, polls=10_000)
    failures: list[GatewayError] = []
    async with server_of(tmp_path, server) as (_, up), anyio.create_task_group() as tasks:

        async def begin() -> None:
            try:
                await up.request("tools/call", call("only"))
            except GatewayError as error:
                failures.append(error)

        tasks.start_soon(begin)
        await until(lambda: "tasks/get" in server.asked)
        server.scripted.kill()
        await until(lambda: failures)
    [failure] = failures
    assert (failure.code, failure.details["executed"]) == (ErrorCode.UPSTREAM_UNAVAILABLE, "unknown")
    assert len(server.calls) == 1


@ERAS
async def test_a_connection_without_other_calls_is_kept_while_a_task_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, era: Era
) -> None:
    monkeypatch.setattr(connector, "CLOSING_SECONDS", 0.1)
    # Idle connections are looked at once a second; ten requests for the state take longer.
    server, results = TaskServer(era, polls=10, interval=300), list[JsonObject]()
    async with server_of(tmp_path, server, upstreams={"idle_timeout": 0.1}) as (_, up):
        results.append(await up.request("tools/call", call("only")))
    assert text_of(results[0]) == "only"
    assert server.asked.count("tasks/get") == 10


@ERAS
async def test_a_running_task_takes_no_place_among_the_calls(tmp_path: Path, era: Era) -> None:
    server = TaskServer(era, polls=10_000)
    async with (
        server_of(tmp_path, server, max_concurrent=1) as (_, up),
        anyio.create_task_group() as tasks,
    ):

        async def begin() -> None:
            await up.request("tools/call", call("only"))

        for _ in range(3):
            tasks.start_soon(begin)
        await until(lambda: len(server.tasks) == 3)
        assert text_of(await up.request("tools/call", call("never"))) == "never"
        for each in server.tasks.values():
            each.left = 1
    assert [each["name"] for each in server.calls].count("only") == 3


@ERAS
@pytest.mark.parametrize("client", ["old", "new"])
async def test_the_questions_of_a_task_reach_the_client(tmp_path: Path, era: Era, client: Era) -> None:
    server, ada = TaskServer(era, required=("asks",)), Person("ada")
    async with server_of(tmp_path, server) as (served, _), ada.client(served.url, modern=client == "new") as session:
        result = await session.call_tool("up__asks", {})
    [content] = result.content
    assert isinstance(content, TextContent)
    assert (ada.asked, content.text) == (["Which?"], "asks {'answer': 'ada: Which?'}")
    assert len(server.tasks) == 1


@ERAS
async def test_a_server_whose_tasks_are_switched_off_makes_none(tmp_path: Path, era: Era) -> None:
    server = TaskServer(era)
    async with server_of(tmp_path, server, extensions={"deny": [TASKS]}) as (served, up):
        result = await up.request("tools/call", call("work"), task=TaskRequest())
        message = await served.message("tools/call", call("up__only"))
    assert text_of(result) == "work"
    assert not server.tasks
    assert message["error"]["code"] == (-32601 if era == "old" else -32021)
