"""What is asked and told on a session that calls of several clients share.

The questions of a handshake session do not say which call they belong to, nor does an answer end what a call began: a
server may work on, and ask minutes later. So a question is certain only where one client alone has ever used the
session: whichever call it is of, that client is asked, and the calls that may have caused the question wait for it.
Once a second client has used it, nobody is asked there any more. A stateless client is asked by the result of the very
call, so that of several calls of its own it must be certain which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import anyio
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import INVALID_REQUEST, METHOD_NOT_FOUND, REQUEST_TIMEOUT

from pml_gateway.errors import ErrorCode, UpstreamError
from pml_gateway.mcp.elicitation import (
    LOG,
    ROOTS,
    Audience,
    Capabilities,
    OnAsked,
    OpenCall,
    Party,
    Questions,
    too_late,
    wants_log,
)
from pml_gateway.signal import Signal
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.dialogue.local_clients import LocalClient, LocalClients, union

HELD_SECONDS = 30.0
"""How long a question waits until it is certain which call it is of; no time passes for those it may belong to."""

UNNAMED = ""
"""Whose the gateway's own requests are."""


class UnclearQuestionError(UpstreamError):
    """The server asked something during calls of several clients, and nobody could be asked."""

    code = ErrorCode.CANCELLED
    retryable = True


def unclear() -> UnclearQuestionError:
    """What ends a call of which it is unknown whether it asked."""
    return UnclearQuestionError(
        "the server asked something in a process that several clients use, or during several calls of a stateless one, "
        "and it could not be told whose question it was",
        hint="call again: clients that can be asked have sessions of their own at this server from now on",
        details={"executed": "unknown"},
    )


class SharedQuestions(Questions):
    """The questions and notices of a session that local clients share; those of one that is alone are all for it."""

    def __init__(
        self,
        local: LocalClients,
        question_timeout: float,
        *,
        on_asked: OnAsked,
        on_unproven: Callable[[], None] = lambda: None,
        on_outdated: Callable[[], None] = lambda: None,
        in_order: bool = True,
    ) -> None:
        """Ask these clients.

        Args:
            local: whose calls run on the session.
            question_timeout: seconds for an answer.
            on_asked: is told of every question.
            on_unproven: is told when a call may have asked, though none like it had before.
            on_outdated: is told when others need another session.
            in_order: whether a question never comes after the answer to its call.
        """
        super().__init__(local.client_capabilities, on_asked)
        self._local = local
        self._question_timeout = question_timeout
        self._on_unproven = on_unproven
        self._on_outdated = on_outdated
        self._in_order = in_order
        self._open: list[_OpenQuestion] = []
        self._unnamed = 0
        self._users: set[str] = set()
        self._unanswered: set[str] = set()
        self._roots_of: str | None = None
        self._ended = Signal()

    @property
    def wanted_log_level(self) -> str | None:
        """What the only client said, if it did."""
        audience = self._only_audience
        return None if audience is None else audience.log_level

    @property
    def is_outdated(self) -> bool:
        """Whether its peer was told something else than what holds now."""
        return self.client_capabilities != self._local.client_capabilities or (
            self._roots_of is not None and self._local.has_several
        )

    def serves(self, client_id: str, client_capabilities: Capabilities) -> bool:
        """Whether a client's calls may run here: its peer knows what it can be asked, and no other one's roots."""
        if self._roots_of not in (None, client_id):
            return False
        announced = self.client_capabilities
        return client_capabilities == announced or union(announced, client_capabilities) == announced

    def is_used_by(self, client_id: str) -> bool:
        """Whether a call of this client has ever run on the session."""
        return client_id in self._users

    def is_used_beside(self, client_id: str) -> bool:
        """Whether a call of anybody else has, so that nobody can be asked there any more."""
        return not self._users <= {client_id}

    @property
    def is_unused(self) -> bool:
        """Whether no call runs on the session."""
        return not self._calls and not self._unnamed

    async def until_unused(self) -> None:
        """Wait until no call runs on the session."""
        await self._ended.until(lambda: self.is_unused)

    def add(self, call: OpenCall) -> None:
        """A call takes the session; it is noted while it is sent."""

    async def remove(self, call: OpenCall) -> None:
        """The call is over."""
        await call.end()

    @contextmanager
    def during(self, call: OpenCall | None) -> Iterator[None]:
        """Have a call wait for what is asked meanwhile; without one, it is a request that nobody can be asked in."""
        client_id, is_answered = UNNAMED, False
        if call is None:
            self._unnamed += 1
        else:
            client_id = call.audience.client_id
            for question in self._open:
                # A server that waits for its answer may serve nothing else.
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
                # The server may go on with it, and ask: of a stateless client that is another call than the next one.
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
        """The client's answer; it is withdrawn when all calls that may have caused the question are over.

        Raises:
            MCPError: the client cannot be asked this or refuses, or it is not certain which client it is.
        """
        if not self._is_certain:
            return await self._answer_of_several(method, params, call, on_progress)
        audience = self._only_audience
        if method == ROOTS and self._local.sole is not None:
            self._roots_of = self._local.sole.client_id
        if call is not None or audience is None:
            return await super().answer(method, params, call, on_progress)
        self.note_asked(method)
        if (refusal := self.client_capabilities.refusal(method, params)) is not None:
            raise MCPError(*refusal)
        with self._opened(list(self._calls), outlives_calls=method == ROOTS) as question, question.scope:
            return await self._ask(audience, method, params, on_progress, question)
        raise too_late()

    async def tell(self, method: str, params: JsonObject, call: OpenCall | None = None) -> None:
        """Pass on a notice; logs that belong to no call are for a client that is the only one to use the session.

        Where others may come, it must have asked for them: once they have, it gets them in a session of its own.
        """
        if method != LOG or call is not None:
            await super().tell(method, params, call)
        elif (audience := self._only_audience) is not None:
            is_wanted = self._local.is_alone or audience.log_level is not None
            if is_wanted and wants_log(audience.log_level, params):
                await audience.tell(method, params)
        elif self.is_one_clients:
            heard = next((each for each in self._calls if each.audience.log_level is not None), None)
            if heard is not None:
                await heard.tell(method, params)

    def withdraw(self, client_id: str) -> None:
        """A client left: what it is asked needs no answer."""
        for question in self._open:
            if question.asked_of == client_id:
                question.scope.cancel()

    @property
    def is_one_clients(self) -> bool:
        """Whether nobody but the only local client has ever used the session."""
        if self._local.is_alone:
            return True
        if self._local.has_several:
            return False
        sole = self._local.sole
        return not self._users or (sole is not None and self._users == {sole.client_id})

    @property
    def _is_certain(self) -> bool:
        """Whether every question is for the one client there is; of a stateless one it matters which call it is of."""
        sole = self._local.sole
        return self.is_one_clients and (self._local.is_alone or sole is None or sole.audience is not None)

    @property
    def _only_audience(self) -> Audience | None:
        """The only one that has used the session, as long as there is no other."""
        client: LocalClient | None = None
        if self.is_one_clients:
            client = self._local.sole
        elif len(self._users) == 1:
            client = self._local.find(next(iter(self._users)))
        return None if client is None else client.audience

    async def _answer_of_several(
        self, method: str, params: JsonObject, call: OpenCall | None, on_progress: ProgressFnT | None
    ) -> JsonObject:
        self.note_asked(method)
        if (refusal := self.client_capabilities.refusal(method, params)) is not None:
            raise MCPError(*refusal)
        if method == ROOTS and not self._is_left_to_one():
            # The server would keep them, and use them for others.
            raise MCPError(METHOD_NOT_FOUND, "this session is used by several clients, each with roots of its own")
        if call is not None:
            return await super().answer(method, params, call, on_progress)
        with self._opened(list(self._calls), outlives_calls=False) as question:
            if not question.causes:
                raise too_late()
            able = [each for each in question.causes if _can_be_asked(each, method, params)]
            if not able:
                raise MCPError(METHOD_NOT_FOUND, f"{method} is not supported by the client of this call")
            if len(self._users) > 1 or not self._in_order:
                raise self._unclear(able)
            question.suspect(*self._unanswered)
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
        """Whether the session is one client's alone from now on: the only one whose calls have run there.

        The server keeps the roots that it is told, so that no call of another client may run there any more.
        """
        if len(self._users) != 1 or not self._calls or self._roots_of not in (None, *self._users):
            return False
        [self._roots_of] = self._users
        self._on_outdated()
        return True

    async def _whose(self, question: _OpenQuestion) -> Party:
        """Whom a question is for, once all others are out of the question: the client, or which of its calls.

        Raises:
            MCPError: they are not within the limit, or never will be; calls that may have asked are ended.
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
        """The refusal of a question of which it is not known whose it is.

        It ends the calls that most likely asked: those of which it is not known that they do not. Where there are none,
        it is an old call that asks, or one that had not asked before: only what may be made again is ended, since the
        others may have nothing to do with it.
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
        self._on_unproven()
        self._open.append(question)
        try:
            yield question
        finally:
            self._open.remove(question)
            question.close()


