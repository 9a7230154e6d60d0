"""Something else than the arguments changes between an approval and the call: it is not made unless it is the same."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from tests.support.approving import CLIENTS, KEYS, MINE, WIPE, WORKFLOWS, Asking, approved, asking, outcome, wiping
from tests.support.raw import decoded
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.waiting import eventually, until

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.usefixtures("store", "gateways")]


async def reload(asked: Asking, **sections: Any) -> None:
    """Serve by other settings."""
    gateway = asked.served.gateway
    given = gateway.state.settings.model_dump(mode="json", exclude_unset=True)
    content = {**given, **sections}
    await asked.served.reload(type(gateway.state.settings).model_validate(content))


@pytest.mark.parametrize("scope", ["call", "tool"])
async def test_a_server_that_announces_another_definition_needs_another_approval(scope: str, tmp_path: Path) -> None:
    async with asking(tmp_path) as asked:
        await approved(asked, scope=scope)
        asked.server.tools[1] = {**asked.server.tools[1], "title": "Wipe the disk"}
        await asked.server.announce_change()
        before = [(gateway, gateway.state.catalog) for gateway in asked.served.gateways]
        await until(lambda: all(gateway.state.catalog is not catalog for gateway, catalog in before))
        assert await asked.call("up__wipe", MINE) == "PENDING_APPROVAL"
    assert asked.sent == []


async def test_an_approval_of_an_action_is_none_of_a_tool_that_takes_its_name(tmp_path: Path) -> None:
    async with asking(tmp_path, gateway={"style": "namespaces"}) as asked:
        await approved(asked, "up", {"action": "drop", **MINE}, "tool")
        drop, wipe = asked.server.tools[2], asked.server.tools[1]
        asked.server.tools[1:] = [{**wipe, "name": "drop"}, {**drop, "name": "wipe"}]
        await asked.served.refresh(30)
        for action in ("drop", "wipe"):
            assert await asked.call("up", {"action": action, **MINE}) == "PENDING_APPROVAL"
    assert asked.sent == []


async def test_an_approval_of_a_composite_tool_is_none_of_another_with_the_same_steps(tmp_path: Path) -> None:
    workflows = {**WORKFLOWS, "tidy_more": WORKFLOWS["tidy"]}
    async with asking(tmp_path, workflows=workflows) as asked:
        await approved(asked, "workflows__tidy", {})
        assert await asked.call("workflows__tidy_more") == "PENDING_APPROVAL"
        assert await asked.call("up__wipe", MINE) == "PENDING_APPROVAL"
        assert asked.sent == []
        assert await asked.call("workflows__tidy") == "OK"


async def test_a_reference_is_approved_by_its_value(tmp_path: Path) -> None:
    async def answer(_: Any, params: dict[str, Any]) -> dict[str, Any]:
        return text_result(f"{params['arguments'].get('repo')} {'word ' * 400}")

    server = ScriptedServer(wiping().tools, handler=answer)
    async with asking(tmp_path, server=server, references={"threshold_tokens": 100}) as asked:

        async def wiping_what_is_stored(value: str) -> dict[str, Any]:
            called = {"name": "up__look", "arguments": {"repo": value}}
            result = await asked.served.call("call_tool", called, key=KEYS["ADA"])
            return {"name": "up__wipe", "arguments": {"repo": {"$ref": result["structuredContent"]["ref"]}}}

        first, same, other = [await wiping_what_is_stored(each) for each in ("mine", "mine", "yours")]
        assert first != same
        server.calls.clear()
        await approved(asked, "call_tool", first)
        assert await asked.call("call_tool", other) == "PENDING_APPROVAL"
        assert asked.sent == []
        assert await asked.call("call_tool", same) == "OK"
    [(name, given)] = asked.sent
    assert name == "wipe" and given["repo"].startswith("mine word")


@pytest.mark.one_gateway("it opens two of its own")
@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_an_approval_in_one_of_two_gateways_of_a_home_is_none_in_the_other(tmp_path: Path) -> None:
    async with asking(tmp_path) as first, asking(tmp_path) as second:
        assert await first.call("up__wipe", MINE) == "PENDING_APPROVAL"
        [of_first] = await first.waiting()
        assert await second.call("up__wipe", MINE) == "PENDING_APPROVAL"
        assert len(await first.waiting()) == 2
        assert await first.answer(of_first, scope="tool") == []
        assert await second.call("up__wipe", MINE) == "PENDING_APPROVAL"
        assert second.sent == []
        assert await first.call("up__wipe", MINE) == "OK"


@pytest.mark.one_gateway("it opens two of its own")
@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_an_approval_in_one_folder_is_none_in_another_gateway_of_the_process(tmp_path: Path) -> None:
    async with asking(tmp_path) as first, asking(tmp_path) as second:
        await approved(first, scope="tool")
        gateway = second.served.gateway
        gateway.approvals, folder = first.served.gateway.approvals, gateway.folder
        gateway.folder = str(tmp_path / "other")
        assert await second.call("up__wipe", MINE) == "PENDING_APPROVAL"
        assert second.sent == []
        gateway.folder = folder
        assert await second.call("up__wipe", MINE) == "OK"


@pytest.mark.parametrize("store", ["memory"], indirect=True)
@pytest.mark.parametrize("moved", [-86_400.0, 86_400.0])
async def test_a_clock_that_is_moved_lengthens_no_approval(
    moved: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    async with asking(tmp_path, approvals={"minutes": 0.1}) as asked:
        await approved(asked, scope="arguments")
        monkeypatch.setattr(time, "time", lambda: real() + moved)

        async def is_over() -> bool:
            return not await asked.rows()

        await eventually(is_over)
        assert await asked.call("up__wipe", MINE) == "PENDING_APPROVAL"
    assert asked.sent == []


async def test_what_is_denied_or_hidden_after_the_approval_is_not_called(tmp_path: Path) -> None:
    async with asking(tmp_path) as asked:
        await approved(asked)
        await reload(asked, rules=[{"match": {"tool": "up:wipe"}, "do": "deny"}])
        assert await asked.call("up__wipe", MINE) == "FORBIDDEN"
        await reload(asked, clients={**CLIENTS, "ada": {**CLIENTS["ada"], "deny": ["up:wipe"]}})
        assert await asked.call("up__wipe", MINE) == "NOT_FOUND"
    assert asked.sent == []


ACCEPTED: dict[str, Any] = {"inputResponses": {"q": {"action": "accept", "content": {}}}}


def questioning() -> ScriptedServer:
    """A server whose tool asks its user before it destroys."""

    async def ask(ctx: Any, params: dict[str, Any]) -> dict[str, Any]:
        if (ctx.params or {}).get("requestState") == "s1":
            return text_result("done")
        schema = {"type": "object", "properties": {}}
        question = {"method": "elicitation/create", "params": {"message": "Sure?", "requestedSchema": schema}}
        return {"resultType": "input_required", "requestState": "s1", "inputRequests": {"q": question}}

    return ScriptedServer([tool("wipe", annotations={"destructiveHint": True})], handler=ask, modern=True)


async def test_another_client_cannot_go_on_with_an_approved_call(tmp_path: Path) -> None:
    async with asking(tmp_path, server=questioning()) as asked:
        await approved(asked, given={})
        result = await asked.served.call("up__wipe", key=KEYS["ADA"])
        more = {"requestState": result["requestState"], **ACCEPTED}
        assert await asked.call("up__wipe", {}, "BOB", **more) not in ("OK", "PENDING_APPROVAL")
        assert await asked.call("up__wipe", {"x": 1}, **more) != "OK"
        assert len(asked.sent) == 1
        assert await asked.call("up__wipe", {}, **more) == "OK"


async def test_a_call_whose_approval_is_taken_back_does_not_go_on(tmp_path: Path) -> None:
    async with asking(tmp_path, server=questioning()) as asked:
        id_ = await approved(asked, given={})
        result = await asked.served.call("up__wipe", key=KEYS["ADA"])
        await asked.answer(id_, "deny")
        assert await asked.call("up__wipe", {}, requestState=result["requestState"], **ACCEPTED) == "FORBIDDEN"
    assert len(asked.sent) == 1


async def test_of_a_task_and_a_request_that_redeem_at_once_one_gets_the_call(tmp_path: Path) -> None:
    async with asking(tmp_path) as asked, asked.served.handshake(key=KEYS["ADA"]) as session:
        await approved(asked)
        got: list[str] = []

        def task() -> str:
            given = {**WIPE, "task": {"ttl": 60_000}}
            made = decoded(session.send("tools/call", given))["result"]["task"]
            return outcome(decoded(session.send("tasks/result", {"taskId": made["taskId"]})))

        async def in_task() -> None:
            got.append(await anyio.to_thread.run_sync(task))

        async def direct() -> None:
            got.append(await asked.call("up__wipe", MINE))

        async with anyio.create_task_group() as tasks:
            for each in (in_task, direct, direct):
                tasks.start_soon(each)
    assert got.count("OK") == 1 and asked.sent == [("wipe", MINE)]


async def test_of_equal_batches_that_redeem_at_once_one_gets_each_call(tmp_path: Path) -> None:
    batch = {"calls": [WIPE, {"name": "up__drop", "arguments": MINE}]}
    async with asking(tmp_path) as asked:
        await approved(asked, "call_batch", batch)
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(asked.call, "call_batch", batch)
    assert sorted(name for name, _ in asked.sent) == ["drop", "wipe"]
