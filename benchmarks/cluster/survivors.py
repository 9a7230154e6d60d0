"""What clients leave behind at one replica, and collect at any other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import anyio
import httpx2

from benchmarks.client import AnswerError, Era
from benchmarks.cluster.client import EndedError, visiting
from benchmarks.cluster.owner import Owner, owning
from benchmarks.cluster.server import JOB, NEW
from benchmarks.cluster.stand import Replica, Stand
from benchmarks.cluster.turns import PENDING, ROWS, Book, Taker, text_of

COLLECT_SECONDS = 25.0
RETRY_SECONDS = 1.0
UNAVAILABLE = "UPSTREAM_UNAVAILABLE"
"""The outcome of a request for what a replica holds that does not answer, until it counts as gone."""

POLL_SECONDS = 0.1
Collect = Callable[[Taker, Owner], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """Something that a client made at one replica, and how it collects it."""

    what: str
    collect: Collect


async def leave_behind(stand: Stand, replica: Replica, turn: str) -> tuple[list[LeftBehind], Book]:
    """Make a stored result, a finished task, a question, and a call that waits for approval, at one replica."""
    book = Book()
    async with _taking(stand, f"{replica.origin}/mcp", turn, book) as (taker, _):
        return [
            await _stored_result(taker),
            await _finished_task(taker),
            await _question(taker),
            await _approval(taker),
        ], book


async def collect(stand: Stand, left: list[LeftBehind], turn: str, book: Book) -> dict[str, str]:
    """Collect everything through the load balancer; return what became of each, an empty text if it was there."""
    found = {}
    for each in left:
        async with _taking(stand, stand.url, f"{turn}-{each.what.replace(' ', '-')}", book) as (taker, owner):
            try:
                with anyio.fail_after(COLLECT_SECONDS):
                    await _collected(each, taker, owner)
            except (EndedError, AnswerError, TimeoutError, httpx2.HTTPError) as error:
                found[each.what] = f"{type(error).__name__} {error}"[:300]
            else:
                found[each.what] = ""
    return found


async def _collected(left: LeftBehind, taker: Taker, owner: Owner) -> None:
    """Collect one thing, again while that fails with an error that passes."""
    begun = anyio.current_time()
    while True:
        try:
            await left.collect(taker, owner)
        except EndedError as error:
            if error.outcome != UNAVAILABLE or anyio.current_time() > begun + COLLECT_SECONDS - RETRY_SECONDS:
                raise
            await anyio.sleep(RETRY_SECONDS)
        else:
            return


@asynccontextmanager
async def _taking(stand: Stand, url: str, turn: str, book: Book) -> AsyncIterator[tuple[Taker, Owner]]:
    """Run the client that leaves things behind, at one address."""
    async with owning(stand) as owner, visiting(stand.spare_clients[0], Era.STATELESS, url) as visitor:
        visitor.turn = turn
        yield Taker(visitor, owner, book, Random(turn)), owner


async def _stored_result(taker: Taker) -> LeftBehind:
    text = taker.text()
    given = taker.arguments("rows", text=text, count=ROWS)
    stored = (await taker.call("call_tool", {"name": f"{NEW}__rows", "arguments": given}))["structuredContent"]

    async def collected(taker: Taker, _: Owner) -> None:
        total = taker.arguments("total", text=text, rows={"$ref": stored["ref"], "path": "rows"})
        _expect(text_of(await taker.call(f"{NEW}__total", total)), f"{text} {text} {sum(range(ROWS))}")

    return LeftBehind("stored result", collected)


async def _finished_task(taker: Taker) -> LeftBehind:
    text = taker.text()
    created = await taker.call(f"{NEW}__{JOB}", taker.arguments(JOB, text=text, polls=1))
    task = {"taskId": created["taskId"]}
    shown = await taker.visitor.request("tasks/get", task)
    while shown["status"] == "working":
        await anyio.sleep(POLL_SECONDS)
        shown = await taker.visitor.request("tasks/get", task)

    async def collected(taker: Taker, _: Owner) -> None:
        shown: dict[str, Any] = await taker.visitor.request("tasks/get", task)
        _expect(shown["status"], "completed")
        _expect(text_of(shown["result"]), f"{JOB} {text}")

    return LeftBehind("finished task", collected)


async def _question(taker: Taker) -> LeftBehind:
    given, name, answer = taker.arguments("ask", text=taker.text()), f"{NEW}__ask", taker.text()
    asked = await taker.call(name, given)
    content = {"action": "accept", "content": {"answer": answer}}
    more = {"inputResponses": dict.fromkeys(asked["inputRequests"], content), "requestState": asked["requestState"]}

    async def collected(taker: Taker, _: Owner) -> None:
        _expect(text_of(await taker.call(name, given, **more)), f"ask {given['text']} {answer}")

    return LeftBehind("question", collected)


async def _approval(taker: Taker) -> LeftBehind:
    given, name = taker.arguments("wipe", text=taker.text()), f"{NEW}__wipe"
    try:
        await taker.call(name, given)
    except EndedError as error:
        if error.outcome != PENDING:
            raise
    else:
        raise AnswerError("a call was made without an approval")

    async def collected(taker: Taker, owner: Owner) -> None:
        if not await owner.answer(taker.visitor.name, "approve", taker.generator.randrange(3), call=given["call"]):
            raise AnswerError("the owner is not asked")
        _expect(text_of(await taker.call(name, given)), f"wipe {given['text']}")

    return LeftBehind("pending approval", collected)


def _expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise AnswerError(f"{str(found)[:200]!r} instead of {str(wanted)[:200]!r}")
