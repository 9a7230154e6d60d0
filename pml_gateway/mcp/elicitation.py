"""What an upstream asks (elicitation, sampling, roots) or tells during a call, for the client whose call it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import anyio
import mcp_types
from cachetools import FIFOCache
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, REQUEST_TIMEOUT

from pml_gateway.errors import GatewayError
from pml_gateway.mcp.deadlines import Deadline, paused, running
from pml_gateway.signal import Signal
from pml_gateway.types import JsonObject

WITHDRAW_SECONDS = 2.0
"""How long the end of a call waits for its open questions to be withdrawn."""

MAX_URLS = 256
"""Elicitations by URL of one session whose completion is still passed on; the oldest are forgotten."""

LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")

LOG = "notifications/message"
ELICITATION_COMPLETE = "notifications/elicitation/complete"
TOLD = frozenset({LOG, ELICITATION_COMPLETE})
"""Notifications that belong to the client of a call."""

ROOTS = "roots/list"
"""A question about the client itself: servers ask it when a session begins or the roots change, and keep the answer."""

_ANNOUNCED = {"roots": ("listChanged",), "sampling": ("context", "tools"), "elicitation": ("form", "url")}
_ASKED = {ROOTS: "roots", "sampling/createMessage": "sampling", "elicitation/create": "elicitation"}

OnAsked = Callable[[str], None]
"""Is told of each question of a server, by the capability that it needs of a client."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a client can be asked, in the words of client capabilities; equal ones share upstream sessions."""

    key: str = "{}"
    announced: JsonObject = field(default_factory=dict, compare=False)

    def __bool__(self) -> bool:
        return bool(self.announced)

    def refusal(self, method: str, params: Mapping[str, Any]) -> tuple[int, str] | None:
        """Code and message for a question that this client cannot be asked."""
        name = _ASKED.get(method)
        if name is None or name not in self.announced:
            return METHOD_NOT_FOUND, f"{method} is not supported by the client of this call"
        detail = self.announced[name]
        if name == "elicitation":
            mode = params.get("mode") or "form"
            # Clients that name no mode are older than the modes, and show forms.
            if mode not in (detail or {"form": {}}):
                return (
                    INVALID_PARAMS,
                    f"elicitation mode {str(mode)[:20]!r} is not supported by the client of this call",
                )
        if name == "sampling" and ("tools" in params or "toolChoice" in params) and "tools" not in detail:
            return INVALID_PARAMS, "sampling with tools is not supported by the client of this call"
        return None


NO_CAPABILITIES = Capabilities()


def capabilities_of(capabilities: mcp_types.ClientCapabilities | None) -> Capabilities:
    """What of a client's capabilities is relayed to upstreams."""
    if capabilities is None or not (capabilities.roots or capabilities.sampling or capabilities.elicitation):
        return NO_CAPABILITIES
    given = capabilities.model_dump(by_alias=True, mode="json", exclude_none=True)
    announced: JsonObject = {
        name: {detail: given[name][detail] for detail in details if detail in given[name]}
        for name, details in _ANNOUNCED.items()
        if name in given
    }
    return Capabilities(json.dumps(announced, sort_keys=True), announced)


class Audience(Protocol):
    """The client of a call, as far as its upstream may reach it."""

    @property
    def client_id(self) -> str:
        """Who it is; what a session keeps of one client never meets another."""

    @property
    def share(self) -> str:
        """Whom what its calls take is counted for."""

    @property
    def is_one_client(self) -> bool:
        """Whether everybody of this id is the same client; anonymous ones are not."""

    @property
    def client_capabilities(self) -> Capabilities:
        """What it can be asked."""

    @property
    def answers_later(self) -> bool:
        """Whether questions are a result of its request, and answers come with the next one."""

    @property
    def log_level(self) -> str | None:
        """The least severe log message it wants; None if it has not said."""

    async def ask(self, method: str, params: JsonObject, on_progress: ProgressFnT | None) -> JsonObject:
        """Its answer to one question.

        Raises:
            MCPError: it refuses or fails.
        """

    async def tell(self, method: str, params: JsonObject) -> None:
        """Pass on one notification, if it is still there."""

    async def let_go(self) -> None:
        """End the stream of its request, as the upstream did with ours; the client comes back for the answer."""


Lend = Callable[[], AbstractAsyncContextManager[None]]


Party: TypeAlias = "str | OpenCall"
"""Whom questions are for where calls of several share a session: a client by its id, or a call."""


