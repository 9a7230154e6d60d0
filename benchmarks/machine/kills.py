"""Gateways and bridges are killed under load: is every call answered, and every client usable again?"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import anyio

from benchmarks.chaos.load import RESULT
from benchmarks.machine.residents import SHARED, Errand, errands
from benchmarks.machine.stand import Stand
from benchmarks.machine.storm import AT_ONCE, Visit
from pml_gateway.local.status import OTHERS, REMOTE

LOAD = ("act", "look", "fill", "ask", "report", "wait", "cancelled")
"""Without what a server remembers of a session, which ends with it."""

ENDLESS = 20_000
"""Errands of one client, of which a run does as many as it has time for."""

PAUSE_SECONDS = (0.2, 1.0)
USABLE_SECONDS = 60.0
SETTLE_SECONDS = 30.0
POLL_SECONDS = 0.02


@dataclass(slots=True)
class Kills:
    """What was killed, and after how many seconds every client had a result again."""

    gateways: list[float] = field(default_factory=list)
    bridges: list[float] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)
    left_sessions: dict[str, int] = field(default_factory=dict)


async def run_kills(stand: Stand, visits: Sequence[Visit], *, gateways: int, bridges: int, seed: int) -> Kills:
    """Kill under load, one after the other, each after everybody has recovered from the one before."""
    generator = random.Random(f"{seed} kills")
    kinds = ["gateway"] * gateways + ["bridge"] * bridges
    generator.shuffle(kinds)
    kills = Kills()
    for visit in visits:
        visit.resident.may_repeat = True
    is_over = anyio.Event()

    async def work(visit: Visit, queue: list[Errand]) -> None:
        while queue and not is_over.is_set():
            if visit.client.is_gone:
                await anyio.sleep(POLL_SECONDS)
                continue
            errand = queue.pop()
            visit.storm.done[errand.nonce] = await visit.run(errand)

    begun = time.monotonic()
    async with anyio.create_task_group() as tasks:
        for visit in visits:
            queue = errands(seed + 1, visit.resident.place, ENDLESS, only=LOAD, prefix="k")[::-1]
            for _ in range(AT_ONCE):
                tasks.start_soon(work, visit, queue)
        for number, kind in enumerate(kinds):
            await anyio.sleep(generator.uniform(*PAUSE_SECONDS))
            await _kill(stand, visits, kills, kind, generator, number)
        is_over.set()
    visits[0].storm.seconds += time.monotonic() - begun
    kills.left_sessions = await _sessions_left(stand, len(visits))
    return kills


async def _kill(
    stand: Stand, visits: Sequence[Visit], kills: Kills, kind: str, generator: random.Random, number: int
) -> None:
    own = {visit.client.pid for visit in visits}
    detached = [pid for pid in stand.gateways() if pid not in own]
    killed = time.monotonic()
    if kind == "gateway":
        if not detached:
            # Each client has its own, which is the other kind.
            return
        for pid in detached:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    else:
        victim = generator.choice(list(visits))
        await stand.kill(victim.client)
        victim.client = await stand.start(victim.resident.place, victim.resident)
        await victim.client.open()
    async with anyio.create_task_group() as tasks:
        for visit in visits:
            tasks.start_soon(_until_usable, visit, number, kills)
    taken = round(time.monotonic() - killed, 3)
    (kills.gateways if kind == "gateway" else kills.bridges).append(taken)


async def _until_usable(visit: Visit, number: int, kills: Kills) -> None:
    attempt, name = 0, visit.resident.name
    with anyio.move_on_after(USABLE_SECONDS):
        while True:
            nonce = f"{name}-p{number}.{attempt}"
            done = visit.storm.done[nonce] = await visit.run(Errand(nonce, "look", SHARED[0], {"nonce": nonce}))
            if done.outcome == RESULT:
                return
            attempt += 1
            await anyio.sleep(POLL_SECONDS)
    kills.unusable.append(f"{name} after kill {number}: {done.outcome}")


async def _sessions_left(stand: Stand, clients: int) -> dict[str, int]:
    """Count server processes of clients that are gone, or more than all could need, after a time to end."""
    # One that is shared by those who may, and one for each call that a client makes at once and that may ask it.
    most = clients * (1 + AT_ONCE)
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        found = {key: count for key, count in stand.server_processes().items() if count > most}
        found |= await _of_nobody(stand)
        if not found or time.monotonic() > deadline:
            return found
        await anyio.sleep(POLL_SECONDS)


async def _of_nobody(stand: Stand) -> dict[str, int]:
    """Count the server processes that the gateway still keeps for single clients which it no longer has."""
    told = json.loads((await stand.pml("status", "--json")).stdout)
    # None of the clients is a remote one: their processes are not named by client.
    return Counter(
        server["server"]
        for server in told["machine"]["servers"]
        for process in server["processes"]
        if process["for"] == REMOTE and process["why"] != OTHERS
    )
