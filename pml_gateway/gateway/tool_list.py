"""The finished `tools/list` of a client: what its mode exposes, as bytes that are sent again and again; its cost."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.wire import encode, tool_for_version
from pml_gateway.exposure.history import NOTHING_FOLLOWED, Followed
from pml_gateway.exposure.modes import ModeExposure
from pml_gateway.exposure.namespaces import definition
from pml_gateway.exposure.token_count import count_tokens
from pml_gateway.gateway.request import RequestScope, effective_mode
from pml_gateway.gateway.state import MAX_LISTS, FinishedList, GatewayState
from pml_gateway.policy.principal import LOCAL, Principal
from pml_gateway.policy.view import View
from pml_gateway.quotas import keep_latest
from pml_gateway.types import MODES, ExposureMode, JsonObject

if TYPE_CHECKING:
    from pml_gateway.gateway.gateway import Gateway

COUNTED_VERSION = "2025-11-25"
"""The protocol version whose list is counted: the one most clients speak."""

MAX_TRIES = 3
"""Maximum number of attempts at a list whose state was swapped meanwhile: earlier rights must not answer."""


async def list_tools(
    gateway: Gateway, scope: RequestScope, intent: str | None, version: str, followed: Followed = NOTHING_FOLLOWED
) -> FinishedList:
    """Return the list for one request; equal selections give equal bytes."""
    try:
        for _ in range(MAX_TRIES):
            finished, state = await _list_of_now(gateway, scope, intent, version, followed)
            if gateway.state.settings is state.settings and gateway.state.catalog is state.catalog:
                break
        return finished
    finally:
        # Not before: starting servers would take the cores from the first list.
        gateway.note_request()


async def _list_of_now(
    gateway: Gateway, scope: RequestScope, intent: str | None, version: str, followed: Followed
) -> tuple[FinishedList, GatewayState]:
    """Return the list, and the state that it was made from."""
    state = await gateway.known_tools()
    gateway_settings = state.settings_of(scope.client).gateway
    mode = effective_mode(scope, gateway_settings)
    if (intent is not None or followed) and MODES[mode].reads_intent:
        state = await gateway.wait_for_search()
    view = state.view(scope.client)
    who = (scope.client.rules, state.catalog.visibility.group(scope.client.client_capabilities))
    selects = gateway_settings.selects_by_intent(mode)
    intent, followed = (intent, followed) if selects else (None, NOTHING_FOLLOWED)
    key = (who, scope.shows_apps, mode, intent, version, followed)
    lists = state.lists.followed if followed else state.lists.whole if intent is None else state.lists.selected
    while (finished := lists.get(key)) is None:
        making = state.lists.making.get(key)
        if making is not None:
            await making.wait()
            continue
        made = state.lists.making[key] = anyio.Event()
        try:
            finished = await anyio.to_thread.run_sync(_finished, state, view, mode, intent, version, followed, scope)
            keep_latest(lists, key, finished, MAX_LISTS)
        finally:
            del state.lists.making[key]
            made.set()
    return finished, state


def _finished(
    state: GatewayState,
    view: View,
    mode: ExposureMode,
    intent: str | None,
    version: str,
    followed: Followed,
    scope: RequestScope,
) -> FinishedList:
    """Return a list that is in no cache; in a thread, for it takes long in a large catalog."""
    exposure = state.expose(view, mode, intent, followed)
    servers = servers_of(state, view, exposure)
    apps = state.view(scope.client, for_apps=True).tools if scope.shows_apps else ()
    # Clients keep them from the model, and refuse calls of a user interface that are not on the list.
    tools_json = render(state, view, exposure, version, [each for each in apps if each.upstream_id in servers])
    return FinishedList(tools_json, hashlib.sha256(tools_json).digest(), servers)


def servers_of(state: GatewayState, view: View, exposure: ModeExposure) -> frozenset[str]:
    """Return the servers of which an exposure shows anything, be it as actions of a namespace."""
    shown = {listed.tool.upstream_id for listed in exposure.tools} | {tool.upstream_id for tool in exposure.legacy}
    if exposure.meta_tools and exposure.namespaces:
        for namespace in state.namespaces(view).values():
            shown |= {tool.upstream_id for tool in namespace.actions.values()}
    return frozenset(shown)


async def expose(
    state: GatewayState, view: View, mode: ExposureMode, intent: str | None, followed: Followed = NOTHING_FOLLOWED
) -> ModeExposure:
    """Return the exposure of one mode; a search runs in a thread, the rest is cheap."""
    if (intent is None and not followed) or not state.settings_of(view.client).gateway.selects_by_intent(mode):
        return state.expose(view, mode, intent)
    return await anyio.to_thread.run_sync(state.expose, view, mode, intent, followed)


def render(
    state: GatewayState, view: View, exposure: ModeExposure, version: str, apps: Iterable[CatalogTool] = ()
) -> bytes:
    """Return the JSON array of an exposure: the gateway's own tools in their fixed order, then tools by name.

    `apps` are the tools that are listed for user interfaces alone.
    """
    own = own_definitions(state, view, exposure)
    parts = [encode(tool_for_version(definition, version)) for definition in own]
    tools = [*(listed.tool for listed in exposure.tools), *apps]
    named = [(tool.qualified_name, tool.as_json(version, as_sent=exposure.as_sent)) for tool in tools]
    named += [
        (tool.qualified_name, encode(tool_for_version(legacy_definition(state, view, tool), version)))
        for tool in exposure.legacy
    ]
    parts += [json for _, json in sorted(named)]
    return b"[" + b",".join(parts) + b"]"


def own_definitions(state: GatewayState, view: View, exposure: ModeExposure) -> list[JsonObject]:
    """Return the gateway's own tools of an exposure: meta-tools, or search and namespaces, sorted by name."""
    if not exposure.meta_tools:
        return []
    meta_tools, systems, settings = state.meta_tools_of(view), state.systems(view), state.settings_of(view.client)
    if not exposure.namespaces:
        return meta_tools.definitions(settings, systems)
    meta = meta_tools.definitions_beside_namespaces(settings, systems)
    return meta + [definition(namespace) for namespace in state.namespaces(view).values()]


def legacy_definition(state: GatewayState, view: View, tool: CatalogTool) -> JsonObject:
    """Return an original tool that is listed beside the namespace that has it as an action."""
    by_tool = (name for name, namespace in state.namespaces(view).items() if tool.qualified_name in namespace.by_tool)
    name = next(by_tool, None)
    if name is None:
        return tool.definition
    return {**tool.definition, "description": f"[Legacy — prefer {name}] {tool.description}".rstrip()}


@dataclass(frozen=True, slots=True)
class ListCost:
    """One mode's list: how many tools, how large."""

    mode: ExposureMode
    tools: int
    bytes: int
    tokens: int


def list_tokens(
    state: GatewayState,
    mode: ExposureMode,
    intent: str | None = None,
    client: Principal = LOCAL,
    followed: Followed = NOTHING_FOLLOWED,
) -> ListCost:
    """Count the `tools` array a client gets in this mode. Blocks: call it in a thread for large catalogs."""
    view = state.view(client)
    exposure = state.expose(view, mode, intent, followed)
    rendered = render(state, view, exposure, COUNTED_VERSION)
    return ListCost(
        mode,
        tools=len(exposure.tools) + len(exposure.legacy) + len(own_definitions(state, view, exposure)),
        bytes=len(rendered),
        tokens=count_tokens(rendered.decode()),
    )
