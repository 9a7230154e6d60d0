"""Prompts, resources and completions: listed for one client, asked for at the upstream that owns them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping

import mcp_types
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import INVALID_PARAMS
from pydantic import BaseModel

from pml_gateway.catalog.fields import offer_for_version
from pml_gateway.catalog.prompts_and_resources import OfferKind
from pml_gateway.catalog.public_uris import with_public_uris
from pml_gateway.catalog.wire import LATEST_VERSION
from pml_gateway.errors import GatewayError
from pml_gateway.gateway.answers import (
    RESOURCE_NOT_FOUND,
    as_rpc_error,
    carried,
    check_result,
    check_uri,
    prompt_not_found,
    resource_not_found,
)
from pml_gateway.gateway.calling import ask_upstream
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.gateway.request import Context, options_of
from pml_gateway.gateway.resource_subscriptions import ResourceFollowers
from pml_gateway.gateway.state import MAX_LISTS, GatewayState
from pml_gateway.policy.view import View
from pml_gateway.quotas import keep_latest
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

    def __init__(self, gateway: Gateway, followers: ResourceFollowers) -> None:
        self._gateway = gateway
        self._followers = followers
        self._answers: Mapping[str, Callable[[Context, View], Awaitable[JsonObject]]] = {
            **dict.fromkeys(_LISTS, self._list),
            "prompts/get": self._get_prompt,
            "resources/read": self._read_resource,
            "completion/complete": self._complete,
            "resources/subscribe": self._subscribe,
            "resources/unsubscribe": self._unsubscribe,
        }

    async def answer(self, ctx: Context, envelope: JsonObject) -> JsonObject:
        """Return the answer to one of `EMPTY_ANSWERS`' methods, put into its empty one as the SDK has checked it."""
        state = await self._gateway.wait_for_tools()
        try:
            result = await carried(await self._answers[ctx.method](ctx, state.view(ctx.scope.client)))
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
        if "cacheScope" in finished and self._gateway.state.settings.clients:
            finished["cacheScope"] = "private"
        try:
            check_result(finished, ctx.method, ctx.method, ctx.protocol_version)
        except GatewayError as error:
            raise as_rpc_error(error) from error
        if ctx.protocol_version >= LATEST_VERSION:
            return finished
        return {key: value for key, value in finished.items() if key not in _MODERN_FIELDS}

    async def _list(self, ctx: Context, view: View) -> JsonObject:
        if (ctx.params or {}).get("cursor") is not None:
            raise MCPError(INVALID_PARAMS, "Invalid cursor: the list has one page")
        kind, key = _LISTS[ctx.method]
        return {key: list_offers(self._gateway.state, view, kind, ctx.protocol_version)}

    async def _get_prompt(self, ctx: Context, view: View) -> JsonObject:
        params = _own_params(ctx)
        offer = view.offers.find(OfferKind.PROMPT, params["name"])
        if offer is None:
            raise prompt_not_found(params["name"])
        return await self._ask(ctx, offer.upstream_id, {**params, "name": offer.name})

    async def _read_resource(self, ctx: Context, view: View) -> JsonObject:
        params = _own_params(ctx)
        check_uri(params["uri"])
        routes = view.offers.routes(params["uri"])[:MAX_TRIED]
        for route in routes:
            try:
                result = await ask_upstream(
                    self._gateway, route.upstream_id, ctx.method, {**params, "uri": route.uri}, options_of(ctx)
                )
            except GatewayError as error:
                # Where something is hidden, the server's own words would tell it from what does not exist.
                is_last_word = route is routes[-1] and not view.offers.hides_any
                if is_last_word or not _is_unknown(error):
                    raise
            else:
                table = self._gateway.state.catalog.offers
                return with_public_uris(result, route.upstream_id, table, (params["uri"], route))
        raise resource_not_found(params["uri"], ctx.protocol_version)

    async def _complete(self, ctx: Context, view: View) -> JsonObject:
        params = _own_params(ctx)
        ref = params["ref"]
        if ref.get("type") == "ref/prompt":
            offer = view.offers.find(OfferKind.PROMPT, ref["name"])
            if offer is None:
                raise prompt_not_found(ref["name"])
            upstream_id, own = offer.upstream_id, {**ref, "name": offer.name}
        else:
            upstream_id, uri = _template_route(view, ref["uri"], ctx.protocol_version)
            own = {**ref, "uri": uri}
        said = view.said.get(upstream_id)
        if said is not None and not said.completes:
            return {"completion": {"values": []}}
        return await self._ask(ctx, upstream_id, {**params, "ref": own})

    async def _subscribe(self, ctx: Context, view: View) -> JsonObject:
        uri = _own_params(ctx)["uri"]
        check_uri(uri)
        if not view.offers.routes(uri):
            raise resource_not_found(uri, ctx.protocol_version)
        try:
            await self._followers.subscribe_session(ctx, uri)
        except GatewayError as error:
            # What is listed is no secret; of the rest, a server's own words would tell what is hidden.
            is_listed = view.offers.find(OfferKind.RESOURCE, uri) is not None
            if view.offers.hides_any and (_is_unknown(error) or ("jsonrpc_code" in error.details and not is_listed)):
                raise resource_not_found(uri, ctx.protocol_version) from error
            raise
        return {}

    async def _unsubscribe(self, ctx: Context, _view: View) -> JsonObject:
        self._followers.unsubscribe_session(ctx, _own_params(ctx)["uri"])
        return {}

    async def _ask(self, ctx: Context, upstream_id: str, params: JsonObject) -> JsonObject:
        result = await ask_upstream(self._gateway, upstream_id, ctx.method, params, options_of(ctx))
        return with_public_uris(result, upstream_id, self._gateway.state.catalog.offers)


def _own_params(ctx: Context) -> JsonObject:
    """Return the params without what `options_of` reads of them."""
    given = ctx.params or {}
    return {key: value for key, value in given.items() if key not in ("_meta", "inputResponses", "requestState")}


def _is_unknown(error: GatewayError) -> bool:
    return error.details.get("jsonrpc_code") in (RESOURCE_NOT_FOUND, INVALID_PARAMS)


def _template_route(view: View, uri: str, version: str) -> tuple[str, str]:
    """Return the upstream of a visible template or resource, and its own URI (or template)."""
    check_uri(uri)
    template = view.offers.find(OfferKind.TEMPLATE, uri)
    if template is not None:
        return template.upstream_id, template.name
    for route in view.offers.routes(uri):
        if view.catalog.offers.is_listed(route.upstream_id, route.uri):
            return route.upstream_id, route.uri
    raise resource_not_found(uri, version)


def list_offers(state: GatewayState, view: View, kind: OfferKind, version: str) -> list[JsonObject]:
    """Return the definitions of one kind that a client sees, in catalog order."""
    key = (view, kind, version)
    cached: list[JsonObject] | None = state.offer_lists.get(key)
    if cached is None:
        cached = [offer_for_version(offer.definition, version) for offer in view.offers.listed(kind)]
        keep_latest(state.offer_lists, key, cached, MAX_LISTS)
    return cached


def offers_json(state: GatewayState, view: View, kind: OfferKind, version: str) -> bytes:
    """As `list_offers`, to be compared."""
    key = ("json", view, kind, version)
    cached: bytes | None = state.offer_lists.get(key)
    if cached is None:
        cached = json.dumps(list_offers(state, view, kind, version), sort_keys=True).encode()
        keep_latest(state.offer_lists, key, cached, MAX_LISTS)
    return cached
