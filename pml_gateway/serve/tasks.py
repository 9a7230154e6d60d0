"""Tasks as clients see them: the methods of 2025-11-25, and those of the extension that 2026-07-28 has for them.

Clients of 2025-11-25 ask for a task with their call, and collect its result, which waits; questions are asked while
it does. For those of 2026-07-28 the gateway decides: a call becomes a task once its server makes it one, or when it
takes long. They look again and again, find questions in what they see, and answer them.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import anyio
import mcp_types
from mcp.server.connection import Connection
from mcp.server.session import ServerSession
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types.jsonrpc import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
)
from pydantic import Field

from pml_gateway.delivery import DELIVERY
from pml_gateway.errors import GatewayError, SharedStateError
from pml_gateway.gateway.calling import Caller
from pml_gateway.gateway.request import (
    Context,
    RequestAudience,
    RequestScope,
    given_capabilities,
    is_modern,
    options_of,
)
from pml_gateway.gateway.task import DEFAULT_TTL, GatewayTask, TaskQuestion, TaskStatus
from pml_gateway.gateway.tasks import Tasks
from pml_gateway.mcp.capabilities import EXTENSIONS, TASKS
from pml_gateway.mcp.elicitation import Audience
from pml_gateway.mcp.sdk import connection_of, request_channel
from pml_gateway.mcp.tasks import TaskRequest
from pml_gateway.results.answers import for_version
from pml_gateway.results.stored import timestamp
from pml_gateway.serve.messages.written import large_apart, written
from pml_gateway.types import JsonObject

TASKS_SINCE = "2025-11-25"
"""The version whose protocol has tasks itself; the next one has them as an extension."""

CAPABILITY: JsonObject = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
"""What clients of that version are told."""

RELATED = "io.modelcontextprotocol/related-task"
STATUS_CHANGED = "notifications/tasks/status"
STATE_CHANGED = "notifications/tasks"
"""The notifications about tasks of 2025-11-25 and of 2026-07-28."""
PROGRESS = "notifications/progress"

PROMOTE_SECONDS = 10.0
"""Seconds after which a call becomes a task for a client of 2026-07-28 that has tasks; most end before, and are
answered without the further requests that a task takes."""

KEEPALIVE_SECONDS = 15.0
"""Seconds between reports of progress to a client that waits for a result and wants them."""

NOTIFY_SECONDS = 5.0
"""Seconds until a notification that a client does not take is dropped."""

RETRY_SECONDS = 1.0
"""Seconds until the result of a task is read again for a stream after that failed."""

TAKEN_SECONDS = 10.0
"""Maximum wait for another gateway to take answers to the questions of a task."""

MAX_FOLLOWED = 100
"""Tasks of which one stream tells."""

PAGE = 100
"""Tasks in one page of a list."""


Listen = Callable[[Context, mcp_types.SubscriptionsListenRequestParams], Awaitable[Any]]
"""Serves one stream of other notifications."""


class UpdateTaskParams(mcp_types.RequestParams):
    """Params of `tasks/update`, which the SDK does not have."""

    task_id: str = Field(alias="taskId")
    input_responses: dict[str, Any] = Field(alias="inputResponses")


class TaskAudience:
    """The client of a task: it is asked when it comes for the task, and told over its connection."""

    def __init__(self, task: GatewayTask, audience: Audience, connection: Connection, *, answers_later: bool) -> None:
        self._task = task
        self._request: Audience | None = audience
        self._connection = connection
        self.client_id = audience.client_id
        self.quota_key = audience.quota_key
        self.is_one_client = audience.is_one_client
        self.client_capabilities = audience.client_capabilities
        self.log_level = audience.log_level
        self.answers_later = answers_later

    async def ask(self, method: str, params: JsonObject, on_progress: ProgressFnT | None) -> JsonObject:
        """Keep a question until the client comes for it, and return the answer."""
        return await self._task.ask(method, params)

    async def tell(self, method: str, params: JsonObject) -> None:
        """Pass on a notification; in 2026-07-28 there are none about tasks but of their state."""
        if not self._task.is_kept and self._request is not None:
            await self._request.tell(method, params)
        elif not self.answers_later:
            await _notify(self._connection, method, _related(params, self._task))

    async def let_go(self) -> None:
        """Keep what waits: the request of a task ends by itself."""


class TaskMethods:
    """The handlers of tasks, for clients of both eras."""

    def __init__(self, caller: Caller, tasks: Tasks) -> None:
        self._caller = caller
        self._tasks = tasks

    async def call(self, ctx: Context, params: mcp_types.CallToolRequestParams) -> JsonObject:
        """Return the result of a call, or the task that it becomes.

        Raises:
            MCPError: see `Caller.call`.
        """
        arguments = dict(params.arguments or {})
        if is_modern(ctx.protocol_version):
            if has_tasks(ctx):
                return await self._promoted(ctx, params.name, arguments)
        elif ctx.protocol_version >= TASKS_SINCE and params.task is not None:
            ttl = DEFAULT_TTL if params.task.ttl is None else params.task.ttl / 1000
            task = self._tasks.new(ctx.scope.client, params.name, ttl)
            self._start(ctx, task, params.name, arguments)
            # A task begins as working, even if its call has ended by the time that it is kept.
            ctx.apart.update(task=_core_form(task))
            await self._tasks.keep(task)
            return {"content": []}
        return await self._caller.call(ctx.scope, params.name, arguments, options_of(ctx), ctx.protocol_version)

    async def get(self, ctx: Context, params: mcp_types.GetTaskRequestParams) -> JsonObject:
        """Return a task as it stands; in 2026-07-28 with its result or questions."""
        task = await self._found(ctx, params.task_id)
        if not is_modern(ctx.protocol_version):
            self._follow(ctx, task)
            return _core_form(task)
        form = await self._detailed(ctx, task)
        return {**form, "result": await written(form["result"], ctx.scope)} if "result" in form else form

    async def result(self, ctx: Context, params: mcp_types.GetTaskPayloadRequestParams) -> JsonObject:
        """Wait for the end of a task, ask its questions meanwhile, and return its result.

        Raises:
            MCPError: the error that it ended with.
        """
        self._only(ctx, modern=False)
        task = await self._found(ctx, params.task_id)
        self._follow(ctx, task)
        wants_progress = (ctx.meta or {}).get("progressToken") is not None
        with self._tasks.following(task):
            await self._until_over(ctx, task, wants_progress)
        # Its rights may have changed while it waited.
        task = await self._found(ctx, params.task_id)
        result = for_version(await self._tasks.result_of(ctx.scope.client, task), ctx.protocol_version)
        seen, apart = await large_apart(_related(result, task), ctx.scope)
        return {**seen, **apart}

    async def _until_over(self, ctx: Context, task: GatewayTask, wants_progress: bool) -> None:
        """Wait for the end of a task, and ask its questions meanwhile."""
        while not task.is_over:
            question = next((each for each in task.questions.values() if not each.is_asked), None)
            if question is not None:
                await _put(ctx, task, question)
                continue
            if not wants_progress:
                await task.updates.wait()
                continue
            with anyio.move_on_after(KEEPALIVE_SECONDS) as patience:
                await task.updates.wait()
            if patience.cancelled_caught:
                await ctx.session.report_progress(time.time() - task.created_at, None, task.message or "working")

    async def list(self, ctx: Context, params: mcp_types.PaginatedRequestParams) -> JsonObject:
        """Return one page of the client's tasks, the oldest first."""
        self._only(ctx, modern=False)
        tasks, start = await self._tasks.of(ctx.scope.client), 0
        if params.cursor is not None:
            start = next((at for at, task in enumerate(tasks, 1) if task.id == params.cursor), 0)
            if not start:
                raise MCPError(INVALID_PARAMS, "Invalid cursor")
        page = tasks[start : start + PAGE]
        more = {"nextCursor": page[-1].id} if len(tasks) > start + PAGE else {}
        return {"tasks": [_core_form(task) for task in page], **more}

    async def cancel(self, ctx: Context, params: mcp_types.CancelTaskRequestParams) -> JsonObject:
        """Cancel a task and the call that it makes."""
        task = await self._found(ctx, params.task_id)
        modern = is_modern(ctx.protocol_version)
        if not task.is_over:
            await self._tasks.cancel(task)
        elif not modern:
            raise MCPError(INVALID_PARAMS, f"Cannot cancel task: already in terminal status '{task.status}'")
        return {} if modern else _core_form(task)

    async def update(self, ctx: Context, params: UpdateTaskParams) -> JsonObject:
        """Take the client's answers to the questions of a task; those to others are ignored.

        Raises:
            SharedStateError: another gateway runs the task, and does not take them.
        """
        self._only(ctx, modern=True)
        task = await self._found(ctx, params.task_id)
        answered: set[str] = set()
        for key, answer in params.input_responses.items():
            question = task.questions.get(key)
            if question is not None and not question.is_over.is_set() and isinstance(answer, dict):
                question.settle(answer)
                answered.add(key)
        # The client may look next at any gateway, which must not show what was answered.
        with self._tasks.following(task), anyio.move_on_after(TAKEN_SECONDS):
            await task.updates.until(lambda: task.is_over or not answered & task.questions.keys())
            return {}
        raise SharedStateError(f"the gateway that runs the task did not take the answers in {TAKEN_SECONDS:g} s")

    async def listen(self, ctx: Context, params: mcp_types.SubscriptionsListenRequestParams, listen: Listen) -> Any:
        """Serve a `subscriptions/listen` stream, with the states of those of the given tasks that are the client's.

        Raises:
            MCPError: the client does not declare that it has tasks.
        """
        given = (params.notifications.model_extra or {}).get("taskIds")
        if given is None:
            return await listen(ctx, params)
        if not has_tasks(ctx):
            raise missing_capability()
        wanted = [each for each in given if isinstance(each, str)][:MAX_FOLLOWED] if isinstance(given, list) else []
        tasks = []
        for task_id in dict.fromkeys(wanted):
            with suppress(MCPError):
                tasks.append(await self._tasks.find(ctx.scope.client, task_id))
        session = _AcknowledgingSession(ctx.session, [task.id for task in tasks])
        async with anyio.create_task_group() as following:
            for task in tasks:
                following.start_soon(self._follow_states, ctx, task, session.acknowledged)
            result = await listen(replace(ctx, session=cast(Any, session)), params)
            following.cancel_scope.cancel()
        return result

    async def _follow_states(self, ctx: Context, task: GatewayTask, acknowledged: anyio.Event) -> None:
        """Tell a listening client of a task's state, and of each new one until the last."""
        await acknowledged.wait()
        meta = {SUBSCRIPTION_ID_META_KEY: ctx.request_id}
        with self._tasks.following(task):
            while True:
                await self._tasks.share(task)
                shown, is_last = task.status, task.is_over
                try:
                    form = await self._detailed(ctx, task)
                except GatewayError:
                    # Its result cannot be read now.
                    await anyio.sleep(RETRY_SECONDS)
                    continue
                form.pop("resultType", None)
                await request_channel(ctx).notify(STATE_CHANGED, {**form, "_meta": meta})
                if is_last:
                    return
                await task.updates.until(lambda shown=shown: task.status is not shown)  # type: ignore[misc]

    async def _detailed(self, ctx: Context, task: GatewayTask) -> JsonObject:
        """Return a task in the form of the extension, with its result, error or questions."""
        form = _extension_form(task)
        match task.status:
            case TaskStatus.INPUT_REQUIRED:
                return {**form, "inputRequests": {key: each.request for key, each in task.questions.items()}}
            case TaskStatus.COMPLETED:
                try:
                    result = await self._tasks.result_of(ctx.scope.client, task)
                    return {**form, "result": for_version(result, ctx.protocol_version)}
                except MCPError as error:
                    return {
                        **form,
                        "status": TaskStatus.FAILED.value,
                        "statusMessage": error.message,
                        **_failure(error),
                    }
            case TaskStatus.FAILED if isinstance(task.outcome, MCPError):
                return {**form, **_failure(task.outcome)}
        return form

    async def _promoted(self, ctx: Context, name: str, arguments: JsonObject) -> JsonObject:
        """Return the result of a call, or a task if it takes long or its server makes it one.

        A client that wants to be told of progress waits, as tasks of its protocol have none.
        """
        task = self._tasks.new(ctx.scope.client, name)
        self._start(ctx, task, name, arguments)
        waits = (ctx.meta or {}).get("progressToken") is not None
        try:
            with anyio.move_on_after(None if waits else PROMOTE_SECONDS):
                await task.updates.until(lambda: task.is_over or task.is_of_server)
            if not (task.is_over or task.outcome is not None):
                await self._tasks.keep(task)
                # Its client may look for it at any replica.
                await task.updates.until(lambda: task.is_over or self._tasks.is_found_everywhere(task))
                if not task.is_over:
                    return {"resultType": "task", **_extension_form(task)}
        except anyio.get_cancelled_exc_class():
            # Its client does not know of it.
            task.scope.cancel()
            raise
        return await self._tasks.result_of(ctx.scope.client, task)

    def _start(self, ctx: Context, task: GatewayTask, name: str, arguments: JsonObject) -> None:
        """Make the call apart from its request."""
        given, version, modern = options_of(ctx), ctx.protocol_version, is_modern(ctx.protocol_version)
        connection, token = connection_of(ctx), (ctx.meta or {}).get("progressToken")
        scope = RequestScope(
            ctx.scope.client,
            ctx.scope.mode,
            ctx.scope.url_query,
            client_capabilities=ctx.scope.client_capabilities,
            history=ctx.scope.history,
            shows_apps=ctx.scope.shows_apps,
        )
        if not modern:
            task.notify = _StatusNotifier(connection)

        async def report(progress: float, total: float | None = None, message: str | None = None) -> None:
            task.note(message)
            if given.on_progress is None or task.is_over:
                return
            if not task.is_kept:
                await given.on_progress(progress, total, message)
            elif not modern:
                told = {"progress": progress, "total": total, "message": message}
                params = {key: value for key, value in told.items() if value is not None}
                await _notify(connection, PROGRESS, _related({"progressToken": token, **params}, task))

        options = replace(
            given,
            on_progress=report,
            audience=TaskAudience(task, RequestAudience(ctx), connection, answers_later=modern),
            task=TaskRequest(round(task.ttl * 1000), task),
        )

        async def work(task: GatewayTask) -> JsonObject:
            step = options
            while True:
                result = await self._caller.call(scope, name, arguments, step, version)
                if result.get("resultType") != "input_required" or not task.is_kept:
                    return result
                answers = await task.ask_all(result.get("inputRequests") or {})
                # An answer may come hours later.
                scope.client = self._tasks.current(scope.client)
                step = replace(step, input_responses=answers, request_state=result.get("requestState"))

        if (delivery := DELIVERY.get()) is not None:
            # A task that has begun must not begin again elsewhere.
            delivery.sending(repeatable=False)
            delivery.answered()
        self._tasks.start(task, work)

    async def _found(self, ctx: Context, task_id: str) -> GatewayTask:
        """Return a task of the client, if its protocol version has tasks and it declares that it has them.

        Raises:
            MCPError: there is no such task or method for this client.
        """
        if not is_modern(ctx.protocol_version):
            if ctx.protocol_version < TASKS_SINCE:
                raise _unknown(ctx)
        elif not has_tasks(ctx):
            raise missing_capability()
        elif ctx.request is not None:
            header = ctx.request.headers.get(MCP_NAME_HEADER)
            if header is not None and decode_header_value(header) != task_id:
                raise MCPError(HEADER_MISMATCH, f"{MCP_NAME_HEADER} does not match the taskId in the body")
        return await self._tasks.find(ctx.scope.client, task_id)

    def _only(self, ctx: Context, *, modern: bool) -> None:
        if is_modern(ctx.protocol_version) is not modern or ctx.protocol_version < TASKS_SINCE:
            raise _unknown(ctx)

    def _follow(self, ctx: Context, task: GatewayTask) -> None:
        """Tell of a task over the connection by which its client asked last."""
        if not task.is_over:
            self._tasks.notify_by(task, _StatusNotifier(connection_of(ctx)))


