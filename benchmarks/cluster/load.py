"""Clients of both eras that take turns, the same ones for the same seed, and what became of each turn."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import anyio
import httpx2

from benchmarks.client import AnswerError, Era
from benchmarks.cluster.client import CONNECTION, RESULT, EndedError, Exchange, Visitor, visiting
from benchmarks.cluster.owner import owning
from benchmarks.cluster.stand import Stand
from benchmarks.cluster.turns import MIX, Book, Kind, Taker

WRONG = "wrong answer"
LATE = "not answered in time"


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn and what it ended in: `result`, the code of an error, or a violation with its text."""

    id: str
    kind: str
    era: str
    outcome: str
    text: str
    begun: float
    ended: float


@dataclass
class Load:
    """What all clients did."""

    turns: list[Turn] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    book: Book = field(default_factory=Book)
    seconds: float = 0.0
    reopened: int = 0
    owner_errors: int = 0

    @property
    def outcomes(self) -> Counter[str]:
        """Count the requests by outcome."""
        return Counter(each.outcome for each in self.exchanges)

    @property
    def replicas(self) -> Counter[str]:
        """Count the requests by the replica that answered."""
        return Counter(each.replica for each in self.exchanges)


def eras_of(clients: int) -> list[Era]:
    """Return the era of each client, in turns."""
    return [list(Era)[number % len(Era)] for number in range(clients)]


async def run_load(
    stand: Stand,
    *,
    calls: int = 0,
    seed: int,
    more: Callable[[], bool] = lambda: False,
    each: Sequence[Kind] = (),
    clients: Sequence[str] = (),
    pause: float = 0.0,
    prefix: str = "",
) -> Load:
    """Have all clients take turns, until each has made its share of the calls and no more are wanted.

    Args:
        stand: where.
        calls: number of calls of all clients together.
        seed: the same seed gives the same turns.
        more: True while turns are to go on.
        each: kinds of turns of which every client takes one, and no others.
        clients: the clients; by default those of the stand that take turns.
        pause: seconds between two turns of a client.
        prefix: beginning of the ids of all turns, for several loads of one stand.
    """
    load, begun = Load(), time.monotonic()
    names = clients or stand.clients
    share, weights = calls / len(names), [use.weight for use in MIX.values()]
    async with AsyncExitStack() as stack:
        owner = await stack.enter_async_context(owning(stand))
        takers = [
            Taker(await stack.enter_async_context(visiting(name, era, stand.url)), owner, load.book)
            for name, era in zip(names, eras_of(len(names)), strict=True)
        ]

        async def work(number: int, taker: Taker) -> None:
            generator, made, turn = random.Random(f"{seed} {number}"), 0, 0
            while turn < len(each) if each else made < share or more():
                kind = each[turn] if each else generator.choices(list(MIX), weights=weights)[0]
                turn_id = f"{prefix}{number:02}-{turn}"
                taker.generator = random.Random(f"{seed} {turn_id}")
                load.turns.append(await take(taker, kind, turn_id))
                made, turn = made + MIX[kind].calls, turn + 1
                await anyio.sleep(pause)

        async with anyio.create_task_group() as group:
            for number, taker in enumerate(takers):
                group.start_soon(work, number, taker)
        load.exchanges = [each for taker in takers for each in taker.visitor.exchanges]
        load.reopened = sum(taker.visitor.reopened for taker in takers)
        load.owner_errors = owner.errors
    load.seconds = time.monotonic() - begun
    return load


async def take(taker: Taker, kind: Kind, turn_id: str) -> Turn:
    """Take one turn; nothing that goes wrong is raised."""
    visitor: Visitor = taker.visitor
    visitor.turn, visitor.kind, taker.calls = turn_id, kind.__name__, 0
    begun = time.monotonic()
    try:
        await kind(taker)
        outcome, text = RESULT, ""
    except EndedError as error:
        outcome, text = error.outcome, error.text
    except httpx2.HTTPError as error:
        outcome, text = CONNECTION, repr(error)[:300]
    except AnswerError as error:
        outcome, text = WRONG, str(error)
    except TimeoutError as error:
        outcome, text = LATE, str(error)
    return Turn(turn_id, kind.__name__, visitor.era.value, outcome, text, begun, time.monotonic())
