"""The clients of one gateway of a serving process, and the way that they reach it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pml_gateway.types import JsonObject


@dataclass(slots=True)
class Presence:
    """The clients of one gateway. Over stdio there is one; over HTTP the endpoint and its clients are told it.

    The gateway of a machine knows by name and folder which clients are attached to it.
    """

    transport: str
    url: str | None = None
    count_clients: Callable[[], int] = lambda: 1
    attached: Callable[[], Sequence[JsonObject]] = tuple
    is_ending: bool = False
