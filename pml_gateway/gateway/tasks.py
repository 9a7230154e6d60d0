"""Tasks: calls that run on after their request is answered, kept with their results for the client that made them."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from enum import StrEnum
from logging import DEBUG

import anyio
import anyio.to_thread
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS

from pml_gateway.background import Background
from pml_gateway.delivery import DELIVERY
from pml_gateway.errors import GatewayError, ResultStoreError
from pml_gateway.gateway.host import Host
from pml_gateway.gateway.task_records import TaskRecord, TaskRecords
from pml_gateway.log import get_logger
from pml_gateway.policy.principal import Principal
from pml_gateway.results.answers import as_rpc_error
from pml_gateway.results.content import Content
from pml_gateway.results.store import HANDLE_BYTES, Visible
from pml_gateway.results.stored import Source, StoredResult
from pml_gateway.signal import Signal
from pml_gateway.storage.pending import PendingTable
from pml_gateway.text import shortened
from pml_gateway.types import JsonObject

logger = get_logger(__name__)

DEFAULT_TTL = 3600.0
"""Seconds from its creation that a task is kept if its client does not say; as long as stored results by default."""

MIN_TTL = 1.0
MAX_TTL = 86400.0
"""Minimum and maximum seconds that a client can ask for: a task holds a place in the table all the time."""

POLL_SECONDS = 1.0
"""Seconds after which a client may ask again, unless the server of the task says otherwise."""

MAX_POLL_SECONDS = 60.0
"""Maximum of what a server may say: the gateway knows of a change earlier."""

MAX_MESSAGE = 500
"""Characters of a server's status message that are passed on."""

_ID, _REF = "task_", "ref_"

SWEEP_SECONDS = 30.0
"""Seconds between looks for tasks whose time is over."""

TOO_LARGE = "the result is larger than references.max_bytes"

INTERRUPTED = "interrupted: the gateway ended while the call ran; whether the tool did its work is unknown"
WITHDRAWN = "ended: the key with which it was begun is no longer in force"
LOST = "the result is no longer stored: others needed the room, or the gateway ended (storage.results: disk keeps it)"

PAUSE_SECONDS = 0.25
"""Pause before a call is repeated whose server is not ready and asks nothing."""

USED_TOOLS: ContextVar[set[tuple[str, str]] | None] = ContextVar("pml_gateway_used_tools", default=None)
"""The tools, by server and own name, that the calls of the current task have reached."""


class TaskStatus(StrEnum):
    """The states of a task, the same in both protocol eras; the last three are final."""

    WORKING = "working"
    INPUT_REQUIRED = "input_required"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class TaskQuestion:
    """A question of a task's server to its client."""

    __slots__ = ("answer", "is_asked", "is_over", "request")

    def __init__(self, request: JsonObject) -> None:
        self.request = request
        self.is_asked = False
        self.is_over = anyio.Event()
        self.answer: JsonObject | MCPError | None = None

    def settle(self, answer: JsonObject | MCPError) -> None:
        """Take the client's answer, or its refusal."""
        self.answer = answer
        self.is_over.set()


