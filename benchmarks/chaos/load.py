"""Clients of both eras that call faulty upstreams through the gateway, and what became of every call."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import anyio
import httpx2

from benchmarks.chaos.answers import ACT, LOOK, proof
from benchmarks.chaos.faults import mood
from benchmarks.client import AnswerError, Client, Era, open_client
from pml_gateway.errors import ErrorCode

RESULT = "result"
WRONG = "wrong answer"
UNTYPED = "no typed error"
TYPED = frozenset(code.value for code in ErrorCode) - {ErrorCode.INTERNAL.value}
ROUTES = ("direct", "call_tool")


@dataclass(frozen=True, slots=True)
class Call:
    """One call and what became of it: `result`, a typed error's code, or a violation with its text."""

    nonce: str
    upstream_id: str
    tool: str
    route: str
    era: str
    mood: str
    seconds: float
    outcome: str
    executed: str
    text: str

    @property
    def is_idempotent(self) -> bool:
        """Whether the gateway may send it again."""
        return self.tool == LOOK


async def run_clients(
    url: str, upstream_ids: Sequence[str], *, clients: int, calls: int, seed: int, on_done: Callable[[Call], None]
) -> None:
    """So many calls by so many clients, each one after the other; every client draws its own from the seed."""
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(open_client(url, list(Era)[n % 2])) for n in range(clients)]

        async def work(number: int, client: Client) -> None:
            generator = random.Random(f"{seed} client {number}")
            for turn in range(number, calls, clients):
                upstream_id = generator.choice(upstream_ids)
                tool = generator.choice((ACT, ACT, LOOK))
                on_done(
                    await call(
                        client,
                        upstream_id,
                        tool,
                        f"{seed}-{turn}",
                        route=generator.choice(ROUTES),
                        mood=mood(generator),
                    )
                )

        async with anyio.create_task_group() as tasks:
            for number, client in enumerate(opened):
                tasks.start_soon(work, number, client)


async def call(client: Client, upstream_id: str, tool: str, nonce: str, *, route: str, mood: str) -> Call:
    """One call, checked; nothing that goes wrong is raised."""
    arguments: dict[str, Any] = {"nonce": nonce, "mood": mood}
    if mood == "slow":
        arguments["milliseconds"] = 20 * (1 + int(nonce[-1]))
    name = f"{upstream_id}__{tool}"
    params = {"name": name, "arguments": arguments}
    if route == "call_tool":
        params = {"name": "call_tool", "arguments": params}
    started = time.perf_counter()
    try:
        answer = await client.request("tools/call", params)
        outcome, executed, text = judge(answer.result(), proof(upstream_id, tool, nonce), fails=mood == "fails")
    except (AnswerError, httpx2.HTTPError) as error:
        outcome, executed, text = UNTYPED, "", f"{type(error).__name__}: {error}"[:500]
    seconds = time.perf_counter() - started
    return Call(nonce, upstream_id, tool, route, client.era.value, mood, seconds, outcome, executed, text)


def judge(result: dict[str, Any], expected: str, *, fails: bool) -> tuple[str, str, str]:
    """The outcome of a result, what it says about execution, and its words where it is no right answer."""
    texts = [block.get("text") for block in result.get("content", [])]
    if texts == [expected] and bool(result.get("isError")) == fails:
        return RESULT, "yes", ""
    error = (result.get("structuredContent") or {}).get("error")
    if not result.get("isError") or not isinstance(error, dict):
        return WRONG, "", str(result)[:500]
    code = error.get("code")
    if code not in TYPED:
        return UNTYPED, "", str(error)[:500]
    return str(code), str(error.get("details", {}).get("executed", "")), str(error.get("message"))
