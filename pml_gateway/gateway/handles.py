"""Handles of calls that their servers run as tasks, for clients that have no tasks and cannot wait."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import anyio
from mcp.shared.exceptions import MCPError

from pml_gateway.errors import GatewayError
from pml_gateway.gateway.request import CallOptions
from pml_gateway.gateway.task import GatewayTask
from pml_gateway.gateway.tasks import Tasks
from pml_gateway.mcp.tasks import TaskRequest
from pml_gateway.policy.principal import Principal
from pml_gateway.results.answers import error_result
from pml_gateway.results.content import data_result
from pml_gateway.results.settle import Call, Settler
from pml_gateway.results.stored import StoredResult, timestamp
from pml_gateway.types import JsonObject

EARLIER_SECONDS = 5.0
"""Seconds before the time limit at which a handle is given: many clients wait as long as the gateway does by default,
and must have the answer before they give up."""

READ_SECONDS = 20.0
"""Seconds that a reader of a running call waits for its end, so that a model does not ask in a loop."""


class CallEndedError(GatewayError):
    """A call whose client has a handle ended without a result."""


Send = Callable[[CallOptions], Awaitable[JsonObject]]
"""Sends the call with these options, and returns the result."""


class HandledCall:
    """A call that goes on apart from its request once its client has its handle.

    Args:
        tasks: of the gateway.
        settler: stores the result.
        call: what is called, by whom.
        options: those of the request.
        held: what the call holds until it ends, such as its places under limits.
    """

    def __init__(self, tasks: Tasks, settler: Settler, call: Call, options: CallOptions, held: AsyncExitStack) -> None:
        self._tasks = tasks
        self._settler = settler
        self._call = call
        self._options = options
        self._held = held

    async def result(self, send: Send, limit: float) -> JsonObject | None:
        """Return the result, or None if the call goes on and the client gets its `handle`.

        A client that wants progress is told of it and waits. Another one waits for about `limit` seconds.

        Raises:
            GatewayError: the call failed.
            MCPError: the server answered with an error.
        """
        self.task = task = self._tasks.new(self._call.client, self._call.tool.qualified_name)
        task.tools.add((self._call.tool.upstream_id, self._call.tool.name))
        options = replace(self._options, task=TaskRequest(observer=task), on_progress=self._report)
        failures: list[GatewayError] = []

        async def work(task: GatewayTask) -> JsonObject:
            try:
                return await send(options)
            except GatewayError as error:
                failures.append(error)
                return error_result(error)
            finally:
                if task.is_kept:
                    await self._held.aclose()

        self._tasks.start(task, work, self._store)
        patience = None if self._options.on_progress is not None else max(limit - EARLIER_SECONDS, limit / 2)
        try:
            with anyio.move_on_after(patience):
                await task.updates.until(lambda: task.is_over)
            # A call that its server does not run as a task has the time limit of the server.
            await task.updates.until(lambda: task.is_over or task.is_of_server)
        except anyio.get_cancelled_exc_class():
            task.scope.cancel()
            raise
        if not task.is_over:
            self._held = self._held.pop_all()
            await self._tasks.keep(task)
            return None
        if failures:
            raise failures[0]
        return await self._tasks.result_of(task.client, task)

    def handle(self) -> JsonObject:
        """Return the answer that says how to read the result later.

        Clients check answers against the output schema that a tool declares, but not errors. In such a call the handle
        is therefore an error.
        """
        is_checked = self._call.route == "direct" and "outputSchema" in self._call.tool.definition
        return data_result(running(self.task), is_error=is_checked)

    async def _report(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        self.task.note(message)
        if self._options.on_progress is not None and not self.task.is_kept:
            await self._options.on_progress(progress, total, message)

    async def _store(self, task: GatewayTask, result: JsonObject) -> StoredResult | None:
        return await self._settler.keep(self._call, result, task.ref, task.expires_at)


def running(task: GatewayTask) -> JsonObject:
    """Return what is said of a call that is not over."""
    return {
        "ref": task.ref,
        "status": task.status.value,
        "seconds": round(time.time() - task.created_at),
        **({"message": task.message} if task.message else {}),
        "next": f'read_result {{"ref": "{task.ref}"}}',
        "expires_at": timestamp(task.expires_at),
    }


async def await_handle(tasks: Tasks, client: Principal, ref: str) -> JsonObject | None:
    """Wait a moment for the end of a call whose handle is read; return its state if it still runs, or None.

    Raises:
        CallEndedError: it ended without a result.
        SharedStateError: another gateway runs it, and Redis does not answer.
    """
    task = await tasks.find_by_ref(client, ref)
    if task is None:
        return None
    with tasks.following(task), anyio.move_on_after(READ_SECONDS):
        await task.updates.until(lambda: task.is_over)
    if not task.is_over:
        return running(task)
    if isinstance(task.outcome, MCPError):
        raise CallEndedError(task.outcome.message, details={"executed": "unknown"})
    return None
