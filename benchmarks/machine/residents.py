"""The clients of a storm: each in a place of its own, with somebody behind it who notices what is not meant for it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.client import Era
from benchmarks.machine.stand import Place, Stand, scripted

SHARED = ("plain0", "plain1", "plain2")
ASKING = ("asker", "fresh")
VAULT, HERE, COUNTER = "vault", "here", "counter"
PATHS = 3
"""Different values of PATH; one for each client would be one process of every server for each client."""

LISTENING = 5
"""One client in so many sets a log level; that costs it sessions of its own, so that fewer would be shared."""

INTENTS = ("read notes and report", "count what was done", "wait for an answer of the user", "look at lines of text")


def storm_servers(folder: Path) -> dict[str, dict[str, Any]]:
    """Three that anybody shares, two that ask, one with a client's token, one of its folder, one with a state."""
    servers = {server_id: scripted(folder, server_id) for server_id in (*SHARED, "asker")}
    return {
        **servers,
        "fresh": scripted(folder, "fresh", "--modern"),
        VAULT: scripted(folder, VAULT, env={"TOKEN": "${env:TOKEN}"}),
        HERE: scripted(folder, HERE, "./notes.txt"),
        COUNTER: scripted(folder, COUNTER, sessions="per_client"),
    }


async def places(stand: Stand, count: int) -> list[Place]:
    """A folder, a token and one of a few PATHs for each; some with a project file, and of these some trusted."""
    made = []
    for number in range(count):
        name = f"c{number:02}"
        folder = stand.folder / "projects" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".git").mkdir(exist_ok=True)
        path = f"{Place('', folder).path}:{stand.folder}/bin{number % PATHS}"
        options: tuple[str, ...] = ("--mode", "full_proxy") if number % 4 == 1 else ()
        era = Era.STATELESS if number % 4 == 3 else Era.HANDSHAKE
        made.append(Place(name, folder, token=f"token-of-{name}", path=path, era=era, options=options))
        if number % 2 == 0:
            await _write_project(stand, folder, number)
    return made


async def _write_project(stand: Stand, folder: Path, number: int) -> None:
    gateway: dict[str, Any] = {"intent": INTENTS[number // 2 % len(INTENTS)], "blacklisted_tools": [f"plain0:{SEALED}"]}
    is_trusted = number % 4 == 0
    if is_trusted:
        gateway["tools_exposure"] = "hybrid"
    (folder / ".pml.yaml").write_text(json.dumps({"gateway": gateway}), encoding="utf-8")
    if is_trusted:
        done = await stand.pml("trust", str(folder), "--yes", folder=folder)
        if done.returncode:
            raise AssertionError(f"pml trust: {done.stderr}")


SEALED = "lines"
"""A tool that projects deny."""


@dataclass(slots=True)
class Resident:
    """Somebody behind one client. What must not be is noted under what kind it is of."""

    place: Place
    faults: list[tuple[str, str]] = field(default_factory=list)
    in_flight: set[str] = field(default_factory=set)
    reported: dict[str, int] = field(default_factory=dict)
    logged: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    list_changes: int = 0
    may_repeat: bool = False

    @property
    def name(self) -> str:
        return self.place.name

    def fault(self, kind: str, what: str) -> None:
        """Note it."""
        self.faults.append((kind, f"{self.name}: {what[:300]}"))

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """In this client's name; the nonce of the question tells whose it is."""
        match method:
            case "roots/list":
                # Servers also ask for roots by themselves, so there is no call to find in it.
                return {"roots": [{"uri": self.root}]}
            case "elicitation/create":
                nonce = str(params.get("message"))
                answer: dict[str, Any] = {"action": "accept", "content": {"answer": self.said(nonce)}}
            case _:
                nonce = str(params["messages"][0]["content"]["text"])
                answer = {"role": "assistant", "model": "m", "content": {"type": "text", "text": self.said(nonce)}}
        self.asked[nonce] += 1
        if nonce not in self.in_flight:
            self.fault("question", f"{method} for {nonce}")
        return answer

    def told(self, method: str, params: dict[str, Any]) -> None:
        """Progress and log lines carry the nonce of their call."""
        match method:
            case "notifications/progress":
                nonce, _, step = str(params.get("message")).partition(" ")
                if params.get("progressToken") != nonce or nonce not in self.in_flight:
                    self.fault("progress", json.dumps(params))
                elif int(step) != self.reported.get(nonce, 0) + 1 and not (step == "1" and self.may_repeat):
                    self.fault("progress", f"step {step} after {self.reported.get(nonce, 0)} of {nonce}")
                self.reported[nonce] = int(step)
            case "notifications/message":
                nonce = str(params.get("data"))
                self.logged[nonce] += 1
                if nonce.partition("-")[0] != self.name:
                    self.fault("log", json.dumps(params))
            case "notifications/tools/list_changed":
                self.list_changes += 1

    @property
    def root(self) -> str:
        """What this client says its root is."""
        return self.place.folder.as_uri()

    def said(self, nonce: str) -> str:
        """The answer of this client to the question of this call."""
        return f"{self.name} says {nonce}"


@dataclass(frozen=True, slots=True)
class Errand:
    """One thing that a client does: a tool of a server with arguments, perhaps by way of a meta-tool."""

    nonce: str
    tool: str
    server: str
    arguments: dict[str, Any]
    through_meta: bool = False
    cancel_after: float | None = None


WEIGHTS = {
    "act": 20,
    "look": 15,
    "fill": 10,
    "lines": 4,
    "whoami": 12,
    "count": 6,
    "ask": 10,
    "report": 8,
    "log": 5,
    "wait": 4,
    "cancelled": 4,
    "list": 2,
}


def errands(
    seed: int, place: Place, count: int, *, only: Sequence[str] = tuple(WEIGHTS), prefix: str = ""
) -> list[Errand]:
    """What this client does, the same for the same seed."""
    generator = random.Random(f"{seed} {place.name}")
    kinds = generator.choices(only, weights=[WEIGHTS[kind] for kind in only], k=count)
    return [_errand(generator, f"{place.name}-{prefix}{number}", kind) for number, kind in enumerate(kinds)]


def _errand(generator: random.Random, nonce: str, kind: str) -> Errand:
    arguments: dict[str, Any] = {"nonce": nonce}
    server = generator.choice((*SHARED, *SHARED, *ASKING, VAULT, HERE))
    through_meta = generator.random() < 0.3
    match kind:
        case "fill":
            arguments["size"] = generator.choice((100, 2000, 10_000))
            through_meta = False
        case "lines":
            arguments["count"] = 500
            server, through_meta = generator.choice(SHARED), True
        case "whoami":
            server = generator.choice((VAULT, HERE, *SHARED))
        case "count":
            server = COUNTER
        case "ask":
            server = generator.choice(ASKING)
            arguments["question"] = generator.choice(("elicitation", "sampling", "roots"))
        case "report":
            arguments["steps"] = generator.randint(1, 5)
            through_meta = False
        case "log":
            server, through_meta = generator.choice((*SHARED, VAULT)), False
        case "wait":
            arguments["milliseconds"] = generator.randint(1, 300)
        case "cancelled":
            arguments["milliseconds"] = 30_000
            server, through_meta = generator.choice((*SHARED, VAULT)), False
            return Errand(nonce, "wait", server, arguments, cancel_after=generator.uniform(0.05, 0.5))
    return Errand(nonce, kind, server, arguments, through_meta)
