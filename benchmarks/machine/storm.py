"""A storm: all clients at once, each with several calls in flight, and whatever reaches the wrong one is counted."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from benchmarks.chaos.load import RESULT, TYPED, UNTYPED, WRONG, judge
from benchmarks.machine.client import GoneError, MachineClient, Message
from benchmarks.machine.residents import (
    HERE,
    LISTENING,
    SHARED,
    VAULT,
    WEIGHTS,
    Errand,
    Resident,
    errands,
)
from benchmarks.machine.server import LINE
from benchmarks.machine.stand import Place, Stand
from pml_gateway.errors import ErrorCode

AT_ONCE = 4
"""Calls of one client in flight."""

WARM_SECONDS = 120.0
QUIET_SECONDS = 10.0
POLL_SECONDS = 0.2
PAGE = (6, 9)
REFERENCE = re.compile(r"ref_[\w-]{8,}")
GONE, CANCELLED, LISTED, LOST = "gone", "cancelled", "listed", "never answered"
ONCE = frozenset({"act", "count", "ask", "grow"})
"""Tools that may be executed once at most."""

_SAYS = {"report": "reported", "log": "logged", "wait": "waited", "grow": "grown"}


@dataclass(frozen=True, slots=True)
class Done:
    """What became of an errand; `seen` is its answer without what differs from run to run."""

    errand: Errand
    outcome: str
    executed: str = ""
    seen: str = ""


@dataclass(slots=True)
class Storm:
    """What one run saw in this folder."""

    folder: Path
    residents: dict[str, Resident] = field(default_factory=dict)
    done: dict[str, Done] = field(default_factory=dict)
    refs: list[tuple[str, str]] = field(default_factory=list)
    foreign_reads: int = 0
    seconds: float = 0.0

    @property
    def faults(self) -> list[tuple[str, str]]:
        """What reached the wrong client or nobody, by kind."""
        return [fault for resident in self.residents.values() for fault in resident.faults]

    def counts(self) -> dict[str, int]:
        """How much of everything there was."""
        people, outcomes = self.residents.values(), Counter(done.outcome for done in self.done.values())
        return {
            "clients": len(self.residents),
            "calls": len(self.done),
            **outcomes,
            "questions": sum(person.asked.total() for person in people),
            "progress": sum(sum(person.reported.values()) for person in people),
            "logs": sum(person.logged.total() for person in people),
            "references": len(self.refs),
            "references of others tried": self.foreign_reads,
            "changes of lists": sum(person.list_changes for person in people),
        }

    def differences(self, other: Storm) -> list[str]:
        """Errands whose answers are not the same in both."""
        seen, others = self._seen(), other._seen()
        return [
            f"{nonce}: {seen[nonce][:300]} != {others[nonce][:300]}"
            for nonce in seen.keys() & others.keys()
            if seen[nonce] != others[nonce]
        ]

    def _seen(self) -> dict[str, str]:
        return {nonce: done.seen.replace(str(self.folder), "") for nonce, done in self.done.items()}


@dataclass(slots=True)
class Visit:
    """One client's way through its errands."""

    storm: Storm
    resident: Resident
    client: MachineClient
    counted: int = 0
    _counting: anyio.Lock = field(default_factory=anyio.Lock)

    async def run(self, errand: Errand) -> Done:
        """One errand, judged; what must not be is noted with the resident."""
        self.resident.in_flight.add(errand.nonce)
        try:
            return await self._run(errand)
        except GoneError:
            return Done(errand, GONE)
        except TimeoutError:
            self.resident.fault("lost", f"{errand.nonce} {errand.tool} was never answered")
            return Done(errand, LOST)
        finally:
            self.resident.in_flight.discard(errand.nonce)

    async def _run(self, errand: Errand) -> Done:
        if errand.tool == "list":
            return await self._list(errand)
        if errand.cancel_after is not None:
            return await self._cancel(errand, errand.cancel_after)
        if errand.tool == "count":
            # Which number is right is known only where one call follows the other.
            async with self._counting:
                self.counted += 1
                return await self._call(errand)
        return await self._call(errand)

    async def _list(self, errand: Errand) -> Done:
        names = sorted(tool["name"] for tool in (await self.client.result("tools/list"))["tools"])
        for name in names:
            if "extra_of" in name and not name.endswith(self.resident.name):
                self.resident.fault("list", f"{name} is listed")
        return Done(errand, LISTED, seen=" ".join(n for n in names if "extra_of" not in n))

    async def _call(self, errand: Errand) -> Done:
        message = await self.client.request("tools/call", _params(errand))
        if errand.tool == "lines":
            return await self._refer(errand, message)
        expected = self._expected(errand)
        done, text = judged(errand, message, expected)
        if done.outcome == WRONG:
            self.resident.fault(_KINDS.get(errand.tool, "answer"), f"{errand.nonce}: {text} instead of {expected}")
        elif done.outcome == UNTYPED:
            self.resident.fault("answer", f"{errand.nonce} {errand.server}__{errand.tool}: {text}")
        elif done.outcome == RESULT and errand.tool == "report":
            steps = self.resident.reported.get(errand.nonce, 0)
            if steps != errand.arguments["steps"]:
                self.resident.fault("lost", f"{errand.nonce}: {steps} of {errand.arguments['steps']} steps")
        return done

    async def _refer(self, errand: Errand, message: Message) -> Done:
        """A result that the gateway keeps is read back by its owner, and tried by somebody else."""
        found = (message.get("result", {}).get("structuredContent") or {}).get("ref")
        if found is None:
            done, text = judged(errand, message, None)
            if done.outcome in (WRONG, UNTYPED):
                self.resident.fault("reference", f"{errand.nonce}: {text}")
            return done
        owners = [(owner, ref) for owner, ref in self.storm.refs if owner != self.resident.name]
        self.storm.refs.append((self.resident.name, found))
        first, last = PAGE
        page = await self._read(found, f"{first + 1}-{last}")
        lines = [LINE.format(nonce=errand.nonce, number=n, server=errand.server) for n in range(first, last)]
        answered = page.get("result", {}).get("structuredContent") or {}
        if answered.get("text") != "\n".join(lines):
            error = answered.get("error") or {}
            if error.get("code") not in TYPED:
                self.resident.fault("reference", f"{errand.nonce}: {json.dumps(page)}")
            return Done(errand, str(error.get("code")), "yes")
        if owners:
            owner, ref = owners[int(errand.nonce.rpartition("-")[2]) % len(owners)]
            self.storm.foreign_reads += 1
            answer = await self._read(ref, "1-2")
            if not answer.get("result", {}).get("isError"):
                self.resident.fault("reference", f"{ref} of {owner} could be read: {json.dumps(answer)}")
        return Done(errand, RESULT, "yes", normalised({**message["result"], "page": answered["text"]}))

    async def _read(self, ref: str, lines: str) -> Message:
        return await self.client.request(
            "tools/call", {"name": "read_result", "arguments": {"ref": ref, "lines": lines}}
        )

    async def _cancel(self, errand: Errand, seconds: float) -> Done:
        sent, ids = anyio.Event(), list[int]()
        ended = list[Done]()

        def on_sent(request_id: int) -> None:
            ids.append(request_id)
            sent.set()

        async def call() -> None:
            try:
                message = await self.client.request("tools/call", _params(errand), on_sent=on_sent)
            except GoneError:
                ended.append(Done(errand, GONE))
                sent.set()
                return
            done, text = judged(errand, message, None)
            ended.append(done)
            if done.outcome in (RESULT, WRONG):
                self.resident.fault("cancel", f"{errand.nonce} was answered: {text}")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await sent.wait()
            await anyio.sleep(seconds)
            if not ended:
                try:
                    about = {"requestId": ids[-1], "reason": "no longer wanted"}
                    await self.client.notify("notifications/cancelled", about)
                except GoneError:
                    ended.append(Done(errand, GONE))
            tasks.cancel_scope.cancel()
        return ended[0] if ended else Done(errand, CANCELLED)

    def _expected(self, errand: Errand) -> str:
        nonce, place = errand.nonce, self.resident.place
        match errand.tool:
            case "fill":
                return nonce.ljust(int(errand.arguments["size"]), "x")
            case "whoami":
                token = place.token if errand.server == VAULT else None
                folder = str(place.folder) if errand.server == HERE else ""
                return json.dumps({"nonce": nonce, "folder": folder, "TOKEN": token, "PATH": place.path})
            case "count":
                return f"{nonce} {self.counted}"
            case "ask":
                is_about_roots = errand.arguments["question"] == "roots"
                return f"{nonce} {self.resident.root if is_about_roots else self.resident.said(nonce)}"
            case "act" | "look":
                return f"{nonce} {errand.server} {errand.tool}"
            case _:
                return f"{nonce} {_SAYS[errand.tool]}"


