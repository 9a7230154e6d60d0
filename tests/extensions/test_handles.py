"""Long calls of clients without tasks, to servers that run them as tasks: a handle, which `read_result` reads."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from pml_gateway.config.settings import Settings
from pml_gateway.gateway import handles
from tests.support.raw import modern
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import serving
from tests.support.task_server import Era, TaskServer
from tests.support.waiting import eventually, until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("gateways")]

ENDLESS = 10**9
"""Polls of a task that works until the test lets it end."""

ERAS = pytest.mark.parametrize("era", ["old", "new"])
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "direct": ("up__only", {"polls": ENDLESS, "message": "hi"}),
    "call_tool": ("call_tool", {"name": "up__only", "arguments": {"polls": ENDLESS, "message": "hi"}}),
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers of a running call wait for a moment only."""
    monkeypatch.setattr(handles, "READ_SECONDS", 0.1)


def short(**sections: Any) -> Settings:
    """Settings with a short time limit of calls."""
    servers = {"up": {"command": "in-memory-up"}}
    return Settings.model_validate({"servers": servers, "upstreams": {"call_timeout": 2}, **sections})


def let_end(up: TaskServer) -> None:
    for work in up.tasks.values():
        work.left = 0


@ERAS
@pytest.mark.parametrize("route", CALLS)
async def test_a_client_that_cannot_wait_gets_a_handle_and_reads_the_result_later(
    tmp_path: Path, era: Era, route: str
) -> None:
    up = TaskServer(era)
    name, arguments = CALLS[route]
    async with serving(tmp_path, {"up": up.scripted}, short()) as served:
        given = (await served.call(name, arguments))["structuredContent"]
        assert given["status"] == "working"
        assert given["next"] == f'read_result {{"ref": "{given["ref"]}"}}'
        running = (await served.call("read_result", {"ref": given["ref"]}))["structuredContent"]
        assert running["ref"] == given["ref"]
        assert running["status"] == "working"
        assert running["seconds"] >= 0
        let_end(up)

        async def is_done() -> bool:
            return "text" in (await served.call("read_result", {"ref": given["ref"]}))["structuredContent"]

        await eventually(is_done)
        read = (await served.call("read_result", {"ref": given["ref"]}))["structuredContent"]
        assert read["text"] == "only"
        assert read["made_by"]["tool"] == "up__only"
    assert len(up.calls) == 1


async def test_a_handle_is_its_clients_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {name: f"{name}-{'x' * 36}" for name in ("ann", "bob")}
    for name, key in keys.items():
        monkeypatch.setenv(f"KEY_OF_{name.upper()}", key)
    clients = {name: {"key": f"${{env:KEY_OF_{name.upper()}}}"} for name in keys}
    up = TaskServer()
    async with serving(tmp_path, {"up": up.scripted}, short(clients=clients)) as served:
        ref = (await served.call(*CALLS["direct"], key=keys["ann"]))["structuredContent"]["ref"]
        foreign, unknown = [
            (await served.call("read_result", {"ref": each}, key=keys["bob"]))["structuredContent"]["error"]
            for each in (ref, f"{ref[:-4]}AAAA")
        ]
        assert foreign["code"] == "NOT_FOUND"
        assert {**foreign, "message": ""} == {**unknown, "message": ""}
        assert (await served.call("read_result", {"ref": ref}, key=keys["ann"]))["structuredContent"]["ref"] == ref


async def test_a_handle_is_hidden_with_its_tool(tmp_path: Path) -> None:
    up = TaskServer()
    async with serving(tmp_path, {"up": up.scripted}, short()) as served:
        ref = (await served.call(*CALLS["direct"]))["structuredContent"]["ref"]
        await served.reload(short(gateway={"blacklisted_tools": ["up:only"]}))
        read = (await served.call("read_result", {"ref": ref}))["structuredContent"]
        assert read["error"]["code"] == "NOT_FOUND"


async def test_a_failure_after_the_handle_is_what_is_read(tmp_path: Path) -> None:
    up = TaskServer(required=("fails",))
    async with serving(tmp_path, {"up": up.scripted}, short()) as served:
        ref = (await served.call("up__fails", {"polls": ENDLESS}))["structuredContent"]["ref"]
        let_end(up)

        async def is_over() -> bool:
            return "status" not in (await served.call("read_result", {"ref": ref}))["structuredContent"]

        await eventually(is_over)


async def test_other_calls_time_out_as_ever(tmp_path: Path) -> None:
    async def handler(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        await anyio.sleep_forever()
        return text_result(call["name"])

    async with serving(tmp_path, {"up": ScriptedServer([tool("slow")], handler)}, short()) as served:
        error = (await served.call("up__slow"))["structuredContent"]["error"]
    assert error["code"] == "TIMEOUT"


@ERAS
async def test_tools_that_run_as_tasks_are_found_and_are_slots_and_steps(tmp_path: Path, era: Era) -> None:
    up = TaskServer(era)
    async with serving(tmp_path, {"up": up.scripted}) as served:
        found = (await served.call("search_tools", {"query": "only"}))["structuredContent"]["hits"]
        assert "up__only" in [hit["name"] for hit in found]
        slots = [{"name": "up__only", "arguments": {"message": text}} for text in ("one", "two")]
        batch = (await served.call("call_batch", {"calls": slots}))["structuredContent"]
        assert [slot["ok"] for slot in batch["slots"]] == [True, True]
        steps = [{"tool": "up__only", "arguments": {"message": "three"}}]
        run = (await served.call("execute_workflow", {"steps": steps}))["structuredContent"]
        assert run["status"] == "completed"
    assert len(up.calls) == 3


@ERAS
async def test_a_call_whose_client_leaves_before_it_has_the_handle_is_cancelled(tmp_path: Path, era: Era) -> None:
    up = TaskServer(era)
    async with serving(tmp_path, {"up": up.scripted}) as served:
        name, arguments = CALLS["direct"]
        body, headers = modern("tools/call", {"name": name, "arguments": arguments}, None)
        async with anyio.create_task_group() as group, httpx2.AsyncClient(timeout=30) as client:
            group.start_soon(partial(client.post, served.url, content=body, headers=headers))
            await until(lambda: up.tasks)
            group.cancel_scope.cancel()
        await until(lambda: [work.status for work in up.tasks.values()] == ["cancelled"])
