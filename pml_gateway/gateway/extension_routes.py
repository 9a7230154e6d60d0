"""The servers that a message of an extension may be for: none for a message that names anything hidden."""

from __future__ import annotations

import re
from typing import Any

from pml_gateway.catalog.prompts_and_resources import OfferKind, Route
from pml_gateway.config.servers import disabled_tools
from pml_gateway.gateway.state import GatewayState
from pml_gateway.mcp.capabilities import EXTENSIONS
from pml_gateway.policy.rules import HidingRule
from pml_gateway.policy.view import View
from pml_gateway.skills.folders import SKILLS
from pml_gateway.types import JsonObject

MAX_ROUTES = 3
"""Maximum number of servers that are asked in turn about one URI."""

LIST_SKILLS = "skills/list"
GET_SKILL = "skills/get"
OF_SKILLS = frozenset({LIST_SKILLS, GET_SKILL, "resources/directory/read"})
"""The methods of the extension for skills; URIs in their answers are those under which clients read the files."""

_NAMING = re.compile(
    r"(?:(?:tool|prompt|resource|skill)_?)?(?:name|uri)s?|(?:tool|prompt|resource|skill)s?", re.IGNORECASE
)
"""The keys of params, at any depth, whose values name a tool, a prompt or a resource."""

MAX_NAMED = 100
MAX_VALUES = 10_000
"""Maximum number of names and URIs, and of values at all, in a message of a client that something is hidden from."""

_REFUSED = (HidingRule.DENIED, HidingRule.BLACKLISTED, HidingRule.CAPABILITIES)
"""The rules about what a client may not see, as opposed to what it was not given."""


def routes_of(state: GatewayState, view: View, method: str, params: JsonObject) -> list[tuple[str, JsonObject]]:
    """Return the visible servers that a message may be for, each with its params as it knows them.

    A message that names a visible tool, prompt or resource is for its server. One that names something held back or
    switched off is for none, and neither is any other name from a client that something is hidden from, or it could
    tell by the answers what that is.
    """
    servers = _with_extension(view, method)
    if hides_any(state, view):
        nested = _named({key: value for key, value in params.items() if key not in ("name", "uri")})
        servers = [each for each in servers if nested is not None and not _hides_one_of(state, view, each, nested)]
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
    offers = view.offers
    routes = (offers.routes_to_entry if method == GET_SKILL else offers.routes)(uri) if isinstance(uri, str) else []
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
    named = _named(params)
    return named is None or any(not _is_visible(view, text) for text in named)


def hides_any(state: GatewayState, view: View) -> bool:
    """Return True if anything of any server is hidden from a client, held back or switched off."""
    catalog = view.catalog
    return (
        view.offers.hides_any
        or catalog.held is not None
        or len(view.tools) < len(catalog.tools)
        or bool(list(disabled_tools(state.settings.servers)))
    )


def _named(params: JsonObject) -> list[str] | None:
    """Return the texts under naming keys of params, and the keys of objects there; None if there are too many."""
    named: list[str] = []
    pending: list[tuple[Any, bool]] = [(params, False)]
    for _ in range(MAX_VALUES):
        if not pending:
            return named if len(named) <= MAX_NAMED else None
        value, is_naming = pending.pop()
        match value:
            case str() if is_naming:
                named.append(value)
            case dict() if len(value) <= MAX_VALUES:
                named += value if is_naming else ()
                pending += [(each, _NAMING.fullmatch(key) is not None) for key, each in value.items()]
            case list() if len(value) <= MAX_VALUES:
                pending += [(each, is_naming) for each in value]
            case dict() | list():
                return None
    return None


def _is_visible(view: View, text: str) -> bool:
    return view.resolve(text) is not None or any(view.offers.find(kind, text) is not None for kind in OfferKind)


def _hides_one_of(state: GatewayState, view: View, upstream_id: str, texts: list[str]) -> bool:
    """Return True if one of these names or URIs is of something that this server has and the client does not see."""
    return any(_hides(state, view, upstream_id, text) for text in texts)


def _hides(state: GatewayState, view: View, upstream_id: str, text: str) -> bool:
    catalog, offers = view.catalog, view.offers
    claim = catalog.ownership.claim(text)
    if claim is not None and claim.upstream_id == upstream_id:
        return not _is_visible(view, text)
    if (":" in text or "/" in text) and offers.hidden_by(upstream_id, text) in _REFUSED:
        return True
    named = [tool for each in (catalog, catalog.held) if each is not None for tool in each.own_names.get(text, ())]
    prompts = [offer for offer in catalog.offers.of_kind(OfferKind.PROMPT) if text in (offer.name, offer.public)]
    return (
        any(tool.upstream_id == upstream_id and view.listed(tool.qualified_name) is None for tool in named)
        or any(each.upstream_id == upstream_id and not offers.permits(upstream_id, each.name) for each in prompts)
        or (upstream_id, text) in disabled_tools(state.settings.servers)
    )
