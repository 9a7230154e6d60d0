"""Questions and notices on a session that several clients share.

The questions of a handshake session do not name their call, and the answer to a call does not end what the call
started: a server may work on, and ask minutes later. So a question is certain only if one client alone has ever used
the session: that client is asked, and the calls that may have caused the question wait for the answer. Once a second
client has used the session, no client is asked there any more. A stateless client is asked by the result of the very
call, so among several of its calls, the right one must be certain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import anyio
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import INVALID_REQUEST, METHOD_NOT_FOUND, REQUEST_TIMEOUT

from pml_gateway.errors import ErrorCode, UpstreamError
from pml_gateway.mcp.capabilities import ClientCapabilities, union
from pml_gateway.mcp.elicitation import (
    ELICITATION_COMPLETE,
    LOG,
    ROOTS,
    Audience,
    OnAsked,
    OpenCall,
    Party,
    Questions,
    too_late,
    wants_log,
)
from pml_gateway.signal import Signal
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.dialogue.local_clients import LocalClient, LocalClients

HELD_SECONDS = 30.0
"""Seconds that a question waits until its call is certain; time limits of the calls it may belong to are suspended."""

UNNAMED = ""
"""Client id of the gateway's own requests."""


class UnclearQuestionError(UpstreamError):
    """The server asked something during calls of several clients, and no client could be asked."""

    code = ErrorCode.CANCELLED
    retryable = True


def unclear() -> UnclearQuestionError:
    """Return the error for a call that may have asked."""
    return UnclearQuestionError(
        "the server asked something in a process that several clients use, or during several calls of a stateless one, "
        "and it could not be told whose question it was",
        hint="call again: clients that can be asked have sessions of their own at this server from now on",
        details={"executed": "unknown"},
    )


@dataclass(frozen=True, slots=True)
class QuestionHooks:
    """The handlers of a session's questions.

    `on_unproven` is called if a call may have asked, though it was known not to, `on_outdated` if other clients need
    another session.
    """

    on_asked: OnAsked
    on_unproven: Callable[[], None] = lambda: None
    on_outdated: Callable[[], None] = lambda: None


