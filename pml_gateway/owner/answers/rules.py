"""Rules about calls: which one decides about a call, and what edited rules would change in recorded calls."""

from __future__ import annotations

import time
from collections import Counter

import anyio.to_thread
from pydantic import TypeAdapter, ValidationError

from pml_gateway.activity.accesses import AccessFilter, RecordedAccess, read_accesses
from pml_gateway.catalog.model import CatalogTool
from pml_gateway.config.layers import dotted
from pml_gateway.config.sets import unknown_names
from pml_gateway.config.settings import RuleSettings, Settings
from pml_gateway.errors import ToolNotFoundError, UsageError
from pml_gateway.gateway.call import TOOL_CALL
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.gateway.rule_decisions import CallVerdict, verdict
from pml_gateway.owner.context import OperationContext
from pml_gateway.owner.results import ReplayedRules, TriedRules
from pml_gateway.policy.call_rules import CallRules
from pml_gateway.policy.principal import LOCAL, OWNER, Principal, named
from pml_gateway.policy.view import View
from pml_gateway.processes.budget import spending
from pml_gateway.quotas import OWN
from pml_gateway.text import suggestion
from pml_gateway.types import JsonObject

UNKNOWN = "unknown: arguments not kept"

MAX_REPLAYED = 10_000
"""Latest records that are replayed; a call by a meta-tool has two."""


async def try_rules(context: OperationContext, tool: str, arguments: JsonObject, client: str | None) -> TriedRules:
    """Return the decision about one call, which is not made.

    Raises:
        ToolNotFoundError: there is no such tool.
        UsageError: there is no such client.
    """
    gateway = context.gateway
    await gateway.connect_once(tool)
    state = await gateway.wait_for_tools()
    principal = LOCAL if client is None else named(client, state.settings)
    if principal is None:
        known = [*state.settings.clients, LOCAL.shown, OWNER.shown]
        raise UsageError(f"no client {client!r}{suggestion(str(client), known)}", hint=f"known are {', '.join(known)}")
    # Steps of composite tools may be hidden from the client, and rules are about them as well.
    found = View(state.catalog, OWNER, (), inside=True).resolve(tool)
    if found is None:
        closest = state.view(LOCAL).closest(tool)
        raise ToolNotFoundError(f"no tool {tool!r}", hint=f"closest: {', '.join(closest) or 'none; see pml tools'}")
    exclusion = state.view(principal, inside=found.hidden).exclusion(found)
    if exclusion is not None:
        reason = ": ".join(filter(None, (exclusion.rule.value, exclusion.pattern)))
        return _tried(found, principal, "deny", reason, None)
    decided = await _verdict(gateway, state.call_rules, found, principal, arguments)
    answerer = decided.answered_by if decided.action == "ask" else None
    return _tried(
        found, principal, decided.action, ": ".join(filter(None, (decided.because, decided.detail))), answerer
    )


def _tried(tool: CatalogTool, client: Principal, action: str, rule: str, answered_by: str | None) -> TriedRules:
    return {
        "tool": tool.qualified_name,
        "client": client.shown,
        "action": action,
        "rule": rule,
        "answered_by": answered_by,
    }


async def replay_rules(context: OperationContext, rules: list[JsonObject] | None, seconds: float) -> ReplayedRules:
    """Return the calls recorded in the last `seconds` by their decisions without and with some rules.

    `rules` are compared with those in force; None compares those in force with none at all.

    Raises:
        UsageError: a rule is malformed, or names a role that there is not.
    """
    state = await context.gateway.wait_for_tools()
    in_force, catalog = state.call_rules, state.catalog
    none = CallRules((), catalog.ownership)
    before, after = (none, in_force)
    if rules is not None:
        before, after = in_force, CallRules(_read(rules, state.settings), catalog.ownership)
    wanted = AccessFilter(context.identity, since=time.time() - seconds)
    recorded = await anyio.to_thread.run_sync(read_accesses, context.paths.activity_file, wanted, MAX_REPLAYED)
    counts: Counter[tuple[str, str, str, str, str]] = Counter()
    gone = 0
    for call in recorded:
        if call.method != TOOL_CALL or not call.server:
            continue
        tool, client = catalog.owned(call.server, call.tool), named(call.client, state.settings)
        if tool is None or client is None:
            gone += 1
            continue
        was, _ = await _replayed(context.gateway, before, tool, client, call)
        now, rule = await _replayed(context.gateway, after, tool, client, call)
        counts[tool.qualified_name, client.shown, was, now, rule] += 1
    return {
        "calls": [
            {"tool": name, "client": client, "count": count, "before": was, "after": now, "rule": rule}
            for (name, client, was, now, rule), count in sorted(counts.items())
        ],
        "gone": gone,
    }


def _read(rules: list[JsonObject], settings: Settings) -> tuple[RuleSettings, ...]:
    try:
        read = TypeAdapter(tuple[RuleSettings, ...]).validate_python(rules)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise UsageError(f"rules: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    for path, message in unknown_names(settings.model_copy(update={"rules": read})):
        raise UsageError(f"{dotted(path)}: {message}")
    return read


async def _replayed(
    gateway: Gateway, rules: CallRules, tool: CatalogTool, client: Principal, call: RecordedAccess
) -> tuple[str, str]:
    """Return the decision about a recorded call, and the rule behind it."""
    first = next(iter(rules.about(tool, client)), None)
    arguments = call.arguments if call.kept in ("masked", "whole") else None
    if arguments is None and first is not None and first.where is not None:
        return UNKNOWN, first.name
    decided = await _verdict(gateway, rules, tool, client, arguments or {})
    return decided.action, "" if decided.rule is None else decided.rule.name


async def _verdict(
    gateway: Gateway, rules: CallRules, tool: CatalogTool, client: Principal, arguments: JsonObject
) -> CallVerdict:
    with spending(gateway.new_budget(OWN)):
        return await verdict(rules, tool, client, arguments)
