"""Observations of servers, kept between starts of the gateway, because it takes time to repeat them.

Requests that are not known to ask nothing wait for each other on a session that several clients share, and a separate
process is needed to find out if a server speaks another era. An observation may become wrong: a server that asks
nevertheless is treated as an unknown one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread

from pml_gateway.signal import CoalescedSignal
from pml_gateway.storage import kinds
from pml_gateway.storage.documents import Document, compact, parsed
from pml_gateway.storage.places import CACHE, warn_unwritable
from pml_gateway.types import JsonObject

FORMAT = 1

MAX_SERVERS = 300
"""Maximum number of server definitions that are kept; the least recently seen are dropped first."""

MAX_CALM = 10_000
"""Maximum number of known requests of one server; past it, all are probed again."""

MAX_KEPT = 1_000
"""Maximum number of them that are stored."""

UNSPOKEN_SECONDS = 24 * 3600.0
"""Seconds that a version of a server is trusted not to speak an era."""

SAVE_SECONDS = 1.0
LOCK_SECONDS = 5.0

Asked = tuple[str, str]
"""A method, and the name or URI in its params."""


@dataclass(slots=True)
class ServerObservations:
    """Observations of one version of one server."""

    changed: CoalescedSignal = field(default_factory=CoalescedSignal, compare=False)
    version: str = ""
    calm: set[Asked] = field(default_factory=set)
    """Requests that were answered without a question."""
    unspoken: dict[str, float] = field(default_factory=dict)
    """Eras that the server does not speak, each with the Unix time of the observation."""

    def meet(self, version: str) -> None:
        """Note the server's version, and forget the observations of any other version."""
        if self.version != version:
            self.version = version
            self.unspoken = {}
            self.forget_calm()

    def forget_calm(self) -> None:
        """Forget the known requests, as one of them asked. Requests in progress add nothing to the new set."""
        self.calm = set()
        self.changed.ask()

    def answered_calmly(self, asked: Asked, known: set[Asked]) -> None:
        """Note that a request was answered without a question; `known` is `calm` at its start."""
        if asked in known:
            return
        if len(known) >= MAX_CALM:
            known.clear()
        known.add(asked)
        self.changed.ask()

    def speaks_not(self, era: str) -> bool:
        """Return True if the server is known not to speak an era."""
        return time.time() - self.unspoken.get(era, -UNSPOKEN_SECONDS) < UNSPOKEN_SECONDS

    def note_unspoken(self, era: str) -> None:
        """Note that the server does not speak this era."""
        self.unspoken[era] = time.time()
        self.changed.ask()


class ObservationStore:
    """Observations of all servers of this process, by the fingerprint of the definition."""

    def __init__(self, path: Path) -> None:
        """Read the file. Blocking: call it in a thread."""
        self._document = _document(path)
        self._changed = CoalescedSignal(SAVE_SECONDS)
        self._known = self._document.read()
        self._had: dict[str, ServerObservations] = {}

    def of(self, fingerprint: str) -> ServerObservations:
        """Return the observations of a server with this definition."""
        if fingerprint not in self._had:
            self._had[fingerprint] = _decoded(self._known.get(fingerprint, {}), self._changed)
        return self._had[fingerprint]

    async def keep(self) -> None:
        """Save changes with a short delay, as long as the owner's task group lives, and at its end."""
        try:
            await self._changed.run(self._save)
        finally:
            if self._changed.is_due:
                with anyio.CancelScope(shield=True):
                    await self._save()

    async def _save(self) -> None:
        encoded = {fingerprint: _encoded(habit) for fingerprint, habit in self._had.items()}
        await anyio.to_thread.run_sync(_write, self._document, encoded)


def _document(path: Path) -> Document[dict[str, JsonObject]]:
    def decode(content: bytes) -> dict[str, JsonObject]:
        servers = parsed(content, FORMAT)["servers"].items()
        return {str(key): each for key, each in servers if isinstance(each, dict)}

    def encode(servers: dict[str, JsonObject]) -> str:
        return compact({"format": FORMAT, "servers": servers})

    return Document(kinds.HABITS, path, decode=decode, encode=encode, empty=dict, lock_seconds=LOCK_SECONDS)


def _write(document: Document[dict[str, JsonObject]], seen: Mapping[str, JsonObject]) -> None:
    def update(before: dict[str, JsonObject]) -> dict[str, JsonObject]:
        others = {key: each for key, each in before.items() if key not in seen}
        return dict([*others.items(), *seen.items()][-MAX_SERVERS:])

    try:
        document.change(update)
    except OSError as error:
        warn_unwritable(CACHE, document.path.parent, error)


def _encoded(habit: ServerObservations) -> JsonObject:
    # URIs are many, and may contain private data.
    calm = sorted([method, name] for method, name in habit.calm if method != "resources/read")
    return {"version": habit.version, "calm": calm[:MAX_KEPT], "unspoken": habit.unspoken}


def _decoded(raw: JsonObject, changed: CoalescedSignal) -> ServerObservations:
    try:
        return ServerObservations(
            changed,
            str(raw["version"]),
            {(str(method), str(name)) for method, name in raw["calm"]},
            {str(era): float(at) for era, at in raw["unspoken"].items()},
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        return ServerObservations(changed)
