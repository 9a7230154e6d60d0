"""The one client of a gateway over stdio: upstreams' shared sessions are opened, asked and told in its name.

The questions of a handshake session do not say which call they belong to. Where all calls are one client's they need
not: whichever call it is, the same client is asked, and the calls that may have caused the question wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import anyio
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import REQUEST_TIMEOUT

from pml_gateway.mcp.connection import MODERN, Connection
from pml_gateway.mcp.elicitation import (
    LOG,
    NO_CAPABILITIES,
    ROOTS,
    Audience,
    Capabilities,
    OpenCall,
    Questions,
    too_late,
    wants_log,
)
from pml_gateway.types import JsonObject


class StdioClient:
    """What is known of the client: nothing before its first request.

    `audience` reaches it between its requests as well, which a stateless client cannot be.
    """

    def __init__(self) -> None:
        self.name = ""
        self.client_capabilities = NO_CAPABILITIES
        self.audience: Audience | None = None
        self.known = anyio.Event()

    def introduce(self, name: str, client_capabilities: Capabilities, audience: Audience | None) -> None:
        """It said who it is and what it can be asked."""
        self.name, self.client_capabilities, self.audience = name, client_capabilities, audience
        self.known.set()

    def shares(self, audience: Audience, era: str) -> bool:
        """Whether a call of it needs no session beside the shared one.

        A stateless client that a handshake upstream may ask does: its questions are results, each of one call.
        """
        return era == MODERN or not audience.answers_later

    def is_misrepresented(self, connection: Connection | None) -> bool:
        """Whether there is a connection that announced something else than what it can be asked."""
        return connection is not None and connection.session.questions.client_capabilities != self.client_capabilities


class SharedQuestions(Questions):
    """What is asked and told on a session that all calls of the one client share."""

    def __init__(self, client: StdioClient, question_timeout: float) -> None:
        super().__init__(client.client_capabilities)
        self._client = client
        self._question_timeout = question_timeout
        self._open: list[_OpenQuestion] = []

    @property
    def wanted_log_level(self) -> str | None:
        """What the client said, if it did."""
        return None if (audience := self._client.audience) is None else audience.log_level

    @contextmanager
    def during(self, call: OpenCall) -> Iterator[None]:
        """Have a call wait for what is asked meanwhile."""
        for question in self._open:
            # A server that waits for its answer may serve nothing else.
            question.hold(call)
        self.add(call)
        try:
            yield
        finally:
            self._calls.remove(call)
            for question in self._open:
                question.is_without(call)

    async def answer(
        self, method: str, params: JsonObject, call: OpenCall | None = None, on_progress: ProgressFnT | None = None
    ) -> JsonObject:
        """The client's answer; it is withdrawn when all calls that may have caused the question are over."""
        audience = self._client.audience
        if call is not None or audience is None:
            return await super().answer(method, params, call, on_progress)
        if (refusal := self.client_capabilities.refusal(method, params)) is not None:
            raise MCPError(*refusal)
        self.remember_url(params, audience)
        with _OpenQuestion(self._calls, outlives_calls=method == ROOTS) as question:
            self._open.append(question)
            try:
                with question.scope:
                    with anyio.move_on_after(self._question_timeout):
                        return await audience.ask(method, params, on_progress)
                    raise MCPError(REQUEST_TIMEOUT, f"no answer within {self._question_timeout:g} s")
            finally:
                self._open.remove(question)
        raise too_late()

    async def tell(self, method: str, params: JsonObject, call: OpenCall | None = None) -> None:
        """Pass on a notice; logs that belong to no call are the client's as well."""
        if method != LOG or call is not None:
            await super().tell(method, params, call)
        elif (audience := self._client.audience) is not None:
            if wants_log(audience.log_level, params):
                await audience.tell(method, params)
        elif (heard := next((each for each in self._calls if each.audience.log_level is not None), None)) is not None:
            await heard.tell(method, params)


class _OpenQuestion:
    """One question, and the calls whose time limits stand still for it."""

    def __init__(self, calls: Sequence[OpenCall], *, outlives_calls: bool) -> None:
        self.scope = anyio.CancelScope()
        self._causes = set() if outlives_calls else set(calls)
        self._held = ExitStack()
        for call in calls:
            call.has_asked = True
            self.hold(call)

    def __enter__(self) -> _OpenQuestion:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def hold(self, call: OpenCall) -> None:
        """Let no time pass for this call."""
        self._held.enter_context(call.held())

    def is_without(self, call: OpenCall) -> None:
        """A call is over; if it was the last that may have caused the question, so is the question."""
        if call in self._causes:
            self._causes.remove(call)
            if not self._causes:
                self.scope.cancel()
