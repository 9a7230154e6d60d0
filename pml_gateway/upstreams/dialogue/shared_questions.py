"""What is asked and told on a session that calls of several clients share.

The questions of a handshake session do not say which call they belong to. Where all calls are one client's they need
not: whichever call it is, the same client is asked, and the calls that may have caused the question wait for it. Where
they are several clients', nobody is asked before it is certain who. A stateless client is asked by the result of the
very call, so that of several calls of its own it must be certain which.
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
"""How long a question waits until it is certain whom it is for; no time passes for the calls it may belong to."""

UNNAMED = ""
"""Whose the gateway's own requests are."""


class UnclearQuestionError(UpstreamError):
    """The server asked something during calls of several clients, and nobody could be asked."""

    code = ErrorCode.CANCELLED
    retryable = True


def unclear() -> UnclearQuestionError:
    """What ends a call of which it is unknown whether it asked."""
    return UnclearQuestionError(
        "the server asked something while calls of several clients, or several calls of a stateless one, ran, and it "
        "could not be told whose question it was",
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
                # The server may go on with it, and ask.
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
        """Pass on a notice; logs that belong to no call are for a client that is the only one to use the session."""
        if method != LOG or call is not None:
            await super().tell(method, params, call)
        elif (audience := self._only_audience) is not None:
            if wants_log(audience.log_level, params):
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
        if method == ROOTS and not await self._is_left_to_one():
            # The server would keep them, and use them for others.
            raise MCPError(METHOD_NOT_FOUND, "this session is used by several clients, each with roots of its own")
        if call is not None:
            return await super().answer(method, params, call, on_progress)
        with self._opened(list(self._calls), outlives_calls=False) as question:
            question.suspect(*self._unanswered, *([UNNAMED] if self._unnamed else []))
            if not question.suspects:
                raise too_late()
            if not any(self._can_answer(each, method, params) for each in question.suspects):
                raise MCPError(METHOD_NOT_FOUND, f"{method} is not supported by the client of this call")
            with question.scope:
                party = await self._whose(question)
                if isinstance(party, OpenCall):
                    return await super().answer(method, params, party, on_progress)
                client = self._local.find(party)
                if client is None or client.audience is None:
                    raise too_late()
                if (refusal := client.client_capabilities.refusal(method, params)) is not None:
                    raise MCPError(*refusal)
                return await self._ask(client.audience, method, params, on_progress, question)
        raise too_late()

    async def _is_left_to_one(self) -> bool:
        """Whether the session is one client's alone from now on: the one whose call must be what asks.

        The server keeps the roots that it is told, so that no call of another client may run there any more.
        """
        asking = {call.audience.client_id for call in self._calls if not call.is_proven}
        if len(asking) != 1 or self._unnamed or not self._unanswered <= asking or self._roots_of not in (None, *asking):
            return False
        [self._roots_of] = asking
        self._on_outdated()
        others = [call for call in self._calls if call.audience.client_id not in asking]
        with anyio.move_on_after(HELD_SECONDS):
            await self._ended.until(lambda: not any(call in self._calls for call in others))
        return {call.audience.client_id for call in self._calls} == asking and self._unanswered <= asking

    async def _whose(self, question: _OpenQuestion) -> Party:
        """Whom a question is for, once all others are out of the question.

        Raises:
            MCPError: they are not within the limit, or never will be; calls that may have asked are ended.
        """
        with anyio.move_on_after(HELD_SECONDS if self._in_order else 0):
            await self._ended.until(lambda: len(question.suspects) == 1 or question.is_stuck)
        if len(question.suspects) != 1 or not self._in_order:
            for each in question.likely:
                each.fail(unclear())
            raise MCPError(
                INVALID_REQUEST, "calls of several clients run, and it is not certain whose question this is"
            )
        if not question.causes:
            raise too_late()
        [question.asked_of] = question.suspects
        return question.asked_of

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

    def _can_answer(self, party: Party, method: str, params: JsonObject) -> bool:
        if isinstance(party, OpenCall):
            return party.audience.client_capabilities.refusal(method, params) is None
        client = self._local.find(party)
        return client is not None and client.client_capabilities.refusal(method, params) is None

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
        """It may be a question of these clients, of which no call is in flight that could end."""
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

    @property
    def likely(self) -> list[OpenCall]:
        """The calls that it most likely belongs to."""
        unproven = [call for call in self.causes if not call.is_proven]
        return unproven or ([] if self._others else self.causes)

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
