"""Calls suspended until their client answers a question.

A handshake upstream asks in the middle of a call and waits; a client of the stateless protocol gets the question as
the result of its request and answers with another request. In between, the call is kept here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
from mcp.shared.dispatcher import ProgressFnT

from pml_gateway.background import Background
from pml_gateway.delivery import DELIVERY, Delivery
from pml_gateway.errors import UpstreamUnavailableError
from pml_gateway.mcp.deadlines import forget_limits
from pml_gateway.mcp.elicitation import Audience
from pml_gateway.signal import Signal
from pml_gateway.storage.pending import PendingTable
from pml_gateway.types import JsonObject

SETTLE_SECONDS = 0.02
"""Seconds within which questions are collected and asked together."""


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

    answers_later = False
    """The call itself waits for the client."""

    def __init__(self, audience: Audience, on_progress: ProgressFnT | None, request: Callable[[], str]) -> None:
        self.request = request
        self.scope = anyio.CancelScope()
        self.client_id = audience.client_id
        self.quota_key = audience.quota_key
        self.is_one_client = audience.is_one_client
        self._return(audience, on_progress)
        self._questions: dict[str, _Question] = {}
        self._asked = 0
        self._changed = Signal()
        self._outcome: list[JsonObject | Exception] = []
        self._taken = anyio.Event()

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

    def attach(self, audience: Audience, on_progress: ProgressFnT | None, responses: JsonObject) -> None:
        """Attach a request of the client, with its answers."""
        self.scope.deadline = float("inf")
        self._return(audience, on_progress)
        for key, response in responses.items():
            question = self._questions.get(key)
            if question is not None and isinstance(response, dict):
                question.response = response
                question.answered.set()

    def _return(self, audience: Audience, on_progress: ProgressFnT | None) -> None:
        self._present: Audience | None = audience
        self._on_progress = on_progress
        self.client_capabilities = audience.client_capabilities
        self.log_level = audience.log_level

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
        self._background = background
        self._question_timeout = question_timeout
        self._pending: PendingTable[SuspendedCall] = PendingTable(
            f"call to {upstream_id}", question_timeout, give_up=SuspendedCall.give_up
        )

    async def begin(
        self, audience: Audience, on_progress: ProgressFnT | None, request: Callable[[], str], send: Send
    ) -> JsonObject:
        """Start a call; return its result, or the interim result with questions; `request` gives its fingerprint."""
        call = SuspendedCall(audience, on_progress, request)

        async def run() -> None:
            try:
                await call.finish(lambda: send(call), linger=self._question_timeout)
            finally:
                self._pending.drop(lambda waiting: waiting is call)

        self._background.start(run)
        return await self._follow(call)

    async def resume(
        self, audience: Audience, on_progress: ProgressFnT | None, request: str, state: str, responses: JsonObject
    ) -> JsonObject:
        """Continue a call; return as `begin`.

        Raises:
            PendingNotFoundError: no call of this client and request waits under this state.
        """
        call = self._pending.take(state, owner=audience.client_id, fingerprint=request)
        delivery = DELIVERY.get()
        if delivery is not None:
            # The call itself runs in the context of the request that began it.
            delivery.sending(repeatable=False)
        call.attach(audience, on_progress, responses)
        return await self._follow(call, delivery)

    def end_client(self, client_id: str) -> None:
        """Give up the calls that wait for a client that does not come back."""
        self._pending.drop(lambda call: call.client_id == client_id)

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
        state = self._pending.add(call, owner=call.client_id, quota_key=call.quota_key, fingerprint=call.request())
        call.detach(self._question_timeout)
        return {"resultType": "input_required", "inputRequests": call.requests, "requestState": state}
