"""`search_tools`: finds the tools for a task, ranked."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Sequence
from dataclasses import replace

import anyio.to_thread

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.config.settings import Settings
from pml_gateway.errors import GatewayError, InvalidInputError
from pml_gateway.exposure.instructions import Systems
from pml_gateway.exposure.meta_tool import MetaTool
from pml_gateway.exposure.namespaces import call_signature
from pml_gateway.exposure.schema_text import signature
from pml_gateway.exposure.token_count import count_tokens
from pml_gateway.gateway.calling import CallContext
from pml_gateway.gateway.events import ToolsSearched
from pml_gateway.gateway.state import GatewayState
from pml_gateway.meta.arguments import choice, integer, string
from pml_gateway.policy.view import View
from pml_gateway.results.content import data_result
from pml_gateway.text import first_sentence, folded, shortened
from pml_gateway.types import Effect, JsonObject, Ranking

MAX_LIMIT = 50
MAX_QUERY = 4000
MAX_UNAVAILABLE = 12
_GLOB_CHARACTERS = frozenset("*?[")


def definition(systems: Systems) -> JsonObject:
    """Return the tool definition; it names the systems behind the gateway, as agents ignore it otherwise."""
    return _described(
        f"Find tools by what they do: ranked names with signatures, ready to call. {systems} "
        "Search before saying that something cannot be done. "
        "'*' lists the systems; globs such as fs:read_* match names."
    )


def beside_namespaces(_: Settings, systems: Systems) -> JsonObject:
    """Return the definition next to namespaces; it names only starting systems, which have no namespace yet."""
    said = "Find actions of the other tools by what they do; hits say how to call them, with detail=schema in full."
    return _described(" ".join(filter(None, (said, systems.wait))))


def _described(description: str) -> JsonObject:
    return {
        "name": "search_tools",
        "description": description,
        "inputSchema": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "the task in a few words, or a tool's name"},
                "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": 5},
                "offset": {"type": "integer", "minimum": 0},
                "server": {"type": "string"},
                "detail": {"enum": ["signature", "name", "schema"], "default": "signature"},
                "max_tokens": {"type": "integer", "minimum": 1},
            },
            "required": ["query"],
        },
        "annotations": Effect.READ.hints | {"openWorldHint": False},
    }


async def search_tools(context: CallContext, arguments: JsonObject) -> JsonObject:
    """Return ranked hits for a query, tools for a name pattern, or the servers for `*`."""
    await context.gateway.first_lists(context.view)
    state = await context.gateway.wait_for_search()
    view = state.view(context.scope.client)
    context = replace(context, state=state, view=view)
    query = string(arguments, "query", default="")[:MAX_QUERY].strip()
    if query in ("", "*") and not arguments.get("server"):
        servers = [{"server": server, "tools": count} for server, count in view.servers.items()]
        unavailable = _unavailable(context, enough=False, query="")
        answer: JsonObject = {"servers": servers, "total_tools": len(view.tools), **unavailable}
        return data_result(answer | ({"note": wait} if (wait := state.systems(view).wait) else {}))
    limit = integer(arguments, "limit", default=state.settings.search.limit, minimum=1, maximum=MAX_LIMIT)
    offset = integer(arguments, "offset", default=0, minimum=0, maximum=10_000)
    detail = choice(arguments, "detail", ("signature", "name", "schema"))
    server = string(arguments, "server", default="") or None
    if server is not None and server not in view.servers:
        raise _no_server(context, server)
    unknown: tuple[str, ...] = ()
    if not query or (_GLOB_CHARACTERS & set(query) and " " not in query):
        matching = [(tool, 1.0) for tool in _matching(view, query or "*") if server in (None, tool.upstream_id)]
        ranking, partial = None, ""
    else:
        found = await anyio.to_thread.run_sync(
            lambda: state.search(view, query, min(offset + limit + 1, 1000), server=server)
        )
        matching = [(tool, score) for tool, score in found.tools if score >= state.settings.search.min_score]
        ranking = found.ranking if found.ranking is not Ranking.FUSED else None
        partial, waiting = found.partial, " ".join(context.gateway.unavailable(view)).casefold()
        unknown = tuple(word for word in found.unknown if word not in waiting)
    page = matching[offset : offset + limit]
    exact = [tool for tool, score in page if score >= 1.0 and query in _names(view, tool)]
    hits: Sequence[JsonObject] = [
        hit_of(context, tool, score, "schema" if len(exact) == 1 and tool is exact[0] else detail)
        for tool, score in page
    ]
    answer = {"hits": _within_tokens(hits, arguments)}
    shown = [tool for tool, _ in page[: len(answer["hits"])]]
    context.gateway.events.publish(ToolsSearched(state, context.scope, query, shown, offset))
    if len(answer["hits"]) < len(hits):
        answer["omitted_by_max_tokens"] = len(hits) - len(answer["hits"])
    if len(matching) > offset + limit:
        answer["next_offset"] = offset + limit
    if ranking is not None:
        answer["ranking"] = ranking.value
    if partial:
        answer["partial"] = partial
    if unknown:
        answer["unknown_words"] = list(unknown)
    if not hits:
        answer["reason"] = _nothing_found(query, state, view, unknown)
    return data_result(answer | _unavailable(context, enough=len(matching) >= limit, query=query))


def hit_of(context: CallContext, tool: CatalogTool, score: float, detail: str = "signature") -> JsonObject:
    """Return the description of a hit for this client."""
    described: JsonObject = {"name": tool.qualified_name, "score": round(score, 3)}
    if detail != "name":
        described["signature"] = _call(context, tool) + context.outcome_of(tool)
        described["description"] = first_sentence(tool.description or tool.title)
    if detail == "schema":
        described["description"] = tool.description
        described["inputSchema"] = tool.definition["inputSchema"]
    if tool.stale:
        described["unavailable"] = True
    return described


def _unavailable(context: CallContext, *, enough: bool, query: str) -> JsonObject:
    """Return the servers that currently show no tools, with reasons; with enough hits, only those in the query."""
    reasons = context.gateway.unavailable(context.view)
    asked = folded(query)
    named = [server for server in reasons if not enough or folded(server) in asked]
    if not named:
        return {}
    answer: JsonObject = {
        "unavailable": [{"server": each, "reason": reasons[each]} for each in named[:MAX_UNAVAILABLE]]
    }
    return answer | ({"more_unavailable": len(named) - MAX_UNAVAILABLE} if len(named) > MAX_UNAVAILABLE else {})


def _no_server(context: CallContext, server: str) -> GatewayError:
    """Return the error for a server without tools: it shows none at the moment, or does not exist."""
    if server in context.gateway.unavailable(context.view):
        upstream = context.gateway.pool.upstreams[server]
        if upstream.last_listed is None:
            return upstream.not_listed()
    names = ", ".join(context.view.servers) or "none"
    return InvalidInputError(f"server {server!r} has no tools here", hint=f"servers: {names}")


def _call(context: CallContext, tool: CatalogTool) -> str:
    """Return the signature for calling a hit: by its name, or as an action if namespaces are listed."""
    for namespace in context.state.namespaces(context.view).values():
        if (action := namespace.by_tool.get(tool.qualified_name)) is not None:
            return call_signature(namespace, action)
    return signature(tool.qualified_name, tool.definition["inputSchema"])


def _matching(view: View, pattern: str) -> list[CatalogTool]:
    matched = [
        tool for tool in view.searchable if any(fnmatch.fnmatchcase(name, pattern) for name in _names(view, tool))
    ]
    return sorted(matched, key=lambda tool: tool.qualified_name)


def _names(view: View, tool: CatalogTool) -> tuple[str, ...]:
    """Return the names of a tool; its own name only if it is not another server's."""
    is_its_own = view.catalog.ownership.allows(tool.name, tool.upstream_id)
    return (tool.qualified_name, tool.source, *((tool.name,) if is_its_own else ()))


def _within_tokens(hits: Sequence[JsonObject], arguments: JsonObject) -> Sequence[JsonObject]:
    if arguments.get("max_tokens") is None:
        return hits
    budget = integer(arguments, "max_tokens", default=1, minimum=1, maximum=10**9)
    kept: list[JsonObject] = []
    for hit in hits:
        budget -= count_tokens(json.dumps(hit, ensure_ascii=False, separators=(",", ":")))
        if budget < 0:
            break
        kept.append(hit)
    return kept


def _nothing_found(query: str, state: GatewayState, view: View, unknown: Sequence[str]) -> str:
    shown = shortened(query, 80)
    if wait := state.systems(view).wait:
        return f"no tool that is known yet fits {shown!r}. {wait}"
    minimum = state.settings.search.min_score
    if unknown:
        return f"no tool knows {' or '.join(map(repr, unknown))}, of {shown!r}; '*' lists the systems"
    return f"no tool reaches search.min_score {minimum:g} for {shown!r}; use other words, or '*' for the systems"


SEARCH_TOOLS = MetaTool(
    "search_tools", definition, search_tools, aliases=("search", "mcp_search"), beside_namespaces=beside_namespaces
)
