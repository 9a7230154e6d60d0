"""What a serving process tells its owner of itself: how it is reached, since when, and how many clients it has."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pml_gateway.types import JsonObject

RECENT_SECONDS = 300.0
"""How long a client without a session counts after its last request."""

MAX_RECENT = 1000


class RecentClients:
    """The clients that sent a request lately, without any session that would say that they are there."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}

    def note(self, client: str) -> None:
        """It sent a request."""
        self._seen.pop(client, None)
        self._seen[client] = time.monotonic()
        if len(self._seen) > MAX_RECENT:
            del self._seen[next(iter(self._seen))]

    def __len__(self) -> int:
        since = time.monotonic() - RECENT_SECONDS
        return sum(at >= since for at in self._seen.values())


@dataclass(slots=True)
class Presence:
    """One serving process. Over stdio there is one client; over HTTP the endpoint and its clients are told it.

    The gateway of a machine knows by name and folder which clients are attached to it.
    """

    transport: str
    url: str | None = None
    count_clients: Callable[[], int] = lambda: 1
    attached: Callable[[], Sequence[JsonObject]] = tuple
    is_ending: bool = False
    started: float = field(default_factory=time.monotonic)

    def as_json(self) -> JsonObject:
        """As a status says it."""
        return {
            "transport": self.transport,
            "url": self.url,
            "age_seconds": round(time.monotonic() - self.started, 3),
            "clients": self.count_clients(),
            "attached": [*self.attached()],
            "is_ending": self.is_ending,
        }
