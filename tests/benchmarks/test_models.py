"""Models that carry out tasks through a gateway: a scripted one under every way, a command, an endpoint, a replay."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from benchmarks.agents.command import CommandModel
from benchmarks.agents.endpoint import ATTEMPTS, open_endpoint
from benchmarks.agents.intervals import bootstrap, wilson
from benchmarks.agents.model import Message, ModelError, Reply, ToolCall, reply_of
from benchmarks.agents.report import task_rows, way_rows
from benchmarks.agents.session import MAX_REQUESTS, open_desk
from benchmarks.agents.transcripts import RecordedModel, Transcript, differences, read_transcripts, write_transcript
from benchmarks.agents.ways import MODEL_WAYS
from benchmarks.office.tasks import TASKS, OfficeTask
from benchmarks.run_models import MAX_ERRORS, Recording, chosen, measure, replay
from tests.benchmarks.office_solutions import SOLUTIONS
from tests.support.threaded_http import PlainHandler, threaded

BY_NAME = {task.name: task for task in TASKS}
BY_ASK = {task.ask: task.name for task in TASKS}
CALLERS = ("call_tool_read", "call_tool_write", "call_tool_destructive")
FEW = [BY_NAME[name] for name in ("contact twice", "new invoice", "shares of a leaver")]


@dataclass(slots=True)
class ScriptedModel:
    """Works as models do: reads the menu of each system that it needs, then calls what the menu names.

    It knows what to do, but takes names and effects from what it is shown.
    """

    seen: list[Message] = field(default_factory=list)

    async def answer(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Reply:
        self.seen = list(messages)
        calls = SOLUTIONS[BY_ASK[messages[1]["content"]]]
        listed = {tool["function"]["name"] for tool in tools}
        said = [call for message in messages for call in message.get("tool_calls", ())]
        if all(name in listed for name, _ in calls):
            return self._next(calls, len(said), len(messages))
        systems = list(dict.fromkeys(name.partition("__")[0] for name, _ in calls))
        if len(said) < len(systems):
            menu = {"query": "*", "server": systems[len(said)], "limit": 50}
            return self._next([("search_tools", menu)], 0, len(messages))
        if "execute_workflow" in listed:
            steps = [{"id": f"s{at}", "tool": name, "arguments": given} for at, (name, given) in enumerate(calls)]
            ordered = [{**step, "depends_on": [f"s{at - 1}"]} if at else step for at, step in enumerate(steps)]
            return self._next([("execute_workflow", {"steps": ordered})], len(said) - len(systems), len(messages))
        menus = "\n".join(message["content"] for message in messages if message["role"] == "tool")
        through = [(_caller(name, menus, listed), {"name": name, "arguments": given}) for name, given in calls]
        return self._next(through, len(said) - len(systems), len(messages))

    def _next(self, calls: Sequence[tuple[str, Any]], done: int, number: int) -> Reply:
        if done >= len(calls):
            return Reply("Done.")
        name, arguments = calls[done]
        return Reply("", (ToolCall(f"c{number}", name, json.dumps(arguments)),))


def _caller(name: str, menus: str, listed: set[str]) -> str:
    """The meta-tool that calls a tool, by the effect that a menu says."""
    if "call_tool" in listed:
        return "call_tool"
    found = re.search(rf"\b{name}\(.*?\[(read|write|destructive|unknown)\]", menus)
    assert found, f"no menu named {name} with its effect"
    return f"call_tool_{'destructive' if found[1] == 'unknown' else found[1]}"


async def _told(way: str, tasks: Sequence[OfficeTask], model: Any = None, others: int = 0) -> list[Transcript]:
    async with open_desk(MODEL_WAYS[way], others) as desk:
        return [await desk.carry_out(task, model or ScriptedModel(), 1) for task in tasks]


@pytest.mark.parametrize("way", [name for name in MODEL_WAYS if name != "hybrid"])
def test_a_scripted_model_does_tasks_under_every_way(way: str) -> None:
    told = anyio.run(_told, way, FEW)
    assert [each.faults for each in told] == [[], [], []], [each.messages for each in told if each.faults]
    assert all(each.requests == len([m for m in each.messages if m["role"] == "assistant"]) for each in told)


def test_a_list_made_for_the_task_has_its_tools() -> None:
    [told] = anyio.run(_told, "hybrid", [BY_NAME["nightly run"]], None, 163)
    assert told.is_done
    assert 0 < told.listed < 8_000


def test_every_system_is_listed_with_its_instructions_and_its_tools() -> None:
    model = ScriptedModel()
    [told] = anyio.run(_told, "listed", FEW[:1], model)
    assert told.listed > 8_000
    assert model.seen[0]["role"] == "system" and "Mara Lindqvist" in model.seen[0]["content"]
    assert told.requests * told.listed < told.read < told.requests * told.once


@dataclass(slots=True)
class Endless:
    """Calls one tool for ever, and never with the right arguments."""

    arguments: str

    async def answer(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Reply:
        return Reply("", (ToolCall("c", "crm__get_contact", self.arguments),))


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [("{", "error: the arguments are not JSON"), ("[]", "error: the arguments must be a JSON object")],
)
def test_a_model_that_does_not_end_is_stopped_and_told_what_is_wrong(arguments: str, answer: str) -> None:
    [told] = anyio.run(_told, "listed", FEW[:1], Endless(arguments))
    assert told.requests == MAX_REQUESTS
    assert told.faults[0] == f"no end after {MAX_REQUESTS} requests"
    assert told.messages[2]["content"].startswith(answer)


@dataclass(slots=True)
class Silent:
    """Gives out at once."""

    async def answer(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Reply:
        raise ModelError("no power")


def test_a_model_that_gives_out_is_not_counted_and_soon_not_asked(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "t.jsonl", {"model": "m", "date": "d"})
    anyio.run(partial(measure, Silent(), recording, ["listed"], TASKS[:9], 1, 0))
    assert [each.error for each in recording.transcripts] == ["no power"] * MAX_ERRORS
    [row] = way_rows(recording.transcripts)
    assert (row["done"], row["gave out"]) == ("0 of 0", MAX_ERRORS)


def test_a_recording_goes_on_where_it_stopped_and_its_replay_leaves_the_same_state(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    head = {"model": "scripted", "date": "2026-11-29"}
    for count in (1, 2):
        recording = Recording(path, head)
        anyio.run(partial(measure, ScriptedModel(), recording, ["meta_only"], FEW[:count], 1, 0))
    assert path.read_text(encoding="utf-8").count("\n") == 3
    read, transcripts = read_transcripts(path)
    assert (read, [each.task for each in transcripts]) == (head, [task.name for task in FEW[:2]])
    again, problems = anyio.run(replay, transcripts, 0)
    assert problems == []
    assert [each.messages for each in again] == [each.messages for each in transcripts]


def test_a_replay_says_where_another_state_is_left_behind(tmp_path: Path) -> None:
    told = anyio.run(_told, "listed", FEW[:1])
    text = json.dumps(told[0].messages).replace("CON-5", "CON-11")
    told[0].messages = json.loads(text)
    _, problems = anyio.run(replay, told, 0)
    assert problems[0].startswith('listed, contact twice, run 1: no longer: ["changed", "crm.activities", "ACT-1"')
    assert "was done: ['missing:" in problems[-1]


def test_handles_of_stored_results_are_those_of_the_replay() -> None:
    old, new = "ref_" + "a" * 22, "ref_" + "B-" * 11
    call = ToolCall("c1", "read_result", json.dumps({"ref": old})).message
    recorded = Transcript("meta_only", "spam", 1, 0)
    recorded.messages = [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "", "tool_calls": []},
        {"role": "tool", "content": f"stored as {old}"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    model = RecordedModel(recorded, replies=1)
    reply = anyio.run(model.answer, [{"role": "tool", "content": f"stored as {new}"}], [])
    assert json.loads(reply.calls[0].arguments) == {"ref": new}
    with pytest.raises(ModelError, match="the transcript ends here"):
        anyio.run(model.answer, [], [])


def test_the_order_of_changes_is_no_difference() -> None:
    one, other = Transcript("w", "t", 1, 0), Transcript("w", "t", 1, 0)
    one.changes = [["added", "x", "1", {}], ["removed", "y", "2", {}]]
    other.changes = [*reversed(one.changes), ["added", "z", "3", {}]]
    assert differences(one, other) == ['new: ["added", "z", "3", {}]']


@pytest.mark.parametrize(
    ("message", "text", "calls"),
    [
        ({"content": "Done."}, "Done.", []),
        ({"content": [{"type": "text", "text": "Do"}, {"text": "ne."}]}, "Done.", []),
        ({"tool_calls": [{"name": "a", "arguments": {"x": 1}}]}, "", [("call_3_0", "a", '{"x": 1}')]),
        (
            {"content": None, "tool_calls": [{"id": "i", "function": {"name": "a", "arguments": '{"x":1}'}}]},
            "",
            [("i", "a", '{"x":1}')],
        ),
    ],
)
def test_messages_are_read_long_and_short(message: Any, text: str, calls: list[tuple[str, str, str]]) -> None:
    reply = reply_of(message, 3)
    assert (reply.text, [(call.id, call.name, call.arguments) for call in reply.calls]) == (text, calls)


@pytest.mark.parametrize("message", ["Done.", {"tool_calls": "a"}, {"tool_calls": [{"arguments": {}}]}])
def test_what_is_no_message_is_refused(message: Any) -> None:
    with pytest.raises(ModelError):
        reply_of(message, 1)


def _command(code: str) -> CommandModel:
    return CommandModel([sys.executable, "-c", code], 30)


ECHO = """import json, sys
asked = json.load(sys.stdin)
print(json.dumps({"content": f"{len(asked['messages'])} {asked['tools']}"}))"""


def test_a_command_gets_the_request_and_gives_a_message() -> None:
    reply = anyio.run(_command(ECHO).answer, [{"role": "user", "content": "ä"}], [{"type": "function"}])
    assert reply.text == "1 [{'type': 'function'}]"


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (_command("import sys; sys.exit('out of words')"), "ended with 1: out of words"),
        (_command("print('hello')"), "gave no JSON"),
        (CommandModel(["/does/not/exist"], 1), "cannot be started"),
        (CommandModel([sys.executable, "-c", "input(); input()"], 0), "gave no message within 0 s"),
    ],
)
def test_a_command_that_gives_no_message_is_an_error(model: CommandModel, problem: str) -> None:
    with pytest.raises(ModelError, match=problem):
        anyio.run(model.answer, [], [])


Answers = list[tuple[int, dict[str, str], str]]


def _endpoint(answers: Answers, asked: list[dict[str, Any]]) -> type[PlainHandler]:
    class Endpoint(PlainHandler):
        def post(self) -> None:
            asked.append({"path": self.path, "key": self.headers.get("authorization"), **self.received()})
            status, headers, text = answers[min(len(asked), len(answers)) - 1]
            self.respond(status, text.encode(), headers=headers)

    return Endpoint


GOOD = json.dumps({"choices": [{"message": {"content": "Done."}}], "usage": {"prompt_tokens": 7, "details": {}}})


def _asked(answers: Answers) -> tuple[Callable[[], Reply], list[dict[str, Any]]]:
    asked: list[dict[str, Any]] = []

    async def ask() -> Reply:
        with threaded(_endpoint(answers, asked)) as url:
            async with open_endpoint(f"{url}/v1/", "m", "k", 30, {"temperature": 0}, pause=0) as model:
                return await model.answer([{"role": "user", "content": "Hi"}], [])

    return partial(anyio.run, ask), asked


def test_an_endpoint_is_asked_again_while_it_is_busy() -> None:
    ask, asked = _asked([(429, {"retry-after": "0"}, ""), (503, {"retry-after": "soon"}, ""), (200, {}, GOOD)])
    reply = ask()
    assert (reply.text, reply.usage) == ("Done.", {"prompt_tokens": 7})
    assert len(asked) == 3
    assert asked[0] == {
        "path": "/mcp/v1/chat/completions",
        "key": "Bearer k",
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [],
        "temperature": 0,
    }


@pytest.mark.parametrize(
    ("answer", "problem", "times"),
    [
        ((500, {}, "broken"), "HTTP 500: broken", ATTEMPTS),
        ((401, {}, "who are you"), "HTTP 401: who are you", 1),
        ((200, {}, "<html>"), "not an answer of chat completions", 1),
    ],
)
def test_an_endpoint_that_gives_no_message_is_an_error(
    answer: tuple[int, dict[str, str], str], problem: str, times: int
) -> None:
    ask, asked = _asked([answer])
    with pytest.raises(ModelError, match=problem):
        ask()
    assert len(asked) == times


def test_an_interval_of_a_share_is_wilsons() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(12, 12)[0] == pytest.approx(0.7575, abs=1e-3)
    assert wilson(12, 12)[1] == 1.0
    assert list(wilson(8, 10)) == pytest.approx([0.4902, 0.9433], abs=1e-3)


def test_a_bootstrapped_interval_is_the_same_each_time_and_holds_the_mean() -> None:
    values = [1.0, 2.0, 3.0, 10.0]
    low, high = bootstrap(4, lambda drawn: sum(values[at] for at in drawn) / 4)
    assert 1 <= low < 4 < high <= 10
    assert (low, high) == bootstrap(4, lambda drawn: sum(values[at] for at in drawn) / 4)


def _transcript(way: str, task: str, run: int, read: int, faults: Sequence[str] = ()) -> Transcript:
    return Transcript(way, task, run, listed=10, requests=2, read=read, faults=list(faults))


def test_ways_are_compared_on_the_tasks_that_both_have() -> None:
    told = [
        _transcript("listed", "a", 1, 1000),
        _transcript("listed", "a", 2, 3000, ["missing"]),
        _transcript("listed", "b", 1, 500),
        _transcript("meta_only", "a", 1, 100),
    ]
    listed, meta = way_rows(told)
    assert (listed["done"], listed["share"][:4], listed["read, % of listed"]) == (
        "2 of 3",
        "0.67",
        "100.0 (100.0 to 100.0)",
    )
    assert (meta["read, % of listed"], meta["read, over all requests"]) == ("5.0 (5.0 to 5.0)", "100 (100 to 100)")
    assert task_rows(told) == [
        {"task": "a", "listed": "1/2, 2.0, 2.0k", "meta_only": "1/1, 2.0, 0.1k"},
        {"task": "b", "listed": "1/1, 2.0, 0.5k", "meta_only": "not run"},
    ]


def test_a_file_without_a_model_holds_no_transcripts(tmp_path: Path) -> None:
    write_transcript(tmp_path / "t.jsonl", Transcript("w", "t", 1, 0))
    with pytest.raises(ValueError, match="holds no transcripts"):
        read_transcripts(tmp_path / "t.jsonl")


def test_some_tasks_are_spread_evenly_over_all() -> None:
    assert [task.name for task in chosen(TASKS, ["ticket"], None)] == [t.name for t in TASKS if "ticket" in t.name]
    few = chosen(TASKS, None, 10)
    assert few[0] is TASKS[0] and len({task.name for task in few}) == 10
    assert TASKS.index(few[-1]) >= 0.9 * (len(TASKS) - 1) - 1
