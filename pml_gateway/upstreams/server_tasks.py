"""Tasks that a server makes of calls: created, followed until they end, and cancelled if nobody wants the result."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import anyio
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pml_gateway.errors import ErrorCode, GatewayError, UpstreamError, UpstreamProtocolError
from pml_gateway.foreign_json import sound_error
from pml_gateway.log import get_logger
from pml_gateway.mcp.connection import Connection
from pml_gateway.mcp.deadlines import Deadline
from pml_gateway.mcp.elicitation import OpenCall
from pml_gateway.mcp.failures import translate
from pml_gateway.mcp.http import SessionUnknownError
from pml_gateway.mcp.tasks import TaskRequest, described, without_related_task
from pml_gateway.signal import Signal
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.dialogue.input_requests import QuestionRefusedError, answers_to
from pml_gateway.upstreams.faults import repeated
from pml_gateway.upstreams.session_choice import late

logger = get_logger(__name__)

ENDED = frozenset({"completed", "failed", "cancelled"})

FIRST_PAUSE = 0.1
"""Seconds until a task is asked for first. The pause doubles up to the interval that the server asks for, so that a
short task is not noticed late."""

POLL_SECONDS = 1.0
"""The interval of a server that names none."""

LONGEST_PAUSE = 30.0
"""Maximum seconds between two requests for the state of a task; its call must not reach its deadline in between."""

CANCEL_SECONDS = 2.0
"""Time limit in seconds for the cancellation of a task."""

MAX_QUESTIONS = 100
"""Maximum number of questions that one task may ask its user."""

MAX_FREE_TASKS = 4096
"""Maximum number of tasks of one server whose calls do not count as running there; more keep their slots."""

_tokens = itertools.count(1)


class TaskCancelledError(UpstreamError):
    """The server cancelled the task of a call."""

    code = ErrorCode.CANCELLED


class TaskLostError(UpstreamError):
    """The server no longer knows the task of a call; whether it was executed is unknown."""


class CallProgress:
    """The progress of one call: it extends the deadline, and is passed on to the client."""

    def __init__(self, on_progress: ProgressFnT | None, deadline: Deadline, limit: float, *, is_task: bool) -> None:
        """Begin a call; with `is_task`, its client follows a task itself and needs no signs of life."""
        self._on_progress = on_progress
        self._deadline = deadline
        self._limit = limit
        self._was_reported = is_task
        self._signs = 0

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Pass on the progress that the server reports."""
        self._was_reported = True
        self._deadline.renew(self._limit)
        if self._on_progress is not None:
            await self._on_progress(progress, total, message)

    async def go_on(self, message: str | None) -> None:
        """Note that the server still works on the task of the call; tell the client, unless progress was reported."""
        self._deadline.renew(self._limit)
        if self._on_progress is not None and not self._was_reported:
            self._signs += 1
            await self._on_progress(self._signs, None, message)


@dataclass(frozen=True, slots=True)
class TaskableCall:
    """One call that its server may run as a task.

    `call` is given if its client can be asked. With `is_asked`, the server is asked for a task in the way of
    2025-11-25. `on_created` is called once there is a task.
    """

    upstream_id: str
    connection: Connection
    call: OpenCall | None
    task: TaskRequest | None
    progress: CallProgress
    limit: float
    is_asked: bool
    on_created: Callable[[], None]

    async def send(self, method: str, params: JsonObject) -> JsonObject:
        """Send the call, and return its result, whether or not it ran as a task."""
        session, progress = self.connection.session, self.progress.report
        if not self.is_asked:
            end = partial(self._end, None)
            return await self.connection.request(method, params, on_progress=progress, call=self.call, then=end)
        # The token of the SDK is valid until the answer, and this one while the task runs.
        token = f"pml-task-{next(_tokens)}"
        ttl = {} if self.task is None or self.task.ttl is None else {"ttl": self.task.ttl}
        sent = {**params, "task": ttl, "_meta": {**params.get("_meta", {}), "progressToken": token}}
        # A task whose id is not known yet could not be cancelled.
        with (
            session.reporting(token, progress),
            anyio.CancelScope(shield=True, deadline=anyio.current_time() + self.limit) as creating,
        ):
            end = partial(self._end, creating)
            return await self.connection.request(method, sent, on_progress=None, call=self.call, then=end)
        raise late(self.upstream_id, str(params.get("name")), self.limit, "unknown")

    async def _end(self, creating: anyio.CancelScope | None, answer: JsonObject) -> JsonObject:
        if creating is not None:
            creating.shield, creating.deadline = False, math.inf
        created = answer if answer.get("resultType") == "task" else answer.get("task") if self.is_asked else None
        if not isinstance(created, dict) or (self.is_asked and "content" in answer):
            return answer
        if not isinstance(created.get("taskId"), str) or not self.connection.session.may_run_tasks:
            raise UpstreamProtocolError("the server answered with a task that was not asked for, or has no id")
        self.on_created()
        return await ServerTask(self, created).result()


