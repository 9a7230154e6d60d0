"""What was seen of servers, kept from one start of the gateway to the next: it takes time to see it again.

Requests of which it is not known whether they ask wait for each other on a session that several clients share, and
whether a server speaks another era is tried in a process of its own. All of it is a guess that may be wrong: a server
that asks all the same is treated as one that was never seen.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread

from pml_gateway.files import locked, read_json, write_atomically
from pml_gateway.home import CACHE, do_without
from pml_gateway.log import get_logger
from pml_gateway.signal import Coalesced
from pml_gateway.types import JsonObject

logger = get_logger(__name__)

FORMAT = 1

MAX_SERVERS = 300
"""Definitions of servers that are kept; those that were seen longest ago go first."""

MAX_CALM = 10_000
"""Requests of one server that are known; past it, all are tried anew."""

MAX_KEPT = 1_000
"""Of these, how many outlive the gateway."""

UNSPOKEN_SECONDS = 24 * 3600.0
"""How long a server of one version is taken at its word that it does not speak an era."""

SAVE_SECONDS = 1.0
LOCK_SECONDS = 5.0

Asked = tuple[str, str]
"""A method, and the name or URI that it is about."""


@dataclass(slots=True)
class Habit:
    """What was seen of one server, which holds for one version of it."""

    changed: Coalesced = field(default_factory=Coalesced, compare=False)
    version: str = ""
    calm: set[Asked] = field(default_factory=set)
    """Requests that were answered without a question."""
    unspoken: dict[str, float] = field(default_factory=dict)
    """Eras that it does not speak, each with when that was seen (Unix seconds)."""

    def meet(self, version: str) -> None:
        """The server says of which version it is: what was seen of another one holds no more."""
        if self.version != version:
            self.version = version
            self.unspoken = {}
            self.forget_calm()

    def forget_calm(self) -> None:
        """It asked during a request that had never asked before: nothing is known. Those that run add nothing here."""
        self.calm = set()
        self.changed.ask()

    def answered_calmly(self, asked: Asked, known: set[Asked]) -> None:
        """A request was answered without a question; `known` is `calm` of when it began."""
        if asked in known:
            return
        if len(known) >= MAX_CALM:
            known.clear()
        known.add(asked)
        self.changed.ask()

    def speaks_not(self, era: str) -> bool:
        """Whether it is known not to speak an era."""
        return time.time() - self.unspoken.get(era, -UNSPOKEN_SECONDS) < UNSPOKEN_SECONDS

    def note_unspoken(self, era: str) -> None:
        """It does not speak this era."""
        self.unspoken[era] = time.time()
        self.changed.ask()


class Habits:
    """Of every server that this process has, by the fingerprint of its definition."""

    def __init__(self, path: Path | None = None) -> None:
        """What the file says; without a file, all is forgotten with the process. Reads it: call it in a thread."""
        self._path = path
        self._changed = Coalesced(SAVE_SECONDS)
        self._known = {} if path is None else _read(path)
        self._had: dict[str, Habit] = {}

    def of(self, fingerprint: str) -> Habit:
        """The one of a server so defined."""
        if fingerprint not in self._had:
            self._had[fingerprint] = _decoded(self._known.get(fingerprint, {}), self._changed)
        return self._had[fingerprint]

    async def keep(self) -> None:
        """Write it down a moment after each change, for as long as the owner's task group lives, and at its end."""
        try:
            await self._changed.run(self._save)
        finally:
            if self._changed.is_due:
                with anyio.CancelScope(shield=True):
                    await self._save()

    async def _save(self) -> None:
        if self._path is not None:
            encoded = {fingerprint: _encoded(habit) for fingerprint, habit in self._had.items()}
            await anyio.to_thread.run_sync(_write, self._path, encoded)


def _write(path: Path, seen: Mapping[str, JsonObject]) -> None:
    try:
        with locked(path, LOCK_SECONDS):
            others = {key: each for key, each in _read(path).items() if key not in seen}
            kept = dict([*others.items(), *seen.items()][-MAX_SERVERS:])
            write_atomically(path, json.dumps({"format": FORMAT, "servers": kept}, separators=(",", ":")))
    except OSError as error:
        do_without(CACHE, path.parent, error)


def _read(path: Path) -> dict[str, JsonObject]:
    """What is written down; nothing where there is nothing that can be read."""
    try:
        raw = read_json(path)
        if raw["format"] == FORMAT:
            return {str(key): each for key, each in raw["servers"].items() if isinstance(each, dict)}
    except FileNotFoundError:
        pass
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        logger.debug("%s: begun anew: %s", path, error)
    return {}


def _encoded(habit: Habit) -> JsonObject:
    # URIs are many, and may hold what is nobody's business.
    calm = sorted([method, name] for method, name in habit.calm if method != "resources/read")
    return {"version": habit.version, "calm": calm[:MAX_KEPT], "unspoken": habit.unspoken}


def _decoded(raw: JsonObject, changed: Coalesced) -> Habit:
    try:
        return Habit(
            changed,
            str(raw["version"]),
            {(str(method), str(name)) for method, name in raw["calm"]},
            {str(era): float(at) for era, at in raw["unspoken"].items()},
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        return Habit(changed)