class OpenCall:
    """One request to an upstream, from before it is sent until it is answered.

    On a session of several clients, one that `is_proven` has never asked before, and one that `was_questioned` may have
    asked this time; one that `is_repeatable` may be sent again. `party` is whom its questions are for: the client, or
    this very call of one that is asked by the result of it. `failure` is what the gateway itself ended it with.
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
        """Give the rest of it until a deadline, renewed at most to `end`; `when_asked` is told of each question."""
        with Deadline(deadline, end) as self._limit:
            self._deadlines = running()
            self._when_asked = when_asked
            yield self._limit

    def fail(self, error: GatewayError) -> None:
        """End it with an error, while it is `limited`."""
        self.failure = error
        self._limit.cancel()

    def held(self) -> AbstractContextManager[None]:
        """Let no time pass for it."""
        return paused(self._deadlines)

    async def answer(self, method: str, params: JsonObject, on_progress: ProgressFnT | None = None) -> JsonObject:
        """The client's answer to one question of the upstream.

        Raises:
            MCPError: the client cannot be asked this, refuses, is silent, or its call is over.
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
        """The answer of its client, whether or not the call goes on.

        Raises:
            MCPError: the client refuses or is silent.
        """
        with anyio.move_on_after(self._question_timeout):
            return await self.audience.ask(method, params, on_progress)
        raise MCPError(REQUEST_TIMEOUT, f"no answer within {self._question_timeout:g} s")

    async def tell(self, method: str, params: JsonObject) -> None:
        """Pass on what the upstream tells during the call."""
        if self.has_ended or (method == LOG and not wants_log(self.audience.log_level, params)):
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


class Questions:
    """The open calls of one session, to which its peer's questions and notices are handed."""

    def __init__(
        self, client_capabilities: Capabilities = NO_CAPABILITIES, on_asked: OnAsked = lambda _name: None
    ) -> None:
        self.client_capabilities = client_capabilities
        self._tell_asked = on_asked
        self.log_level: str | None = None
        self._calls: list[OpenCall] = []
        self._latest: OpenCall | None = None
        self._urls: FIFOCache[str, Audience] = FIFOCache(MAX_URLS)

    def add(self, call: OpenCall) -> None:
        """Hand what comes from now on to this call, unless it says which it belongs to."""
        self._calls.append(call)
        self._latest = call

    async def remove(self, call: OpenCall) -> None:
        """The call is over."""
        self._calls.remove(call)
        await call.end()

    @property
    def wanted_log_level(self) -> str | None:
        """How much is wanted on the session from its start; None if that comes with the calls."""
        return None

    def during(self, _call: OpenCall | None) -> AbstractContextManager[None]:
        """A request runs on the session for the length of this context; only one that clients share takes note."""
        return nullcontext()

    def note_asked(self, method: str) -> None:
        """The peer asked something."""
        if (name := _ASKED.get(method)) is not None:
            self._tell_asked(name)

    def remember_url(self, params: Mapping[str, Any], audience: Audience) -> None:
        """The end of what happens in a browser is told long after the call."""
        if isinstance(elicitation := params.get("elicitationId"), str):
            self._urls[elicitation] = audience

    async def answer(
        self, method: str, params: JsonObject, call: OpenCall | None = None, on_progress: ProgressFnT | None = None
    ) -> JsonObject:
        """The answer to a question; `call` is given where the transport says whose it is."""
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
        if _ASKED.get(method) in self.client_capabilities.announced:
            raise too_late()
        raise MCPError(METHOD_NOT_FOUND, f"{method} is not supported")

    def _outlives_calls(self, method: str) -> bool:
        """Whether the client can be asked this between its calls; a stateless one cannot."""
        can_be_asked = method == ROOTS and "roots" in self.client_capabilities.announced
        return can_be_asked and self._latest is not None and not self._latest.audience.answers_later

    async def tell(self, method: str, params: JsonObject, call: OpenCall | None = None) -> None:
        """Pass on a notice; those outside of any call go to nobody."""
        if method == ELICITATION_COMPLETE:
            audience = self._urls.pop(str(params.get("elicitationId")), None)
            if audience is not None:
                await audience.tell(method, params)
            return
        told = call or (self._calls[-1] if self._calls else None)
        if told is not None:
            await told.tell(method, params)


def wants_log(level: str | None, params: Mapping[str, Any]) -> bool:
    """Whether a log message is as severe as the client wants."""
    given = params.get("level")
    if level is None or given not in LOG_LEVELS:
        return True
    return LOG_LEVELS.index(given) >= LOG_LEVELS.index(level)


def too_late() -> MCPError:
    """The refusal of a question whose call nobody waits for any more."""
    return MCPError(INVALID_REQUEST, "the call this question belongs to is over")
