"""Questions (elicitation, sampling, roots) and notifications of an upstream during a call, passed to its client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol, TypeAlias

import anyio
from cachetools import FIFOCache
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import INVALID_REQUEST, METHOD_NOT_FOUND, REQUEST_TIMEOUT

from pml_gateway.errors import GatewayError
from pml_gateway.mcp.capabilities import NO_CAPABILITIES, REQUIRED_BY, ClientCapabilities, is_of_protocol
from pml_gateway.mcp.deadlines import Deadline, paused, running
from pml_gateway.mcp.tasks import related_task
from pml_gateway.signal import Signal
from pml_gateway.types import JsonObject

WITHDRAW_SECONDS = 2.0
"""Time limit in seconds for withdrawing a call's open questions when it ends."""

MAX_URLS = 256
"""Maximum number of URL elicitations per session whose completion is still passed on; the oldest are dropped."""

LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")

LOG = "notifications/message"
ELICITATION_COMPLETE = "notifications/elicitation/complete"
TOLD = frozenset({LOG, ELICITATION_COMPLETE})
"""Notifications that belong to the client of a call."""

ROOTS = "roots/list"
"""The question about the client's roots: servers ask it at the start of a session or after changes, and cache it."""

OnAsked = Callable[[str], None]
"""Called for each question of a server, with the client capability that it requires."""

Lend = Callable[[], AbstractAsyncContextManager[None]]

Party: TypeAlias = "str | OpenCall"
"""The addressee of questions on a session shared by several clients: a client id, or a call."""


class Audience(Protocol):
    """The client of a call, as its upstream can reach it."""

    @property
    def client_id(self) -> str:
        """Return the client's id; session data of one client is never used for another."""

    @property
    def quota_key(self) -> str:
        """Return the key that the resources of its calls are counted for."""

    @property
    def is_one_client(self) -> bool:
        """Return True if everyone with this id is the same client; anonymous clients are not."""

    @property
    def client_capabilities(self) -> ClientCapabilities:
        """Return the questions it supports."""

    @property
    def answers_later(self) -> bool:
        """Return True if questions are a result of its request, and answers come with the next one."""

    @property
    def log_level(self) -> str | None:
        """Return the least severe log level it wants; None if it has not said."""

    async def ask(self, method: str, params: JsonObject, on_progress: ProgressFnT | None) -> JsonObject:
        """Ask the client one question and return its answer.

        Raises:
            MCPError: the client refuses or fails.
        """

    async def tell(self, method: str, params: JsonObject) -> None:
        """Pass on one notification, if the client is still connected."""

    async def let_go(self) -> None:
        """End the stream of its request, as the upstream did with ours; the client reconnects for the answer."""


class OpenCall:
    """One request to an upstream, from before it is sent until it is answered.

    On a session of several clients, a call `is_proven` if its tool has never asked anything before, and
    `was_questioned` if it may have asked this time; one that `is_repeatable` may be sent again. `party` is the
    addressee of its questions: the client, or this call if its client is asked by a result. `failure` is the error with
    which the gateway itself ended it.
    """

    def __init__(self, audience: Audience, question_timeout: float) -> None:
        self.audience = audience
        self.party: Party = audience.client_id
        self.asked_roots = False
        self.has_asked = False
        self.is_proven = False
        self.is_repeatable = False
        self.was_questioned = False
        self.failure: GatewayError | None = None
        self.lend_place: Lend = nullcontext
        self._question_timeout = question_timeout
        self._deadlines = running()
        self._when_asked: Callable[[], None] = lambda: None
        self._limit = Deadline()
        self._questions: set[anyio.CancelScope] = set()
        self.has_ended = False
        self._withdrawn = Signal()

    @contextmanager
    def limited(self, deadline: float, end: float, when_asked: Callable[[], None]) -> Iterator[Deadline]:
        """Limit the rest of the call to a deadline, renewable up to `end`; `when_asked` is called for each question."""
        with Deadline(deadline, end) as self._limit:
            self._deadlines = running()
            self._when_asked = when_asked
            yield self._limit

    def fail(self, error: GatewayError) -> None:
        """End the call with an error, while it is `limited`."""
        self.failure = error
        self._limit.cancel()

    def held(self) -> AbstractContextManager[None]:
        """Stop the clock of the call's time limits in this context."""
        return paused(self._deadlines)

    async def answer(self, method: str, params: JsonObject, on_progress: ProgressFnT | None = None) -> JsonObject:
        """Ask the client one question of the upstream and return its answer.

        Raises:
            MCPError: the client does not support it, refuses, or does not answer, or its call is over.
        """
        if self.has_ended:
            raise too_late()
        self.was_questioned = True
        refusal = self.audience.client_capabilities.refusal(method, params)
        if refusal is not None:
            raise MCPError(*refusal)
        self.has_asked = True
        self._when_asked()
        self.asked_roots = self.asked_roots or method == ROOTS
        with anyio.CancelScope() as scope:
            self._questions.add(scope)
            try:
                with paused(self._deadlines):
                    async with self.lend_place():
                        return await self.ask(method, params, on_progress)
            finally:
                self._questions.discard(scope)
                self._withdrawn.set()
        raise too_late()

    async def ask(self, method: str, params: JsonObject, on_progress: ProgressFnT | None) -> JsonObject:
        """Ask the client a question, even if the call is over, and return its answer.

        Raises:
            MCPError: the client refuses or does not answer.
        """
        with anyio.move_on_after(self._question_timeout):
            return await self.audience.ask(method, params, on_progress)
        raise MCPError(REQUEST_TIMEOUT, f"no answer within {self._question_timeout:g} s")

    async def tell(self, method: str, params: JsonObject) -> None:
        """Pass on a notification that the upstream sends during the call."""
        if self.has_ended or (method == LOG and not wants_log(self.audience.log_level, params)):
            return
        if method not in TOLD and not is_extended(self.audience.client_capabilities, method):
            return
        await self.audience.tell(method, params)

    async def end(self) -> None:
        """Withdraw open questions; later ones are refused."""
        self.has_ended = True
        if not self._questions:
            return
        for scope in self._questions:
            scope.cancel()
        with anyio.move_on_after(WITHDRAW_SECONDS, shield=True):
            await self._withdrawn.until(lambda: not self._questions)