def _can_be_asked(call: OpenCall, method: str, params: JsonObject) -> bool:
    return call.audience.client_capabilities.refusal(method, params) is None


class _OpenQuestion:
    """One question, and the calls that may have caused it, whose time limits stand still."""

    def __init__(self, causes: Sequence[OpenCall], *, outlives_calls: bool) -> None:
        self.scope = anyio.CancelScope()
        self.asked_of: Party = ""
        self.causes = list(causes)
        self._outlives_calls = outlives_calls
        self._others: set[Party] = set()
        self._held = ExitStack()
        for call in causes:
            self.hold(call)

    def close(self) -> None:
        """Time passes again."""
        self._held.close()

    def hold(self, call: OpenCall) -> None:
        """Let no time pass for this call."""
        self._held.enter_context(call.held())

    def suspect(self, *client_ids: str) -> None:
        """It may be a question of these clients' calls that are over."""
        self._others.update(client_ids)

    @property
    def suspects(self) -> set[Party]:
        """Whom it may be for."""
        return self._others | {call.party for call in self.causes}

    @property
    def is_stuck(self) -> bool:
        """Whether it will never be certain, or is that of a call nobody waits for any more.

        An answer says that a call did not ask only where it never does.
        """
        unproven = {call.party for call in self.causes if not call.is_proven}
        present = {call.party for call in self.causes}
        return len(self._others | unproven) > 1 or not self._others <= present

    def is_without(self, call: OpenCall, *, is_answered: bool) -> None:
        """A call is over; if it was the last that may have caused the question, so is the question."""
        if call not in self.causes:
            return
        self.causes.remove(call)
        if not (is_answered and call.is_proven) and not self.asked_of:
            self._others.add(call.audience.client_id)
        left = [each for each in self.causes if self.asked_of in ("", each.party)]
        if not left and not self._outlives_calls:
            self.scope.cancel()
