"""The choice of session and protocol era for a client's request to an upstream.

Tools ask in the way of the era they are called in, and many know only one way. So a client that can be asked is given
its own era if the upstream speaks it. The shared session speaks the newer era once the upstream is known to, or the
era of the only client.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from functools import partial

import anyio

from pml_gateway.background import Background
from pml_gateway.config.servers import Transport
from pml_gateway.errors import GatewayError, UpstreamTimeoutError
from pml_gateway.mcp.elicitation import Audience, Questions
from pml_gateway.mcp.negotiation import HANDSHAKE, MODERN
from pml_gateway.signal import Signal
from pml_gateway.upstreams.connector import Connector
from pml_gateway.upstreams.dialogue.local_clients import LocalClients
from pml_gateway.upstreams.dialogue.session_policy import SessionPolicy

PROBE_SECONDS = 5.0
"""Seconds in addition to a start that requests wait to learn if an upstream speaks an era; after that, they use the
other."""

TRIED = "calls of others ran that may ask"
UNTRIED = "a tool was new that may ask"

TRY_AGAIN_SECONDS = 600.0
"""Seconds until an upstream that did not say if it speaks an era is asked again."""


class Eras:
    """The eras of one upstream other than that of its shared session."""

    def __init__(self, transport: Transport, connector: Connector, local: LocalClients, background: Background) -> None:
        self._local = local
        self._transport = transport
        self._connector = connector
        self._background = background
        self._spoken: set[str] = set()
        self._tried_at: dict[str, float] = {}
        self._trying: set[str] = set()
        self._changed = Signal()
        self._turns = anyio.Lock()

    async def choose(self, audience: Audience, era: str) -> str:
        """Return the era for a request of this client while the shared session speaks `era`."""
        wanted = MODERN if audience.answers_later else HANDSHAKE
        if (
            era == wanted
            or self._transport is Transport.SSE
            or not (audience.client_capabilities.announced or audience.log_level)
        ):
            return era
        async with self._turns:
            if not await self._speaks(wanted):
                return era
            if (wanted == MODERN or self._local.are_one) and self._connector.era != wanted:
                await self._connector.renegotiate(wanted)
        return wanted

    async def _speaks(self, era: str) -> bool:
        """Return True if the upstream is found to speak the era in time."""
        if era in self._spoken:
            return True
        if self._connector.observations.speaks_not(era):
            return False
        if time.monotonic() - self._tried_at.get(era, -math.inf) >= TRY_AGAIN_SECONDS:
            self._tried_at[era] = time.monotonic()
            self._trying.add(era)
            # The request that asked may be cancelled before the server has started.
            self._background.start(partial(self._find_out, era))
        limit = self._connector.start_seconds + PROBE_SECONDS
        with anyio.move_on_after(self._tried_at[era] + limit - time.monotonic()):
            await self._changed.until(lambda: era not in self._trying)
        return era in self._spoken

    async def _find_out(self, era: str) -> None:
        """Try the era on a separate connection, for at most as long as a start may take."""
        try:
            with anyio.move_on_after(self._connector.longest_start), suppress(GatewayError):
                async with self._connector.open_beside(Questions(), era, urgency=lambda: 1) as connection:
                    if connection.era == era:
                        self._spoken.add(era)
                    elif era != MODERN or connection.is_surely_old:
                        self._connector.observations.note_unspoken(era)
                    # Before the connection closes, which may take a while.
                    self._end_trial(era)
        finally:
            self._end_trial(era)

    def _end_trial(self, era: str) -> None:
        self._trying.discard(era)
        self._changed.set()


class SessionChoice:
    """Chooses before a request is sent: a question on a shared handshake session does not name its client."""

    def __init__(
        self, transport: Transport, connector: Connector, policy: SessionPolicy, background: Background
    ) -> None:
        self._transport = transport
        self._connector = connector
        self._policy = policy
        self._eras = Eras(transport, connector, policy.local, background)

    async def choose(self, audience: Audience, limit: float) -> tuple[str, str]:
        """Return the era for a request of this client, and the reason for a session of its own (else empty).

        Raises:
            GatewayError: the upstream cannot be reached, or not within `limit` seconds.
        """
        era = await self._eras.choose(audience, self._connector.era or await self._negotiated(limit))
        return era, self.why_own(audience, era)

    def needs_exclusive(self, audience: Audience, era: str) -> bool:
        """Return True if a call needs exclusive use of a session: its questions would not name their call."""
        return bool(audience.client_capabilities) and era != MODERN and self._transport is not Transport.HTTP

    def is_ambiguous(self, method: str, era: str) -> bool:
        """Return True if a question on the shared session would be ambiguous, as several clients may use it."""
        return self._policy.is_ambiguous(method, era)

    def joins(self, audience: Audience) -> bool:
        """Return True if a call of this client would be its first on the shared session."""
        questions = self._connector.shared_questions
        return questions is not None and not questions.is_used_by(audience.client_id)

    def is_joined(self, audience: Audience) -> bool:
        """Return True if others have used the shared session, so that no client can be asked there any more."""
        questions = self._connector.shared_questions
        return questions is not None and questions.is_used_beside(audience.client_id)

    def why_own(self, audience: Audience, era: str) -> str:
        """Return the reason why a request of this client uses its own session; empty if it uses the shared one."""
        return self._policy.why_own(audience, era, self._connector)

    async def _negotiated(self, limit: float) -> str:
        with anyio.move_on_after(limit):
            return (await self._connector.live()).era
        raise late(self._connector.upstream_id, "initialize", limit, "no")


def late(
    upstream_id: str, what: str, limit: float, executed: str, setting: str = "call_timeout", *, renewed: bool = False
) -> UpstreamTimeoutError:
    """Return the error for an answer that did not come in time.

    Args:
        upstream_id: the server.
        what: the subject of the request.
        limit: the time limit in seconds.
        executed: `yes`, `no` or `unknown`, as far as known.
        setting: the setting of the limit.
        renewed: True if progress came before.
    """
    missing = "no answer and no further progress of" if renewed else "no answer to"
    return UpstreamTimeoutError(
        f"{upstream_id}: {missing} {what!r} within {limit:g} s",
        hint=f"raise servers.{upstream_id}.{setting} if the tool needs longer",
        details={"timeout_seconds": limit, "executed": executed},
    )