class RunningTask(Protocol):
    """A task that the peer made of a call; `call` is given if its client can be asked."""

    call: OpenCall | None

    def note(self, task: JsonObject) -> None:
        """Note the state of the task, of which the peer has sent a notification."""


class Questions:
    """The open calls of one session, to which its peer's questions and notifications are assigned."""

    def __init__(
        self, client_capabilities: ClientCapabilities = NO_CAPABILITIES, on_asked: OnAsked = lambda _name: None
    ) -> None:
        self.client_capabilities = client_capabilities
        self._tell_asked = on_asked
        self.log_level: str | None = None
        self._calls: list[OpenCall] = []
        self._latest: OpenCall | None = None
        self._urls: FIFOCache[str, Audience] = FIFOCache(MAX_URLS)
        self._tasks: dict[str, RunningTask] = {}

    @contextmanager
    def following(self, task_id: str, task: RunningTask) -> Iterator[None]:
        """Assign messages that name a task of the peer to it, in this context."""
        self._tasks[task_id] = task
        try:
            yield
        finally:
            self._tasks.pop(task_id, None)

    def call_of_task(self, params: Mapping[str, Any]) -> OpenCall | None:
        """Return the call whose task a message names, if it runs on this session."""
        task = self._tasks.get(related_task(params))
        return None if task is None else task.call

    def note_task(self, params: JsonObject) -> None:
        """Pass on the state of a task of the peer to whoever follows it."""
        task = self._tasks.get(str(params.get("taskId")))
        if task is not None:
            task.note(params)

    def add(self, call: OpenCall) -> None:
        """Assign the peer's following messages to this call, unless they name another."""
        self._calls.append(call)
        self._latest = call

    async def remove(self, call: OpenCall) -> None:
        """Remove a call that is over."""
        self._calls.remove(call)
        await call.end()

    @property
    def wanted_log_level(self) -> str | None:
        """Return the log level to set when the session starts; None if it is sent with the calls."""
        return None

    def during(self, _call: OpenCall | None) -> AbstractContextManager[None]:
        """Return a context for one request on the session; only sessions shared by clients track it."""
        return nullcontext()

    def note_asked(self, method: str) -> None:
        """Report a question of the peer to `on_asked`."""
        if (name := REQUIRED_BY.get(method)) is not None:
            self._tell_asked(name)

    def remember_url(self, params: Mapping[str, Any], audience: Audience) -> None:
        """Remember the audience of a URL elicitation, whose completion is notified long after the call."""
        if isinstance(elicitation := params.get("elicitationId"), str):
            self._urls[elicitation] = audience

    async def answer(
        self, method: str, params: JsonObject, call: OpenCall | None = None, on_progress: ProgressFnT | None = None
    ) -> JsonObject:
        """Answer a question of the peer; `call` is given if the transport identifies it."""
        self.note_asked(method)
        asked = call or (self._calls[-1] if self._calls else None)
        if asked is not None:
            self.remember_url(params, asked.audience)
            try:
                return await asked.answer(method, params, on_progress)
            except MCPError:
                if not (asked.has_ended and self._outlives_calls(method)):
                    raise
        if self._latest is not None and self._outlives_calls(method):
            return await self._latest.ask(method, params, on_progress)
        if self.client_capabilities.announces(REQUIRED_BY.get(method)):
            raise too_late()
        raise MCPError(METHOD_NOT_FOUND, f"{method} is not supported")

    def _outlives_calls(self, method: str) -> bool:
        """Return True if the client can be asked this between its calls; a stateless one cannot."""
        announced = self.client_capabilities
        can_be_asked = announced.announces("roots") if method == ROOTS else is_extended(announced, method)
        return can_be_asked and self._latest is not None and not self._latest.audience.answers_later

    async def tell(self, method: str, params: JsonObject, call: OpenCall | None = None) -> None:
        """Pass on a notification; drop those outside of any call."""
        if method == ELICITATION_COMPLETE:
            audience = self._urls.pop(str(params.get("elicitationId")), None)
            if audience is not None:
                await audience.tell(method, params)
            return
        told = call or (self._calls[-1] if self._calls else None)
        if told is not None:
            await told.tell(method, params)
        elif self._latest is not None and self._outlives_calls(method):
            await self._latest.audience.tell(method, params)


def is_extended(client_capabilities: ClientCapabilities, method: str) -> bool:
    """Return True if a method may belong to an extension of this client."""
    return bool(client_capabilities.extended) and not is_of_protocol(method)


def wants_log(level: str | None, params: Mapping[str, Any]) -> bool:
    """Return True if a log message is as severe as the client wants."""
    given = params.get("level")
    if level is None or given not in LOG_LEVELS:
        return True
    return LOG_LEVELS.index(given) >= LOG_LEVELS.index(level)


def too_late() -> MCPError:
    """Return the refusal of a question whose call is already over."""
    return MCPError(INVALID_REQUEST, "the call this question belongs to is over")
