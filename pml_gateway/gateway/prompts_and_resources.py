"""Prompts, resources and completions: listed for one client, asked for at the upstream that owns them."""

from __future__ import annotations

import json
from collections.abc import Mapping

import mcp_types
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import INVALID_PARAMS
from pydantic import BaseModel

from pml_gateway.catalog.apps import PAGE_SCHEME
from pml_gateway.catalog.fields import offer_for_version
from pml_gateway.catalog.prompts_and_resources import OfferKind, Route
from pml_gateway.catalog.public_uris import with_public_uris
from pml_gateway.catalog.wire import LATEST_VERSION
from pml_gateway.errors import GatewayError, ToolHeldBackError
from pml_gateway.gateway.call import Attempt, CallContext, Calls
from pml_gateway.gateway.calling import ask_upstream
from pml_gateway.gateway.decisions import CallRefusal, Decision
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.gateway.request import Context, options_of, own_params
from pml_gateway.gateway.resource_subscriptions import ResourceFollowers
from pml_gateway.gateway.state import MAX_LISTS, GatewayState
from pml_gateway.policy.view import View
from pml_gateway.quotas import keep_latest
from pml_gateway.results.answers import (
    RESOURCE_NOT_FOUND,
    as_rpc_error,
    carried,
    check_result,
    check_uri,
    prompt_not_found,
    resource_not_found,
)
from pml_gateway.types import JsonObject

MAX_TRIED = 3
"""Upstreams that are asked in turn for a resource that none of them lists."""

_LISTS: Mapping[str, tuple[OfferKind, str]] = {
    "prompts/list": (OfferKind.PROMPT, "prompts"),
    "resources/list": (OfferKind.RESOURCE, "resources"),
    "resources/templates/list": (OfferKind.TEMPLATE, "resourceTemplates"),
}
EMPTY_ANSWERS: Mapping[str, tuple[type[BaseModel], BaseModel]] = {
    "prompts/list": (mcp_types.PaginatedRequestParams, mcp_types.ListPromptsResult(prompts=[])),
    "resources/list": (mcp_types.PaginatedRequestParams, mcp_types.ListResourcesResult(resources=[])),
    "resources/templates/list": (
        mcp_types.PaginatedRequestParams,
        mcp_types.ListResourceTemplatesResult(resource_templates=[]),
    ),
    "prompts/get": (mcp_types.GetPromptRequestParams, mcp_types.GetPromptResult(messages=[])),
    "resources/read": (mcp_types.ReadResourceRequestParams, mcp_types.ReadResourceResult(contents=[])),
    "completion/complete": (
        mcp_types.CompleteRequestParams,
        mcp_types.CompleteResult(completion=mcp_types.Completion(values=[])),
    ),
    "resources/subscribe": (mcp_types.SubscribeRequestParams, mcp_types.EmptyResult()),
    "resources/unsubscribe": (mcp_types.UnsubscribeRequestParams, mcp_types.EmptyResult()),
}
"""The params of each method, and the answer that the SDK checks; what the upstream says is put into it afterwards."""

_MODERN_FIELDS = ("resultType", "ttlMs", "cacheScope")


class PromptAndResourceRequests:
    """Serves prompts, resources, completions and resource subscriptions of one gateway."""

    def __init__(self, gateway: Gateway, calls: Calls, followers: ResourceFollowers) -> None:
        self._gateway = gateway
        self._calls = calls
        self._followers = followers

    async def answer(self, ctx: Context, envelope: JsonObject) -> JsonObject:
        """Return the answer to one of `EMPTY_ANSWERS`' methods, put into its empty one as the SDK has checked it."""
        state = await self._gateway.wait_for_tools()
        view = state.view(ctx.scope.client)
        try:
            if ctx.method in _LISTS:
                result = self._list(ctx, view)
            elif ctx.method == "resources/unsubscribe":
                self._followers.unsubscribe_session(ctx, own_params(ctx)["uri"])
                result = {}
            else:
                context = CallContext(self._gateway, self._calls, state, view, ctx.scope, options_of(ctx))
                result = await OfferRequest(context, ctx, self._followers).run()
            result = await carried(result)
        except GatewayError as error:
            raise as_rpc_error(error) from error
        return self._finished(ctx, envelope, result)

    def _finished(self, ctx: Context, envelope: JsonObject, result: JsonObject) -> JsonObject:
        """Return the result in the checked envelope, valid in the client's version."""
        if result.get("resultType") == "input_required":
            # A question instead of the answer whose empty form the envelope holds.
            envelope = {"_meta": envelope["_meta"]} if "_meta" in envelope else {}
        meta = {**envelope.get("_meta", {}), **result.get("_meta", {})}
        finished = {**envelope, **result, **({"_meta": meta} if meta else {})}
        if "cacheScope" in finished and self._gateway.state.settings.tells_clients_apart:
            finished["cacheScope"] = "private"
        try:
            check_result(finished, ctx.method, ctx.method, ctx.protocol_version)
        except GatewayError as error:
            raise as_rpc_error(error) from error
        if ctx.protocol_version >= LATEST_VERSION:
            return finished
        return {key: value for key, value in finished.items() if key not in _MODERN_FIELDS}

    def _list(self, ctx: Context, view: View) -> JsonObject:
        if (ctx.params or {}).get("cursor") is not None:
            raise MCPError(INVALID_PARAMS, "Invalid cursor: the list has one page")
        kind, key = _LISTS[ctx.method]
        return {key: list_offers(self._gateway.state, view, kind, ctx.protocol_version)}