class SharedQuestions(Questions):
    """The questions and notices of a session that local clients share; if there is only one, all are for it.

    `in_order` is True if a question never comes after the answer to its call.
    """

    def __init__(
        self, local: LocalClients, question_timeout: float, hooks: QuestionHooks, *, in_order: bool = True
    ) -> None:
        super().__init__(local.client_capabilities, hooks.on_asked)
        self._local = local
        self._question_timeout = question_timeout
        self._hooks = hooks
        self._in_order = in_order
        self._open: list[_OpenQuestion] = []
        self._unnamed = 0
        self._users: set[str] = set()
        self._unanswered: set[str] = set()
        self._roots_of: str | None = None
        self._ended = Signal()

    @property
    def wanted_log_level(self) -> str | None:
        """Return the log level of the only client, if it set one."""
        audience = self._only_audience
        return None if audience is None else audience.log_level

    @property
    def is_outdated(self) -> bool:
        """Return True if the peer was told capabilities or roots that no longer apply."""
        return self.client_capabilities != self._local.client_capabilities or (
            self._roots_of is not None and self._local.has_several
        )

    def serves(self, client_id: str, client_capabilities: ClientCapabilities) -> bool:
        """Return True if a client's calls may run here: the peer knows its capabilities, and no other roots."""
        if self._roots_of not in (None, client_id):
            return False
        announced, given = self.client_capabilities.plain, client_capabilities.plain
        return given == announced or union(announced, given) == announced

    def is_used_by(self, client_id: str) -> bool:
        """Return True if a call of this client has ever run on the session."""
        return client_id in self._users

    def is_used_beside(self, client_id: str) -> bool:
        """Return True if a call of another client has, so that no client can be asked there any more."""
        return not self._users <= {client_id}

    @property
    def is_unused(self) -> bool:
        return not self._calls and not self._unnamed

    async def until_unused(self) -> None:
        await self._ended.until(lambda: self.is_unused)

    def add(self, call: OpenCall) -> None:
        """Do nothing: a call is noted while it is sent (`during`)."""

    async def remove(self, call: OpenCall) -> None:
        await call.end()

    @contextmanager
    def during(self, call: OpenCall | None) -> Iterator[None]:
        """Make a call wait for questions asked meanwhile; None is a request during which no client can be asked."""
        client_id, is_answered = UNNAMED, False
        if call is None:
            self._unnamed += 1
        else:
            client_id = call.audience.client_id
            for question in self._open:
                # A server that waits for the answer to its question may serve nothing else.
                question.hold(call)
            super().add(call)
        self._users.add(client_id)
        try:
            yield
            is_answered = True
        except MCPError:
            is_answered = True
            raise
        finally:
            if not is_answered:
                # The server may go on with it and ask; for a stateless client, that question belongs to no later call.
                self._unanswered.add(client_id)
            if call is None:
                self._unnamed -= 1
            else:
                self._calls.remove(call)
                for question in self._open:
                    question.is_without(call, is_answered=is_answered)
            self._ended.set()

    async def answer(
        self, method: str, params: JsonObject, call: OpenCall | None = None, on_progress: ProgressFnT | None = None
    ) -> JsonObject:
        """Ask the client and return its answer; withdraw the question once all calls that may have caused it are over.

        Raises:
            MCPError: the client does not support the question or refuses, or the right client is not certain.
        """
        if not self._is_certain:
            return await self._answer_of_several(method, params, call, on_progress)
        audience = self._only_audience
        if method == ROOTS and self._local.sole is not None:
            self._roots_of = self._local.sole.client_id
        if call is not None or audience is None:
            return await super().answer(method, params, call, on_progress)
        self._check(method, params)
        with self._opened(list(self._calls), outlives_calls=method == ROOTS) as question, question.scope:
            return await self._ask(audience, method, params, on_progress, question)
        raise too_late()

    async def tell(self, method: str, params: JsonObject, call: OpenCall | None = None) -> None:
        """Pass on a notice; logs and notices of extensions without a call go to the only user of the session.

        If others may join, that client must have set a log level: once they have, it gets logs in its own session.
        """
        if call is not None or method == ELICITATION_COMPLETE:
            await super().tell(method, params, call)
        elif method != LOG:
            if self.is_one_clients or len(self._users) == 1:
                await super().tell(method, params)
        elif (audience := self._only_audience) is not None:
            if self._may_log(audience) and wants_log(audience.log_level, params):
                await audience.tell(method, params)
        elif self.is_one_clients:
            heard = next((each for each in self._calls if each.audience.log_level is not None), None)
            if heard is not None:
                await heard.tell(method, params)

    def _may_log(self, audience: Audience) -> bool:
        return audience.log_level is not None

    def withdraw(self, client_id: str) -> None:
        """Withdraw the questions to a client that left."""
        for question in self._open:
            if question.asked_of == client_id:
                question.scope.cancel()

    @property
    def is_one_clients(self) -> bool:
        """Return True if only one local client has ever used the session."""
        if self._local.has_several:
            return False
        sole = self._local.sole
        return not self._users or (sole is not None and self._users == {sole.client_id})

    @property
    def _is_certain(self) -> bool:
        """Return True if one client gets all questions; False if it is stateless, as its call matters then."""
        sole = self._local.sole
        return self.is_one_clients and (sole is None or sole.audience is not None)

    @property
    def _only_audience(self) -> Audience | None:
        """Return the only client that has used the session, if there is just one."""
        client: LocalClient | None = None
        if self.is_one_clients:
            client = self._local.sole
        elif len(self._users) == 1:
            client = self._local.find(next(iter(self._users)))
        return None if client is None else client.audience

    def _check(self, method: str, params: JsonObject) -> None:
        self.note_asked(method)
        if (refusal := self.client_capabilities.refusal(method, params)) is not None:
            raise MCPError(*refusal)

    async def _answer_of_several(
        self, method: str, params: JsonObject, call: OpenCall | None, on_progress: ProgressFnT | None
    ) -> JsonObject:
        self._check(method, params)
        if method == ROOTS and not self._is_left_to_one():
            # The server would keep them, and use them for other clients.
            raise MCPError(METHOD_NOT_FOUND, "this session is used by several clients, each with roots of its own")
        if call is not None:
            return await super().answer(method, params, call, on_progress)
        with self._opened(list(self._calls), outlives_calls=False) as question:
            if not question.causes:
                raise too_late()
            able = [
                each for each in question.causes if each.audience.client_capabilities.refusal(method, params) is None
            ]
            if not able:
                raise MCPError(METHOD_NOT_FOUND, f"{method} is not supported by the client of this call")
            if len(self._users) > 1 or not self._in_order:
                raise self._unclear(able)
            question.others.update(self._unanswered)
            with question.scope:
                party = await self._whose(question)
                if isinstance(party, OpenCall):
                    return await super().answer(method, params, party, on_progress)
                client = self._local.find(party)
                if client is None or client.audience is None:
                    raise too_late()
                return await self._ask(client.audience, method, params, on_progress, question)
        raise too_late()

    def _is_left_to_one(self) -> bool:
        """Reserve the session for the only client whose calls have run there; return True if there is one.

        The server keeps the roots that it gets, so no call of another client may run there any more.
        """
        if len(self._users) != 1 or not self._calls or self._roots_of not in (None, *self._users):
            return False
        [self._roots_of] = self._users
        self._hooks.on_outdated()
        return True

    async def _whose(self, question: _OpenQuestion) -> Party:
        """Wait until only one client, or one of its calls, can have caused a question; return it.

        Raises:
            MCPError: that took too long, or cannot happen; calls that may have asked are ended.
        """
        with anyio.move_on_after(HELD_SECONDS):
            await self._ended.until(lambda: len(question.suspects) == 1 or question.is_stuck)
        if len(question.suspects) != 1:
            raise self._unclear(question.causes)
        if not question.causes:
            raise too_late()
        [question.asked_of] = question.suspects
        return question.asked_of

    def _unclear(self, causes: Sequence[OpenCall]) -> MCPError:
        """Return the refusal of a question whose client is unknown, and end the calls that probably asked.

        Those are the calls that are not known to ask nothing. If there are none, an old call asks, or one that had not
        asked before: then only calls that may be repeated are ended, since the others may have nothing to do with it.
        """
        for each in [call for call in causes if not call.is_proven] or [call for call in causes if call.is_repeatable]:
            each.fail(unclear())
        return MCPError(
            INVALID_REQUEST, "several clients use this process, and it is not certain whom to ask: call again"
        )

    async def _ask(
        self,
        audience: Audience,
        method: str,
        params: JsonObject,
        on_progress: ProgressFnT | None,
        question: _OpenQuestion,
    ) -> JsonObject:
        self.remember_url(params, audience)
        for call in question.causes:
            call.has_asked = True
        with anyio.move_on_after(self._question_timeout):
            return await audience.ask(method, params, on_progress)
        raise MCPError(REQUEST_TIMEOUT, f"no answer within {self._question_timeout:g} s")

    @contextmanager
    def _opened(self, causes: Sequence[OpenCall], *, outlives_calls: bool) -> Iterator[_OpenQuestion]:
        question = _OpenQuestion(causes, outlives_calls=outlives_calls)
        for call in causes:
            call.was_questioned = True
        self._hooks.on_unproven()
        self._open.append(question)
        try:
            yield question
        finally:
            self._open.remove(question)
            question.held.close()


