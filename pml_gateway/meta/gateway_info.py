"""`gateway_info`: the gateway as one client sees it, and the origin of that client's references."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import anyio.to_thread

from pml_gateway.config.advice import LOAD_CHECKS, SETTINGS_CHECKS
from pml_gateway.config.findings import SettingsCase, run_checks
from pml_gateway.errors import InvalidInputError, ReferenceNotFoundError
from pml_gateway.exposure.instructions import NO_SYSTEMS, Systems
from pml_gateway.exposure.meta_tool import MetaTool
from pml_gateway.exposure.token_count import TOKENIZER, count_tokens
from pml_gateway.gateway.call import CallContext
from pml_gateway.gateway.request import call_intent, effective_mode
from pml_gateway.gateway.state import GatewayState
from pml_gateway.gateway.tool_list import COUNTED_VERSION, list_tokens
from pml_gateway.meta.arguments import choice, string
from pml_gateway.policy.idle_entries import idle_entries
from pml_gateway.results.content import data_result
from pml_gateway.results.lineage import lineage
from pml_gateway.results.store import visible_to
from pml_gateway.results.stored import StoredResult
from pml_gateway.secrets.known import without_secrets
from pml_gateway.text import counted
from pml_gateway.types import Effect, ExposureMode, JsonObject
from pml_gateway.upstreams.breaker import BreakerState

if TYPE_CHECKING:
    from pml_gateway.gateway.gateway import Gateway

SECTIONS = ("overview", "upstreams", "tokens", "problems", "lineage")
"""Sections that a client can ask for."""

AWAITS_REVIEW = "held back; the owner sees why with: pml trust"
"""Names no definition: those held back do not exist for clients, even for those that see everything else."""


def definition(_: Systems) -> JsonObject:
    """Return the tool definition."""
    return {
        "name": "gateway_info",
        "description": "How this gateway is set up: mode, systems, token costs, problems, where a reference came from.",
        "inputSchema": {
            "type": "object",
            "properties": {"section": {"enum": list(SECTIONS)}, "ref": {"type": "string"}},
        },
        "annotations": Effect.READ.hints | {"openWorldHint": False},
    }


async def gateway_info(context: CallContext, arguments: JsonObject) -> JsonObject:
    """Return one section, or the overview; it contains no server, tool or problem that the client's rights hide."""
    section = choice(arguments if "ref" not in arguments else {"section": "lineage", **arguments}, "section", SECTIONS)
    if "ref" in arguments and section != "lineage":
        raise InvalidInputError(f"ref: {section} takes none", hint='write "section": "lineage", or leave out "ref"')
    match section:
        case "upstreams":
            return data_result({"upstreams": _upstreams(context)})
        case "tokens":
            return data_result(await _tokens(context))
        case "problems":
            return data_result({"problems": await _problems(context)})
        case "lineage":
            return data_result(await _lineage(context, string(arguments, "ref", default="")))
        case _:
            return data_result(await _overview(context))


async def _overview(context: CallContext) -> JsonObject:
    settings = context.settings
    references = settings.references
    return {
        "mode": effective_mode(context.scope, settings.gateway).value,
        "intent": call_intent(context.scope, settings.gateway),
        "tools": len(context.view.tools),
        "upstreams": _upstreams(context),
        "meta_tools": [tool.name for tool in context.meta_tools.enabled(settings)],
        "references": {
            "mode": references.mode,
            "threshold_tokens": references.threshold_tokens,
            "ttl_seconds": references.ttl_seconds,
        },
        "problems": await _problems(context),
        "sections": list(SECTIONS),
    }


def _gateway(context: CallContext) -> Gateway:
    """Return the gateway of the call: only a gateway serves this meta-tool."""
    return cast("Gateway", context.gateway)


def _upstreams(context: CallContext) -> list[JsonObject]:
    unrestricted = _sees_all(context)
    rows = []
    for upstream_id, upstream in _gateway(context).pool.upstreams.items():
        tools = context.view.servers.get(upstream_id, 0)
        if not tools and not unrestricted:
            continue
        row: JsonObject = {"server": upstream_id, "state": upstream.connector.state.value, "tools": tools}
        if upstream.breaker.state is not BreakerState.CLOSED:
            row["breaker"] = upstream.breaker.report()
        if unrestricted and upstream.connector.last_error is not None:
            row["error"] = without_secrets(str(upstream.connector.last_error))
        rows.append(row)
    return rows


async def _problems(context: CallContext) -> list[str]:
    """Return problems for the owner; empty unless the client sees all servers and clients, which they name."""
    if not _sees_all(context):
        return []
    found = await anyio.to_thread.run_sync(_misconfigurations, context.state, _gateway(context))
    held = _gateway(context).trust_gate.held_count
    return [f"{counted(held, 'definition')} {AWAITS_REVIEW}", *found] if held else found


async def _lineage(context: CallContext, ref: str) -> JsonObject:
    if not ref:
        raise InvalidInputError("ref: the reference whose lineage is wanted is missing")
    results, visible = context.gateway.results, visible_to(context.view)

    async def look_up(handle: str) -> StoredResult | None:
        try:
            return await results.look_up(context.scope.client, handle, visible)
        except ReferenceNotFoundError:
            return None

    graph = await lineage(ref, look_up, lambda handle: filter(visible, results.uses(handle)))
    if graph is None:
        raise ReferenceNotFoundError(ref)
    return graph


def _sees_all(context: CallContext) -> bool:
    return context.view.hides_nothing


async def _tokens(context: CallContext) -> JsonObject:
    state, client = context.state, context.scope.client
    settings = state.settings.gateway
    intent, mode = call_intent(context.scope, settings), effective_mode(context.scope, settings)
    costs = [await anyio.to_thread.run_sync(list_tokens, state, mode, intent, client) for mode in ExposureMode]
    return {
        "instructions": await anyio.to_thread.run_sync(lambda: count_tokens(state.instructions(context.view, mode))),
        "tokenizer": TOKENIZER,
        "protocol_version": COUNTED_VERSION,
        "intent": intent,
        "modes": [{"mode": cost.mode.value, "tools": cost.tools, "tokens": cost.tokens} for cost in costs],
    }


def _misconfigurations(state: GatewayState, gateway: Gateway) -> list[str]:
    settings, catalog = state.settings, state.catalog
    case = SettingsCase(settings, gateway.pool.working_directory.environ)
    found = run_checks((*LOAD_CHECKS, *SETTINGS_CHECKS), case)
    found += idle_entries(settings, catalog, gateway.trust_gate.servers, gateway.silent)
    return [
        *(str(finding) for finding in found if finding.is_fault),
        *(f"{tool.qualified_name}: repaired: {repair}" for tool in catalog.tools for repair in tool.repairs),
    ]


GATEWAY_INFO = MetaTool("gateway_info", definition, gateway_info, beside_namespaces=lambda *_: definition(NO_SYSTEMS))
