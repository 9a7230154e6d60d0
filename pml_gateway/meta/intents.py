"""Tools for an intent: the best ones for each part of it, from which a model makes the steps of a workflow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio.to_thread

from pml_gateway.errors import InvalidInputError
from pml_gateway.exposure.modes import ScoredTools
from pml_gateway.gateway.call import CallContext, search_hint
from pml_gateway.gateway.request import MAX_INTENT_LENGTH
from pml_gateway.gateway.state import GatewayState
from pml_gateway.index.clauses import split_clauses
from pml_gateway.meta.search_tools import hit_of
from pml_gateway.policy.view import View
from pml_gateway.results.content import data_result
from pml_gateway.types import JsonObject

MAX_TOOLS = 3
"""Maximum number of tools for each part, at 60 tokens each."""

IN_CONTEXT = 40
"""Number of best tools for the whole intent whose score for it affects the order of a part's tools."""

WHOLE_SHARE = 0.3
"""Weight of the score for the whole intent in the order of a part's tools: the rest of an intent tells the system."""


async def tools_for_intent(context: CallContext, intent: Any) -> JsonObject:
    """Answer with the best tools for each part of an intent; call none.

    Raises:
        InvalidInputError: the intent is not a text.
    """
    if not isinstance(intent, str) or not intent.strip():
        raise InvalidInputError("intent: what the workflow should do, in words, is missing")
    wanted = intent.strip()[:MAX_INTENT_LENGTH]
    await context.gateway.first_lists(context.view)
    state = await context.gateway.wait_for_search()
    view = state.view(context.scope.client)
    context = replace(context, state=state, view=view)
    found = await anyio.to_thread.run_sync(_by_part, state, view, wanted)
    parts = [{"part": part, "tools": [hit_of(context, *each) for each in tools]} for part, tools in found.items()]
    if any(found.values()):
        after = "nothing ran; send steps with these tools, dry_run checks them"
    else:
        after = f"no tool fits; {search_hint(view, context.scope.client, state)}"
    return data_result({"parts": parts, "next": after})


def _by_part(state: GatewayState, view: View, wanted: str) -> dict[str, ScoredTools]:
    """Find the tools for each part of an intent, best first. Blocking: takes some milliseconds for each part."""
    whole = {tool.qualified_name: score for tool, score in state.search(view, wanted, IN_CONTEXT).tools}
    minimum = state.settings.search.min_score
    by_part: dict[str, ScoredTools] = {}
    for part in split_clauses(wanted) or (wanted,):
        tools = [found for found in state.search(view, part, MAX_TOOLS).tools if found[1] >= minimum]
        by_part[part] = sorted(
            tools, key=lambda found: found[1] + WHOLE_SHARE * whole.get(found[0].qualified_name, 0.0), reverse=True
        )
    return by_part
