"""The choice of requests to one upstream that share a session, by their clients; made once for each upstream."""

from __future__ import annotations

from typing import Protocol

from pml_gateway.config.servers import Transport
from pml_gateway.config.settings import EffectiveSettings
from pml_gateway.mcp.capabilities import EXTENSIONS, NO_CAPABILITIES, ClientCapabilities
from pml_gateway.mcp.elicitation import Audience, Questions
from pml_gateway.mcp.negotiation import MODERN
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.dialogue.local_clients import LocalClients
from pml_gateway.upstreams.dialogue.shared_questions import OneClientsQuestions, QuestionHooks, SharedQuestions

LOGS = "the client wants its logs"
EXTENDED = "the server uses extensions, and the client has others than the shared session announced"


class Asking(Protocol):
    """The client capabilities that the questions of a server required so far."""

    asks: frozenset[str]


class SharedSession(Protocol):
    """The facts of the shared session that a choice depends on."""

    era: str

    @property
    def shared_questions(self) -> SharedQuestions | None:
        """Return the questions of the live connection, if local clients share it."""

    @property
    def declares_logging(self) -> bool:
        """Return True if the server declared on the live connection that it sends logs."""

    @property
    def lister(self) -> Asking:
        """Return what the server offers and asks."""


class SessionPolicy:
    """The choice between the shared session and one of the client's own; this one, if all clients come over HTTP.

    They share one session, except those that can be asked or want logs. `local` has the clients on this machine.
    `lists_only` is True if no client calls run on the shared session, because each client has its own.
    """

    lists_only = False

    def __init__(self, effective: EffectiveSettings, local: LocalClients) -> None:
        self.local = local
        self._question_timeout = effective.defaults.question_timeout
        self._transport = effective.definition.resolved_transport

    def questions(self, hooks: QuestionHooks) -> Questions:
        """Return the questions of a new shared session."""
        return Questions(on_asked=hooks.on_asked)

    def converses(self, audience: Audience, params: JsonObject) -> bool:
        """Return True if a client's request may need more than one plain round on the shared session."""
        capabilities = audience.client_capabilities
        return bool(capabilities.announced) or audience.log_level is not None or "requestState" in params

    def is_ambiguous(self, method: str, era: str) -> bool:
        """Return True if a question during a request on the shared session may be for several clients."""
        return False

    def why_own(self, audience: Audience, era: str, shared: SharedSession) -> str:
        """Return the reason why a request of this client uses its own session; empty if it uses the shared one."""
        if era == MODERN:
            return self._why_logs(audience)
        if audience.client_capabilities:
            return "it can be asked"
        return self._why_extended(audience, shared) or (LOGS if audience.log_level is not None else "")

    def _why_extended(
        self, audience: Audience, shared: SharedSession, announced: ClientCapabilities = NO_CAPABILITIES
    ) -> str:
        """Return the reason for an own session of a client with other extensions, if the server uses any."""
        differs = audience.client_capabilities.extended != announced.extended
        return EXTENDED if differs and EXTENSIONS in shared.lister.asks else ""

    def _why_logs(self, audience: Audience) -> str:
        """Return the reason for an own session of a client that wants logs: they name no request over stdio."""
        return LOGS if audience.log_level is not None and self._transport is Transport.STDIO else ""

    def _of_locals(self, kind: type[SharedQuestions], hooks: QuestionHooks) -> SharedQuestions:
        return kind(self.local, self._question_timeout, hooks, in_order=self._transport is not Transport.HTTP)


class Shared(SessionPolicy):
    """Clients on this machine share the one session of a handshake server until it asks something; most never do."""

    def questions(self, hooks: QuestionHooks) -> Questions:
        return self._of_locals(SharedQuestions, hooks)

    def converses(self, audience: Audience, params: JsonObject) -> bool:
        # The recipient of a question depends on the calls that run on the session.
        return True

    def is_ambiguous(self, method: str, era: str) -> bool:
        # Over HTTP, a question names its call.
        return era != MODERN and not (method == "tools/call" and self._transport is Transport.HTTP)

    def why_own(self, audience: Audience, era: str, shared: SharedSession) -> str:
        is_local, questions = self.local.find(audience.client_id) is not None, shared.shared_questions
        if questions is not None and era != MODERN:
            client_capabilities = audience.client_capabilities if is_local else NO_CAPABILITIES
            if not questions.serves(audience.client_id, client_capabilities):
                return "the shared session was opened for others"
        return self._why_local(audience, era, shared) if is_local else super().why_own(audience, era, shared)

    def _why_local(self, audience: Audience, era: str, shared: SharedSession) -> str:
        if shared.era not in ("", era):
            return f"it speaks the {era} protocol"
        questions, sole = shared.shared_questions, self.local.sole
        # Questions to a stateless client are assigned by their call; so are those of several clients.
        is_certain = sole is not None and (era == MODERN or sole.audience is not None)
        if is_certain and (questions is None or questions.is_one_clients):
            return ""
        if era == MODERN:
            return self._why_logs(audience)
        if asked := shared.lister.asks & audience.client_capabilities.plain.announced.keys():
            return f"the server asks clients ({', '.join(sorted(asked))})"
        announced = self.local.client_capabilities if questions is None else questions.client_capabilities
        if why := self._why_extended(audience, shared, announced):
            return why
        return LOGS if audience.log_level is not None and shared.declares_logging else ""


class PerClient(SessionPolicy):
    """Every client has its own session, as `sessions: per_client` says."""

    def converses(self, audience: Audience, params: JsonObject) -> bool:
        return True

    def why_own(self, audience: Audience, era: str, shared: SharedSession) -> str:
        return "sessions: per_client"


class LocalPerClient(PerClient, Shared):
    """Every client on this machine has its own session."""

    lists_only = True


class Alone(SessionPolicy):
    """The only client has the shared session; requests that it is asked in later are as those of other clients."""

    def questions(self, hooks: QuestionHooks) -> Questions:
        return self._of_locals(OneClientsQuestions, hooks)

    def why_own(self, audience: Audience, era: str, shared: SharedSession) -> str:
        # A stateless client is asked through the result of one call, so its calls need exclusive sessions.
        return "" if era == MODERN or not audience.answers_later else super().why_own(audience, era, shared)


class AlonePerClient(Alone, PerClient):
    """The only client has the shared session, unless it is asked later."""


def session_policy(effective: EffectiveSettings, local: LocalClients | None) -> SessionPolicy:
    """Return the policy for an upstream of these clients; without `local`, all come over HTTP."""
    if local is None:
        policy: type[SessionPolicy] = PerClient if effective.per_client else SessionPolicy
    elif local.is_alone:
        policy = AlonePerClient if effective.per_client else Alone
    else:
        policy = LocalPerClient if effective.per_client else Shared
    return policy(effective, local or LocalClients())