_KINDS = {"whoami": "variable or folder", "ask": "question", "count": "state"}


async def open_visits(stand: Stand, places: Sequence[Place]) -> tuple[Storm, list[Visit]]:
    """A client in each place that knows every server; its lists do not change by themselves any more."""
    storm, visits = Storm(stand.folder), list[Visit]()
    for place in places:
        resident = storm.residents[place.name] = Resident(place)
        visits.append(Visit(storm, resident, await stand.open(place, resident)))
    for number, visit in enumerate(visits):
        await warmed(visit.client, len(stand.servers))
        if number % LISTENING == 0 and not visit.client.is_stateless:
            await visit.client.result("logging/setLevel", {"level": "info"})
    await anyio.sleep(1.0)
    for resident in storm.residents.values():
        resident.list_changes = 0
    return storm, visits


async def warmed(client: MachineClient, servers: int) -> None:
    """Wait until every server is known and search ranks by the model: before, lists of the hybrid modes differ."""
    deadline = time.monotonic() + WARM_SECONDS
    while True:
        overview = await _searched(client, "*")
        known = [row["server"] for row in overview.get("servers", []) if row.get("tools")]
        found = await _searched(client, "look at something")
        if len(known) == servers and found.get("hits") and found.get("ranking") != "lexical":
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"{client.name}: of {servers} servers {known} are known after {WARM_SECONDS:g} s")
        await anyio.sleep(POLL_SECONDS)


