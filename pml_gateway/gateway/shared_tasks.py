"""Tasks that all replicas know: each runs its own, reads records of the others' in Redis, and sends them commands.

A command cancels or answers a task; the replica that runs the task takes it from Redis.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import INTERNAL_ERROR
from pydantic import TypeAdapter

from pml_gateway.errors import SharedStateError
from pml_gateway.gateway.task import FINAL, INTERRUPTED, GatewayTask, TaskQuestion, TaskStatus, interrupted, replica_of
from pml_gateway.gateway.task_records import TaskRecord
from pml_gateway.json_text.pieces import exceeds
from pml_gateway.policy.principal import PrincipalKind
from pml_gateway.storage.documents import readable
from pml_gateway.storage.pending import MAX_PENDING
from pml_gateway.storage.redis import RedisValues
from pml_gateway.storage.redis_owned import OwnedValues
from pml_gateway.storage.replicas import HEARTBEAT_SECONDS, Replicas
from pml_gateway.types import JsonObject

RECORDS = TOPIC = "tasks"
COMMANDS = "task-commands"
"""The collections of records and of commands, and the topics of changes of either."""

MARGIN_SECONDS = 60.0
"""Seconds that a record outlives its task: those who follow the task at other replicas see how it ended."""

CANCEL = "cancel"
"""The command to cancel a task; others are answers, by the keys of their questions."""

INTERRUPT = "interrupt"
"""The command to cancel a task that has failed for the others, who took its replica for gone."""

NOTIFIER = "notifier"
"""The command to leave notifying the client to another replica, which it has asked since."""

A_COMMAND = "a command for a task"

COMMAND_SECONDS = 900.0
"""Seconds after which a command that no replica has taken expires."""

CANCEL_SECONDS = 10.0
"""Maximum wait for another replica to cancel a task."""

UNSURE_SECONDS = 30.0
"""Time after a failure of Redis in which the record of a task may be missing, as its replica has yet to write it."""

REFRESH_SECONDS = 10.0
"""Time after which followed tasks are read anyway, as changes may be lost in a failover of Redis."""

RETRY_SECONDS = 1.0

MAX_BYTES = 16 * 1024 * 1024
"""Maximum of the records of one client, as they are written."""

COALESCE_SECONDS = 0.05
"""Time in which several changes of a task are written once: servers may report progress all the time."""

MAX_QUESTIONS = 256 * 1024
"""Maximum of a task's questions as JSON that are written; larger ones are seen at the replica of the task."""


@dataclass(frozen=True, slots=True)
class _SharedTask:
    """A task as `_to_json` writes it."""

    task: TaskRecord
    name: str
    message: str
    poll_seconds: float
    notified_since: float
    tools: tuple[tuple[str, str], ...]
    error: tuple[int, str, Any] | None
    questions: dict[str, JsonObject]


_SHARED_TASK = TypeAdapter(_SharedTask)


