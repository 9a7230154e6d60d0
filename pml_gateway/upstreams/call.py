"""A request to an upstream: waits for a slot, is sent on a live connection, and fails with the gateway's errors."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from mcp.shared.dispatcher import ProgressFnT

from pml_gateway.delivery import DELIVERY, SENDS, Sends
from pml_gateway.errors import UpstreamProtocolError, UpstreamTimeoutError, UpstreamUnavailableError
from pml_gateway.mcp.connection import Connection
from pml_gateway.mcp.deadlines import Deadline
from pml_gateway.mcp.elicitation import OpenCall
from pml_gateway.mcp.failures import translate
from pml_gateway.mcp.http import SessionUnknownError
from pml_gateway.mcp.negotiation import HANDSHAKE
from pml_gateway.mcp.tasks import TaskRequest
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.breaker import Ticket
from pml_gateway.upstreams.concurrency import Permit
from pml_gateway.upstreams.connector import Connector, UpstreamParts
from pml_gateway.upstreams.faults import repeated
from pml_gateway.upstreams.server_tasks import MAX_FREE_TASKS, CallProgress, TaskableCall
from pml_gateway.upstreams.session_choice import late

READS = frozenset({"completion/complete", "prompts/get", "resources/read"})
"""Methods that change nothing, whatever their params."""


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """A request with its time limit: `limit` seconds for the answer, which end at `deadline` (`anyio.current_time`).

    Progress extends the deadline by `limit`, at most until `end`. `quota_key` is the client that its slot counts for.
    """

    method: str
    params: JsonObject
    on_progress: ProgressFnT | None
    limit: float
    deadline: float
    end: float
    quota_key: str
    once: bool = False
    """True if it must not reach the upstream twice, whatever the server says of it."""
    task: TaskRequest | None = None
    """Given if the client wants the upstream to run the call as a task."""

    @property
    def subject(self) -> tuple[str, str]:
        """Return the method, and the name of its tool, prompt or resource."""
        return self.method, str(self.params.get("name") or self.params.get("uri") or "")

    @property
    def what(self) -> str:
        """Return the name for messages."""
        return str(self.params.get("name") or self.params.get("uri") or self.method)[:100]


class SessionExpiredError(UpstreamUnavailableError):
    """The server no longer knows the session of one client; the call was not executed."""


class UpstreamCalls:
    """The requests to one upstream, with a limit on how many run at a time."""

    def __init__(self, parts: UpstreamParts, connector: Connector) -> None:
        self._effective = parts.effective
        self._upstream_id = parts.effective.upstream_id
        self._connector = connector
        self._activity = parts.activity
        self._breaker = parts.breaker

    async def send(self, request: UpstreamRequest) -> JsonObject:
        """Send a request on the shared session and return its result; the client is not asked anything meanwhile.

        Raises:
            GatewayError: the request failed.
        """
        check = partial(self._breaker.check, request.quota_key)
        async with self._activity.limit.taken(request.deadline, check, request.quota_key) as permit:
            if self.is_repeatable(request):
                return await repeated(partial(self.attempt, request, permit), request.deadline)
            return await self.attempt(request, permit)

    def is_repeatable(self, request: UpstreamRequest) -> bool:
        """Return True if the request may reach the upstream twice: a read, a list, or a call of an idempotent tool."""
        if request.method == "tools/call":
            return not request.once and request.params.get("name") in self._connector.lister.tool_facts.repeatable
        return request.method in READS or request.method.endswith("/list")

    async def attempt(
        self,
        request: UpstreamRequest,
        permit: Permit,
        call: OpenCall | None = None,
        borrowed: Connection | None = None,
    ) -> JsonObject:
        """Send a request that has its slot, on a borrowed session or the shared one, and wait for the answer.

        The slot is given up once the upstream runs the call as a task. `call` is the request as the upstream may ask in
        it; its time limit is suspended meanwhile.

        Raises:
            SessionExpiredError: the server forgot the borrowed session.
            GatewayError: the request failed.
        """
        with self._breaker.call(request.quota_key, impatient=request.limit < self._effective.call_timeout) as ticket:
            with (
                Deadline(request.deadline, request.end)
                if call is None
                else call.limited(request.deadline, request.end, lambda: self._breaker.succeeded(ticket))
            ) as deadline:
                return await self._answer(request, permit, deadline, ticket, call, borrowed)
            if call is not None and call.failure is not None:
                raise translate(call.failure, self._upstream_id)
            if deadline.was_renewed and deadline.is_at_end:
                raise late(
                    self._upstream_id,
                    request.what,
                    self._effective.call_timeout_total,
                    ticket.executed,
                    "call_timeout_total",
                )
            raise late(self._upstream_id, request.what, request.limit, ticket.executed, renewed=deadline.was_renewed)

    async def _answer(
        self,
        request: UpstreamRequest,
        permit: Permit,
        deadline: Deadline,
        ticket: Ticket,
        call: OpenCall | None,
        borrowed: Connection | None,
    ) -> JsonObject:
        delivery, sends = DELIVERY.get(), SENDS.get() or Sends()
        progress = CallProgress(request.on_progress, deadline, request.limit, is_task=request.task is not None)

        def on_task() -> None:
            # The upstream is alive, and decides itself how many tasks it runs at a time.
            self._breaker.succeeded(ticket)
            if self._activity.in_flight <= MAX_FREE_TASKS:
                permit.give_up()

        for is_last in (False, True):
            connection = borrowed or await self._connector.live()
            if delivery is not None:
                delivery.sending(repeatable=self.is_repeatable(request))
            ticket.sent = True
            # One lost session fails all its calls; over HTTP, each call fails for itself.
            ticket.incident = connection if connection.send_call is None else None
            sends.count += 1
            sent_at = time.perf_counter()
            try:
                with self._activity.sent():
                    is_asked = self._is_task(request, connection)
                    taskable = TaskableCall(
                        self._upstream_id,
                        connection,
                        call,
                        request.task,
                        progress,
                        request.limit,
                        is_asked,
                        on_created=on_task,
                    )
                    result = await taskable.send(request.method, request.params)
                if delivery is not None:
                    delivery.answered()
                return result
            except SessionUnknownError as refused:
                if refused.details["executed"] != "no":
                    raise translate(refused, self._upstream_id) from refused
                # The server executed nothing, so this retry is safe.
                ticket.sent = False
                if is_last:
                    # A new session makes no difference, so the server's own error is more useful.
                    raise translate(refused.__cause__ or refused, self._upstream_id) from refused
                if borrowed is not None:
                    connection.ended.set()
                    raise SessionExpiredError(
                        f"{self._upstream_id}: the session expired", details={"executed": "no"}
                    ) from None
                await self._connector.replace(connection)
            # Translated in one place, whatever the transport raised.
            except Exception as exc:
                error = translate(exc, self._upstream_id)
                if isinstance(error, UpstreamProtocolError):
                    error.details.setdefault("executed", "yes")
                elif isinstance(error, UpstreamUnavailableError | UpstreamTimeoutError):
                    error.details.setdefault("executed", "unknown")
                raise error from exc
            finally:
                sends.seconds += time.perf_counter() - sent_at
        raise AssertionError("the last attempt returns or raises")

    def _is_task(self, request: UpstreamRequest, connection: Connection) -> bool:
        """Return True if an upstream of 2025-11-25 runs the call as a task: it is wanted and can be, or must be."""
        if request.method != "tools/call":
            return False
        support = self._connector.lister.tool_facts.task_support.get(str(request.params.get("name")))
        if support != "required" and (support is None or request.task is None):
            return False
        return connection.era == HANDSHAKE and connection.session.peer_capabilities.runs_tasks()