class ServerTask:
    """One task of a server, followed by polling and by the notifications that it sends."""

    def __init__(self, taskable: TaskableCall, created: JsonObject) -> None:
        self.call = taskable.call
        self._taskable = taskable
        self._id: str = created["taskId"]
        self._session = taskable.connection.session
        self._is_modern = self._session.protocol_version in MODERN_PROTOCOL_VERSIONS
        self._state = created
        self._last_observed: JsonObject = {}
        self._answered = set[str]()
        self._result: JsonObject | None = None
        self._is_fetching = False
        self._noticed = Signal()

    async def result(self) -> JsonObject:
        """Return the result of the call once the task has ended; cancel the task if this ends before.

        Raises:
            MCPError: the call failed with this error.
            GatewayError: the task was cancelled or lost, or a question was refused.
        """
        observer = None if self._taskable.task is None else self._taskable.task.observer
        outcome: list[JsonObject | Exception] = []
        try:
            with self._session.questions.following(self._id, self):
                if observer is not None:
                    self._last_observed = described(self._state)
                    await observer.created(self._last_observed)
                async with anyio.create_task_group() as tasks:
                    try:
                        outcome.append(await self._follow(tasks))
                    # Raised again outside of the group, which would wrap it.
                    except Exception as error:  # noqa: BLE001
                        outcome.append(error)
                    tasks.cancel_scope.cancel()
        finally:
            if not self._has_ended:
                await self._cancel()
        [ended] = outcome
        if isinstance(ended, Exception):
            raise ended
        return ended

    def note(self, task: JsonObject) -> None:
        """Note the state that the server has sent."""
        if not self._has_ended:
            self._state = task
            self._noticed.set()

    @property
    def _has_ended(self) -> bool:
        return self._result is not None or self._state.get("status") in ENDED

    async def _follow(self, tasks: anyio.abc.TaskGroup) -> JsonObject:
        pause = FIRST_PAUSE
        while True:
            await self._notify_observer()
            if self._has_ended:
                return await self._outcome()
            if self._state.get("status") == "input_required":
                if self._is_modern:
                    if await self._ask():
                        pause = FIRST_PAUSE
                elif not self._is_fetching:
                    # The server asks on the stream of this request, which lasts until the task has ended.
                    self._is_fetching = True
                    tasks.start_soon(self._fetch)
            with anyio.move_on_after(pause) as waiting:
                await self._noticed.wait()
            if waiting.cancelled_caught:
                await self._poll()
                pause = min(pause * 2, self._interval)
            await self._taskable.progress.go_on(described(self._state).get("statusMessage"))

    @property
    def _interval(self) -> float:
        given = described(self._state).get("pollInterval")
        return POLL_SECONDS if given is None else min(max(given / 1000, FIRST_PAUSE), LONGEST_PAUSE)

    async def _notify_observer(self) -> None:
        observer = None if self._taskable.task is None else self._taskable.task.observer
        if observer is not None and (state := described(self._state)) != self._last_observed:
            self._last_observed = state
            await observer.changed(state)

    async def _poll(self) -> None:
        """Note the current state of the task.

        Raises:
            GatewayError: see `_request_state`.
        """
        try:
            state = await self._request_state()
        except TaskLostError:
            # Some servers forget a task as soon as they have sent its result.
            if not self._is_fetching and self._result is None:
                raise
        else:
            self._state = self._state if self._has_ended else state

    async def _request_state(self) -> JsonObject:
        """Return the state of the task, asked for again if the connection failed.

        Raises:
            TaskLostError: the server does not know the task.
            GatewayError: it cannot be reached.
        """
        connection, upstream_id = self._taskable.connection, self._taskable.upstream_id

        async def ask() -> JsonObject:
            try:
                return await self._session.send_raw("tasks/get", {"taskId": self._id}, timeout=None)
            except SessionUnknownError as error:
                raise TaskLostError(f"{upstream_id}: the session of the task is over: {error.message}") from error
            # Translated in one place, whatever the transport raised.
            except Exception as error:
                failure = translate(error, upstream_id)
                if "jsonrpc_code" in failure.details:
                    raise TaskLostError(f"{upstream_id}: the task of the call is lost: {failure.message}") from error
                failure.details["executed"] = "unknown"
                raise failure from error

        return await repeated(ask, float("inf"), lambda: not connection.is_over)

    async def _ask(self) -> bool:
        """Ask the client what the task asks now, and was not answered before; send the answers, if there are any.

        Raises:
            QuestionRefusedError: the client cannot be asked, or refused.
            UpstreamProtocolError: the task has asked too much.
        """
        requests = self._state.get("inputRequests")
        new = {key: each for key, each in requests.items() if key not in self._answered} if requests else {}
        if not new:
            return False
        if len(self._answered) + len(new) > MAX_QUESTIONS:
            raise UpstreamProtocolError(f"the task asked its user more than {MAX_QUESTIONS} questions")
        if self.call is None:
            raise QuestionRefusedError("the task asked its user something, and the client of this call cannot be asked")
        answers = await answers_to(new, self.call)
        self._answered.update(answers)
        await self._session.send_raw("tasks/update", {"taskId": self._id, "inputResponses": answers}, timeout=None)
        return True

    async def _fetch(self) -> None:
        try:
            self._result = await self._session.send_raw("tasks/result", {"taskId": self._id}, timeout=None)
        except (MCPError, GatewayError, anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            # The state of the task says what became of it.
            logger.debug("%s: no result of a task yet: %s", self._taskable.upstream_id, error)
        finally:
            self._is_fetching = False
            self._noticed.set()

    async def _outcome(self) -> JsonObject:
        """Return the result of a task that has ended.

        Raises:
            MCPError: the call failed with this error.
            TaskCancelledError: the server cancelled the task.
            UpstreamProtocolError: the task has no result.
        """
        state, upstream_id = self._state, self._taskable.upstream_id
        while self._is_fetching:  # the signal is that of the fetch
            await self._noticed.wait()
        if self._result is None and state.get("status") == "cancelled":
            said = described(state).get("statusMessage")
            raise TaskCancelledError(
                f"{upstream_id}: the server cancelled the task of the call{f': {said}' if said else ''}",
                details={"executed": "unknown"},
            )
        if not self._is_modern:
            if self._result is None:
                self._result = await self._session.send_raw("tasks/result", {"taskId": self._id}, timeout=None)
            return without_related_task(self._result)
        if state["status"] == "failed" and (error := sound_error(state.get("error"))) is not None:
            raise MCPError(error["code"], error["message"], error["data"])
        result = state.get("result")
        if not isinstance(result, dict):
            raise UpstreamProtocolError(f"{upstream_id}: the task of the call ended without a result")
        return {"resultType": "complete", **result}

    async def _cancel(self) -> None:
        """Have the server cancel the task, if it can be reached and can cancel tasks."""
        can_cancel = self._is_modern or self._session.peer_capabilities.runs_tasks("cancel")
        if self._taskable.connection.is_over or not can_cancel:
            return
        with anyio.move_on_after(CANCEL_SECONDS, shield=True):
            try:
                await self._session.send_raw("tasks/cancel", {"taskId": self._id}, timeout=None)
            except (MCPError, GatewayError, anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
                logger.debug("%s: a task was not cancelled: %s", self._taskable.upstream_id, error)
