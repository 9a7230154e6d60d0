"""`focus`: adds tools to the list of a session, until it ends."""

from __future__ import annotations

from collections.abc import Sequence

import anyio.to_thread

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.wire import encode
from pml_gateway.config.settings import GatewaySection, Settings
from pml_gateway.errors import GatewayError, InvalidInputError, ToolForbiddenError, ToolNotFoundError
from pml_gateway.exposure.focus import FOCUS
from pml_gateway.exposure.instructions import Systems
from pml_gateway.exposure.meta_tool import MetaTool
from pml_gateway.exposure.token_count import count_definition_tokens
from pml_gateway.gateway.calling import CallContext, search_hint
from pml_gateway.gateway.request import effective_mode
from pml_gateway.meta.arguments import choice, string
from pml_gateway.meta.schemas import render_json
from pml_gateway.results.content import data_result
from pml_gateway.text import counted
from pml_gateway.types import Effect, ExposureMode, JsonObject

MAX_QUERY = 4000


def definition(_: Systems) -> JsonObject:
    """Return the tool definition."""
    return {
        "name": FOCUS,
        "description": "Put tools on your own list, with full schemas, until the session ends.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "names": {"type": "array", "items": {"type": "string"}},
                "how": {"enum": ["add", "replace", "clear"], "default": "add"},
            },
        },
        "annotations": Effect.READ.hints | {"openWorldHint": False},
    }


def beside_namespaces(_: Settings, systems: Systems) -> JsonObject:
    """Return the same definition: focused tools are listed flat, also next to namespaces."""
    return definition(systems)


async def focus(context: CallContext, arguments: JsonObject) -> JsonObject:
    """Change the focused tools and return them; if lists do not vary, return their schemas."""
    how = choice(arguments, "how", ("add", "replace", "clear"))
    settings = context.state.settings.gateway
    session = context.scope.focus
    if effective_mode(context.scope, settings) is ExposureMode.FULL_PROXY:
        return data_result({"focused": [], "note": "every tool is on the list already"})
    if how == "clear":
        if arguments.get("query") or arguments.get("names"):
            raise InvalidInputError(
                "how: clear takes neither query nor names", hint="replace puts others in their place"
            )
        if session is not None:
            session.put([])
        return data_result({"focused": []})
    kept = session.tools(context.state.catalog, context.view.shows) if session is not None and how == "add" else ()
    chosen, errors = await _chosen(context, arguments, kept)
    if session is None:
        answer: JsonObject = {"tools": [_specification(context, tool) for tool in chosen], "note": _note(settings)}
    else:
        tools = [*kept, *(tool for tool in chosen if tool not in kept)]
        await anyio.to_thread.run_sync(_check_tokens, tools, settings)
        session.put(tools)
        answer = {"focused": sorted(tool.qualified_name for tool in tools), "note": "listed from now on; list again"}
    if errors:
        answer["errors"] = [error.as_json(without=("retryable", "details")) for error in errors]
    return data_result(answer)


def _note(settings: GatewaySection) -> str:
    how = "with call_tool" if settings.direct_calls == "listed" else "by name"
    return f"lists do not vary by session in this protocol version; call these {how}"


def _specification(context: CallContext, tool: CatalogTool) -> JsonObject:
    return render_json(tool, context.gateway.shapes.output_of(context.scope.client, tool))


async def _chosen(
    context: CallContext, arguments: JsonObject, kept: Sequence[CatalogTool]
) -> tuple[list[CatalogTool], list[GatewayError]]:
    """Return the requested tools, and the errors for those that cannot be listed."""
    query = string(arguments, "query", default="")[:MAX_QUERY].strip()
    names = arguments.get("names") or []
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidInputError("names: a list of tool names is needed", hint='for example {"names": ["a__b"]}')
    if bool(query) == bool(names):
        raise InvalidInputError("either query or names is needed", hint='for example {"query": "read and write files"}')
    most = context.state.settings.limits.focused_tools
    if query:
        return await _found(context, query, kept, most), []
    found: list[CatalogTool] = []
    errors: list[GatewayError] = []
    for name in dict.fromkeys(names):
        try:
            tool = context.find(name)
            if tool.task_only:
                raise ToolForbiddenError(f"{tool.qualified_name} only runs as a task, which is not relayed")
            if tool not in found:
                found.append(tool)
        except GatewayError as error:
            errors.append(error)
    if errors and not found:
        raise errors[0]
    count = len({*kept, *found})
    if count > most:
        raise InvalidInputError(
            f"names: {counted(count, 'tool')} on the list; at most {most} (limits.focused_tools)",
            hint="name fewer, or use how: replace",
        )
    return found, errors


async def _found(context: CallContext, query: str, kept: Sequence[CatalogTool], most: int) -> list[CatalogTool]:
    """Return the best tools for a query that are not on the list, as many as there is room for."""
    await context.gateway.first_lists(context.view)
    state = await context.gateway.wait_for_search()
    view, settings = state.view(context.scope.client), state.settings
    limit = settings.search.limit
    found = await anyio.to_thread.run_sync(lambda: state.search(view, query, limit))
    hits = [tool for tool, score in found.tools if score >= settings.search.min_score]
    if not hits:
        raise ToolNotFoundError(f"no tool fits {query[:200]!r}", hint=search_hint(view, state))
    new = [tool for tool in hits if tool not in kept]
    room = most - len(kept)
    if new and room <= 0:
        raise InvalidInputError(
            f"query: {counted(most, 'tool')} are on the list already, as many as may be (limits.focused_tools)",
            hint="use how: replace",
        )
    return await anyio.to_thread.run_sync(_fitting, kept, new[:room], settings.gateway)


def _fitting(kept: Sequence[CatalogTool], new: Sequence[CatalogTool], settings: GatewaySection) -> list[CatalogTool]:
    """Return as many of the new tools, best first, as the token limit allows; at least the first is tried."""
    limit = settings.hybrid.max_tokens
    if limit is None:
        return list(new)
    tokens, fitting = sum(map(_tokens, kept)), list[CatalogTool]()
    for tool in new:
        tokens += _tokens(tool)
        if fitting and tokens > limit:
            break
        fitting.append(tool)
    return fitting


def _check_tokens(tools: Sequence[CatalogTool], settings: GatewaySection) -> None:
    limit = settings.hybrid.max_tokens
    tokens = 0 if limit is None else sum(map(_tokens, tools))
    if limit is not None and tokens > limit:
        raise InvalidInputError(
            f"these tools take {tokens} tokens; at most {limit} (gateway.hybrid.max_tokens)",
            hint="name fewer, or use how: replace",
        )


def _tokens(tool: CatalogTool) -> int:
    return count_definition_tokens(encode(tool.definition))


FOCUS_TOOL = MetaTool(FOCUS, definition, focus, beside_namespaces=beside_namespaces)
