"""Which session a client's request takes at an upstream: the shared one or one of its own, and in which era."""

from __future__ import annotations

import anyio

from pml_gateway.config.servers import Transport, UpstreamDefinition
from pml_gateway.errors import UpstreamTimeoutError
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.connection import MODERN
from pml_gateway.upstreams.eras import Eras
from pml_gateway.upstreams.lifecycle import Lifecycle
from pml_gateway.upstreams.questions import Audience
from pml_gateway.upstreams.sole import SoleClient


class SessionChoice:
    """Chooses before a request is sent: a question of a shared handshake session does not say whom it is for."""

    def __init__(self, definition: UpstreamDefinition, lifecycle: Lifecycle, client: SoleClient | None) -> None:
        self._definition = definition
        self._lifecycle = lifecycle
        self._client = client
        self._eras = Eras(definition.resolved_transport, lifecycle, one_client=client is not None)

    def concerns(self, audience: Audience, params: JsonObject) -> bool:
        """Whether a client's request may be more than one plain round on the shared session."""
        return (
            bool(audience.abilities)
            or audience.log_level is not None
            or self._definition.sessions == "per_client"
            or "requestState" in params
        )

    async def choose(self, audience: Audience, limit: float) -> tuple[str, bool]:
        """The era for a request of this client, and whether it needs a session of its own.

        Raises:
            GatewayError: the upstream cannot be reached, or not within `limit` seconds.
        """
        era = await self._eras.choose(audience, self._lifecycle.era or await self._negotiated(limit))
        return era, self._needs_own_session(audience, era)

    def is_alone(self, audience: Audience, era: str) -> bool:
        """Whether a call needs a session for itself: questions do not say there which call they belong to."""
        return bool(audience.abilities) and era != MODERN and self._definition.resolved_transport is not Transport.HTTP

    def _needs_own_session(self, audience: Audience, era: str) -> bool:
        if self._client is not None and self._client.shares(audience, era):
            return False
        if self._definition.sessions == "per_client":
            return True
        if era == MODERN:
            # Over stdio, logs do not say which request they belong to.
            return audience.log_level is not None and self._definition.resolved_transport is Transport.STDIO
        return bool(audience.abilities) or audience.log_level is not None

    async def _negotiated(self, limit: float) -> str:
        with anyio.move_on_after(limit):
            return (await self._lifecycle.live()).era
        raise late(self._lifecycle.upstream_id, "initialize", limit, "no")


def late(upstream_id: str, what: str, limit: float, executed: str) -> UpstreamTimeoutError:
    """No answer came in time; `executed` says what is known of whether the request was."""
    return UpstreamTimeoutError(
        f"{upstream_id}: no answer to {what!r} within {limit:g} s",
        hint=f"raise servers.{upstream_id}.call_timeout if the tool needs longer",
        details={"timeout_seconds": limit, "executed": executed},
    )