class _AcknowledgingSession:
    """The session of a listening client, whose acknowledgement names the tasks that it is told of."""

    def __init__(self, session: ServerSession, task_ids: list[str]) -> None:
        self._session = session
        self._task_ids = task_ids
        self.acknowledged = anyio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    async def send_notification(self, notification: Any, **options: Any) -> None:
        """Send a notification."""
        if isinstance(notification, mcp_types.SubscriptionsAcknowledgedNotification):
            honored = notification.params.notifications.model_copy(update={"taskIds": self._task_ids})
            params = notification.params.model_copy(update={"notifications": honored})
            notification = notification.model_copy(update={"params": params})
        await self._session.send_notification(notification, **options)
        self.acknowledged.set()


def has_tasks(ctx: Context) -> bool:
    """Return True if a client of the stateless era declares the extension in this request."""
    return TASKS in given_capabilities(ctx).declared.get(EXTENSIONS, {})


def missing_capability() -> MCPError:
    """Return the error for what needs the extension that a client did not declare."""
    required: JsonObject = {"requiredCapabilities": {EXTENSIONS: {TASKS: {}}}}
    return MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, "Missing required client capability", required)


def with_tasks(capabilities: JsonObject, version: str) -> JsonObject:
    """Return the capabilities to announce with those for tasks, which are in another place in each era."""
    extensions = {name: given for name, given in capabilities.get(EXTENSIONS, {}).items() if name != TASKS}
    others = {name: given for name, given in capabilities.items() if name != EXTENSIONS}
    if is_modern(version):
        return {**others, EXTENSIONS: {**extensions, TASKS: {}}}
    kept = {**others, **({EXTENSIONS: extensions} if extensions else {})}
    return {**kept, "tasks": CAPABILITY} if version >= TASKS_SINCE else kept