class GatewayTask:
    """A call that may outlast its request. It observes the task that the server makes of it, if any.

    Until it `is_kept`, nobody but its request knows of it.
    """

    def __init__(self, client: Principal, name: str, ttl: float) -> None:
        self._begin(secrets.token_urlsafe(HANDLE_BYTES), owner_of(client), name, ttl)
        self.client = client

    @classmethod
    def restored(cls, record: TaskRecord) -> GatewayTask:
        """Return a task of an earlier process, over in any case."""
        task = cls.__new__(cls)
        task._begin(record.id.removeprefix(_ID), record.owner, "", record.ttl)
        task.created_at, task.updated_at, task.is_kept = record.created_at, record.updated_at, True
        task.status, task.is_error = TaskStatus(record.status), record.is_error
        if not task.is_over:
            task.status, task.message = TaskStatus.FAILED, INTERRUPTED
        if task.status is not TaskStatus.COMPLETED:
            task.outcome = MCPError(INTERNAL_ERROR, task.message or f"the task is {task.status}")
        return task

    def _begin(self, token: str, owner: str, name: str, ttl: float) -> None:
        self.id, self.ref = f"{_ID}{token}", f"{_REF}{token}"
        """The id for its client, and the reference under which its result is stored."""
        self.owner = owner
        self.name = name
        self.ttl = min(max(ttl, MIN_TTL), MAX_TTL)
        self.created_at = self.updated_at = time.time()
        self.status = TaskStatus.WORKING
        self.message = ""
        self.poll_seconds = POLL_SECONDS
        self.is_kept = False
        self.tools: set[tuple[str, str]] = set()
        """The tools that its result comes from: it is hidden with them."""
        self.is_of_server = False
        """True once the server runs the call as a task of its own."""
        self.outcome: JsonObject | MCPError | None = None
        """How it ended, as long as it is not stored."""
        self.is_error = False
        """True if it ended with a result that says that the tool failed."""
        self.questions: dict[str, TaskQuestion] = {}
        self.news = Signal()
        self.scope = anyio.CancelScope()
        self.tell: Callable[[GatewayTask], Awaitable[None]] | None = None
        """Tells the client of a new status, where it can be told."""
        self._asked = 0

    @property
    def record(self) -> TaskRecord:
        """Return what outlives the gateway."""
        status, times = self.status.value, (self.created_at, self.updated_at, self.ttl)
        return TaskRecord(self.id, self.owner, status, self.is_error, *times)

    @property
    def expires_at(self) -> float:
        """Return the Unix time at which it is given up."""
        return self.created_at + self.ttl

    @property
    def is_over(self) -> bool:
        """Return True in a final state."""
        return self.status in (TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED)

    async def created(self, task: JsonObject) -> None:
        """Note that the server runs the call as a task."""
        self.is_of_server = True
        await self.changed(task)
        self.news.set()

    async def changed(self, task: JsonObject) -> None:
        """Note what the server says of its task; its states follow from what becomes of the call."""
        self.note(task.get("statusMessage"))
        seconds = next((task[key] / 1000 for key in ("pollInterval", "pollIntervalMs") if _is_number(task.get(key))), 0)
        if seconds:
            self.poll_seconds = min(max(seconds, PAUSE_SECONDS), MAX_POLL_SECONDS)

    def note(self, message: object) -> None:
        """Note how far the call has come, in the server's words."""
        if isinstance(message, str) and message and not self.is_over:
            self.message, self.updated_at = shortened(message, MAX_MESSAGE), time.time()

    async def ask(self, method: str, params: JsonObject) -> JsonObject:
        """Ask the client a question when it comes for it, and return the answer.

        Raises:
            MCPError: the client refuses.
        """
        self._asked += 1
        key, question = f"question-{self._asked}", TaskQuestion({"method": method, "params": params})
        self.questions[key] = question
        await self._become(TaskStatus.INPUT_REQUIRED)
        try:
            await question.is_over.wait()
        finally:
            question.is_over.set()
            del self.questions[key]
            if not (self.questions or self.is_over):
                self.status, self.updated_at = TaskStatus.WORKING, time.time()
                self.news.set()
        if isinstance(question.answer, MCPError):
            raise question.answer
        assert question.answer is not None
        return question.answer

    async def ask_all(self, requests: JsonObject) -> JsonObject:
        """Ask several questions side by side and return the answers by the same keys."""
        answers: JsonObject = {}

        async def ask(key: str, request: JsonObject) -> None:
            answers[key] = await self.ask(str(request.get("method")), dict(request.get("params") or {}))

        if not requests:
            await anyio.sleep(PAUSE_SECONDS)
        async with anyio.create_task_group() as tasks:
            for key, request in requests.items():
                tasks.start_soon(ask, key, request)
        return answers

    async def end(self, status: TaskStatus, message: str = "") -> None:
        """Take a final state, unless there is one already."""
        if not self.is_over:
            self.message = shortened(message, MAX_MESSAGE) if message else self.message
            await self._become(status)

    async def _become(self, status: TaskStatus) -> None:
        is_new = status is not self.status
        self.status, self.updated_at = status, time.time()
        self.news.set()
        if is_new and self.tell is not None:
            await self.tell(self)


Work = Callable[[GatewayTask], Awaitable[JsonObject]]
"""The call that a task makes; it returns the result for the client."""

Store = Callable[[GatewayTask, JsonObject], Awaitable[StoredResult | None]]
"""Stores the result of a task under its reference; returns None if it is too large."""


