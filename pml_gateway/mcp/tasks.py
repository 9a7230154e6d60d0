"""Tool calls that run as tasks: what the client asks for, and who is told how far the server's own task has come.

In 2025-11-25, the client asks for a task, and fetches its result with `tasks/result`. In 2026-07-28, tasks are an
extension: the server decides, and `tasks/get` has the result, the error, or the questions of the task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pml_gateway.types import JsonObject

RELATED_TASK = "io.modelcontextprotocol/related-task"
"""The key in `_meta` that names the task of a message, in 2025-11-25."""

STATUS_NOTICES = frozenset({"notifications/tasks/status", "notifications/tasks"})
"""The notifications with the state of a task, of the two protocol versions that have tasks."""

MAX_STATUS_MESSAGE = 2000
"""Maximum characters of a status message that are kept."""

_IN_MILLISECONDS = {"ttl": "ttlMs", "pollInterval": "pollIntervalMs"}
"""The names of durations in 2025-11-25, and in 2026-07-28."""


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


def described(task: Mapping[str, Any]) -> JsonObject:
    """Return a task as 2025-11-25 describes it, whichever version its server speaks; without its outcome."""
    names = ("taskId", "status", "statusMessage", "createdAt", "lastUpdatedAt")
    shown: JsonObject = {name: value[:MAX_STATUS_MESSAGE] for name in names if isinstance(value := task.get(name), str)}
    for name, modern in _IN_MILLISECONDS.items():
        value = task.get(name, task.get(modern))
        if isinstance(value, int | float) and not isinstance(value, bool):
            shown[name] = value
    return shown


def related_task(params: Mapping[str, Any]) -> str:
    """Return the id of the task that a message belongs to; empty if it names none."""
    meta = params.get("_meta")
    related = meta.get(RELATED_TASK) if isinstance(meta, Mapping) else None
    return str(related.get("taskId") or "") if isinstance(related, Mapping) else ""


def without_related_task(message: JsonObject) -> JsonObject:
    """Return a message that does not name its task, whose id belongs to the session with the server."""
    meta = message.get("_meta")
    if not isinstance(meta, dict) or RELATED_TASK not in meta:
        return message
    kept = {key: value for key, value in meta.items() if key != RELATED_TASK}
    rest = {key: value for key, value in message.items() if key != "_meta"}
    return {**rest, "_meta": kept} if kept else rest
