"""The servers that a message of an extension may be for: none for a message that names anything hidden."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from pml_gateway.catalog.prompts_and_resources import OfferKind, Route
from pml_gateway.config.servers import disabled_tools
from pml_gateway.gateway.state import GatewayState
from pml_gateway.mcp.capabilities import EXTENSIONS
from pml_gateway.policy.rules import HidingRule
from pml_gateway.policy.view import View
from pml_gateway.types import JsonObject

MAX_ROUTES = 3
"""Maximum number of servers that are asked in turn about one URI."""

SKILLS = "io.modelcontextprotocol/skills"
LIST_SKILLS = "skills/list"
OF_SKILLS = frozenset({LIST_SKILLS, "skills/get", "resources/directory/read"})
"""The methods of the extension for skills; URIs in their answers are those under which clients read the files."""

_NAMING = re.compile(
    r"(?:(?:tool|prompt|resource|skill)_?)?(?:name|uri)s?|(?:tool|prompt|resource|skill)s?", re.IGNORECASE
)
"""The keys of params, at any depth, whose values name a tool, a prompt or a resource."""

MAX_NAMED = 100
"""Maximum number of names and URIs in one message to a server of which something is hidden."""


def routes_of(state: GatewayState, view: View, method: str, params: JsonObject) -> list[tuple[str, JsonObject]]:
    """Return the visible servers that a message may be for, each with its params as it knows them.

    A message that names a visible tool, prompt or resource is for its server. One that names something held back or
    switched off is for none, and neither is any other name from a client that something is hidden from, or it could
    tell by the answers what that is.
    """
    servers = _with_extension(view, method)
    if nested := list(islice(_named(_without_own(params)), MAX_NAMED + 1)):
        servers = [each for each in servers if not _hides_one_of(state, view, each, nested)]
    sent = dict(params)
    if (name := params.get("name")) is not None:
        owner = _owner(view, name)
        if owner is not None:
            servers = [each for each in servers if each == owner.upstream_id]
            sent["name"] = owner.uri
        elif not view.hides_nothing or _may_be_hidden(state, view, name):
            return []
    if (uri := params.get("uri")) is None:
        return [(upstream_id, sent) for upstream_id in servers]
    routes = view.offers.routes(uri) if isinstance(uri, str) else []
    found = [(each.upstream_id, {**sent, "uri": each.uri}) for each in routes if each.upstream_id in servers]
    return found[:MAX_ROUTES]


def _with_extension(view: View, method: str) -> list[str]:
    """Return the visible servers that may know a method.

    Those are the ones with its extension. If that is unknown, they are all that declare an extension, or else an
    experimental capability.
    """
    said = [
        (upstream_id, offers.capabilities)
        for upstream_id, offers in view.said.items()
        if offers is not None and offers.capabilities.is_extended and view.sees_any_of(upstream_id)
    ]
    if method in OF_SKILLS:
        return [upstream_id for upstream_id, capabilities in said if capabilities.has_extension(SKILLS)]
    named = [upstream_id for upstream_id, capabilities in said if EXTENSIONS in capabilities.announced]
    return named or [upstream_id for upstream_id, _ in said]


def _owner(view: View, name: object) -> Route | None:
    """Return the server of a visible tool or prompt, and its own name there."""
    if not isinstance(name, str):
        return None
    if (tool := view.resolve(name)) is not None:
        return Route(tool.upstream_id, tool.name)
    prompt = view.offers.find(OfferKind.PROMPT, name)
    return None if prompt is None else Route(prompt.upstream_id, prompt.name)


def _may_be_hidden(state: GatewayState, view: View, name: object) -> bool:
    """Return True if a name without a visible owner may belong to something hidden, held back or switched off.

    Anything but a string may.
    """
    if not isinstance(name, str):
        return True
    catalog = view.catalog
    catalogs = [catalog, *([] if catalog.held is None else [catalog.held])]
    return (
        catalog.ownership.claim(name) is not None
        or any(name in each.own_names or each.by_name(name) is not None for each in catalogs)
        or catalog.offers.find(OfferKind.PROMPT, name) is not None
        or any(offer.name == name for offer in catalog.offers.of_kind(OfferKind.PROMPT))
        or any(name == tool for _, tool in disabled_tools(state.settings.servers))
    )


def is_unknown_named(view: View, params: JsonObject) -> bool:
    """Return True if params name something that the client does not see, whether or not it exists."""
    return any(not _is_visible(view, text) for text in islice(_named(params), MAX_NAMED))


def hides_any(state: GatewayState, view: View) -> bool:
    """Return True if anything of any server is hidden from a client, held back or switched off."""
    catalog = view.catalog
    return (
        view.offers.hides_any
        or catalog.held is not None
        or len(view.tools) < len(catalog.tools)
        or bool(list(disabled_tools(state.settings.servers)))
    )


def _without_own(params: JsonObject) -> JsonObject:
    """Return params without the name and the URI that the whole message is about."""
    return {key: value for key, value in params.items() if key not in ("name", "uri")}


def _named(params: JsonObject) -> Iterator[str]:
    """Yield the texts that params have under naming keys, and the keys of objects there."""
    pending: list[tuple[Any, bool]] = [(params, False)]
    while pending:
        value, is_naming = pending.pop()
        match value:
            case str() if is_naming:
                yield value
            case dict():
                if is_naming:
                    yield from value
                pending += [(each, _NAMING.fullmatch(key) is not None) for key, each in value.items()]
            case list():
                pending += [(each, is_naming) for each in value]


def _is_visible(view: View, text: str) -> bool:
    return view.resolve(text) is not None or any(view.offers.find(kind, text) is not None for kind in OfferKind)


def _hides_one_of(state: GatewayState, view: View, upstream_id: str, texts: list[str]) -> bool:
    """Return True if one of these names or URIs is of something that this server has and the client does not see."""
    if not hides_any(state, view):
        return False
    catalog, permits = view.catalog, view.offers.permits
    hidden = {name for server, name in disabled_tools(state.settings.servers) if server == upstream_id}
    for each in (catalog, *([] if catalog.held is None else [catalog.held])):
        own = [tool for tool in each.tools if tool.upstream_id == upstream_id]
        unseen = [tool for tool in own if view.resolve(tool.qualified_name) is not tool]
        hidden |= {name for tool in unseen for name in (tool.name, tool.qualified_name, tool.source)}
    for kind in OfferKind:
        listed = [offer for offer in catalog.offers.of_kind(kind) if offer.upstream_id == upstream_id]
        hidden |= {
            name for offer in listed if not permits(upstream_id, offer.name) for name in (offer.name, offer.public)
        }
    refused = (HidingRule.DENIED, HidingRule.BLACKLISTED, HidingRule.CAPABILITIES)
    return len(texts) > MAX_NAMED or any(
        text in hidden or (":" in text and view.offers.hidden_by(upstream_id, text) in refused) for text in texts
    )
