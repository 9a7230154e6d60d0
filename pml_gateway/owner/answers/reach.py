"""The reach of a server: the clients that see its tools, and what the configuration says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.exposure.patterns import compile_patterns
from pml_gateway.gateway.request import RequestScope, effective_mode
from pml_gateway.gateway.state import GatewayState
from pml_gateway.owner.context import OperationContext
from pml_gateway.owner.results import ClientReach, RuleReach, ServerReach
from pml_gateway.policy.principal import OWNER, Principal, configured, local_client
from pml_gateway.policy.rules import rule_lists
from pml_gateway.policy.view import View

MACHINE = "clients of this machine"
MAX_CLIENTS = 100
"""Maximum number of clients that are looked at."""


async def reach(context: OperationContext, server: str, tool: str | None) -> ServerReach:
    """Return who sees a server, and which rules and entries are about it.

    Args:
        context: the gateway.
        server: the server.
        tool: its only tool to look at, by its public name.
    """
    state = await context.gateway.wait_for_tools()
    everything = View(state.catalog, OWNER, (), inside=True).tools
    tools = [each for each in everything if each.upstream_id == server and tool in (None, each.qualified_name)]
    principals = {MACHINE: local_client("reach")}
    principals |= dict([*configured(state.settings).items()][:MAX_CLIENTS])
    clients = {name: state.with_current_rights(each) or each for name, each in principals.items()}
    servers = state.catalog.ownership.ids
    return {
        "tools": {each.qualified_name: each.name for each in tools},
        "clients": [_of_client(state, name, each, tools) for name, each in clients.items()],
        "rules": _rules(state, clients, tools),
        "entries": [
            (each.key, entry)
            for each in rule_lists(state.settings)
            for entry in each.entries
            if not each.key.startswith("rules.") and any(map(compile_patterns([entry], servers).matches, tools))
        ],
    }


def _of_client(state: GatewayState, name: str, client: Principal, tools: Sequence[CatalogTool]) -> ClientReach:
    seen = {each.qualified_name for each in state.view(client).tools}
    return {
        "client": name,
        "mode": effective_mode(RequestScope(client), state.settings_of(client).gateway).value,
        "sees": sum(each.qualified_name in seen for each in tools),
    }


def _rules(state: GatewayState, clients: Mapping[str, Principal], tools: Sequence[CatalogTool]) -> list[RuleReach]:
    found: list[RuleReach] = []
    for rule in state.call_rules.rules:
        about = [name for name, each in clients.items() if any(rule.fits(tool, each) for tool in tools)]
        if about:
            match = rule.settings.match.model_dump(mode="json", exclude_none=True)
            found.append({"rule": rule.name, "action": rule.action, "match": match, "clients": about})
    return found
