"""Observations of servers, kept as long as the gateway runs, because it takes time to repeat them.

Requests that are not known to ask nothing wait for each other on a session that several clients share, and a separate
process is needed to find out if a server speaks another era. An observation may become wrong: a server that asks
nevertheless is treated as an unknown one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

MAX_CALM = 10_000
"""Maximum number of known requests of one server; past it, all are probed again."""

UNSPOKEN_SECONDS = 24 * 3600.0
"""Seconds that a version of a server is trusted not to speak an era."""

Asked = tuple[str, str]
"""A method, and the name or URI in its params."""


@dataclass(slots=True)
class ServerObservations:
    """Observations of one version of one server."""

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

    def answered_calmly(self, asked: Asked, known: set[Asked]) -> None:
        """Note that a request was answered without a question; `known` is `calm` at its start."""
        if asked in known:
            return
        if len(known) >= MAX_CALM:
            known.clear()
        known.add(asked)

    def speaks_not(self, era: str) -> bool:
        """Return True if the server is known not to speak an era."""
        return time.time() - self.unspoken.get(era, -UNSPOKEN_SECONDS) < UNSPOKEN_SECONDS

    def note_unspoken(self, era: str) -> None:
        """Note that the server does not speak this era."""
        self.unspoken[era] = time.time()