class OneClientsQuestions(SharedQuestions):
    """The questions and notices of a session that no other client will ever use: all are for its client."""

    is_one_clients = True
    _is_certain = True

    def _may_log(self, audience: Audience) -> bool:
        return True


class _OpenQuestion:
    """One question, and the calls that may have caused it, whose time limits are suspended.

    `others` are clients whose calls are over, but may have caused it.
    """

    def __init__(self, causes: Sequence[OpenCall], *, outlives_calls: bool) -> None:
        self.scope = anyio.CancelScope()
        self.asked_of: Party = ""
        self.causes = list(causes)
        self._outlives_calls = outlives_calls
        self.others: set[Party] = set()
        self.held = ExitStack()
        for call in causes:
            self.hold(call)

    def hold(self, call: OpenCall) -> None:
        """Suspend the time limit of this call."""
        self.held.enter_context(call.held())

    @property
    def suspects(self) -> set[Party]:
        """Return the clients or calls that it may be for."""
        return self.others | {call.party for call in self.causes}

    @property
    def is_stuck(self) -> bool:
        """Return True if its client will never be certain, or its call has no waiting caller any more.

        An answered call is only ruled out if it is known to ask nothing.
        """
        unproven = {call.party for call in self.causes if not call.is_proven}
        present = {call.party for call in self.causes}
        return len(self.others | unproven) > 1 or not self.others <= present

    def is_without(self, call: OpenCall, *, is_answered: bool) -> None:
        """Note that a call is over; if it was the last that may have caused the question, end the question."""
        if call not in self.causes:
            return
        self.causes.remove(call)
        if not (is_answered and call.is_proven) and not self.asked_of:
            self.others.add(call.audience.client_id)
        left = [each for each in self.causes if self.asked_of in ("", each.party)]
        if not left and not self._outlives_calls:
            self.scope.cancel()
