"""One task: a call that may outlast its request, its state, and the questions of its server to its client."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import INTERNAL_ERROR

from pml_gateway.errors import ErrorCode, error_json
from pml_gateway.gateway.task_records import TaskRecord
from pml_gateway.policy.principal import Principal
from pml_gateway.results.store import HANDLE_BYTES
from pml_gateway.signal import Signal
from pml_gateway.text import shortened
from pml_gateway.types import JsonObject

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

_OF_REPLICA = re.compile(r"(?:task|ref)_([0-9a-f]{12})-")

INTERRUPTED = "interrupted: the gateway ended while the call ran; whether the tool did its work is unknown"

PAUSE_SECONDS = 0.25
"""Pause before a call is repeated whose server is not ready and asks nothing."""


class TaskStatus(StrEnum):
    """The states of a task, the same in both protocol eras; the last three are final."""

    WORKING = "working"
    INPUT_REQUIRED = "input_required"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINAL = frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED})


class TaskQuestion:
    """A question of a task's server to its client."""

    __slots__ = ("_pass_on", "answer", "is_asked", "is_over", "request")

    def __init__(self, request: JsonObject, pass_on: Callable[[JsonObject | MCPError], None] = lambda _: None) -> None:
        """Make a question; `pass_on` takes the answer if the task runs in another replica."""
        self.request = request
        self.is_asked = False
        self.is_over = anyio.Event()
        self.answer: JsonObject | MCPError | None = None
        self._pass_on = pass_on

    def settle(self, answer: JsonObject | MCPError) -> None:
        """Take the client's answer, or its refusal."""
        self.answer = answer
        self.is_over.set()
        self._pass_on(answer)


Notify = Callable[["GatewayTask"], Awaitable[None]]
"""Notifies a client of the status of a task."""


class GatewayTask:
    """A call that may outlast its request. It observes the task that the server makes of it, if any.

    Until it `is_kept`, nobody but its request knows of it.
    """

    def __init__(self, client: Principal, name: str, ttl: float, replica: str = "") -> None:
        """Begin a task of a client; its ids begin with the id of its replica, if there are several."""
        token = secrets.token_urlsafe(HANDLE_BYTES)
        self._begin(f"{replica}-{token}" if replica else token, client.digest, name, ttl)
        self.client = client

    @classmethod
    def of_record(cls, record: TaskRecord) -> GatewayTask:
        """Return a task that another process runs or has run."""
        task = cls.__new__(cls)
        task._begin(record.id.removeprefix(_ID), record.owner, "", record.ttl)
        task.is_kept = True
        task.take_over(record)
        return task

    @classmethod
    def restored(cls, record: TaskRecord) -> GatewayTask:
        """Return a task of an earlier process, over in any case."""
        task = cls.of_record(record)
        if not task.is_over:
            task.fail_as_interrupted()
        elif task.status is not TaskStatus.COMPLETED:
            task.outcome = MCPError(INTERNAL_ERROR, task.message or f"the task is {task.status}")
        return task

    def _begin(self, token: str, owner: str, name: str, ttl: float) -> None:
        self.id, self.ref = f"{_ID}{token}", f"{_REF}{token}"
        """Its id for the client, and the reference under which its result is stored."""
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
        self.updates = Signal()
        self.scope = anyio.CancelScope()
        self.notify: Notify | None = None
        """Notifies the session that asked last, unless it is at another replica."""
        self.notified_since = self.created_at
        """Time at which that session asked."""
        self.on_change: Callable[[GatewayTask], None] | None = None
        """Called when what others see of it has changed."""
        self._asked = 0

    def take_over(self, record: TaskRecord) -> None:
        """Take the state that another process has written."""
        self.created_at, self.updated_at = record.created_at, record.updated_at
        self.status, self.is_error = TaskStatus(record.status), record.is_error

    def fail_as_interrupted(self) -> None:
        """Fail the task, also one that has ended here: the other replicas have seen it fail."""
        self.status, self.message = TaskStatus.FAILED, INTERRUPTED
        self.outcome = interrupted()
        self.scope.cancel()
        self.updates.set()

    def notify_by(self, notify: Notify) -> None:
        """Notify the client of each new status by `notify` from now on."""
        is_new, self.notify, self.notified_since = self.notify != notify, notify, time.time()
        if is_new:
            self._report_change()

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
        return self.status in FINAL

    async def created(self, task: JsonObject) -> None:
        """Note that the server runs the call as a task."""
        self.is_of_server = True
        await self.changed(task)
        self.updates.set()

    async def changed(self, task: JsonObject) -> None:
        """Note what the server says of its task; its states follow from what becomes of the call."""
        self.note(task.get("statusMessage"))
        seconds = next((task[key] / 1000 for key in ("pollInterval", "pollIntervalMs") if _is_number(task.get(key))), 0)
        if seconds:
            self.poll_seconds = min(max(seconds, PAUSE_SECONDS), MAX_POLL_SECONDS)
            self._report_change()

    def note(self, message: object) -> None:
        """Note how far the call has come, in the server's words."""
        if isinstance(message, str) and message and not self.is_over:
            self.message, self.updated_at = shortened(message, MAX_MESSAGE), time.time()
            self._report_change()

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
            if not self.is_over:
                self._take(TaskStatus.INPUT_REQUIRED if self.questions else TaskStatus.WORKING)
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
        self._take(status)
        if is_new:
            await self.notify_now()

    async def notify_now(self) -> None:
        """Notify the client of the status."""
        if self.notify is not None:
            await self.notify(self)

    def _take(self, status: TaskStatus) -> None:
        self.status, self.updated_at = status, time.time()
        self.updates.set()
        self._report_change()

    def _report_change(self) -> None:
        if self.on_change is not None:
            self.on_change(self)


def interrupted() -> MCPError:
    """Return the error of a task that its process did not end."""
    data = error_json(ErrorCode.UPSTREAM_UNAVAILABLE, INTERRUPTED, details={"executed": "unknown"})
    del data["message"]
    return MCPError(INTERNAL_ERROR, INTERRUPTED, data)


def task_id_of(ref: str) -> str:
    """Return the id of the task whose result is stored under a reference."""
    return f"{_ID}{ref.removeprefix(_REF)}"


def replica_of(handle: str) -> str | None:
    """Return the id of the replica in the id or reference of a task; None if it has none."""
    match = _OF_REPLICA.match(handle)
    return None if match is None else match[1]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
