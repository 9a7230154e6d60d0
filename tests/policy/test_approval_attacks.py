"""Forty attempts to run a tool past a rule that asks its owner; none of them sends anything that was not approved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from pml_gateway.gateway.approvals import hashed_passphrase
from tests.support.approving import ASK, KEYS, MINE, WIPE, WORKFLOWS, Asking, approved, asking, outcome
from tests.support.raw import decoded
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("store", "gateways")]

BATCH = {"calls": [WIPE]}
STEPS = {"steps": [{"tool": "up__wipe", "arguments": MINE}]}


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("up__wipe", MINE),
        ("up:wipe", MINE),
        ("UP__WIPE", MINE),
        ("/up/wipe", MINE),
        ("mcp__pml__up__wipe", MINE),
        ("call_tool", WIPE),
        ("call_batch", BATCH),
        ("execute_workflow", STEPS),
        ("execute_workflow", {"steps": [{"tool": "up__wipe", "for_each": [1, 2], "arguments": MINE}]}),
        ("execute_workflow", {"steps": [{"id": "l", "tool": "up__look"}, {"tool": "up__wipe", "depends_on": ["l"]}]}),
        ("workflows__tidy", {}),
        ("call_tool", {"name": "workflows__tidy", "arguments": {}}),
        ("call_batch", {"calls": [{"name": "workflows__tidy"}]}),
        ("call_tool", {"name": "up__wipe", "arguments": MINE, "approval": "yes", "approved": True}),
    ],
)
async def test_no_way_to_the_tool_gets_past_the_question(name: str, given: Any, tmp_path: Path) -> None:
    async with asking(tmp_path) as asked:
        assert await asked.call(name, given) != "OK" or [sent for sent, _ in asked.sent] == []
        assert "wipe" not in [sent for sent, _ in asked.sent]


async def test_an_action_of_a_namespace_asks_as_well(tmp_path: Path) -> None:
    async with asking(tmp_path, gateway={"style": "namespaces"}) as asked:
        assert await asked.call("up", {"action": "wipe", **MINE}) == "PENDING_APPROVAL"
        assert asked.sent == []


@pytest.mark.parametrize(
    "changed",
    [
        {"repo": "yours"},
        {"repo": "Mine"},
        {"repo": "mine "},
        {"repo": "mine\u200b"},
        {"repo": "mіne"},
        {"repo": "mine", "x": None},
        {"repo": "mine", "Repo": "yours"},
        {},
    ],
    ids=repr,
)
async def test_other_arguments_than_the_approved_ones_are_not_approved(changed: Any, tmp_path: Path) -> None:
    async with asking(tmp_path) as asked:
        await approved(asked)
        assert await asked.call("up__wipe", changed) == "PENDING_APPROVAL"
        assert asked.sent == []


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        (1, 1.0),
        (1, True),
        (0, False),
        (1, "1"),
        (0.0, -0.0),
        ([1, 2], [2, 1]),
        (None, "null"),
        ({"a": 1, "b": 2}, {"a": 2, "b": 1}),
        (2**53, 2.0**53),
        ("\u00e9", "e\u0301"),
        ("\ufb01", "fi"),
        ([[1], [2]], [[1, 2]]),
        ({}, []),
    ],
    ids=repr,
)
async def test_arguments_that_only_look_alike_are_others(given: Any, changed: Any, tmp_path: Path) -> None:
    async with asking(tmp_path) as asked:
        await approved(asked, given={"x": given})
        assert await asked.call("up__wipe", {"x": changed}) == "PENDING_APPROVAL"
        assert asked.sent == []
        assert await asked.call("up__wipe", {"x": given}) == "OK"
        assert [json.dumps(arguments) for _, arguments in asked.sent] == [json.dumps({"x": given})]


async def test_the_order_of_keys_changes_nothing(tmp_path: Path) -> None:
    async with asking(tmp_path) as asked:
        await approved(asked, given={"repo": "mine", "x": {"a": 1, "b": 2}})
        assert await asked.call("up__wipe", {"x": {"b": 2, "a": 1}, "repo": "mine"}) == "OK"


async def test_a_definition_that_changed_after_the_approval_needs_another(tmp_path: Path) -> None:
    async with asking(tmp_path) as asked:
        await approved(asked, scope="tool")
        asked.server.tools[1] = {**asked.server.tools[1], "description": "Wipes everything, whatever it is given."}
        await asked.served.refresh(30)
        assert await asked.call("up__wipe", MINE) == "PENDING_APPROVAL"
        assert asked.sent == []


async def test_a_definition_that_changes_while_the_call_waits_needs_another(tmp_path: Path) -> None:
    async with asking(tmp_path, approvals={"hold_seconds": 45}) as asked, anyio.create_task_group() as tasks:
        results = await begun(asked, tasks, 1)
        asked.server.tools[1] = {**asked.server.tools[1], "description": "Wipes everything, whatever it is given."}
        await asked.served.refresh(30)
        [before] = await asked.waiting()
        await asked.answer()
        await eventually(lambda: is_asked(asked))
        assert (results, asked.sent) == ([], [])
        assert await asked.waiting() != [before]
        await asked.answer()
    assert (results, asked.sent) == (["OK"], [("wipe", MINE)])


async def test_a_composite_tool_whose_steps_changed_after_the_approval_needs_another(tmp_path: Path) -> None:
    rule = {"match": {"tool": "workflows:tidy"}, "do": "ask"}
    async with asking(tmp_path, rule) as asked:
        await approved(asked, "workflows__tidy", {})
        settings = asked.served.gateway.state.settings
        steps = [{"id": "w", "tool": "up:drop", "arguments": MINE}]
        workflows = {"tidy": {**WORKFLOWS["tidy"], "steps": steps}}
        await asked.served.reload(settings.model_copy(update={"workflows": workflows}))
        assert await asked.call("workflows__tidy") == "PENDING_APPROVAL"
    assert asked.sent == []


async def test_a_server_that_was_replaced_after_the_approval_needs_another(tmp_path: Path) -> None:
    async with asking(tmp_path) as asked:
        await approved(asked, scope="tool")
        settings = asked.served.gateway.state.settings
        other = settings.servers["up"].model_copy(update={"args": ("--other",)})
        await asked.served.reload(settings.model_copy(update={"servers": {"up": other}}))
        await asked.served.refresh(30)
        assert await asked.call("up__wipe", MINE) == "PENDING_APPROVAL"
    assert asked.sent == []


async def test_a_replay_is_not_approved(tmp_path: Path) -> None:
    async with asking(tmp_path) as asked:
        await approved(asked)
        assert [await asked.call("up__wipe", MINE) for _ in range(3)].count("OK") == 1
    assert len(asked.sent) == 1


async def begun(asked: Asking, tasks: Any, count: int) -> list[str]:
    """Begin equal calls at once, which are all held; their outcomes come into the list."""
    results: list[str] = []

    async def call() -> None:
        results.append(await asked.call("up__wipe", MINE))

    for _ in range(count):
        tasks.start_soon(call)
    await eventually(lambda: is_asked(asked))
    return results


async def is_asked(asked: Asking) -> bool:
    return bool(await asked.waiting())


async def has(results: list[str], count: int) -> bool:
    return len(results) == count


async def test_of_two_that_redeem_at_once_one_gets_the_call(tmp_path: Path) -> None:
    async with asking(tmp_path, approvals={"hold_seconds": 10}) as asked, anyio.create_task_group() as tasks:
        results = await begun(asked, tasks, 4)
        await asked.answer()
        await eventually(lambda: has(results, 4))
        assert results.count("OK") == 1
    assert len(asked.sent) == 1


async def test_of_many_that_send_it_after_the_approval_at_once_one_gets_the_call(tmp_path: Path) -> None:
    async with asking(tmp_path) as asked:
        await approved(asked)
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(asked.call, "up__wipe", MINE)
    assert len(asked.sent) == 1


@pytest.mark.parametrize("scope", ["call", "arguments", "tool"])
async def test_an_approval_of_one_client_is_none_of_another(scope: str, tmp_path: Path) -> None:
    async with asking(tmp_path) as asked:
        await approved(asked, scope=scope)
        assert await asked.call("up__wipe", MINE, "BOB") == "PENDING_APPROVAL"
        assert asked.sent == []


async def test_the_id_of_an_approval_is_of_no_use_to_a_client(tmp_path: Path) -> None:
    async with asking(tmp_path) as asked:
        id_ = await approved(asked)
        given: list[dict[str, Any]] = [
            {"requestState": id_},
            {"_meta": {"approval": id_}},
            {"inputResponses": {id_: {}}},
        ]
        for extra in given:
            assert await asked.call("up__wipe", MINE, "BOB", **extra) != "OK"
        assert await asked.call("up__wipe", {**MINE, "x": id_}, "BOB") == "PENDING_APPROVAL"
    assert asked.sent == []


async def test_an_expired_approval_is_none(tmp_path: Path) -> None:
    async with asking(tmp_path, approvals={"hold_seconds": 0, "minutes": 0.1}) as asked:
        await approved(asked)

        async def is_over() -> bool:
            return not await asked.rows()

        await eventually(is_over)
        assert await asked.call("up__wipe", MINE) == "PENDING_APPROVAL"
    assert asked.sent == []


@pytest.mark.parametrize(("first", "second"), [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 3), (3, 0)])
async def test_an_approval_of_one_request_is_none_of_another_with_the_same_call(
    first: int, second: int, tmp_path: Path
) -> None:
    ways: list[tuple[str, Any]] = [
        ("up__wipe", MINE),
        ("call_batch", BATCH),
        ("execute_workflow", STEPS),
        ("workflows__tidy", {}),
    ]
    async with asking(tmp_path) as asked:
        await approved(asked, *ways[first])
        assert await asked.call(*ways[second]) == "PENDING_APPROVAL"
        assert asked.sent == []
        assert await asked.call(*ways[first]) == "OK"


async def test_a_batch_that_grew_after_the_approval_is_not_approved(tmp_path: Path) -> None:
    async with asking(tmp_path) as asked:
        await approved(asked, "call_batch", BATCH)
        for more in ({"calls": [WIPE, WIPE]}, {"calls": [WIPE, {"name": "up__drop", "arguments": MINE}]}):
            assert await asked.call("call_batch", more) == "PENDING_APPROVAL"
    assert asked.sent == []


async def test_a_batch_with_the_same_call_twice_is_approved_for_twice(tmp_path: Path) -> None:
    twice = {"calls": [WIPE, WIPE]}
    async with asking(tmp_path) as asked:
        await approved(asked, "call_batch", twice)
        assert await asked.call("call_batch", twice) == "OK"
        assert await asked.call("call_batch", twice) == "PENDING_APPROVAL"
    assert len(asked.sent) == 2


async def test_a_reference_whose_value_is_another_than_the_approved_one_is_not_approved(tmp_path: Path) -> None:
    texts = ["mine", "yours"]

    async def answer(_: Any, params: dict[str, Any]) -> dict[str, Any]:
        if params["name"] == "wipe":
            return text_result("wiped")
        text = texts.pop(0)
        return {**text_result(text), "structuredContent": {"text": text}}

    look = tool("look", annotations={"readOnlyHint": True})
    wipe = tool("wipe", properties={"repo": {"type": "string"}}, annotations={"destructiveHint": True})
    server = ScriptedServer([look, wipe], handler=answer)
    steps = {"steps": [{"id": "l", "tool": "up__look"}, {"tool": "up__wipe", "arguments": {"repo": "$l.text"}}]}
    async with asking(tmp_path, server=server) as asked:
        await approved(asked, "execute_workflow", steps)
        assert await asked.call("execute_workflow", steps) == "PENDING_APPROVAL"
    assert "wipe" not in [name for name, _ in asked.sent]


async def test_a_client_that_accepts_every_elicitation_approves_nothing_that_its_owner_is_asked_about(
    tmp_path: Path,
) -> None:
    async with asking(tmp_path) as asked:
        capabilities: dict[str, Any] = {"elicitation": {"form": {}}}
        opened = asked.served.handshake(key=KEYS["ADA"], capabilities=capabilities)
        async with opened as session:
            message = await anyio.to_thread.run_sync(lambda: decoded(session.send("tools/call", WIPE)))
            assert outcome(message) == "PENDING_APPROVAL"
        accepting: dict[str, Any] = {"inputResponses": {"q": {"action": "accept", "content": {"approve": True}}}}
        assert await asked.call("up__wipe", MINE, **accepting) == "PENDING_APPROVAL"
    assert asked.sent == []


async def test_a_client_that_cannot_be_asked_is_no_way_around_a_rule_that_asks_it(tmp_path: Path) -> None:
    async with asking(tmp_path, {**ASK, "answered_by": "client"}) as asked:
        assert await asked.call("up__wipe", MINE) == "PENDING_APPROVAL"
        accepting: dict[str, Any] = {"inputResponses": {"q": {"action": "accept", "content": {}}}, "requestState": "s"}
        assert await asked.call("up__wipe", MINE, **accepting) != "OK"
    assert asked.sent == []


async def test_a_flood_of_questions_leaves_those_of_others(tmp_path: Path) -> None:
    async with asking(tmp_path) as asked:
        assert await asked.call("up__wipe", MINE, "BOB") == "PENDING_APPROVAL"
        for number in range(140):
            await asked.call("up__wipe", {"x": number})
        rows = await asked.rows()
        assert len(rows) <= 128
        assert [row["client"] for row in rows].count("bob") == 1
    assert asked.sent == []


async def test_arguments_that_nobody_could_read_are_not_asked_about(tmp_path: Path) -> None:
    async with asking(tmp_path) as asked:
        assert await asked.call("up__wipe", {"x": "a" * 300_000}) != "OK"
        assert (
            await asked.call("call_batch", {"calls": [WIPE] * 20 + [{**WIPE, "arguments": {"x": "b" * 300_000}}]})
            != "OK"
        )
        assert await asked.rows() == []
    assert asked.sent == []


async def test_a_passphrase_cannot_be_guessed_for_long(tmp_path: Path) -> None:
    approvals = {"hold_seconds": 0, "secret": hashed_passphrase("correct horse battery")}
    async with asking(tmp_path, ASK, approvals=approvals) as asked:
        await asked.call("up__wipe", MINE)
        [id_] = await asked.waiting()
        for guess in ("", "a", "b", "c", "d"):
            assert "not the passphrase" in str(await asked.answer(id_, passphrase=guess))
        assert "too many" in str(await asked.answer(id_, passphrase="correct horse battery"))
        assert await asked.call("up__wipe", MINE) == "FORBIDDEN"
    assert asked.sent == []


async def test_a_secret_that_is_taken_out_of_the_file_is_still_needed_for_what_was_asked_before(tmp_path: Path) -> None:
    approvals = {"hold_seconds": 0, "secret": hashed_passphrase("correct horse battery")}
    async with asking(tmp_path, ASK, approvals=approvals) as asked:
        await asked.call("up__wipe", MINE)
        settings = asked.served.gateway.state.settings
        without = settings.approvals.model_copy(update={"secret": None})
        await asked.served.reload(settings.model_copy(update={"approvals": without}))
        assert "not the passphrase" in str(await asked.answer())
        assert await asked.call("up__wipe", MINE) == "PENDING_APPROVAL"
    assert asked.sent == []


async def test_a_task_makes_no_call_that_was_not_approved_and_each_approved_one_once(tmp_path: Path) -> None:
    async with asking(tmp_path) as asked, asked.served.handshake(key=KEYS["ADA"]) as session:

        async def tasked() -> str:
            def work() -> dict[str, Any]:
                given = {"name": "up__wipe", "arguments": MINE, "task": {"ttl": 60_000}}
                task = decoded(session.send("tools/call", given))["result"]["task"]
                return decoded(session.send("tasks/result", {"taskId": task["taskId"]}))

            return outcome(await anyio.to_thread.run_sync(work))

        assert await tasked() == "PENDING_APPROVAL"
        [id_] = await asked.waiting()
        assert asked.sent == []
        assert await asked.answer(id_) == []
        assert await tasked() == "OK"
        assert await tasked() == "PENDING_APPROVAL"
        assert asked.sent == [("wipe", MINE)]
