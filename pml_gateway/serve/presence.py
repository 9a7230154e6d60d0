"""Status of a serving process: transport and address, start time, and number of clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pml_gateway.types import JsonObject


@dataclass(slots=True)
class Presence:
    """One serving process. Over stdio there is one client; over HTTP the endpoint and its clients are told it.

    The gateway of a machine knows by name and folder which clients are attached to it.
    """

    transport: str
    config: str = ""
    """The file that its settings are of."""
    url: str | None = None
    count_clients: Callable[[], int] = lambda: 1
    attached: Callable[[], Sequence[JsonObject]] = tuple
    is_ending: bool = False
    started: float = field(default_factory=time.monotonic)

    def as_json(self) -> JsonObject:
        """As a status says it."""
        return {
            "transport": self.transport,
            "config": self.config,
            "url": self.url,
            "age_seconds": round(time.monotonic() - self.started, 3),
            "clients": self.count_clients(),
            "attached": [*self.attached()],
            "is_ending": self.is_ending,
        }
