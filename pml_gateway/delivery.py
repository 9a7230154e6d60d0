"""Progress of a client's request: for the bridge that answers if this process is lost, and for its record."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol


class Delivery(Protocol):
    """Told of each round of one request that goes to a server, in order. It keeps nobody waiting."""

    def sending(self, *, repeatable: bool) -> None:
        """Note that a server is sent something next; `repeatable` says that it may be sent twice."""

    def answered(self) -> None:
        """Note that the server has answered, and so has done what it was asked."""

    def finished(self) -> None:
        """Note that the request has its answer, after all of its rounds if it is a plan of several calls."""


DELIVERY: ContextVar[Delivery | None] = ContextVar("pml_gateway_delivery", default=None)
"""Set where somebody outlives this process who answers the client then."""


@dataclass(slots=True)
class Sends:
    """Number of times that one attempt was sent to a server, retries included, and the seconds until the answers."""

    count: int = 0
    seconds: float = 0.0


SENDS: ContextVar[Sends | None] = ContextVar("pml_gateway_sends", default=None)
"""Set while an attempt runs whose record says so."""
