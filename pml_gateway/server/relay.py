"""The client of one request, as far as upstreams may reach it while they serve the request."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.shared.dispatcher import CallOptions, Outbound, ProgressFnT
from mcp_types import LOG_LEVEL_META_KEY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pml_gateway.policy.client import ANONYMOUS, Client
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.questions import ELICITATION_COMPLETE, LOG_LEVELS, Abilities, abilities_of

MODES_SINCE = "2025-11-25"
"""The first version in which an elicitation names its mode; older clients know forms only."""

_ABILITIES_KEY = "pml_gateway.abilities"
LOG_LEVEL_KEY = "pml_gateway.log_level"

Context = ServerRequestContext[Any, Any]


class RequestAudience:
    """`Audience` over the SDK's context of one request."""

    def __init__(self, ctx: Context, client: Client, abilities: Abilities | None = None) -> None:
        self._session = ctx.session
        self._close_stream = ctx.close_sse_stream
        self._version = ctx.protocol_version
        self.client_id = client.id
        self.is_one_client = client.id != ANONYMOUS.id
        self.answers_later = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        self.abilities = given_abilities(ctx) if abilities is None else abilities
        self.log_level = _log_level(ctx)

    async def ask(self, method: str, params: JsonObject, on_progress: ProgressFnT | None) -> JsonObject:
        """The client's answer, over the channel of its own request; over its session's, once that is answered."""
        options: CallOptions = {} if on_progress is None else {"on_progress": on_progress}
        request = self._session._request_outbound  # the SDK's public methods rebuild what they send and get
        channel: Outbound = request if request.can_send_request else self._session._connection.outbound
        return await channel.send_raw_request(method, question_for(method, params, self._version), options)

    async def tell(self, method: str, params: JsonObject) -> None:
        """Pass on a notification; what is told after the request goes over the session's own channel."""
        if method == ELICITATION_COMPLETE:
            await self._session._connection.notify(method, params)
            return
        if self.answers_later and self.log_level is None:
            # A stateless client gets no logs unless its request asks for them.
            return
        await self._session._request_outbound.notify(method, params)

    async def let_go(self) -> None:
        """Where the transport and the client's version know how to come back."""
        if self._close_stream is not None:
            await self._close_stream()


def question_for(method: str, params: Mapping[str, Any], version: str) -> JsonObject:
    """A question in the shape that a version of the handshake era knows."""
    given = {key: value for key, value in params.items() if key != "task"}
    meta = given.pop("_meta", None)
    if isinstance(meta, dict) and (kept := {key: value for key, value in meta.items() if key != "progressToken"}):
        given["_meta"] = kept
    if method == "elicitation/create":
        if given.get("mode") == "form" and version < MODES_SINCE:
            del given["mode"]
        if given.get("mode") == "url" and "elicitationId" not in given:
            # The stateless protocol has none, and the older one requires it.
            given["elicitationId"] = secrets.token_urlsafe(12)
    return given


def given_abilities(ctx: Context) -> Abilities:
    """What the client of a request announced that it can be asked."""
    given = ctx.session.client_capabilities
    if given is None or ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        return abilities_of(given)
    state = ctx.session._connection.state
    if _ABILITIES_KEY not in state:
        state[_ABILITIES_KEY] = abilities_of(given)
    abilities: Abilities = state[_ABILITIES_KEY]
    return abilities


def _log_level(ctx: Context) -> str | None:
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        level = ctx.session._connection.state.get(LOG_LEVEL_KEY)
    else:
        level = ctx.meta.get(LOG_LEVEL_META_KEY) if ctx.meta else None
    return level if level in LOG_LEVELS else None