async def _put(ctx: Context, task: GatewayTask, question: TaskQuestion) -> None:
    """Ask the client one question in its request for the result, unless the task ends before."""
    question.is_asked = True
    method, params = question.request["method"], _related(question.request["params"], task)
    try:
        async with anyio.create_task_group() as asking:

            async def withdraw() -> None:
                await question.is_over.wait()
                asking.cancel_scope.cancel()

            asking.start_soon(withdraw)
            try:
                question.settle(await RequestAudience(ctx).ask(method, params, None))
            except MCPError as error:
                question.settle(error)
    finally:
        if question.answer is None:
            # The request ended before the client answered: the next one asks again.
            question.is_asked = False
            task.updates.set()


@dataclass(frozen=True, slots=True)
class _StatusNotifier:
    """Notifies a client of 2025-11-25 of its tasks over one connection."""

    connection: Connection

    async def __call__(self, task: GatewayTask) -> None:
        await _notify(self.connection, STATUS_CHANGED, _core_form(task))


async def _notify(connection: Connection, method: str, params: JsonObject) -> None:
    with anyio.move_on_after(NOTIFY_SECONDS):
        await connection.notify(method, params)


def _related(given: Mapping[str, Any], task: GatewayTask) -> JsonObject:
    """Return params or a result with the task that it belongs to."""
    meta = given.get("_meta")
    return {**given, "_meta": {**(meta if isinstance(meta, dict) else {}), RELATED: {"taskId": task.id}}}


