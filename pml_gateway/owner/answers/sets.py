"""Sets of the configuration, and what one client sees with those that it has, each with the rule that decided."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.prompts_and_resources import OfferKind
from pml_gateway.config.problems import client_entry
from pml_gateway.config.sets import check_sets
from pml_gateway.config.settings import Settings
from pml_gateway.exposure.patterns import compile_patterns
from pml_gateway.gateway.call import find
from pml_gateway.gateway.request import RequestScope, call_intent, effective_mode
from pml_gateway.gateway.state import GatewayState
from pml_gateway.owner.context import OperationContext
from pml_gateway.owner.results import Decided, ListedSets, SetRow, TriedClient
from pml_gateway.policy.principal import LOCAL, OWNER, configured, local_client
from pml_gateway.policy.rules import HidingRule, Rules
from pml_gateway.policy.sets import GivenSets, given_sets, rights_of
from pml_gateway.policy.view import View

SEEN = "given"
"""The rule behind what a client sees."""


async def sets(context: OperationContext) -> ListedSets:
    """Return the `sets` as rows."""
    state = await context.gateway.wait_for_tools()
    return {"sets": [_row(state, name) for name in state.settings.sets]}


def _row(state: GatewayState, name: str) -> SetRow:
    each = state.settings.sets[name]
    rules = rights_of([{name: each}], {}).rules
    return {
        "name": name,
        "include": list(each.include),
        "exclude": list(each.exclude),
        "effects": [effect.value for effect in each.effects],
        "mode": None if each.mode is None else each.mode.value,
        "preset": each.preset,
        "intent": each.intent,
        "given_to": list(_given_to(state.settings, name)),
        "tools": len(state.view(replace(LOCAL, rules=rules)).tools),
    }


def _given_to(settings: Settings, name: str) -> Iterator[str]:
    """Yield the keys of the configuration that give a set."""
    if name in settings.gateway.sets:
        yield "gateway.sets"
    by_name = settings.gateway.sets_by_client_name
    yield from (f"gateway.sets_by_client_name.{pattern}" for pattern, names in by_name.items() if name in names)
    yield from (f"roles.{role}" for role, entry in settings.roles.items() if name in entry.sets)
    yield from (f"clients.{client}" for client, entry in settings.clients.items() if name in entry.sets)


async def try_client(
    context: OperationContext, client: str | None, sets: list[str], client_name: str, tool: str | None
) -> TriedClient:
    """Return what a client sees, and why; of one tool, or of everything that there is.

    Args:
        context: the gateway.
        client: an entry of `clients:`; None for a client over stdio.
        sets: the sets that a client over stdio is started with.
        client_name: the name that the client gives itself.
        tool: the only tool to decide about.

    Raises:
        GatewayError: there is no such client, set or tool.
    """
    state = await context.gateway.wait_for_tools()
    settings = state.settings
    check_sets(sets, settings)
    if client is not None:
        client_entry(settings, client)
    principal = local_client("tried", tuple(sets)) if client is None else configured(settings)[client]
    now = state.with_current_rights(replace(principal, client_name=client_name)) or principal
    groups = given_sets(settings, client, sets, client_name)
    view, scope, own = state.view(now), RequestScope(now), state.settings_of(now)
    everything = View(state.catalog, OWNER, (), inside=True)
    asked = everything.tools if tool is None else (find(everything, tool, OWNER, context.gateway),)
    return {
        "client": now.shown,
        "roles": list(now.roles),
        "groups": [list(group) for group in groups],
        "mode": effective_mode(scope, own.gateway).value,
        "intent": call_intent(scope, own.gateway),
        "meta_tools": [each.name for each in state.meta_tools_of(view).enabled(own)],
        "direct_calls": own.gateway.direct_calls,
        "decided": [
            *(_decided(state, view, groups, each) for each in asked),
            *(_offers(state, view) if tool is None else ()),
        ],
    }


def _decided(state: GatewayState, view: View, groups: Sequence[GivenSets], tool: CatalogTool) -> Decided:
    exclusion, keys = view.exclusion(tool), list[str]()
    match None if exclusion is None else exclusion.rule:
        case None:
            keys = [key for group in groups for key in _giving(state, group, tool)]
        case HidingRule.BLACKLISTED:
            keys = ["gateway.blacklisted_tools"]
        case HidingRule.DENIED:
            servers = state.catalog.ownership.ids
            excluded = {key: each.exclude for group in groups for key, each in group.items()}
            keys = [key for key, entries in excluded.items() if compile_patterns(entries, servers).matches(tool)]
        case HidingRule.NOT_ALLOWED | HidingRule.EFFECT:
            # The sets of which one would have to give it.
            keys = list(next(group for group in groups if not _giving(state, group, tool)))
        case _:
            pass
    rule = SEEN if exclusion is None else ": ".join(filter(None, (exclusion.rule.value, exclusion.pattern)))
    return {
        "name": tool.qualified_name,
        "kind": "tool",
        "server": tool.upstream_id,
        "effect": tool.effect.value,
        "visible": exclusion is None,
        "rule": rule,
        "keys": keys,
    }


def _giving(state: GatewayState, group: GivenSets, tool: CatalogTool) -> list[str]:
    """Return the keys of the sets in a group that give a tool."""
    granted = {key: Rules(rights_of([{key: each}], {}).rules.grants) for key, each in group.items()}
    return [key for key, rules in granted.items() if rules.compiled(state.catalog.ownership).admits(tool)]


def _offers(state: GatewayState, view: View) -> Iterator[Decided]:
    for kind in OfferKind:
        for offer in state.catalog.offers.of_kind(kind):
            hidden = view.offers.hidden_by(offer.upstream_id, offer.name)
            yield {
                "name": offer.public,
                "kind": kind.value.removesuffix("s"),
                "server": offer.upstream_id,
                "effect": None,
                "visible": hidden is None,
                "rule": SEEN if hidden is None else hidden.value,
                "keys": [],
            }