class OfferRequest(Attempt):
    """A prompt to get, a resource to read or to follow, or arguments of either to complete."""

    def __init__(self, context: CallContext, ctx: Context, followers: ResourceFollowers) -> None:
        params = own_params(ctx)
        asked = params.get("ref", params)
        self._ctx = ctx
        self._followers = followers
        is_prompt = ctx.method == "prompts/get" or asked.get("type") == "ref/prompt"
        super().__init__(context, ctx.method, asked["name" if is_prompt else "uri"], params)
        self._kind = OfferKind.PROMPT if is_prompt else OfferKind.RESOURCE
        self._routes: list[Route] = []

    def resolve(self) -> None:
        """Find the upstreams that may answer for this client, the likeliest first."""
        offers = self.context.view.offers
        if self._kind is OfferKind.PROMPT:
            offer = offers.find(OfferKind.PROMPT, self.name)
            self._routes = [] if offer is None else [Route(offer.upstream_id, offer.name)]
        else:
            check_uri(self.name)
            self._routes = self._of_template() if "ref" in self.arguments else offers.routes(self.name)[:MAX_TRIED]
        if self._routes:
            self.server = self._routes[0].upstream_id

    def _of_template(self) -> list[Route]:
        """Return the upstream of a visible template or resource, and its own URI (or template)."""
        offers = self.context.view.offers
        template = offers.find(OfferKind.TEMPLATE, self.name)
        if template is not None:
            return [Route(template.upstream_id, template.name)]
        table = self.context.view.catalog.offers
        return [each for each in offers.routes(self.name) if table.is_listed(each.upstream_id, each.uri)][:1]

    async def authorise(self) -> Decision:
        """Refuse what does not exist for the client; the owner is told what is hidden, and by which rule."""
        if self._routes:
            return None
        offers, table = self.context.view.offers, self.context.view.catalog.offers
        if self._kind is OfferKind.RESOURCE and offers.holds_back(self.name):
            return CallRefusal(ToolHeldBackError(self.name), "held back")
        kinds = (OfferKind.PROMPT,) if self._kind is OfferKind.PROMPT else (OfferKind.RESOURCE, OfferKind.TEMPLATE)
        hidden = next((found for kind in kinds if (found := table.find(kind, self.name)) is not None), None)
        if hidden is None:
            return CallRefusal(self._not_found())
        self.server = hidden.upstream_id
        return CallRefusal(self._not_found(), offers.hidden_by(hidden.upstream_id, hidden.name) or "")

    def _not_found(self) -> MCPError:
        if self._kind is OfferKind.PROMPT:
            return prompt_not_found(self.name)
        return resource_not_found(self.name, self._ctx.protocol_version)

    async def send(self) -> JsonObject:
        """Return the answer of the first upstream that knows what is asked for."""
        view = self.context.view
        if self.method == "resources/subscribe":
            return await self._subscribe()
        said = view.said.get(self.server)
        if self.method == "completion/complete" and said is not None and not said.capabilities.offers("completions"):
            return {"completion": {"values": []}}
        for route in self._routes:
            self.server = route.upstream_id
            try:
                return await self._ask(route)
            except GatewayError as error:
                # Where something is hidden, the server's own words would tell it from what does not exist.
                is_last_word = route is self._routes[-1] and not view.offers.hides_any
                if self.method != "resources/read" or is_last_word or not _is_unknown(error):
                    raise
        raise self._not_found()

    async def _ask(self, route: Route) -> JsonObject:
        gateway, key = self.context.gateway, "name" if self._kind is OfferKind.PROMPT else "uri"
        params = {**self.arguments, key: route.uri}
        if "ref" in self.arguments:
            params = {**self.arguments, "ref": {**self.arguments["ref"], key: route.uri}}
        result = await ask_upstream(gateway, route.upstream_id, self.method, params, self.context.options)
        memory = self.context.scope.memory
        if memory is not None and self.method == "resources/read" and route.uri.startswith(PAGE_SCHEME):
            memory.note_interface(route.upstream_id)
        read = (self.name, route) if self.method == "resources/read" else None
        return with_public_uris(result, route.upstream_id, gateway.state.catalog.offers, read)

    async def _subscribe(self) -> JsonObject:
        offers = self.context.view.offers
        try:
            await self._followers.subscribe_session(self._ctx, self.name)
        except GatewayError as error:
            # What is listed is no secret; of the rest, a server's own words would tell what is hidden.
            is_listed = offers.find(OfferKind.RESOURCE, self.name) is not None
            if offers.hides_any and (_is_unknown(error) or ("jsonrpc_code" in error.details and not is_listed)):
                raise self._not_found() from error
            raise
        return {}


def _is_unknown(error: GatewayError) -> bool:
    return error.details.get("jsonrpc_code") in (RESOURCE_NOT_FOUND, INVALID_PARAMS)


def list_offers(state: GatewayState, view: View, kind: OfferKind, version: str) -> list[JsonObject]:
    """Return the definitions of one kind that a client sees, in catalog order."""
    key = (view, kind, version)
    cached: list[JsonObject] | None = state.cached.offers.get(key)
    if cached is None:
        cached = [offer_for_version(offer.definition, version) for offer in view.offers.listed(kind)]
        keep_latest(state.cached.offers, key, cached, MAX_LISTS)
    return cached


def offers_json(state: GatewayState, view: View, kind: OfferKind, version: str) -> bytes:
    """As `list_offers`, to be compared."""
    key = ("json", view, kind, version)
    cached: bytes | None = state.cached.offers.get(key)
    if cached is None:
        cached = json.dumps(list_offers(state, view, kind, version), sort_keys=True).encode()
        keep_latest(state.cached.offers, key, cached, MAX_LISTS)
    return cached