def _core_form(task: GatewayTask) -> JsonObject:
    """Return a task as 2025-11-25 has it, where one whose tool failed has failed."""
    status = TaskStatus.FAILED if task.is_error and task.status is TaskStatus.COMPLETED else task.status
    return {**_form(task, status), "ttl": round(task.ttl * 1000), "pollInterval": round(task.poll_seconds * 1000)}


def _extension_form(task: GatewayTask) -> JsonObject:
    """Return a task as the extension of 2026-07-28 has it."""
    times = {"ttlMs": round(task.ttl * 1000), "pollIntervalMs": round(task.poll_seconds * 1000)}
    return {**_form(task, task.status), **times}


def _form(task: GatewayTask, status: TaskStatus) -> JsonObject:
    return {
        "taskId": task.id,
        "status": status.value,
        **({"statusMessage": task.message} if task.message else {}),
        "createdAt": timestamp(task.created_at),
        "lastUpdatedAt": timestamp(task.updated_at),
    }


def _failure(error: MCPError) -> JsonObject:
    data = {} if error.error.data is None else {"data": error.error.data}
    return {"error": {"code": error.code, "message": error.message, **data}}


def _unknown(ctx: Context) -> MCPError:
    return MCPError(METHOD_NOT_FOUND, "Method not found", ctx.method)
