"""The catalog, what one client gets of it, and why, as rows for people and programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from operator import getitem
from typing import Any

import anyio.to_thread

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.config.problems import client_entry
from pml_gateway.config.servers import disabled_tools
from pml_gateway.config.sets import check_sets
from pml_gateway.config.single_settings import with_single_settings
from pml_gateway.exposure.history import NOTHING_FOLLOWED, Followed
from pml_gateway.gateway.state import GatewayState
from pml_gateway.gateway.tool_list import legacy_definition, list_tokens, own_definitions
from pml_gateway.owner.context import OperationContext
from pml_gateway.owner.results import ExplainedTools, ListChange, ListedTools, ToolRow
from pml_gateway.policy.principal import LOCAL, Principal, configured, local_client
from pml_gateway.reports.verdicts import unlisted, verdicts
from pml_gateway.text import first_sentence
from pml_gateway.types import MODES, ExposureMode

DECIDING = (
    "gateway.tools_exposure",
    "gateway.hybrid.semantic_threshold",
    "gateway.hybrid.max_underlying_tools",
    "gateway.hybrid.max_tokens",
    "gateway.hybrid.fallback",
    "gateway.hybrid.whitelisted_tools",
    "gateway.blacklisted_tools",
)
"""Settings that decide about every client's list."""


async def tools(
    context: OperationContext, query: str | None, client: str | None, is_mode_given: bool, as_client: bool
) -> ListedTools:
    """Return the `tools` as rows, and the servers with unknown tools; with `as_client`, as a client gets them."""
    gateway = context.gateway
    state = await gateway.wait_for_tools()
    viewer = _client(state, client)
    intent = query or _intent(state, viewer)
    mode = _mode(state, viewer, is_mode_given=is_mode_given) if as_client else ExposureMode.FULL_PROXY
    if intent is not None and MODES[mode].reads_intent:
        state = await gateway.wait_for_search(30)
    view = state.view(viewer)
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
) -> ToolRow:
    return {
        "name": name,
        "server": tool.upstream_id if tool is not None else None,
        "reason": reason,
        "score": score,
        "state": "" if tool is None else "stale" if tool.stale else "ok",
        "effect": None if tool is None else tool.effect.value,
        "description": first_sentence(description, 70),
    }


async def explain(
    context: OperationContext,
    query: str | None,
    client: str | None,
    is_mode_given: bool,
    searched: list[str],
    sets: list[str],
    tried: dict[str, Any],
) -> ExplainedTools:
    """Return every tool, with the reason why a client is listed it or not.

    Args:
        context: the gateway.
        query: the intent, instead of a configured one.
        client: an entry of `clients:`; None for a client on this machine.
        is_mode_given: True if the gateway's mode replaces the client's own.
        searched: searches that the session made before, the last one newest.
        sets: the sets that a client on this machine is started with.
        tried: settings by dotted key, as if they were configured.

    Raises:
        GatewayError: there is no such client, set or setting.
    """
    state = await context.gateway.wait_for_search(60)
    check_sets(sets, state.settings)

    def asked(state: GatewayState) -> ExplainedTools:
        return _explained(state, query, client, is_mode_given, searched, sets)

    if context.mode is not None:
        state = _with_settings(state, {"gateway.tools_exposure": context.mode.value})
    now = await anyio.to_thread.run_sync(asked, state)
    if not tried:
        return now
    then = await anyio.to_thread.run_sync(asked, _with_settings(state, tried))
    before, after = ({row["name"] for row in each["tools"] if row["listed"]} for each in (now, then))
    change: ListChange = {
        "comes_in": sorted(after - before),
        "goes_out": sorted(before - after),
        "tokens_before": now["tokens"],
    }
    return {**then, "change": change}


def _with_settings(state: GatewayState, values: Mapping[str, Any]) -> GatewayState:
    """Return a state as it would be with other settings, by dotted key."""
    settings = with_single_settings(state.settings, values)
    return GatewayState(settings, state.catalog, state.index, state.ranking, state.meta_tools, state.starting)


def _explained(
    state: GatewayState,
    query: str | None,
    client: str | None,
    is_mode_given: bool,
    searched: list[str],
    sets: list[str],
) -> ExplainedTools:
    """Return the list of a client in one state, explained. Blocking."""
    viewer = _client(state, client)
    if client is None:
        # What the owner's configuration gives to clients on this machine.
        viewer = state.with_current_rights(local_client("listed", tuple(sets))) or viewer
    view = state.view(viewer)
    mode, intent = _mode(state, viewer, is_mode_given=is_mode_given), query or _intent(state, viewer)
    settings = state.settings_of(viewer).gateway
    followed = Followed(tuple(reversed(searched))) if settings.follow == "searches" else NOTHING_FOLLOWED
    judged = verdicts(
        mode,
        view.tools,
        partial(state.select, view),
        settings,
        intent,
        state.used(view),
        ownership=state.catalog.ownership,
        followed=followed,
    )
    excluded = filter(None, map(view.exclusion, state.catalog.tools))
    cost = list_tokens(state, mode, intent, viewer, followed)
    return {
        "mode": mode.value,
        "intent": intent,
        "follow": settings.follow,
        "client": viewer.shown,
        "direct_calls": settings.direct_calls,
        "tokens": cost.tokens,
        "other_tools": cost.tools - sum(each["listed"] for each in judged),
        "change": None,
        "deciding": _deciding(state, client, sets),
        "clients": list(state.settings.clients),
        "sets": list(state.settings.sets),
        "tools": [
            # Listed tools first, then the others, each best first.
            *sorted(judged, key=lambda each: (not each["listed"], each["place"] or len(judged), each["name"])),
            *(
                unlisted(each.tool.qualified_name, each.tool.upstream_id, each.rule.value, each.pattern)
                for each in excluded
            ),
            *(
                unlisted(f"{server}:{name}", server, "disabled", f"servers.{server}.tools.{name}.enabled")
                for server, name in disabled_tools(state.settings.servers)
            ),
        ],
    }


def _deciding(state: GatewayState, client: str | None, sets: Sequence[str]) -> dict[str, Any]:
    """Return the settings by dotted key that decide about the list of a client."""
    keys = [*DECIDING]
    # A dotted key cannot have a name with dots in it.
    if client is not None and "." not in client:
        keys += [f"clients.{client}.{name}" for name in ("mode", "allow", "deny")]
    keys += [f"sets.{each}.{name}" for each in sets if "." not in each for name in ("mode", "include", "exclude")]
    tree = state.settings.model_dump(mode="json", include={"gateway", "clients", "sets"})
    return {key: reduce(getitem, key.split("."), tree) for key in keys}


def _client(state: GatewayState, name: str | None) -> Principal:
    """Return the client of this name in the configuration, without its key; whoever runs the command if none is named.

    Raises:
        UsageError: no such client.
    """
    if name is None:
        return LOCAL
    client_entry(state.settings, name)
    return configured(state.settings)[name]


def _mode(state: GatewayState, client: Principal, *, is_mode_given: bool) -> ExposureMode:
    """Return the mode asked for, else the client's own, else the gateway's."""
    return state.settings.gateway.tools_exposure if is_mode_given or client.mode is None else client.mode


def _intent(state: GatewayState, client: Principal) -> str | None:
    return client.intent or state.settings.gateway.intent