class Tasks:
    """The tasks of one gateway, each found by its client alone: unknown, foreign and expired ids look the same."""

    def __init__(self, gateway: Host, records: TaskRecords | None = None) -> None:
        """Keep tasks; with `records`, they are known after a restart."""
        self._gateway = gateway
        self._records = records
        self._saving = anyio.Lock()
        self._changes = self._saved = 0
        self._background = Background()
        self._table: PendingTable[GatewayTask] = PendingTable("task", MAX_TTL, give_up=_give_up)
        self._filled = Signal()
        self.is_running = False
        """True while calls can run apart from their requests."""

    async def run(self) -> None:
        """Run the calls, for as long as the owner's task group lives."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._background.run)
                self.is_running = True
                while True:
                    await self._filled.until(lambda: bool(len(self._table)))
                    await anyio.sleep(SWEEP_SECONDS)
                    self._table.sweep()
        finally:
            if self._records is not None:
                self._records.close()

    async def restore(self) -> None:
        """Take over the tasks of processes that have ended: those that had not are interrupted, and none runs again."""
        if self._records is not None:
            for record in await anyio.to_thread.run_sync(self._records.read):
                task = GatewayTask.restored(record)
                seconds = task.expires_at - time.time()
                self._table.add(task, owner=task.owner, quota_key=task.owner, seconds=seconds, state=task.id)

    def start(self, task: GatewayTask, work: Work, store: Store | None = None) -> None:
        """Run a call apart from its request; by default, its result is stored whole.

        Raises:
            GatewayError: the gateway ends.
        """

        async def run() -> None:
            # Nothing of the request that began it is left to be told.
            DELIVERY.set(None)
            USED_TOOLS.set(task.tools)
            task.scope.deadline = anyio.current_time() + task.ttl
            with task.scope:
                await self._finish(task, await _outcome(task, work), store or self._store)
                await self._save(task)
            if task.scope.cancelled_caught:
                task.outcome = task.outcome or MCPError(INTERNAL_ERROR, "the task was cancelled")
                await task.end(TaskStatus.CANCELLED)
                await self._save(task)

        self._background.start(run)

    async def keep(self, task: GatewayTask) -> None:
        """Let the task's client find it from now on, until its time is over."""
        task.is_kept = True
        self._table.add(task, owner=task.owner, quota_key=task.client.quota_key, seconds=task.ttl, state=task.id)
        self._filled.set()
        await self._save(task)

    def find(self, client: Principal, task_id: str) -> GatewayTask:
        """Return a task of this client, whose tools it may use now.

        Raises:
            MCPError: there is none of this id.
        """
        task = self._table.find(task_id, owner=owner_of(client))
        if task is None or not self._visible(client)(_source(task)):
            raise not_found()
        return task

    def of_handle(self, client: Principal, ref: str) -> GatewayTask | None:
        """Return the task of this client whose result is stored under a reference; None if there is none."""
        task = self._table.find(f"{_ID}{ref.removeprefix(_REF)}", owner=owner_of(client))
        return task if task is not None and self._visible(client)(_source(task)) else None

    def of(self, client: Principal) -> list[GatewayTask]:
        """Return the tasks of a client, the oldest first."""
        visible = self._visible(client)
        return [task for _, task in self._table.of(owner_of(client)) if visible(_source(task))]

    def current(self, client: Principal) -> Principal:
        """Return the client of a task with the rights that it has now.

        Raises:
            MCPError: it may no longer ask.
        """
        now = self._gateway.state.with_current_rights(client)
        if now is None:
            raise not_found()
        return now

    def _visible(self, client: Principal) -> Visible:
        """Return a check of sources: a tool that is gone must not take the results of those with it who saw it."""
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
        """Return the result of a task of this client that is over.

        Raises:
            MCPError: it failed, or was cancelled.
        """
        if isinstance(task.outcome, MCPError):
            # Raising the same one again and again would grow its traceback.
            raise MCPError(task.outcome.code, task.outcome.message, task.outcome.error.data)
        if task.outcome is not None:
            return task.outcome
        content = await self._gateway.results.kept(client, task.ref, self._visible(client))
        if content is None:
            raise MCPError(INTERNAL_ERROR, LOST)
        result: JsonObject = content.value
        return result

    async def cancel(self, task: GatewayTask) -> None:
        """End a task that is not over; its call is cancelled."""
        task.outcome = MCPError(INTERNAL_ERROR, "the task was cancelled")
        await task.end(TaskStatus.CANCELLED, "cancelled by the client")
        task.scope.cancel()
        await self._save(task)

    def end_of(self, is_meant: Callable[[Principal], bool]) -> None:
        """End the tasks of some clients that are not over, as their key or their entry is gone."""
        for task in list(self._table):
            if not task.is_over and is_meant(task.client):
                task.message = WITHDRAWN
                task.scope.cancel()

    async def _save(self, task: GatewayTask) -> None:
        """Write what is known of all tasks, in one go with other changes, if this one is kept."""
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
    # A fault of ours must end this task only.
    except Exception as fault:
        logger.error("%s in a task of %r", type(fault).__name__, task.name, exc_info=logger.isEnabledFor(DEBUG))
        return MCPError(INTERNAL_ERROR, f"the gateway failed in this task ({type(fault).__name__})")


def _source(task: GatewayTask) -> Source:
    """Return where the result of a task comes from."""
    seconds = task.updated_at - task.created_at
    return Source(None, task.name, at=task.created_at, seconds=seconds, made_from=tuple(sorted(task.tools)))


def _give_up(task: GatewayTask) -> None:
    task.scope.cancel()


def owner_of(client: Principal) -> str:
    """Return the digest by which a client's tasks are known, also on disk."""
    return hashlib.sha256(client.id.encode("utf-8", "surrogatepass")).hexdigest()


def not_found() -> MCPError:
    """Return the error for an id without a task of this client."""
    return MCPError(INVALID_PARAMS, "Failed to retrieve task: Task not found")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
