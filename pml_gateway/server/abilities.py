"""What the client of a request can be asked becomes part of who it is, as far as lists depend on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mcp_types
from mcp.server.context import CallNext, HandlerResult, ServerMiddleware
from pydantic import ValidationError

from pml_gateway.server.ability_listings import AbilityListings
from pml_gateway.server.incoming import Context, scope_of
from pml_gateway.server.relay import given_abilities
from pml_gateway.upstreams.questions import NO_ABILITIES, Abilities, abilities_of

_NOT_WAITING = frozenset({"initialize", "server/discover", "ping", "logging/setLevel"})
"""Requests whose answers do not depend on lists. What servers can do does, but it must not be waited for."""


def note_abilities(listings: AbilityListings) -> ServerMiddleware[Any]:
    """A middleware that has upstreams listed for each client that can be asked something, and lets it see that list."""

    async def noted(ctx: Context, call_next: CallNext) -> HandlerResult:
        abilities = _announced(ctx) if ctx.method == "initialize" else given_abilities(ctx)
        scope = scope_of(ctx)
        if ctx.method != "initialize":
            scope.abilities = abilities
        if abilities:
            key = listings.meet(abilities)
            scope.client = replace(scope.client, abilities=key)
            if not listings.is_ready(key) and not _is_answered_at_once(ctx.method):
                await listings.wait(key)
        return await call_next(ctx)

    return noted


def _announced(ctx: Context) -> Abilities:
    """What a handshake says; one that says it wrongly is refused by the SDK."""
    try:
        return abilities_of(mcp_types.ClientCapabilities.model_validate((ctx.params or {}).get("capabilities") or {}))
    except ValidationError:
        return NO_ABILITIES


def _is_answered_at_once(method: str) -> bool:
    return method in _NOT_WAITING or method.startswith("notifications/")