class SharedTasks:
    """The tasks of this replica as the others see them, and those of the others as this one sees them."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._records = OwnedValues(replicas.server, RECORDS, MAX_PENDING, MAX_BYTES)
        self._values = RedisValues(replicas.server)
        self._feed = replicas.feed
        self._own: dict[str, GatewayTask] = {}
        """Tasks of this replica that are kept, by the digest of their ids."""
        self._writing = anyio.Lock()
        self._written: set[str] = set()
        self._changed: set[str] = set()
        self._commanded: set[str] = set()
        self._followed: dict[str, list[GatewayTask]] = defaultdict(list)
        self._stale: set[str] = set()
        self._refresh_at = 0.0
        self._outgoing: list[tuple[str, str, JsonObject]] = []
        self._due = anyio.Event()

    @property
    def replica(self) -> str:
        """Return the id of this replica."""
        return self._replicas.own.id

    async def keep(self, task: GatewayTask) -> None:
        """Let the other replicas find a task of this one; if Redis does not answer, later."""
        self._own[self._records.digest(task.id)] = task
        task.on_change = self._note
        self._note(task)
        await self.write(task)

    def is_written(self, task: GatewayTask) -> bool:
        """Return True once the other replicas can find an own task."""
        return self._records.digest(task.id) in self._written

    def forget(self, task: GatewayTask) -> None:
        """Forget an own task whose time is over."""
        digest = self._records.digest(task.id)
        self._own.pop(digest, None)
        self._written.discard(digest)

    async def write(self, task: GatewayTask) -> None:
        """Write what has changed of an own task; if Redis does not answer, later."""
        with suppress(SharedStateError):
            await self._write(self._records.digest(task.id))

    async def find(self, owner: str, task_id: str) -> GatewayTask | None:
        """Return the current state of an owner's task at another replica; None if there is none.

        Raises:
            SharedStateError: Redis does not answer.
        """
        if not self._is_elsewhere(task_id):
            return None
        record = await self._values.get(self._records.digest(task_id), collection=RECORDS)
        if record is not None:
            return await self._found(record, owner)
        if self._replicas.server.health.has_failed_within(UNSURE_SECONDS):
            raise SharedStateError("the Redis server of storage.url failed a moment ago, and may not know the task yet")
        return None

    async def of(self, owner: str) -> list[GatewayTask]:
        """Return the tasks of the holder of a key at other replicas.

        Raises:
            SharedStateError: Redis does not answer.
        """
        read = [await self._found(record, owner) for record in await self._records.of(owner)]
        return [task for task in read if task is not None and self._is_elsewhere(task.id)]

    @contextmanager
    def following(self, task: GatewayTask) -> Iterator[None]:
        """Keep a task of another replica up to date in this context; do nothing for one of this replica."""
        if not self._is_elsewhere(task.id) or task.is_over:
            yield
            return
        digest = self._records.digest(task.id)
        self._followed[digest].append(task)
        # It may have changed since it was read.
        self._stale.add(digest)
        self._due.set()
        try:
            yield
        finally:
            self._followed[digest].remove(task)
            if not self._followed[digest]:
                del self._followed[digest]

    async def cancel(self, task: GatewayTask) -> None:
        """Have the replica of a task cancel it, and wait until it has.

        Raises:
            SharedStateError: Redis or that replica does not answer.
        """
        with self.following(task):
            await self._send(self._records.digest(task.id), CANCEL, {})
            with anyio.move_on_after(CANCEL_SECONDS):
                await task.updates.until(lambda: task.is_over)
        if not task.is_over:
            raise SharedStateError(f"the replica that runs the task did not cancel it in {CANCEL_SECONDS:g} s")

    def take_over_notifying(self, task: GatewayTask, since: float) -> None:
        """Tell the replica of a task that this one notifies its client from now on."""
        self._outgoing.append((self._records.digest(task.id), NOTIFIER, {"since": since}))
        self._due.set()

    async def run(self, cancel: Callable[[GatewayTask], object]) -> None:
        """Write what changes, follow tasks and carry out commands, for as long as the owner's task group lives.

        `cancel` begins to cancel a task and returns at once, as notifying its client may take long.
        """
        with self._feed.subscribed(TOPIC, self._on_record), self._feed.subscribed(COMMANDS, self._on_commands):
            while True:
                self._check_followed()
                await self._send_outgoing()
                await self._each(self._changed, self._write)
                await self._each(self._commanded, partial(self._carry_out, cancel))
                await self._each(self._stale, self._refresh)
                pause = None
                if self._outgoing or self._changed or self._commanded or self._stale:
                    # Redis did not answer.
                    pause = RETRY_SECONDS
                elif self._followed:
                    pause = HEARTBEAT_SECONDS
                with anyio.move_on_after(pause):
                    await self._due.wait()
                await anyio.sleep(COALESCE_SECONDS)
                self._due = anyio.Event()

    def _note(self, task: GatewayTask) -> None:
        self._changed.add(self._records.digest(task.id))
        self._due.set()

    def _on_record(self, digest: str | None) -> None:
        if digest is None:
            # Redis may have lost records, and changes may have been missed.
            self._changed.update(self._own)
            self._stale.update(self._followed)
        elif digest in self._followed:
            self._stale.add(digest)
        else:
            return
        self._due.set()

    def _on_commands(self, digest: str | None) -> None:
        own = self._own if digest is None else {digest} & self._own.keys()
        if own:
            self._commanded.update(own)
            self._due.set()

    async def _each(self, noted: set[str], work: Callable[[str], Awaitable[None]]) -> None:
        """Do some work on each task that is noted; if Redis refuses it for one, go on with the others."""
        for digest in list(noted):
            with suppress(SharedStateError):
                await work(digest)

    async def _write(self, digest: str) -> None:
        async with self._writing:
            task, is_changed = self._own.get(digest), digest in self._changed
            with _taken(digest, self._changed):
                if is_changed and task is not None:
                    await self._replace(digest, task)
                    await self._feed.publish(TOPIC, digest)

    async def _replace(self, digest: str, task: GatewayTask) -> None:
        """Write a task; if others took this replica for gone, let it fail here as it has failed for them."""
        new, seconds, is_lost = _to_json(task), _seconds_left(task.record), digest not in self._written

        def update(before: JsonObject | None) -> JsonObject:
            nonlocal is_lost
            is_lost = before is None
            return before if before is not None and before.get("is_interrupted") else new

        if not is_lost:
            after = await self._values.change(digest, update, collection=RECORDS, ttl=seconds)
            if after is not None and after.get("is_interrupted"):
                task.fail_as_interrupted()
        if is_lost:
            await self._records.put(self._index_of(task), task.id, new, seconds)
            if digest in self._own:
                self._written.add(digest)
                # Its client may wait for that.
                task.updates.set()

    async def _send(self, digest: str, name: str, command: JsonObject) -> None:
        """Leave a command for the replica of a task: its name, or the key of a question, and what goes with it."""

        def add(before: JsonObject | None) -> JsonObject:
            return {**(before or {}), name: command}

        await self._values.change(digest, add, collection=COMMANDS, ttl=COMMAND_SECONDS)
        await self._feed.publish(COMMANDS, digest)

    async def _send_outgoing(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        for command in outgoing:
            try:
                await self._send(*command)
            except SharedStateError:
                self._outgoing.append(command)

    async def _carry_out(self, cancel: Callable[[GatewayTask], object], digest: str) -> None:
        with _taken(digest, self._commanded):
            found = await self._take_commands(digest)
        task = self._own.get(digest)
        if task is None:
            return
        if INTERRUPT in found:
            task.fail_as_interrupted()
        elif CANCEL in found and not task.is_over:
            cancel(task)
        since = readable(A_COMMAND, partial(_notified_since, found)) or 0.0
        if since > task.notified_since:
            task.notify, task.notified_since = None, since
            self._note(task)
        for key, question in list(task.questions.items()):
            if key in found and not question.is_over.is_set():
                answer = readable(A_COMMAND, partial(_answer_from_json, found[key]))
                if answer is not None:
                    question.settle(answer)

    async def _take_commands(self, digest: str) -> JsonObject:
        """Remove and return the commands for a task. With GETDEL, they would be lost if its answer is lost."""
        found: JsonObject = {}

        def taken(commands: JsonObject | None) -> None:
            nonlocal found
            found = commands or {}

        await self._values.change(digest, taken, collection=COMMANDS)
        return found

    async def _refresh(self, digest: str) -> None:
        with _taken(digest, self._stale):
            record = _read(await self._values.get(digest, collection=RECORDS))
            if record is not None:
                record = await self._checked(record)
        for task in self._followed.get(digest, ()):
            if record is not None:
                self._apply(task, record)
            elif self._is_abandoned(task):
                task.fail_as_interrupted()

    def _check_followed(self) -> None:
        """Have followed tasks read now and then, and if their replica is gone; end those that have expired."""
        is_due = time.monotonic() >= self._refresh_at
        if is_due:
            self._refresh_at = time.monotonic() + REFRESH_SECONDS
        for digest, followed in self._followed.items():
            for task in followed:
                if task.is_over:
                    continue
                if is_due or self._is_abandoned(task):
                    self._stale.add(digest)
                elif task.expires_at + MARGIN_SECONDS / 2 < time.time():
                    task.status, task.outcome = TaskStatus.CANCELLED, MCPError(INTERNAL_ERROR, "the task was cancelled")
                    task.updates.set()

    async def _checked(self, record: _SharedTask) -> _SharedTask | None:
        """Return a record, after marking an unfinished task of a replica that is gone as failed."""
        known = record.task
        if known.status in FINAL or await self._replicas.find(replica_of(known.id) or "") is not None:
            return record
        digest = self._records.digest(known.id)
        settled = _read(await self._values.change(digest, _interrupted, collection=RECORDS, ttl=_seconds_left(known)))
        await self._feed.publish(TOPIC, digest)
        # If it comes back, its call is no longer wanted.
        await self._send(digest, INTERRUPT, {})
        return settled

    def _index_of(self, task: GatewayTask) -> str:
        """Return the owner under whom a task is listed; clients without a key are the same ones nowhere else."""
        is_known = task.client.kind is PrincipalKind.CLIENT
        return task.owner if is_known else f"{self.replica} {task.owner}"

    def _is_abandoned(self, task: GatewayTask) -> bool:
        """Return True if the replica of a task was gone when replicas were last read."""
        return replica_of(task.id) not in {each.id for each in self._replicas.known}

    def _is_elsewhere(self, task_id: str) -> bool:
        return replica_of(task_id) not in (None, self.replica)

    async def _found(self, value: JsonObject, owner: str) -> GatewayTask | None:
        """Return the task of a record; None if it cannot be read, is another owner's, or its time is over."""
        record = _read(value)
        if record is None or record.task.owner != owner or record.task.created_at + record.task.ttl <= time.time():
            return None
        settled = await self._checked(record)
        if settled is None:
            return None
        task = GatewayTask.of_record(record.task)
        self._apply(task, settled)
        return task

    def _apply(self, task: GatewayTask, record: _SharedTask) -> None:
        """Copy the state in a record into a task."""
        task.take_over(record.task)
        task.name, task.message, task.poll_seconds = record.name, record.message, record.poll_seconds
        task.notified_since, task.tools = record.notified_since, set(record.tools)
        task.outcome = None if record.error is None else MCPError(*record.error)
        for key in [key for key in task.questions if key not in record.questions]:
            task.questions.pop(key).is_over.set()
        for key, request in record.questions.items():
            if key not in task.questions:
                task.questions[key] = TaskQuestion(request, partial(self._pass_on, task, key))
        task.updates.set()

    def _pass_on(self, task: GatewayTask, key: str, answer: JsonObject | MCPError) -> None:
        self._outgoing.append((self._records.digest(task.id), key, _answer_to_json(answer)))
        self._due.set()


