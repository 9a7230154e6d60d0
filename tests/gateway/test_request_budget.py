"""One request with everything in it has one budget, and others are answered while it is spent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from pml_gateway.gateway.calling import Caller
from pml_gateway.gateway.gateway import Gateway, open_gateway
from pml_gateway.gateway.request import CallOptions, RequestScope
from pml_gateway.meta.meta_tools import ALL_META_TOOLS
from tests.support.hostile import HOSTILE_TRANSFORMS, doubled
from tests.support.memory import MemoryStreams, paths_in, settings_for
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

CALLS = 40
VERSION = "2026-07-28"
ROWS = {"rows": [{"id": number, "name": f"row {number}"} for number in range(50)]}


async def answer_rows(_ctx: Any, _call: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": "rows"}], "structuredContent": ROWS}


@asynccontextmanager
async def gateway_with(folder: Path, *schemas: dict[str, Any], **sections: Any) -> AsyncIterator[tuple[Gateway, Any]]:
    """A gateway in front of a server whose tools have these schemas, and one whose tool has none to speak of."""
    slow = ScriptedServer(
        [{"name": f"slow{at}", "description": "Slow.", "inputSchema": schema} for at, schema in enumerate(schemas)],
        answer_rows,
    )
    servers = {"bad": slow, "good": ScriptedServer([tool("t")], answer_rows)}
    settings = settings_for(servers, **sections)
    async with open_gateway(
        settings,
        paths_in(folder),
        identity="t",
        meta_tools=ALL_META_TOOLS,
        open_streams=MemoryStreams(servers),
    ) as gateway:
        with anyio.fail_after(60):
            await gateway.refresh(50)

        async def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
            with anyio.fail_after(120):
                result = await Caller(gateway).call(RequestScope(), name, arguments, CallOptions(), VERSION)
            content: dict[str, Any] = result["structuredContent"]
            return content

        yield gateway, call


async def meanwhile(
    gateway: Gateway, request: Callable[[], Any], other: Callable[[], Any]
) -> tuple[dict[str, Any], list[str]]:
    """The answer to a request, and in which order it and that of another client were given.

    The other one asks once the first keeps a worker busy.
    """
    order: list[str] = []
    answers: list[dict[str, Any]] = []
    async with anyio.create_task_group() as tasks:

        async def first() -> None:
            answers.append(await request())
            order.append("request")

        tasks.start_soon(first)
        await until(lambda: gateway.shared.workers.pids or order)
        await other()
        order.append("other")
    return answers[0], order


async def test_a_batch_of_endless_schemas_ends_and_others_are_answered_meanwhile(tmp_path: Path) -> None:
    schemas = [doubled(mark=str(number)) for number in range(CALLS)]
    limits = {"request_steps": 600_000}
    async with gateway_with(tmp_path, *schemas, limits=limits) as (gateway, call):
        calls = [{"name": f"bad__slow{at}", "arguments": {"a": 1}} for at in range(CALLS)]
        answer, order = await meanwhile(
            gateway,
            lambda: call("call_batch", {"calls": calls}),
            lambda: call("call_tool", {"name": "good__t", "arguments": {}}),
        )
        assert [slot["ok"] for slot in answer["slots"]] == [True] * CALLS
        assert order == ["other", "request"]
        # 50,000 steps each, and five of the budget for each step.
        assert len(gateway.shared.exceeded) == 2


async def test_what_is_remembered_is_refused_by_its_types_at_once(tmp_path: Path) -> None:
    async with gateway_with(tmp_path, doubled()) as (gateway, call):
        one = {"name": "bad__slow0", "arguments": {"a": 1}}
        answer = await call("call_batch", {"calls": [one] * CALLS})
        assert all(slot["ok"] for slot in answer["slots"])
        assert len(gateway.shared.exceeded) == 1
        before = gateway.shared.workers.pids
        answer = await call("call_tool", {"name": "bad__slow0", "arguments": {"a": 1, "n": "x"}})
        assert answer["error"]["code"] == "INVALID_INPUT"
        assert answer["error"]["details"]["errors"] == [{"path": "/n", "message": "string instead of integer"}]
        answer = await call("call_tool", {"name": "bad__slow0", "arguments": {}})
        assert answer["error"]["code"] == "INVALID_INPUT"
        assert gateway.shared.workers.pids == before
    assert not gateway.shared.workers.pids


async def test_plain_calls_start_no_process(tmp_path: Path) -> None:
    async with gateway_with(tmp_path) as (gateway, call):
        calls = [{"name": "good__t", "arguments": {"x": at}} for at in range(CALLS)]
        answer = await call("call_batch", {"calls": calls})
        assert all(slot["ok"] for slot in answer["slots"])
        steps = [
            {"id": "a", "tool": "good__t", "arguments": {}},
            {"id": "b", "transform": "$a.rows[?id > `40`].{id: id, name: name}"},
        ]
        answer = await call("execute_workflow", {"steps": steps})
        assert answer["status"] == "completed"
        assert gateway.shared.workers.pids == []


def growing(number: int) -> dict[str, Any]:
    """A transform that builds 60,000 values of fifty rows."""
    return {"id": f"t{number}", "transform": "$a.rows|" + "[@,@][]|" * 8 + "map(&{a: @, b: @}, @)"}


async def test_the_transforms_of_a_workflow_share_one_budget(tmp_path: Path) -> None:
    async with gateway_with(tmp_path) as (gateway, call):
        steps = [{"id": "a", "tool": "good__t", "arguments": {}}, *(growing(number) for number in range(45))]
        answer, order = await meanwhile(
            gateway,
            lambda: call("execute_workflow", {"steps": steps, "return": ["t0"]}),
            lambda: call("call_tool", {"name": "good__t", "arguments": {}}),
        )
        assert order == ["other", "request"]
        failed = [step for step in answer["steps"] if step["status"] == "error"]
        ended = [step for step in answer["steps"] if step["status"] == "ok"]
        assert 2 <= len(ended) < 20
        assert len(failed) > 20
        for step in failed:
            assert step["error"]["code"] == "BUDGET_EXCEEDED"
            assert step["error"]["details"]["setting"] == "limits.request_parts"
            assert "limits.request_parts" in step["error"]["hint"]


@pytest.mark.filterwarnings("ignore:deprecated string literal:PendingDeprecationWarning")
async def test_transforms_that_would_fill_the_memory_are_refused(tmp_path: Path) -> None:
    async with gateway_with(tmp_path) as (_, call):
        for expression in HOSTILE_TRANSFORMS:
            steps = [
                {"id": "a", "tool": "good__t", "arguments": {}},
                {"id": "b", "depends_on": ["a"], "transform": expression.replace("@", "$a.rows", 1)},
            ]
            answer = await call("execute_workflow", {"steps": steps})
            [step] = [step for step in answer["steps"] if step["id"] == "b"]
            if step["status"] == "error":
                assert step["error"]["code"] in ("INVALID_INPUT", "BUDGET_EXCEEDED")
                assert step["error"]["hint"]


async def test_a_reference_whose_path_multiplies_is_refused(tmp_path: Path) -> None:
    async with gateway_with(tmp_path, references={"mode": "meta", "threshold_tokens": 100}) as (_, call):
        stored = await call("call_tool", {"name": "good__t", "arguments": {}})
        answer = await call("read_result", {"ref": stored["ref"], "path": "rows|" + "[@,@]|" * 40 + "to_string(@)"})
        assert answer["error"]["code"] == "INVALID_INPUT"
        argument = {"$ref": stored["ref"], "path": "rows|" + "[@,@]|" * 40 + "@"}
        answer = await call("call_tool", {"name": "good__t", "arguments": {"a": argument}})
        assert answer["error"]["code"] == "INVALID_INPUT"
        page = await call("read_result", {"ref": stored["ref"], "path": "rows[?id == `7`].name"})
        assert page["items"] == ["row 7"]
