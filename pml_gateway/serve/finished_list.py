"""The finished `tools/list`: kept as bytes, and put into the empty list that the SDK has checked."""

from __future__ import annotations

import anyio
import anyio.to_thread
import mcp_types

from pml_gateway.gateway.events import ToolsListed
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.gateway.request import Context, list_intent
from pml_gateway.gateway.tool_list import list_tools
from pml_gateway.serve.messages.written import WrittenValue, takes_written
from pml_gateway.types import JsonObject

# Lists change without notice whenever their owner wants, so that none may be kept.
EMPTY = mcp_types.ListToolsResult(tools=[], ttl_ms=0, cache_scope="public")


async def fill(gateway: Gateway, ctx: Context, answer: JsonObject) -> JsonObject:
    """Return the checked, empty answer with the finished list, or with that list to be spliced in."""
    scope, asked_at = ctx.scope, anyio.current_time()
    intent = list_intent(ctx.params, scope, gateway.state.settings.gateway)
    finished = await list_tools(gateway, scope, intent, ctx.protocol_version)
    if scope.focus is not None:
        # Not before: what this changes about the list is told by a notice of its own.
        scope.focus.listed(asked_at)
    if "cacheScope" in answer and (intent is not None or gateway.state.settings.clients):
        answer = {**answer, "cacheScope": "private"}
    gateway.events.publish(
        ToolsListed(gateway.state, scope, intent, finished.tools_json, finished.digest, ctx.protocol_version)
    )
    if takes_written(scope):
        return {**answer, "tools": WrittenValue([finished.tools_json], len(finished.tools_json), scope)}
    return {**answer, "tools": await anyio.to_thread.run_sync(finished.decoded)}
