"""Changes of the gateway, looked for once for all open pages."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import anyio
import anyio.to_thread

from pml_gateway.activity.accesses import last_ids
from pml_gateway.console.recent import RecentFigures
from pml_gateway.console.source import GatewaySource
from pml_gateway.errors import GatewayError

WATCH_SECONDS = 0.5
"""Seconds between two looks at the gateway while a page is open."""

RENEW_SECONDS = 1.0
"""Seconds between two changes that one page is told of: each makes the page load again."""

PASSING = ("age_seconds", "since_seconds", "memory_bytes", "latency_seconds", "in_flight")
"""Figures that differ at each look, and are no reason to load a page again."""

TOPICS = ("status", "waiting", "activity", "costs")
"""Kinds of change; a page names those that it shows."""


class ConsoleWatch:
    """The latest change of each kind. Whoever waits longest looks for all; without open pages nothing is looked at."""

    def __init__(
        self, source: GatewaySource, figures: RecentFigures, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._looks: Mapping[str, Callable[[], Awaitable[object]]] = {
            "status": lambda: _shown_of(source),
            "waiting": source.approvals,
            "activity": lambda: anyio.to_thread.run_sync(last_ids, source.paths.activity_file),
            "costs": figures.counted_costs,
        }
        self._clock = clock
        self._turn = anyio.Lock()
        self._looked = -WATCH_SECONDS
        self._digests: dict[str, bytes] = {}
        self._changes = dict.fromkeys(TOPICS, 0)

    async def latest(self) -> Mapping[str, int]:
        """Return the number of changes of each kind so far; look at the gateway if the last look is too old."""
        async with self._turn:
            if self._clock() - self._looked >= WATCH_SECONDS:
                for topic, look in self._looks.items():
                    digest = await _digest(look)
                    self._changes[topic] += digest != self._digests.get(topic)
                    self._digests[topic] = digest
                self._looked = self._clock()
            return dict(self._changes)

    async def follow(self) -> AsyncIterator[list[str]]:
        """Yield the kinds of what changed, each time that something did, and nothing at times; without end."""
        seen = await self.latest()
        while True:
            now = await self.latest()
            changed = [topic for topic in TOPICS if now[topic] != seen[topic]]
            seen = now
            yield changed
            await anyio.sleep(RENEW_SECONDS if changed else WATCH_SECONDS)


async def _digest(look: Callable[[], Awaitable[object]]) -> bytes:
    try:
        found = await look()
    except GatewayError as error:
        found = str(error)
    return hashlib.sha256(json.dumps(lasting(found), default=str).encode()).digest()


async def _shown_of(source: GatewaySource) -> list[object]:
    """Return what pages show of a status. Commands are left out: pages ask by them, and would follow themselves."""
    status = await source.status()
    machine = status["machine"] or {}
    clients = [row for row in machine.get("clients", ()) if not row.get("is_command")]
    return [
        *(machine.get(name) for name in ("pid", "version", "url", "is_ending", "not_listening", "error")),
        *([row["name"], row["pid"], row["mode"], row["folder"]] for row in clients),
        *(
            [row["server"], row["state"], [each["pid"] for each in row["processes"]]]
            for row in machine.get("servers", ())
        ),
        *status["errors"],
        *sorted({json.dumps([row[name] for name in _OF_SERVER]) for row in status["servers"]}),
        *([row["storage"]["failure"], row["storage"]["replicas"]] for row in status["gateways"] if "storage" in row),
    ]


_OF_SERVER = ("server", "state", "login", "tools", "needs")


def lasting(value: Any) -> Any:
    """Return a JSON value without the figures that only pass."""
    if isinstance(value, dict):
        return {key: lasting(member) for key, member in value.items() if key not in PASSING}
    return [lasting(each) for each in value] if isinstance(value, list) else value