async def _searched(client: MachineClient, query: str) -> Message:
    result = await client.result("tools/call", {"name": "search_tools", "arguments": {"query": query}})
    return result.get("structuredContent") or {}


async def run_storm(visits: Sequence[Visit], *, calls: int, seed: int, only: Sequence[str] = tuple(WEIGHTS)) -> None:
    """So many calls by all of them, in an order that chance draws; each has several in flight."""
    begun = time.monotonic()
    per_client = -(-calls // len(visits))

    async def work(visit: Visit, queue: list[Errand]) -> None:
        while queue:
            errand = queue.pop()
            visit.storm.done[errand.nonce] = await visit.run(errand)

    async with anyio.create_task_group() as tasks:
        for visit in visits:
            queue = errands(seed, visit.resident.place, per_client, only=only)[::-1]
            for _ in range(AT_ONCE):
                tasks.start_soon(work, visit, queue)
    visits[0].storm.seconds += time.monotonic() - begun


async def grow(visits: Sequence[Visit]) -> None:
    """Servers that belong to single clients have a tool more: only their clients hear of it, and only they list it."""
    full = [visit for visit in visits if visit.resident.place.options and not visit.client.is_stateless]
    growing = full[::2]
    before = {visit.resident.name: visit.resident.list_changes for visit in visits}
    for visit in growing:
        name = visit.resident.name
        errand = Errand(f"{name}-grow", "grow", VAULT, {"nonce": f"{name}-grow", "extra": f"extra_of_{name}"})
        await visit.run(errand)
    deadline = time.monotonic() + QUIET_SECONDS
    waiting = growing
    while waiting and time.monotonic() < deadline:
        await anyio.sleep(POLL_SECONDS)
        waiting = [visit for visit in waiting if not await _lists_own_extra(visit)]
    for visit in visits:
        person, heard = visit.resident, visit.resident.list_changes - before[visit.resident.name]
        if visit in growing and (visit in waiting or not heard):
            person.fault("lost", f"its list changed, and it was told {heard} times")
        elif visit not in growing and heard:
            person.fault("notice", f"told {heard} times that a list changed, which is another's")
        await visit._list(Errand(f"{person.name}-list", "list", "", {}))


async def _lists_own_extra(visit: Visit) -> bool:
    listed = await visit.client.result("tools/list")
    wanted = f"{VAULT}__extra_of_{visit.resident.name}"
    return visit.resident.list_changes > 0 and any(tool["name"] == wanted for tool in listed["tools"])


def check_executions(storm: Storm, journal: Mapping[tuple[str, str], int]) -> dict[str, list[str]]:
    """What servers executed against what clients were told, by what must not be."""
    found: dict[str, list[str]] = {"executed twice": [], "result without execution": [], "executed though denied": []}
    found["cancelled by nobody"] = [
        nonce for nonce, what in journal if what == "cancelled" and storm.done[nonce].outcome not in (CANCELLED, GONE)
    ]
    for nonce, done in storm.done.items():
        times = journal.get((nonce, done.errand.tool), 0)
        if times > 1 and done.errand.tool in ONCE:
            found["executed twice"].append(f"{nonce} {done.errand.tool}: {times} times")
        if done.outcome == RESULT and not times:
            found["result without execution"].append(nonce)
        if done.executed == "yes" and not times:
            found["result without execution"].append(f"{nonce}: {done.outcome}")
        if done.executed == "no" and times:
            found["executed though denied"].append(f"{nonce}: {done.outcome}")
    return found


def judged(errand: Errand, message: Message, expected: str | None) -> tuple[Done, str]:
    """The outcome of an answer, and its words where they are not what was expected."""
    answer = message.get("error") or message["result"]
    error = (answer.get("data") or answer.get("structuredContent") or {}).get("error") or answer.get("data") or {}
    executed = str((error.get("details") or {}).get("executed", ""))
    if error.get("code") == ErrorCode.INTERNAL and executed:
        # What a bridge says whose gateway was lost.
        return Done(errand, f"lost, executed: {executed}", executed, normalised(answer)), ""
    if "error" in message:
        # The second: a call that waits for answers was lost with its gateway.
        typed = [each for each in (error.get("code"), error.get("reason")) if each in TYPED | {"invalid_request_state"}]
        outcome = str(typed[0]) if typed else UNTYPED
        return Done(errand, outcome, executed, normalised(answer)), json.dumps(answer)
    result = message["result"]
    if errand.tool == "whoami" and errand.server in (*SHARED, VAULT):
        result = _without_folder(result)
    outcome, executed, text = judge(result, expected or "", fails=False)
    return Done(errand, outcome, executed, normalised(result)), text


def normalised(answer: Message) -> str:
    """What is the same in every run: no metadata of hops, references, times and ids of requests."""

    def cleaned(value: Any) -> Any:
        if isinstance(value, dict):
            left_out = {"_meta", "etag", "expires_at", "request_id"}
            return {key: cleaned(item) for key, item in sorted(value.items()) if key not in left_out}
        if isinstance(value, list):
            return [cleaned(item) for item in value]
        if isinstance(value, str):
            try:
                inner = json.loads(value) if value.startswith("{") else None
            except ValueError:
                inner = None
            return cleaned(inner) if isinstance(inner, dict) else REFERENCE.sub("ref", value)
        return value

    return json.dumps(cleaned(answer), ensure_ascii=False)


def _without_folder(result: Message) -> Message:
    """What serves many clients works in no client's folder."""
    try:
        block = result["content"][0]
        text = json.dumps({**json.loads(block["text"]), "folder": ""})
    except (LookupError, ValueError):
        return result
    return {**result, "content": [{**block, "text": text}]}


def _params(errand: Errand) -> Message:
    name = f"{errand.server}__{errand.tool}"
    params: Message = {"name": name, "arguments": errand.arguments}
    if errand.through_meta:
        params = {"name": "call_tool", "arguments": params}
    if errand.tool == "report":
        params["_meta"] = {"progressToken": errand.nonce}
    return params
