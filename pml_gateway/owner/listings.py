"""The catalog, what one client gets of it, and why, as rows for people and programs."""

from __future__ import annotations

import anyio.to_thread

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.config.problems import client_entry
from pml_gateway.config.servers import disabled_tools
from pml_gateway.gateway.state import GatewayState
from pml_gateway.gateway.tool_list import legacy_definition, own_definitions
from pml_gateway.owner.context import OperationContext
from pml_gateway.policy.client import LOCAL, Client, configured_client
from pml_gateway.reports.verdicts import Exclusion, VisibilityVerdict, exclusions, verdicts
from pml_gateway.text import first_sentence
from pml_gateway.types import MODES, ExposureMode, JsonObject


async def tools(context: OperationContext, arguments: JsonObject) -> JsonObject:
    """Return the `tools` as rows, and the servers with unknown tools; with `as_client`, as a client gets them."""
    gateway, query, as_client = context.gateway, arguments["query"], arguments["as_client"]
    state = await gateway.wait_for_tools()
    client = _client(state, arguments["client"])
    intent = query or _intent(state, client)
    mode = _mode(arguments, state, client) if as_client else ExposureMode.FULL_PROXY
    if intent is not None and MODES[mode].reads_intent:
        state = await gateway.wait_for_search(30)
    view = state.view(client)
    namespaces = state.namespaces(view)
    exposure = await anyio.to_thread.run_sync(state.expose, view, mode, intent)
    meta = own_definitions(state, view, exposure) if as_client else []
    rows = [
        _row(each["name"], "namespace" if each["name"] in namespaces else "meta-tool", each["description"])
        for each in meta
    ]
    rows += [
        _row(
            listed.tool.qualified_name,
            listed.reason.value if as_client else None,
            listed.tool.description,
            listed.tool,
            listed.score,
        )
        for listed in exposure.tools
    ]
    rows += [
        _row(tool.qualified_name, "legacy", legacy_definition(state, view, tool)["description"], tool)
        for tool in exposure.legacy
    ]
    return {"tools": rows, "unlisted": list(gateway.unlisted())}


def _row(
    name: str, reason: str | None, description: str, tool: CatalogTool | None = None, score: float | None = None
) -> JsonObject:
    return {
        "name": name,
        "server": tool.upstream_id if tool is not None else None,
        "reason": reason,
        "score": score,
        "state": "" if tool is None else "stale" if tool.stale else "ok",
        "description": first_sentence(description, 70),
    }


async def explain(context: OperationContext, arguments: JsonObject) -> JsonObject:
    """Every tool, with why a client of the mode would be listed it or not."""
    state = await context.gateway.wait_for_search(60)
    client = _client(state, arguments["client"])
    view = state.view(client)
    mode, intent = _mode(arguments, state, client), arguments["query"] or _intent(state, client)
    settings = state.settings.gateway
    judged = await anyio.to_thread.run_sync(
        lambda: verdicts(
            mode,
            view.tools,
            lambda text, limit: state.search(view, text, limit).tools,
            settings,
            intent,
            state.used(view),
            ownership=state.catalog.ownership,
        )
    )
    excluded = exclusions(state.catalog, client, settings.blacklisted_tools)
    return {
        "mode": mode.value,
        "intent": intent,
        "client": client.id.removeprefix("client:"),
        "direct_calls": settings.direct_calls,
        "tools": [
            *(_judged(verdict, settings.direct_calls == "visible") for verdict in _in_order(judged)),
            *(_excluded(each) for each in excluded),
            *(_disabled(*each) for each in disabled_tools(state.settings.servers)),
        ],
    }


def _in_order(judged: tuple[VisibilityVerdict, ...]) -> list[VisibilityVerdict]:
    """Sort listed tools first, then the others, each best first."""
    return sorted(judged, key=lambda each: (not each.listed, each.place or len(judged), each.tool.qualified_name))


def _judged(verdict: VisibilityVerdict, direct_calls: bool) -> JsonObject:
    return {
        "name": verdict.tool.qualified_name,
        "server": verdict.tool.upstream_id,
        "listed": verdict.listed,
        "callable": verdict.listed or direct_calls,
        "reason": verdict.reason,
        "score": verdict.score,
        "place": verdict.place,
        "limit": verdict.limit,
        "pattern": None,
    }


def _excluded(exclusion: Exclusion) -> JsonObject:
    return {
        "name": exclusion.tool.qualified_name,
        "server": exclusion.tool.upstream_id,
        "listed": False,
        "callable": False,
        "reason": exclusion.rule.value,
        "score": None,
        "place": None,
        "limit": None,
        "pattern": exclusion.pattern,
    }


def _disabled(server: str, name: str) -> JsonObject:
    return {
        "name": f"{server}:{name}",
        "server": server,
        "listed": False,
        "callable": False,
        "reason": "disabled",
        "score": None,
        "place": None,
        "limit": None,
        "pattern": f"servers.{server}.tools.{name}.enabled",
    }


def _client(state: GatewayState, name: str | None) -> Client:
    """Return the client of this name in the configuration, without its key; whoever runs the command if none is named.

    Raises:
        UsageError: no such client.
    """
    if name is None:
        return LOCAL
    return configured_client(name, client_entry(state.settings, name))


def _mode(arguments: JsonObject, state: GatewayState, client: Client) -> ExposureMode:
    """Return the mode asked for, else the client's own, else the gateway's."""
    is_asked = arguments["is_mode_given"]
    return state.settings.gateway.tools_exposure if is_asked or client.mode is None else client.mode


def _intent(state: GatewayState, client: Client) -> str | None:
    return client.intent or state.settings.gateway.intent
