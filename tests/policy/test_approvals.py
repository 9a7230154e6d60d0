"""A call that a rule asks about waits for its owner's answer, who gives it over the socket of the process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from pml_gateway.gateway.approvals import Approvals, hashed_passphrase
from pml_gateway.gateway.call import Access
from tests.support.approving import ASK, KEYS, Asking, asking
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("store", "gateways")]

MINE = {"repo": "mine"}
BATCH = {"calls": [{"name": "up__wipe", "arguments": MINE}, {"name": "up__drop", "arguments": MINE}]}


async def test_a_call_waits_is_shown_to_the_owner_and_made_once_after_the_approval(tmp_path: Path) -> None:
    async with asking(tmp_path) as asked:
        events: list[Access] = []
        asked.served.subscribe(Access, events.append)
        result = await asked.served.call("up__wipe", MINE, key=KEYS["ADA"])
        error = result["structuredContent"]["error"]
        [row] = await asked.rows()
        assert (error["code"], error["retryable"], error["details"]["approval"]) == (
            "PENDING_APPROVAL",
            True,
            row["id"],
        )
        assert (row["client"], row["calls"][0]["tool"], row["calls"][0]["rule"]) == ("ada", "up__wipe", "rules[0]: ask")
        assert "arguments" not in row["calls"][0]
        assert (await asked.shown(row["id"]))["calls"][0]["arguments"] == MINE
        assert await asked.call("up__wipe", MINE) == "PENDING_APPROVAL"
        assert len(await asked.rows()) == 1
        assert await asked.answer() == []
        assert asked.sent == []
        assert await asked.call("up__wipe", MINE) == "OK"
        assert await asked.call("up__wipe", MINE) == "PENDING_APPROVAL"
    assert asked.sent == [("wipe", MINE)]
    assert [event.attempt.approval for event in events if event.code == "OK"] == [row["id"]]
    assert {event.rule for event in events} == {"rules[0]: ask"}


async def test_a_call_that_is_held_is_made_as_soon_as_it_is_approved(tmp_path: Path) -> None:
    async with asking(tmp_path, approvals={"hold_seconds": 45}) as asked, anyio.create_task_group() as tasks:
        results: list[str] = []

        async def call() -> None:
            results.append(await asked.call("up__wipe", MINE))

        tasks.start_soon(call)
        await eventually(lambda: is_asked(asked))
        await asked.answer()
    assert (results, asked.sent) == (["OK"], [("wipe", MINE)])


async def is_asked(asked: Asking) -> bool:
    return bool(await asked.waiting())


async def test_a_denial_lasts_and_an_approval_can_be_taken_back(tmp_path: Path) -> None:
    async with asking(tmp_path) as asked:
        await asked.call("up__wipe", MINE)
        [id_] = await asked.waiting()
        await asked.answer(id_, "deny")
        assert await asked.call("up__wipe", MINE) == "FORBIDDEN"
        await asked.answer(id_, "approve", "arguments")
        assert await asked.call("up__wipe", MINE) == "OK"
        await asked.answer(id_, "deny")
        assert await asked.call("up__wipe", MINE) == "FORBIDDEN"
    assert len(asked.sent) == 1


async def test_an_approval_that_is_given_twice_allows_no_second_call(tmp_path: Path) -> None:
    async with asking(tmp_path) as asked:
        await asked.call("up__wipe", MINE)
        [id_] = await asked.waiting()
        assert [await asked.answer(id_) for _ in range(2)] == [[], []]
        assert await asked.call("up__wipe", MINE) == "OK"
        assert await asked.answer(id_) == []
        assert await asked.call("up__wipe", MINE) == "PENDING_APPROVAL"
    assert len(asked.sent) == 1


@pytest.mark.parametrize(("scope", "same", "other"), [("call", 1, 0), ("arguments", 2, 0), ("tool", 2, 1)])
async def test_an_approval_is_for_a_call_its_arguments_or_the_tool(
    scope: str, same: int, other: int, tmp_path: Path
) -> None:
    async with asking(tmp_path) as asked:
        await asked.call("up__drop", MINE)
        await asked.answer(scope=scope)
        made = [await asked.call("up__drop", given) for given in (MINE, MINE, {"repo": "yours"})]
        assert [made[:2].count("OK"), made[2:].count("OK")] == [same, other]
        [row] = [row for row in await asked.rows() if row["state"] == "approved"]
        assert (row["uses"], row["scope"]) == (same + other, scope)
        assert await asked.call("up__wipe", MINE) == "PENDING_APPROVAL"
    assert len(asked.sent) == same + other


async def test_what_differs_from_the_last_approved_call_is_shown(tmp_path: Path) -> None:
    async with asking(tmp_path) as asked:
        await asked.call("up__wipe", {**MINE, "x": [1, 2]})
        await asked.answer()
        await asked.call("up__wipe", {"repo": "yours", "x": [1, 2]})
        [id_] = await asked.waiting()
        assert (await asked.shown(id_))["calls"][0]["differs"] == [["/repo", "mine", "yours"]]


async def test_a_batch_and_a_workflow_ask_once_for_all_that_they_need_before_their_first_step(tmp_path: Path) -> None:
    steps = [{"tool": "up__look"}, *({"tool": each["name"], "arguments": MINE} for each in BATCH["calls"])]
    async with asking(tmp_path) as asked:
        for name, given in (("call_batch", BATCH), ("execute_workflow", {"steps": steps})):
            asked.server.calls.clear()
            assert await asked.call(name, given) == "PENDING_APPROVAL"
            [id_] = await asked.waiting()
            shown = await asked.shown(id_)
            assert (shown["part_of"], [call["tool"] for call in shown["calls"]]) == (name, ["up__wipe", "up__drop"])
            assert asked.sent == []
            await asked.answer(id_)
            assert await asked.call(name, given) == "OK"
            assert {name for name, _ in asked.sent} >= {"wipe", "drop"}
            assert await asked.call(name, given) == "PENDING_APPROVAL"
            await asked.answer(None, "deny")
            assert await asked.call(name, given) == "FORBIDDEN"


async def test_a_step_whose_arguments_come_from_another_asks_when_they_are_known(tmp_path: Path) -> None:
    steps = [{"id": "l", "tool": "up__look"}, {"tool": "up__wipe", "arguments": {"repo": "$l"}}]
    async with asking(tmp_path) as asked:
        assert await asked.call("execute_workflow", {"steps": steps}) == "PENDING_APPROVAL"
        [id_] = await asked.waiting()
        assert (await asked.shown(id_))["calls"][0]["arguments"] == {"repo": "look []"}
        await asked.answer()
        assert await asked.call("execute_workflow", {"steps": steps}) == "OK"
    assert [name for name, _ in asked.sent] == ["look", "look", "wipe"]


async def test_a_composite_tool_asks_for_its_steps_with_what_it_was_given(tmp_path: Path) -> None:
    async with asking(tmp_path) as asked:
        assert await asked.call("workflows__tidy") == "PENDING_APPROVAL"
        await asked.answer()
        assert await asked.call("workflows__tidy") == "OK"
    assert asked.sent == [("wipe", MINE)]


async def test_an_answer_that_a_server_asks_for_needs_no_second_approval(tmp_path: Path) -> None:
    async def ask(ctx: Any, params: dict[str, Any]) -> dict[str, Any]:
        if (ctx.params or {}).get("requestState") == "s1":
            return {"content": [{"type": "text", "text": "done"}]}
        schema = {"type": "object", "properties": {}}
        question = {"method": "elicitation/create", "params": {"message": "Sure?", "requestedSchema": schema}}
        return {"resultType": "input_required", "requestState": "s1", "inputRequests": {"q": question}}

    server = ScriptedServer([tool("wipe", annotations={"destructiveHint": True})], handler=ask, modern=True)
    async with asking(tmp_path, server=server) as asked:
        await asked.call("up__wipe")
        await asked.answer()
        result = await asked.served.call("up__wipe", key=KEYS["ADA"])
        assert result["resultType"] == "input_required"
        state = result["requestState"]
        responses = {"q": {"action": "accept", "content": {}}}
        more = {"requestState": state, "inputResponses": responses}
        assert await asked.call("up__wipe", {}, requestState="forged", inputResponses=responses) != "OK"
        assert await asked.call("up__wipe", {}, **more) == "OK"
        assert await asked.call("up__wipe", {}, **more) == "PENDING_APPROVAL"


async def test_the_times_of_a_role_replace_those_of_all_and_the_shortest_counts(tmp_path: Path) -> None:
    roles = {
        "quick": {"sets": ["all"], "approvals": {"minutes": 5}},
        "slow": {"sets": ["all"], "approvals": {"minutes": 90, "hold_seconds": 0}},
    }
    clients = {
        "ada": {"key": "${env:ADA}", "roles": ["quick", "slow"]},
        "bob": {"key": "${env:BOB}", "roles": ["slow"]},
    }
    sets, approvals = {"all": dict[str, Any]()}, {"hold_seconds": 45}
    async with asking(tmp_path, sets=sets, roles=roles, clients=clients, approvals=approvals) as asked:
        minutes = {}
        for who in ("ADA", "BOB"):
            assert await asked.call("up__wipe", MINE, who) == "PENDING_APPROVAL"
        for row in await asked.rows():
            minutes[row["client"]] = -(-row["seconds_left"] // 60)
    assert minutes == {"ada": 5, "bob": 90}


async def test_without_a_way_to_answer_a_call_is_refused(tmp_path: Path) -> None:
    async with asking(tmp_path) as asked:
        asked.served.gateway.approvals = Approvals()
        result = await asked.served.call("up__wipe", key=KEYS["ADA"])
        error = result["structuredContent"]["error"]
        assert (error["code"], error["retryable"]) == ("FORBIDDEN", False)
        assert "nobody can be asked" in error["message"] and "pml serve" in error["hint"]


async def test_a_passphrase_is_needed_where_one_is_set(tmp_path: Path) -> None:
    secret = hashed_passphrase("correct horse battery")
    async with asking(tmp_path, ASK, approvals={"hold_seconds": 0, "secret": secret}) as asked:
        await asked.call("up__wipe", MINE)
        [row] = await asked.rows()
        assert row["needs_passphrase"]
        assert secret not in str(await asked.shown(row["id"]))
        assert "not the passphrase" in str(await asked.answer(passphrase="wrong"))
        assert await asked.call("up__wipe", MINE) == "PENDING_APPROVAL"
        assert await asked.answer(passphrase="correct horse battery") == []
        assert await asked.call("up__wipe", MINE) == "OK"


@pytest.mark.one_gateway("it reads the file of one home")
@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_an_answered_approval_is_kept_sealed_and_outlives_the_process(tmp_path: Path) -> None:
    async with asking(tmp_path) as asked:
        await asked.call("up__wipe", {"repo": "very-private"})
        [id_] = await asked.waiting()
        await asked.answer(id_)
    assert b"very-private" not in asked.paths.approvals_file.read_bytes()
    async with asking(tmp_path) as asked:
        assert await asked.rows() == []
        assert (await asked.shown(id_))["calls"][0]["arguments"] == {"repo": "very-private"}
        assert await asked.call("up__wipe", {"repo": "very-private"}) == "PENDING_APPROVAL"
        await asked.answer(None, "deny")
        await asked.call("up__wipe", {"repo": "other"})
        [waiting] = await asked.waiting()
        assert (await asked.shown(waiting))["calls"][0]["differs"] == [["/repo", "very-private", "other"]]
    assert asked.sent == []