@contextmanager
def _taken(digest: str, noted: set[str]) -> Iterator[None]:
    """Take a digest out before the work on it, as it may be noted anew meanwhile; put it back if Redis fails."""
    noted.discard(digest)
    try:
        yield
    except SharedStateError:
        noted.add(digest)
        raise


def _read(value: JsonObject | None) -> _SharedTask | None:
    return None if value is None else readable("a task", lambda: _SHARED_TASK.validate_python(value))


def _to_json(task: GatewayTask) -> JsonObject:
    questions = {key: each.request for key, each in task.questions.items() if not each.is_over.is_set()}
    return {
        "task": asdict(task.record),
        "name": task.name,
        "message": task.message,
        "poll_seconds": task.poll_seconds,
        "notified_since": task.notified_since,
        "tools": sorted(task.tools),
        "error": _error_json(task.outcome) if isinstance(task.outcome, MCPError) else None,
        "questions": {} if exceeds(questions, MAX_QUESTIONS) else questions,
        "is_interrupted": False,
    }


def _interrupted(record: JsonObject | None) -> JsonObject | None:
    """Return a record with the task failed as interrupted, unless it has ended."""
    if record is None or record["task"]["status"] in FINAL:
        return record
    task = {**record["task"], "status": TaskStatus.FAILED.value, "updated_at": time.time()}
    failed = {"message": INTERRUPTED, "error": _error_json(interrupted()), "questions": {}}
    return {**record, **failed, "task": task, "is_interrupted": True}


def _seconds_left(record: TaskRecord) -> float:
    return record.created_at + record.ttl - time.time() + MARGIN_SECONDS


def _error_json(error: MCPError) -> list[Any]:
    return [error.code, error.message, error.error.data]


def _notified_since(commands: JsonObject) -> float | None:
    return float(commands[NOTIFIER]["since"]) if NOTIFIER in commands else None


def _answer_to_json(answer: JsonObject | MCPError) -> JsonObject:
    return {"error": _error_json(answer)} if isinstance(answer, MCPError) else {"result": answer}


def _answer_from_json(found: JsonObject) -> JsonObject | MCPError:
    result: JsonObject | None = found.get("result")
    return MCPError(*found["error"]) if result is None else result
