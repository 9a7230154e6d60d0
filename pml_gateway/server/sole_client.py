"""The first request of the one client over stdio becomes what upstreams are told of it."""

from __future__ import annotations

from typing import Any

import mcp_types
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult, ServerMiddleware
from mcp.shared.dispatcher import CallOptions, ProgressFnT

from pml_gateway.policy.client import LOCAL
from pml_gateway.server.gateway import Gateway
from pml_gateway.server.incoming import Context, is_modern
from pml_gateway.server.relay import LOG_LEVEL_KEY, question_for
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.questions import LOG_LEVELS, Abilities, Audience, abilities_of
from pml_gateway.upstreams.sole import SoleClient


class ConnectionAudience:
    """`Audience` over the connection of the one client, in its requests and between them."""

    client_id = LOCAL.id
    is_one_client = True
    answers_later = False

    def __init__(self, connection: Connection, version: str, abilities: Abilities) -> None:
        self._connection = connection
        self._version = version
        self.abilities = abilities

    @property
    def log_level(self) -> str | None:
        """What it set last."""
        level = self._connection.state.get(LOG_LEVEL_KEY)
        return level if level in LOG_LEVELS else None

    async def ask(self, method: str, params: JsonObject, on_progress: ProgressFnT | None) -> JsonObject:
        """Its answer; servers ask for roots at once, and it may be asked only after its `initialized`."""
        await self._connection.initialized.wait()
        options: CallOptions = {} if on_progress is None else {"on_progress": on_progress}
        question = question_for(method, params, self._version)
        return await self._connection.outbound.send_raw_request(method, question, options)

    async def tell(self, method: str, params: JsonObject) -> None:
        """Pass on one notification, once it may get any."""
        if self._connection.initialized.is_set():
            await self._connection.notify(method, params)

    async def let_go(self) -> None:
        """Over stdio there is one stream, which stays."""


def introduce_client(gateway: Gateway, client: SoleClient) -> ServerMiddleware[Any]:
    """A middleware that notes what the client can be asked, and has upstreams that were told otherwise told again."""

    def introduce(abilities: Abilities, audience: Audience | None) -> None:
        client.introduce(abilities, audience)
        for upstream in gateway.pool.upstreams.values():
            upstream.meet_client()

    async def introduced(ctx: Context, call_next: CallNext) -> HandlerResult:
        if is_modern(ctx.protocol_version) and not client.known.is_set():
            # Later requests may say otherwise, each for itself; a list must not change with them.
            introduce(abilities_of(ctx.session.client_capabilities), None)
        result = await call_next(ctx)
        if ctx.method == "initialize" and isinstance(result, dict):
            given = mcp_types.ClientCapabilities.model_validate((ctx.params or {}).get("capabilities") or {})
            abilities = abilities_of(given)
            introduce(abilities, ConnectionAudience(ctx.session._connection, result["protocolVersion"], abilities))
        return result

    return introduced
