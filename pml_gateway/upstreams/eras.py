"""Which protocol era a client's request takes to an upstream that speaks both.

Tools that ask do so in the way of the era they are called in, and many know only one way. So a client that can be
asked is given its own era where the upstream has it. The shared session speaks the newer one once that is known, or
that of the one client there is.
"""

from __future__ import annotations

import time

import anyio

from pml_gateway.config.servers import Transport
from pml_gateway.errors import GatewayError
from pml_gateway.upstreams.connection import HANDSHAKE, MODERN
from pml_gateway.upstreams.lifecycle import Lifecycle
from pml_gateway.upstreams.questions import Audience, Questions

PROBE_SECONDS = 5.0
"""How long an upstream may take to say that it speaks an era; silent ones do not."""

ASK_AGAIN_SECONDS = 600.0
"""How long an upstream that does not speak an era is taken at its word."""


class Eras:
    """The eras of one upstream beside that of its shared session."""

    def __init__(self, transport: Transport, lifecycle: Lifecycle, *, one_client: bool) -> None:
        self._one_client = one_client
        self._transport = transport
        self._lifecycle = lifecycle
        self._spoken: set[str] = set()
        self._refused_at: dict[str, float] = {}
        self._turns = anyio.Lock()

    async def choose(self, audience: Audience, era: str) -> str:
        """The era for a request of this client, while the shared session speaks `era`."""
        wanted = MODERN if audience.answers_later else HANDSHAKE
        if era == wanted or self._transport is Transport.SSE or not (audience.abilities or audience.log_level):
            return era
        if wanted == MODERN and self._transport is not Transport.STDIO:
            # Over HTTP the newer era is asked for first.
            return era
        async with self._turns:
            if not await self._speaks(wanted):
                return era
            if (wanted == MODERN or self._one_client) and self._lifecycle.era != wanted:
                await self._lifecycle.renegotiate(wanted)
        return wanted

    async def _speaks(self, era: str) -> bool:
        """Find out once, on a connection of its own."""
        if era in self._spoken:
            return True
        if time.monotonic() - self._refused_at.get(era, -ASK_AGAIN_SECONDS) < ASK_AGAIN_SECONDS:
            return False
        with anyio.move_on_after(PROBE_SECONDS):
            try:
                async with self._lifecycle.open_beside(Questions(), era) as connection:
                    if connection.era == era:
                        self._spoken.add(era)
            except GatewayError:
                pass
        if era not in self._spoken:
            self._refused_at[era] = time.monotonic()
        return era in self._spoken
