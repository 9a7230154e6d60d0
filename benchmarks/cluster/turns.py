"""The kinds of turns that clients take: each makes some requests, and checks their answers."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import anyio

from benchmarks.client import AnswerError, Era
from benchmarks.cluster.client import EndedError, Visitor
from benchmarks.cluster.owner import Owner
from benchmarks.cluster.server import JOB, NEW, OLD
from benchmarks.peers import plain_text

ROWS = 500
"""Rows of a result that is stored: over the 4,000 tokens from which results are."""

LONG_SECONDS = 30.0
"""Seconds of a call that is cancelled."""

GIVEN_UP_SECONDS = 0.5
POLL_SECONDS = 0.05
TASK_SECONDS = 90.0
"""Maximum wait for a task. It is longer than the longest outage, after which who listens to a task is still told."""

TASK_FAILED = "task failed"
OVER = ("completed", "failed", "cancelled")
IDEMPOTENT = frozenset({"look", "rows", "total"})
PENDING = "PENDING_APPROVAL"
NOT_ASKED = "the owner is not asked"
"""The outcome of a call whose approval the owner does not find."""

NOT_STORED = "not stored"
"""The outcome of a large result that is answered itself."""

NO_TASK = "no task"
"""The outcome of a call that becomes no task, as the other replicas could not know it, and is answered itself."""


@dataclass
class Book:
    """The ids of all calls by what servers must have noted of them; `tools` has the tool of each."""

    tools: dict[str, str] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    never: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)


@dataclass
class Taker:
    """A client that takes turns; `generator` is made anew for each turn, so that equal turns make equal requests."""

    visitor: Visitor
    owner: Owner
    book: Book
    generator: random.Random = field(default_factory=random.Random)
    calls: int = 0

    def text(self) -> str:
        """Return a payload with the client's mark."""
        return f"{self.visitor.mark} {self.generator.getrandbits(64):016x} äß€"

    def server(self) -> str:
        """Return one of the servers."""
        return self.generator.choice((NEW, OLD))

    def arguments(self, tool: str, **given: Any) -> dict[str, Any]:
        """Return arguments with a new id, which is written into the book."""
        self.calls += 1
        call = f"{self.visitor.turn}.{self.calls}"
        self.book.tools[call] = tool
        return {"call": call, **given}

    async def call(self, name: str, arguments: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Return the result of one `tools/call`."""
        answer = options.pop("answer", None)
        compared = options.pop("compared", True)
        params = {"name": name, "arguments": arguments, **options}
        return await self.visitor.request("tools/call", params, answer, compared=compared)

    def done(self, *arguments: dict[str, Any]) -> None:
        """Note calls that were answered with their results."""
        self.book.answered.update(each["call"] for each in arguments)


async def listing(taker: Taker) -> None:
    """The whole list."""
    listed = (await taker.visitor.request("tools/list", {}))["tools"]
    if not {f"{NEW}__echo", f"{OLD}__echo"} <= {each["name"] for each in listed}:
        raise AnswerError("tools are missing from the list")


async def direct(taker: Taker) -> None:
    """A tool by its name."""
    text = taker.text()
    given = taker.arguments("echo", text=text)
    _expect(text_of(await taker.call(f"{taker.server()}__echo", given)), f"echo {text}")
    taker.done(given)


async def through_call_tool(taker: Taker) -> None:
    """An idempotent tool through the meta-tool."""
    text = taker.text()
    given = taker.arguments("look", text=text)
    result = await taker.call("call_tool", {"name": f"{taker.server()}__look", "arguments": given})
    _expect(text_of(result), f"look {text}")
    taker.done(given)


async def batch(taker: Taker) -> None:
    """Three calls side by side."""
    given = [taker.arguments("echo", text=taker.text()) for _ in range(3)]
    calls = [{"name": f"{taker.server()}__echo", "arguments": each} for each in given]
    answer = (await taker.call("call_batch", {"calls": calls}))["structuredContent"]
    _slots(answer["slots"], [f"echo {each['text']}" for each in given])
    taker.done(*given)


async def workflow(taker: Taker) -> None:
    """Two steps, the second with the result of the first."""
    first, text = taker.arguments("echo", text=taker.text()), taker.text()
    second = taker.arguments("echo", text="$a")
    steps = [
        {"id": "a", "tool": f"{taker.server()}__echo", "arguments": first},
        {"id": "b", "tool": f"{taker.server()}__echo", "arguments": second},
        {"id": "c", "tool": f"{taker.server()}__look", "arguments": taker.arguments("look", text=text)},
    ]
    answer = (await taker.call("execute_workflow", {"steps": steps}))["structuredContent"]
    _slots(answer["steps"], [f"echo {first['text']}", f"echo echo {first['text']}", f"look {text}"])
    taker.done(first, second)


async def reference(taker: Taker) -> None:
    """A large result: stored by one request, read by another and passed on by a third."""
    text, server = taker.text(), taker.server()
    given = taker.arguments("rows", text=text, count=ROWS)
    stored = (await taker.call("call_tool", {"name": f"{server}__rows", "arguments": given}))["structuredContent"]
    taker.done(given)
    if "ref" not in stored:
        # Without Redis it is given whole, or cut.
        if f"{text} row 0" not in json.dumps(stored, ensure_ascii=False):
            raise AnswerError(f"no reference: {json.dumps(stored)[:300]}")
        raise EndedError(NOT_STORED, "")
    asked = {"ref": stored["ref"], "path": f"rows[{ROWS - 1}].text"}
    page = await taker.call("read_result", asked)
    if f"{text} row {ROWS - 1}" not in json.dumps(page, ensure_ascii=False):
        raise AnswerError(f"another page: {json.dumps(page)[:300]}")
    total = taker.arguments("total", text=text, rows={"$ref": stored["ref"], "path": "rows"})
    found = text_of(await taker.call(f"{taker.server()}__total", total))
    _expect(found, f"{text} {text} {sum(range(ROWS))}")
    taker.done(total)


async def question(taker: Taker) -> None:
    """A call whose server asks something, which is answered later."""
    text, answer = taker.text(), taker.text()
    given = taker.arguments("ask", text=text)
    result = await _answered(taker, f"{taker.server()}__ask", given, answer)
    _expect(text_of(result), f"ask {text} {answer}")
    taker.done(given)


async def question_in_workflow(taker: Taker) -> None:
    """A workflow whose second step asks something; its first is not made again."""
    first, answer = taker.arguments("echo", text=taker.text()), taker.text()
    second = taker.arguments("ask", text=taker.text())
    steps = [
        {"id": "a", "tool": f"{taker.server()}__echo", "arguments": first},
        {"id": "b", "tool": f"{taker.server()}__ask", "arguments": second},
    ]
    result = await _answered(taker, "execute_workflow", {"steps": steps}, answer)
    expected = [f"echo {first['text']}", f"ask {second['text']} {answer}"]
    _slots(result["structuredContent"]["steps"], expected)
    taker.done(first, second)


async def _answered(taker: Taker, name: str, arguments: dict[str, Any], answer: str) -> dict[str, Any]:
    """Return the result of a call once its question is answered."""
    content = {"action": "accept", "content": {"answer": answer}}
    result = await taker.call(name, arguments, answer=lambda _: content)
    if taker.visitor.era is Era.HANDSHAKE:
        return result
    if result.get("resultType") != "input_required":
        raise AnswerError(f"no question: {json.dumps(result)[:300]}")
    responses = dict.fromkeys(result["inputRequests"], content)
    more = {"inputResponses": responses, "requestState": result["requestState"]}
    return await taker.call(name, arguments, **more)


async def task(taker: Taker) -> None:
    """A call that becomes a task, whose result is collected later."""
    text = taker.text()
    given, task_id = await _task(taker, text, seconds=0.3)
    tool = taker.book.tools[given["call"]]
    with anyio.fail_after(TASK_SECONDS):
        shown = await taker.visitor.request("tasks/get", {"taskId": task_id}, compared=False)
        while shown["status"] == "working":
            await anyio.sleep(POLL_SECONDS)
            shown = await taker.visitor.request("tasks/get", {"taskId": task_id}, compared=False)
    _check_ended(shown)
    result = shown.get("result") or await taker.visitor.request("tasks/result", {"taskId": task_id})
    _expect(text_of(result), f"{tool} {text}")
    taker.done(given)


def _check_ended(shown: dict[str, Any], status: str = "completed") -> None:
    # One whose replica is gone has failed, whatever was wanted of it.
    if shown["status"] == "failed":
        raise EndedError(TASK_FAILED, f"{shown.get('statusMessage')} {shown.get('error')}")
    _expect(shown["status"], status)


async def task_notice(taker: Taker) -> None:
    """A task of whose end its client is told on a stream; the handshake era asks for the result instead."""
    if taker.visitor.era is Era.HANDSHAKE:
        await task(taker)
        return
    text = taker.text()
    given, task_id = await _task(taker, text, seconds=0.3)
    listening = {"notifications": {"taskIds": [task_id]}}
    with anyio.fail_after(TASK_SECONDS):
        told = await taker.visitor.request("subscriptions/listen", listening, awaited=OVER)
    _expect(told["taskId"], task_id)
    _check_ended(told)
    _expect(text_of(told["result"]), f"{JOB} {text}")
    taker.done(given)


async def cancelled_task(taker: Taker) -> None:
    """A task that its client cancels."""
    given, task_id = await _task(taker, taker.text(), seconds=LONG_SECONDS)
    await taker.visitor.request("tasks/cancel", {"taskId": task_id})
    shown = await taker.visitor.request("tasks/get", {"taskId": task_id})
    _check_ended(shown, "cancelled")
    taker.book.cancelled.add(given["call"])


async def _task(taker: Taker, text: str, *, seconds: float) -> tuple[dict[str, Any], str]:
    """Begin a task that takes some time; return the arguments of its call, and its id."""
    if taker.visitor.era is Era.STATELESS:
        polls = 3 if seconds < 1 else 1000
        given = taker.arguments(JOB, text=text, polls=polls)
        # A short one may have ended before its request is answered.
        created = await taker.call(f"{NEW}__{JOB}", given, compared=seconds == LONG_SECONDS)
        if created.get("resultType") == "complete" and text_of(created) == f"{JOB} {text}":
            raise EndedError(NO_TASK, "")
        if created.get("resultType") != "task":
            raise AnswerError(f"no task: {json.dumps(created)[:300]}")
        return given, str(created["taskId"])
    given = taker.arguments("slow", text=text, seconds=seconds)
    name, wanted = f"{taker.server()}__slow", {"ttl": 600_000}
    created = (await taker.call(name, given, task=wanted, compared=seconds == LONG_SECONDS))["task"]
    return given, str(created["taskId"])


async def approved(taker: Taker) -> None:
    """A call that the owner approves while it waits, or after it has."""
    given, name = taker.arguments("wipe", text=taker.text()), f"{taker.server()}__wipe"
    first = taker.generator.randrange(3)
    if taker.generator.random() < 0.5:
        result = await _approved_while_waiting(taker, name, given, first)
    else:
        await _pending(taker, name, given)
        await _owner_answers(taker, given, "approve", first)
        result = await taker.call(name, given)
    _expect(text_of(result), f"wipe {given['text']}")
    taker.done(given)


async def _approved_while_waiting(taker: Taker, name: str, given: dict[str, Any], first: int) -> dict[str, Any]:
    result, error = dict[str, Any](), None
    async with anyio.create_task_group() as group:
        group.start_soon(partial(taker.owner.answer, taker.visitor.name, "approve", first, call=given["call"]))
        try:
            result = await taker.call(name, given, compared=False)
        except (EndedError, AnswerError) as raised:
            # Raised once the group has ended, which would wrap it.
            error = raised
        if not (isinstance(error, EndedError) and error.outcome == PENDING):
            group.cancel_scope.cancel()
    if error is None:
        return result
    if isinstance(error, EndedError) and error.outcome == PENDING:
        return await taker.call(name, given, compared=False)
    raise error


async def denied(taker: Taker) -> None:
    """A call that the owner denies, so that it is never made."""
    given, name = taker.arguments("wipe", text=taker.text()), f"{taker.server()}__wipe"
    taker.book.never.add(given["call"])
    await _pending(taker, name, given)
    await _owner_answers(taker, given, "deny", taker.generator.randrange(3))
    try:
        await taker.call(name, given)
    except EndedError as error:
        if error.outcome != "FORBIDDEN":
            raise
    else:
        raise AnswerError("a denied call was made")


async def _pending(taker: Taker, name: str, given: dict[str, Any]) -> None:
    """Make a call that waits for its approval until it is given up."""
    try:
        await taker.call(name, given)
    except EndedError as error:
        if error.outcome != PENDING:
            raise
    else:
        raise AnswerError("a call was made without an approval")


async def _owner_answers(taker: Taker, given: dict[str, Any], answer: str, first: int) -> None:
    if not await taker.owner.answer(taker.visitor.name, answer, first, call=given["call"]):
        raise EndedError(NOT_ASKED, "")


async def cancelled(taker: Taker) -> None:
    """A call whose client gives it up."""
    given = taker.arguments("slow", text=taker.text(), seconds=LONG_SECONDS)
    name = f"{taker.server()}__slow"
    await taker.visitor.given_up("tools/call", {"name": name, "arguments": given}, after=GIVEN_UP_SECONDS)
    taker.book.cancelled.add(given["call"])


def _slots(slots: list[dict[str, Any]], expected: list[str]) -> None:
    for slot in slots:
        if isinstance(error := slot.get("error"), dict):
            raise EndedError(str(error.get("code")), str(error.get("message")))
    _expect([slot.get("result") for slot in slots], expected)


def text_of(result: dict[str, Any]) -> str:
    """Return the text of a result that must be one text.

    Raises:
        AnswerError: it is something else.
    """
    if "content" not in result:
        raise AnswerError(f"no content: {json.dumps(result)[:300]}")
    return plain_text(result)


def _expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise AnswerError(f"{str(found)[:300]!r} instead of {str(wanted)[:300]!r}")


Kind = Callable[[Taker], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Use:
    """How often a kind of turn is taken of a hundred, its calls, and True if it needs what is in Redis."""

    weight: int
    calls: int
    shared: bool


MIX: MappingProxyType[Kind, Use] = MappingProxyType(
    {
        listing: Use(6, 1, False),
        direct: Use(20, 1, False),
        through_call_tool: Use(18, 1, False),
        batch: Use(10, 1, False),
        workflow: Use(10, 1, False),
        reference: Use(10, 3, True),
        question: Use(8, 2, True),
        question_in_workflow: Use(4, 2, True),
        task: Use(5, 4, True),
        task_notice: Use(2, 2, True),
        cancelled_task: Use(2, 3, True),
        approved: Use(3, 2, True),
        denied: Use(1, 2, True),
        cancelled: Use(1, 1, False),
    }
)
