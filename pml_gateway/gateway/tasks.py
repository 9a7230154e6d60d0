"""Tasks: calls that run on after their request is answered, kept with their results for the client that made them.

Each replica finds those of the others as well (`shared_tasks.py`).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from logging import DEBUG

import anyio
import anyio.to_thread
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS

from pml_gateway.background import Background
from pml_gateway.delivery import DELIVERY
from pml_gateway.errors import GatewayError, ResultStoreError
from pml_gateway.gateway.host import Host
from pml_gateway.gateway.shared_tasks import SharedTasks
from pml_gateway.gateway.task import DEFAULT_TTL, FINAL, MAX_TTL, GatewayTask, Notify, TaskStatus, task_id_of
from pml_gateway.gateway.task_records import TaskRecords
from pml_gateway.log import get_logger
from pml_gateway.policy.principal import Principal
from pml_gateway.results.answers import as_rpc_error
from pml_gateway.results.content import Content
from pml_gateway.results.store import Visible
from pml_gateway.results.stored import Source, StoredResult
from pml_gateway.signal import Signal
from pml_gateway.storage.pending import PendingTable
from pml_gateway.types import JsonObject

logger = get_logger(__name__)

SWEEP_SECONDS = 30.0
"""Seconds between two removals of expired tasks."""

TOO_LARGE = "the result is larger than references.max_bytes"

WITHDRAWN = "ended: the key with which it was begun is no longer in force"
LOST = "the result is no longer stored: others needed the room, or the gateway ended (storage.results: disk keeps it)"

USED_TOOLS: ContextVar[set[tuple[str, str]] | None] = ContextVar("pml_gateway_used_tools", default=None)
"""The tools, by server and own name, that the calls of the current task have reached."""


Work = Callable[[GatewayTask], Awaitable[JsonObject]]
"""The call that a task makes; it returns the result for the client."""

Store = Callable[[GatewayTask, JsonObject], Awaitable[StoredResult | None]]
"""Stores the result of a task under its reference; returns None if it is too large."""


@dataclass(frozen=True, slots=True)
class _Notifier:
    """The session that asked for a task last, and when."""

    notify: Notify
    since: float


class Tasks:
    """The tasks of one gateway, each found by its client alone: unknown, foreign and expired ids look the same."""

    def __init__(self, gateway: Host, records: TaskRecords | None = None, shared: SharedTasks | None = None) -> None:
        """Keep tasks: with `records` also after a restart, with `shared` for all replicas."""
        self._gateway = gateway
        self._records = records
        self._shared = shared
        self._saving = anyio.Lock()
        self._changes = self._saved = 0
        self._background = Background()
        self._table: PendingTable[GatewayTask] = PendingTable("task", MAX_TTL, give_up=self._give_up)
        self._notifiers: dict[str, _Notifier] = {}
        """The sessions that are notified of tasks of other replicas, by task id."""
        self._filled = Signal()
        self.is_running = False
        """True while calls can run apart from their requests."""

    async def run(self) -> None:
        """Run the calls, for as long as the owner's task group lives."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._background.run)
                if self._shared is not None:
                    tasks.start_soon(self._shared.run, lambda task: tasks.start_soon(self._cancel_own, task))
                self.is_running = True
                while True:
                    await self._filled.until(lambda: bool(len(self._table)))
                    await anyio.sleep(SWEEP_SECONDS)
                    self._table.sweep()
        finally:
            if self._records is not None:
                self._records.close()

    async def restore(self) -> None:
        """Read the tasks of earlier processes. Unfinished ones have failed as interrupted: none runs again."""
        if self._records is not None:
            for record in await anyio.to_thread.run_sync(self._records.read):
                task = GatewayTask.restored(record)
                seconds = task.expires_at - time.time()
                self._table.add(task, owner=task.owner, quota_key=task.owner, seconds=seconds, state=task.id)

    def new(self, client: Principal, name: str, ttl: float = DEFAULT_TTL) -> GatewayTask:
        """Return a task that is not kept yet; `name` is the tool that it calls."""
        return GatewayTask(client, name, ttl, "" if self._shared is None else self._shared.replica)

    def start(self, task: GatewayTask, work: Work, store: Store | None = None) -> None:
        """Run a call apart from its request; by default, its result is stored whole.

        Raises:
            GatewayError: the gateway ends.
        """

        async def run() -> None:
            # The request that began it is answered, and gets no notifications any more.
            DELIVERY.set(None)
            USED_TOOLS.set(task.tools)
            task.scope.deadline = anyio.current_time() + task.ttl
            with task.scope:
                await self._finish(task, await _outcome(task, work), store or self._store)
                await self._save(task)
            if task.scope.cancelled_caught and task.status is TaskStatus.FAILED:
                # Other replicas found this one gone, and failed the task.
                await task.notify_now()
            elif task.scope.cancelled_caught:
                task.outcome = task.outcome or MCPError(INTERNAL_ERROR, "the task was cancelled")
                await task.end(TaskStatus.CANCELLED)
                await self._save(task)

        self._background.start(run)

    async def keep(self, task: GatewayTask) -> None:
        """Let the client of a task find it until it expires."""
        task.is_kept = True
        self._table.add(task, owner=task.owner, quota_key=task.client.quota_key, seconds=task.ttl, state=task.id)
        self._filled.set()
        if self._shared is not None:
            await self._shared.keep(task)
        else:
            await self._save(task)

    async def share(self, task: GatewayTask) -> None:
        """Write the state of an own task for other replicas, before its client sees it and asks one of them."""
        if self._shared is not None and task.id in self._table:
            await self._shared.write(task)

    def is_found_everywhere(self, task: GatewayTask) -> bool:
        """Return True if all replicas can find a kept task; False until Redis has it."""
        return self._shared is None or self._shared.is_written(task)

    async def find(self, client: Principal, task_id: str) -> GatewayTask:
        """Return a task of this client in its current state, if the client may still use its tools.

        Raises:
            MCPError: there is none of this id.
            SharedStateError: it is of another replica, and Redis does not answer.
        """
        task = await self._known(client, task_id)
        if task is None:
            raise not_found()
        return task

    async def find_by_ref(self, client: Principal, ref: str) -> GatewayTask | None:
        """Return the task of this client whose result is stored under a reference; None if there is none.

        Raises:
            SharedStateError: it is of another replica, and Redis does not answer.
        """
        return await self._known(client, task_id_of(ref))

    async def of(self, client: Principal) -> list[GatewayTask]:
        """Return the tasks of a client, the oldest first.

        Raises:
            SharedStateError: Redis does not answer.
        """
        owner, visible = client.digest, self._visible(client)
        found = [task for _, task in self._table.of(owner)]
        if self._shared is not None:
            found = sorted([*found, *await self._shared.of(owner)], key=lambda task: task.created_at)
        return [task for task in found if visible(_source(task))]

    def following(self, task: GatewayTask) -> AbstractContextManager[None]:
        """Keep a task of another replica up to date in this context."""
        return nullcontext() if self._shared is None else self._shared.following(task)

    def notify_by(self, task: GatewayTask, notify: Notify) -> None:
        """Notify the client of a task of each new status by `notify`, in place of the session that asked before.

        Raises:
            GatewayError: the gateway ends.
        """
        known = self._notifiers.get(task.id)
        if task.id in self._table or self._shared is None:
            task.notify_by(notify)
        elif known is None or known.notify != notify or known.since < task.notified_since:
            self._notifiers[task.id] = notifier = _Notifier(notify, time.time())
            self._shared.take_over_notifying(task, notifier.since)
            self._background.start(partial(self._notify, task, notifier))

    async def _notify(self, task: GatewayTask, notifier: _Notifier) -> None:
        """Notify a session of each new status of a task of another replica, while it is the last that asked."""
        shown = task.status

        def is_due() -> bool:
            return task.status is not shown or task.notified_since > notifier.since

        with self.following(task):
            while shown not in FINAL:
                await task.updates.until(is_due)
                if self._notifiers.get(task.id) is not notifier or task.notified_since > notifier.since:
                    break
                shown = task.status
                # The client that answered knows that the task goes on.
                if shown is not TaskStatus.WORKING:
                    await notifier.notify(task)
        if self._notifiers.get(task.id) is notifier:
            del self._notifiers[task.id]

    async def _known(self, client: Principal, task_id: str) -> GatewayTask | None:
        task = self._table.find(task_id, owner=client.digest)
        if task is None and self._shared is not None:
            task = await self._shared.find(client.digest, task_id)
        elif task is not None:
            await self.share(task)
        return task if task is not None and self._visible(client)(_source(task)) else None

    def current(self, client: Principal) -> Principal:
        """Return the client of a task with its current rights.

        Raises:
            MCPError: it may no longer ask.
        """
        now = self._gateway.state.with_current_rights(client)
        if now is None:
            raise not_found()
        return now

    def _visible(self, client: Principal) -> Visible:
        """Return a check of sources. Who may see a whole server keeps the results of its removed tools."""
        state, now = self._gateway.state, self.current(client)
        view, apps = state.view(now), state.view(now, for_apps=True)

        def visible(source: Source) -> bool:
            found = ((server, state.catalog.owned(server, name)) for server, name in source.made_from)
            return all(
                view.sees_all_of(server) if tool is None else view.shows(tool) or apps.shows(tool)
                for server, tool in found
            )

        return visible

    async def result_of(self, client: Principal, task: GatewayTask) -> JsonObject:
        """Return the result of a finished task of this client.

        Raises:
            MCPError: it failed, or was cancelled.
        """
        if isinstance(task.outcome, MCPError):
            # Raising one object repeatedly would grow its traceback.
            raise MCPError(task.outcome.code, task.outcome.message, task.outcome.error.data)
        if task.outcome is not None:
            return task.outcome
        content = await self._gateway.results.result_of_task(client, task.ref, self._visible(client))
        if content is None:
            raise MCPError(INTERNAL_ERROR, LOST)
        result: JsonObject = content.value
        return result

    async def cancel(self, task: GatewayTask) -> None:
        """Cancel an unfinished task and its call.

        Raises:
            SharedStateError: it is of another replica, which does not answer.
        """
        if task.id not in self._table and self._shared is not None:
            await self._shared.cancel(task)
        else:
            await self._cancel_own(task)

    async def _cancel_own(self, task: GatewayTask) -> None:
        task.outcome = MCPError(INTERNAL_ERROR, "the task was cancelled")
        task.scope.cancel()
        await task.end(TaskStatus.CANCELLED, "cancelled by the client")
        await self._save(task)

    def end_of_clients(self, is_revoked: Callable[[Principal], bool]) -> None:
        """Cancel the unfinished tasks of clients whose key or entry is gone."""
        for task in list(self._table):
            if not task.is_over and is_revoked(task.client):
                task.message = WITHDRAWN
                task.scope.cancel()

    def _give_up(self, task: GatewayTask) -> None:
        task.scope.cancel()
        if self._shared is not None:
            self._shared.forget(task)

    async def _save(self, task: GatewayTask) -> None:
        """Write the state of a kept task: to Redis, or to the file, in one write with other changes."""
        if self._shared is not None and task.is_kept:
            await self._shared.write(task)
        if self._records is None or not task.is_kept:
            return
        self._changes += 1
        change = self._changes
        async with self._saving:
            if self._saved >= change:
                return
            self._saved = self._changes
            records = [each.record for each in self._table if each.name]
            await anyio.to_thread.run_sync(self._records.write, records)

    async def _finish(self, task: GatewayTask, outcome: JsonObject | MCPError, store: Store) -> None:
        if task.is_over:
            return
        task.outcome = outcome
        if isinstance(outcome, MCPError):
            await task.end(TaskStatus.FAILED, outcome.message)
            return
        task.is_error = outcome.get("isError") is True
        if task.is_kept:
            try:
                stored = await store(task, outcome)
                task.outcome = None if stored is not None else MCPError(INTERNAL_ERROR, TOO_LARGE)
            except ResultStoreError as error:
                logger.warning("the result of a task is kept in memory: %s", error)
        await task.end(TaskStatus.FAILED if isinstance(task.outcome, MCPError) else TaskStatus.COMPLETED)

    async def _store(self, task: GatewayTask, result: JsonObject) -> StoredResult | None:
        source = _source(task)
        results, content = self._gateway.results, Content("json", result)
        return await results.put(task.client, content, source=source, ref=task.ref, until=task.expires_at)


async def _outcome(task: GatewayTask, work: Work) -> JsonObject | MCPError:
    try:
        return await work(task)
    except MCPError as error:
        return error
    except GatewayError as error:
        return as_rpc_error(error)
    # A bug of the gateway must end this task only.
    except Exception as fault:
        logger.error("%s in a task of %r", type(fault).__name__, task.name, exc_info=logger.isEnabledFor(DEBUG))
        return MCPError(INTERNAL_ERROR, f"the gateway failed in this task ({type(fault).__name__})")


def _source(task: GatewayTask) -> Source:
    """Return where the result of a task comes from."""
    seconds = task.updated_at - task.created_at
    return Source(None, task.name, at=task.created_at, seconds=seconds, made_from=tuple(sorted(task.tools)))


def not_found() -> MCPError:
    """Return the error for an id without a task of this client."""
    return MCPError(INVALID_PARAMS, "Failed to retrieve task: Task not found")
