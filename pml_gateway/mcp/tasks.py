"""Tool calls that run as tasks: what the client asks for, and who is told how far the server's own task has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pml_gateway.types import JsonObject


class TaskObserver(Protocol):
    """Told of the task that a server made of a call."""

    async def created(self, task: JsonObject) -> None:
        """Note the task as the server created it: `taskId`, `status`, `statusMessage`, `ttl`, `pollInterval`."""

    async def changed(self, task: JsonObject) -> None:
        """Note the task as the server last described it."""


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """A request that the server makes a task of the call; `ttl` is how long it keeps the result, in milliseconds."""

    ttl: int | None = None
    observer: TaskObserver | None = None
