"""Requests and notifications of protocol extensions, relayed to the servers that declare extensions.

Most are for one server. The skills of all servers are one list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import METHOD_NOT_FOUND

from pml_gateway.catalog.prompts_and_resources import OfferKind
from pml_gateway.catalog.public_uris import with_public_uris
from pml_gateway.errors import GatewayError
from pml_gateway.gateway.call import Attempt, CallContext, Calls
from pml_gateway.gateway.calling import ask_upstream
from pml_gateway.gateway.decisions import Decision
from pml_gateway.gateway.extension_routes import (
    GET_SKILL,
    LIST_SKILLS,
    OF_SKILLS,
    hides_any,
    is_unknown_named,
    routes_of,
)
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.gateway.request import Context, given_capabilities, options_of, own_params
from pml_gateway.results.answers import as_rpc_error, carried
from pml_gateway.trust.trust_gate import TrustGate
from pml_gateway.trust.verdict import SubjectKind
from pml_gateway.types import JsonObject

NOTIFY_SECONDS = 5.0
"""Seconds until a notification that a server does not take is dropped."""


VERBATIM = ("frontmatter", "_meta")
"""The members of an entry that are passed on unchanged."""

MAX_DEPTH = 5
"""Maximum depth of an answer about skills; what is deeper is left out."""


def not_found(method: str) -> MCPError:
    """Return the SDK's error for a method that nobody serves."""
    return MCPError(METHOD_NOT_FOUND, "Method not found", method)


class ExtensionRelay:
    """Relays methods beyond the protocol for clients that declare extensions."""

    def __init__(self, gateway: Gateway, calls: Calls) -> None:
        self._gateway = gateway
        self._calls = calls

    async def request(self, ctx: Context) -> JsonObject:
        """Return the answer of the first server that knows the method, or the skills of all.

        Raises:
            MCPError: no server knows it, or the server's error.
        """
        state = await self._gateway.wait_for_tools()
        context = CallContext(
            self._gateway, self._calls, state, state.view(ctx.scope.client), ctx.scope, options_of(ctx)
        )
        kind = SkillList if ctx.method == LIST_SKILLS else ExtensionRequest
        try:
            return await carried(await kind(context, ctx.method, own_params(ctx), self._gateway.trust_gate).run())
        except GatewayError as error:
            raise as_rpc_error(error) from error

    async def notify(self, ctx: Context) -> None:
        """Pass on a notification if it is certain for which server it is."""
        if not given_capabilities(ctx).extended:
            return
        state = self._gateway.state
        routes = routes_of(state, state.view(ctx.scope.client), ctx.method, own_params(ctx))
        if len(routes) != 1:
            return
        [(upstream_id, params)] = routes
        upstream = self._gateway.pool.upstreams.get(upstream_id)
        if upstream is not None:
            with anyio.move_on_after(NOTIFY_SECONDS):
                await upstream.sessions.notify(ctx.scope.client.id, ctx.method, params)


class ExtensionRequest(Attempt):
    """A request whose method belongs to an extension."""

    def __init__(self, context: CallContext, method: str, params: JsonObject, trust_gate: TrustGate) -> None:
        super().__init__(context, method, method, params)
        self._trust_gate = trust_gate
        self._routes: list[tuple[str, JsonObject]] = []

    def resolve(self) -> None:
        """Find the servers that may know the method."""
        self._routes = routes_of(self.context.state, self.context.view, self.method, self.arguments)
        if self._routes:
            self.server = self._routes[0][0]

    async def authorise(self) -> Decision:
        """Allow it: only visible servers are asked, and none for anything hidden."""
        return None

    async def send(self) -> JsonObject:
        """Ask one server after the other until one knows the method."""
        gateway, state, view = self.context.gateway, self.context.state, self.context.view
        for upstream_id, params in self._routes:
            self.server = upstream_id
            uri = str(params.get("uri"))
            if self.method == GET_SKILL and self._trust_gate.holds_back(upstream_id, (SubjectKind.SKILL, uri)):
                accepted = self.context.view.offers.find(OfferKind.SKILL, str(self.arguments["uri"]))
                if accepted is None:
                    continue
                return {"skill": self._public(upstream_id, accepted.definition), "ttlMs": 0, "cacheScope": "private"}
            try:
                result = await ask_upstream(gateway, upstream_id, self.method, params, self.context.options, once=True)
            except GatewayError as error:
                code = error.details.get("jsonrpc_code")
                if code == METHOD_NOT_FOUND:
                    continue
                # Where something is hidden, the server's own words would tell it from what does not exist.
                if code is not None and is_unknown_named(view, self.arguments) and hides_any(state, view):
                    raise not_found(self.method) from error
                raise
            return self._public(upstream_id, result, params.get("uri"))
        raise not_found(self.method)

    def _public(self, upstream_id: str, result: JsonObject, sent: object = None) -> JsonObject:
        """Return an answer with URIs as clients know them; the server was `sent` its own for the one asked for."""
        offers = self.context.gateway.state.catalog.offers
        if self.method not in OF_SKILLS:
            return with_public_uris(result, upstream_id, offers)

        def public(uri: str) -> str:
            return str(self.arguments["uri"]) if uri == sent else offers.public_uri(upstream_id, uri)

        def permits(uri: str) -> bool:
            return self.context.view.offers.permits(upstream_id, uri)

        changed: JsonObject = _Uris(public, permits).replaced(result, MAX_DEPTH)
        return changed


class SkillList(ExtensionRequest):
    """The skills of all visible servers as they listed them last, as one list without pages."""

    async def send(self) -> JsonObject:
        """Return the skills whose files this client may read."""
        if not self._routes:
            raise not_found(self.method)
        listed = self.context.view.offers.listed(OfferKind.SKILL)
        skills = [self._public(each.upstream_id, each.definition) for each in listed]
        return {"skills": skills, "ttlMs": 0, "cacheScope": "private"}


@dataclass(frozen=True, slots=True)
class _Uris:
    """Replaces the URIs in an answer about skills, and leaves out list members that the client may not read."""

    public: Callable[[str], str]
    permits: Callable[[str], bool]

    def replaced(self, value: Any, depth: int) -> Any:
        match value:
            case dict() if depth:
                return {key: self._member(key, each, depth) for key, each in value.items()}
            case list() if depth:
                return [self.replaced(each, depth - 1) for each in value if self._is_readable(each)]
            case dict() | list():
                return None
        return value

    def _member(self, key: str, value: Any, depth: int) -> Any:
        if key in VERBATIM:
            return value
        return self.public(value) if key == "uri" and isinstance(value, str) else self.replaced(value, depth - 1)

    def _is_readable(self, member: Any) -> bool:
        uri = member.get("uri") if isinstance(member, dict) else None
        return not isinstance(uri, str) or self.permits(uri)
