"""`gateway_info`: what the gateway looks like to one client, and where that client's references came from."""

from __future__ import annotations

import anyio.to_thread

from pml_gateway.config.advice import intent_sources, literal_secrets, unresolved_references, without_effect
from pml_gateway.config.settings import Settings
from pml_gateway.errors import InvalidInputError, ReferenceNotFoundError
from pml_gateway.exposure.patterns import unmatched
from pml_gateway.exposure.token_count import TOKENIZER
from pml_gateway.gateway.answers import data_result
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.gateway.list_cost import COUNTED_VERSION, list_tokens
from pml_gateway.gateway.meta_definitions import INFO_SECTIONS, enabled_meta_tools
from pml_gateway.gateway.request import CallOptions, RequestScope, call_intent, effective_mode
from pml_gateway.gateway.settle import visible_to
from pml_gateway.gateway.state import GatewayState
from pml_gateway.meta.arguments import choice, string
from pml_gateway.policy.view import View
from pml_gateway.results.lineage import lineage
from pml_gateway.results.stored import StoredResult
from pml_gateway.types import ExposureMode, JsonObject
from pml_gateway.upstreams.breaker import BreakerState


class GatewayInfo:
    """Answers `gateway_info`; a client learns of no server, tool or problem that its rights hide."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def gateway_info(self, scope: RequestScope, arguments: JsonObject, _: CallOptions) -> JsonObject:
        """One section, or the overview."""
        state = await self._gateway.ready()
        view = state.view(scope.client)
        match choice(arguments, "section", INFO_SECTIONS):
            case "upstreams":
                return data_result({"upstreams": self._upstreams(scope, state, view)})
            case "tokens":
                return data_result(await _tokens(scope, state))
            case "problems":
                return data_result({"problems": await self._problems(scope, state)})
            case "lineage":
                return data_result(await self._lineage(scope, view, string(arguments, "ref", default="")))
            case _:
                return data_result(await self._overview(scope, state, view))

    async def _overview(self, scope: RequestScope, state: GatewayState, view: View) -> JsonObject:
        references = state.settings.references
        return {
            "mode": effective_mode(scope, state.settings.gateway).value,
            "intent": call_intent(scope, state.settings.gateway),
            "tools": len(view.tools),
            "upstreams": self._upstreams(scope, state, view),
            "meta_tools": list(enabled_meta_tools(state.settings)),
            "references": {
                "mode": references.mode,
                "threshold_tokens": references.threshold_tokens,
                "ttl_seconds": references.ttl_seconds,
            },
            "problems": await self._problems(scope, state),
            "sections": list(INFO_SECTIONS),
        }

    def _upstreams(self, scope: RequestScope, state: GatewayState, view: View) -> list[JsonObject]:
        unrestricted = _sees_all(scope, state)
        rows = []
        for upstream_id, upstream in self._gateway.pool.upstreams.items():
            tools = view.servers.get(upstream_id, 0)
            if not tools and not unrestricted:
                continue
            row: JsonObject = {"server": upstream_id, "state": upstream.state.value, "tools": tools}
            if upstream.breaker.state is not BreakerState.CLOSED:
                row["breaker"] = upstream.breaker.report()
            if unrestricted and upstream.last_error is not None:
                row["error"] = str(upstream.last_error)
            rows.append(row)
        return rows

    async def _problems(self, scope: RequestScope, state: GatewayState) -> list[str]:
        """What the owner should change; it names servers and clients, so that only who may see them all is told."""
        if not _sees_all(scope, state):
            return []
        return await anyio.to_thread.run_sync(_misconfigurations, state)

    async def _lineage(self, scope: RequestScope, view: View, ref: str) -> JsonObject:
        if not ref:
            raise InvalidInputError("ref: the reference whose lineage is wanted is missing")
        results, visible = self._gateway.results, visible_to(view)

        async def look_up(handle: str) -> StoredResult | None:
            try:
                return await results.look_up(scope.client, handle, visible)
            except ReferenceNotFoundError:
                return None

        graph = await lineage(ref, look_up, lambda handle: filter(visible, results.uses(handle)))
        if graph is None:
            raise ReferenceNotFoundError(ref)
        return graph


def _sees_all(scope: RequestScope, state: GatewayState) -> bool:
    return scope.client.sees_everything and not state.settings.gateway.blacklisted_tools


async def _tokens(scope: RequestScope, state: GatewayState) -> JsonObject:
    intent = call_intent(scope, state.settings.gateway)
    costs = [await anyio.to_thread.run_sync(list_tokens, state, mode, intent, scope.client) for mode in ExposureMode]
    return {
        "tokenizer": TOKENIZER,
        "protocol_version": COUNTED_VERSION,
        "intent": intent,
        "modes": [{"mode": cost.mode.value, "tools": cost.tools, "tokens": cost.tokens} for cost in costs],
    }


def _misconfigurations(state: GatewayState) -> list[str]:
    settings: Settings = state.settings
    hybrid = settings.gateway.hybrid
    unknown = unmatched(hybrid.whitelisted_tools, state.catalog.tools)
    return [
        *without_effect(settings),
        *intent_sources(settings),
        *unresolved_references(settings),
        *literal_secrets(settings),
        *(f"gateway.hybrid.whitelisted_tools: {entry!r} names no tool" for entry in unknown),
        *(f"{tool.qualified_name}: repaired: {repair}" for tool in state.catalog.tools for repair in tool.repairs),
    ]
