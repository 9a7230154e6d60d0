"""Calls suspended until their client answers a question.

A handshake upstream asks in the middle of a call and waits; a client of the stateless protocol gets the question as
the result of its request and answers with another request. In between, the call is kept here.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
from mcp.shared.dispatcher import ProgressFnT

from pml_gateway.delivery import DELIVERY, Delivery
from pml_gateway.errors import ErrorCode, ToolCallError, UpstreamUnavailableError
from pml_gateway.mcp.deadlines import forget_limits
from pml_gateway.mcp.elicitation import Audience, Capabilities
from pml_gateway.quotas import Holdings
from pml_gateway.signal import Signal
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.dialogue.background import Background

SETTLE_SECONDS = 0.02
"""Seconds within which questions are collected and asked together."""

MAX_WAITING = 512
"""Maximum number of suspended calls of one upstream; past it, the client with most of them loses its oldest."""


class StateUnknownError(ToolCallError):
    """No call of this client waits under this state; unknown, foreign and expired states look the same."""

    code = ErrorCode.NOT_FOUND


class _Question:
    """One question, and its answer once it has arrived."""

    def __init__(self, method: str, params: JsonObject) -> None:
        # These keys concern only the session between the upstream and the gateway.
        params = {key: value for key, value in params.items() if key not in ("_meta", "task", "elicitationId")}
        self.request: JsonObject = {"method": method, **({"params": params} if params else {})}
        self.answered = anyio.Event()
        self.response: JsonObject = {}


class SuspendedCall:
    """One call whose client comes and goes; to its upstream, it acts as the client."""

    def __init__(self, audience: Audience, on_progress: ProgressFnT | None) -> None:
        self.scope = anyio.CancelScope()
        self._present: Audience | None = audience
        self._on_progress = on_progress
        self._last = audience
        self._questions: dict[str, _Question] = {}
        self._asked = 0
        self._changed = Signal()
        self._outcome: list[JsonObject | Exception] = []
        self._taken = anyio.Event()

    @property
    def client_id(self) -> str:
        """Return the id of the client that it belongs to."""
        return self._last.client_id

    @property
    def share(self) -> str:
        """Return the client that it counts for."""
        return self._last.share

    @property
    def is_one_client(self) -> bool:
        """Return True if this id stands for one client only."""
        return self._last.is_one_client

    @property
    def client_capabilities(self) -> Capabilities:
        """Return the capabilities of its client at the start."""
        return self._last.client_capabilities

    @property
    def answers_later(self) -> bool:
        """Return False: the call itself waits for the client."""
        return False

    @property
    def log_level(self) -> str | None:
        """Return the log level of its client."""
        return self._last.log_level

    async def ask(self, method: str, params: JsonObject, on_progress: ProgressFnT | None) -> JsonObject:
        """Wait for the answer, which comes with another request."""
        self._asked += 1
        key = f"q{self._asked}"
        question = self._questions[key] = _Question(method, params)
        self._changed.set()
        try:
            await question.answered.wait()
        finally:
            del self._questions[key]
            self._changed.set()
        return question.response

    async def tell(self, method: str, params: JsonObject) -> None:
        """Pass on a notice if a request of the client is open."""
        if self._present is not None:
            await self._present.tell(method, params)

    async def let_go(self) -> None:
        """Do nothing: the client comes and goes anyway."""

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Pass on progress if a request of the client is open."""
        if self._present is not None and self._on_progress is not None:
            await self._on_progress(progress, total, message)

    async def finish(self, send: Callable[[], Awaitable[JsonObject]], *, linger: float) -> None:
        """Run the call to its end even without a waiting client, and keep its outcome for a client that is away."""
        # The limits of the request that began it do not apply.
        forget_limits()
        try:
            with self.scope:
                try:
                    self._outcome.append(await send())
                # Raised again in the request that waits for it.
                except Exception as exc:  # noqa: BLE001
                    self._outcome.append(exc)
                self._changed.set()
                with anyio.move_on_after(linger):
                    await self._taken.wait()
        finally:
            if not self._outcome:
                self._outcome.append(UpstreamUnavailableError("the call was given up while it waited for its client"))
            self._changed.set()

    def attach(self, audience: Audience, on_progress: ProgressFnT | None, responses: Mapping[str, Any]) -> None:
        """Attach a request of the client, with its answers."""
        self.scope.deadline = float("inf")
        self._present = self._last = audience
        self._on_progress = on_progress
        for key, response in responses.items():
            question = self._questions.get(key)
            if question is not None and isinstance(response, dict):
                question.response = response
                question.answered.set()

    def detach(self, seconds: float) -> None:
        """Note that the client was asked; it has `seconds` to come back."""
        self._present = None
        self.scope.deadline = anyio.current_time() + seconds

    def give_up(self) -> None:
        """Cancel the call, as its result is no longer wanted."""
        self.scope.cancel()
        self._taken.set()

    async def next(self) -> JsonObject | None:
        """Wait for and return the result of the call; None once it waits for its client.

        Raises:
            GatewayError: the call failed.
        """
        while not self._outcome:
            if self._open():
                await anyio.sleep(SETTLE_SECONDS)
                if self._open() and not self._outcome:
                    return None
                continue
            await self._changed.wait()
        self._taken.set()
        outcome = self._outcome[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    @property
    def requests(self) -> JsonObject:
        """Return the questions without an answer."""
        return {key: question.request for key, question in self._open().items()}

    def _open(self) -> dict[str, _Question]:
        return {key: each for key, each in self._questions.items() if not each.answered.is_set()}


Send = Callable[[SuspendedCall], Awaitable[JsonObject]]


class SuspendedCalls:
    """The calls of one upstream that run apart from the requests of their clients."""

    def __init__(self, upstream_id: str, background: Background, question_timeout: float) -> None:
        self._upstream_id = upstream_id
        self._background = background
        self._question_timeout = question_timeout
        self._waiting: dict[str, SuspendedCall] = {}
        self._held: Holdings[str] = Holdings()

    def __len__(self) -> int:
        return len(self._waiting)

    async def begin(self, audience: Audience, on_progress: ProgressFnT | None, send: Send) -> JsonObject:
        """Start a call; return its result, or the interim result with questions."""
        call = SuspendedCall(audience, on_progress)

        async def run() -> None:
            try:
                await call.finish(lambda: send(call), linger=self._question_timeout)
            finally:
                for state in [state for state, waiting in self._waiting.items() if waiting is call]:
                    self._forget(state)

        self._background.start(run)
        return await self._follow(call)

    async def resume(
        self, audience: Audience, on_progress: ProgressFnT | None, state: str, responses: Mapping[str, Any]
    ) -> JsonObject:
        """Continue a call; return as `begin`.

        Raises:
            StateUnknownError: no call of this client waits under this state.
        """
        call = self._waiting.get(state)
        if call is None or call.client_id != audience.client_id:
            raise StateUnknownError(
                f"no call to {self._upstream_id} waits under this requestState",
                hint=f"send the same request within {self._question_timeout:g} s and once; else start it anew",
            )
        self._forget(state)
        delivery = DELIVERY.get()
        if delivery is not None:
            # The call itself runs in the context of the request that began it.
            delivery.sending(repeatable=False)
        call.attach(audience, on_progress, responses)
        return await self._follow(call, delivery)

    def end_client(self, client_id: str) -> None:
        """Give up the calls that wait for a client that does not come back."""
        for state in [state for state, call in self._waiting.items() if call.client_id == client_id]:
            self._forget(state).give_up()

    async def _follow(self, call: SuspendedCall, delivery: Delivery | None = None) -> JsonObject:
        try:
            result = await call.next()
        except anyio.get_cancelled_exc_class():
            # The client left, and no other request waits for the result.
            call.give_up()
            raise
        if result is not None:
            if delivery is not None:
                delivery.answered()
            return result
        state = secrets.token_urlsafe(24)
        self._waiting[state] = call
        self._held.note(state, call.share)
        while len(self._held) > MAX_WAITING and (oldest := self._held.first_to_go()) is not None:
            self._forget(oldest).give_up()
        call.detach(self._question_timeout)
        return {"resultType": "input_required", "inputRequests": call.requests, "requestState": state}

    def _forget(self, state: str) -> SuspendedCall:
        self._held.forget(state)
        return self._waiting.pop(state)
