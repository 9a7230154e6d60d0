"""The meta-tools: search the catalog, describe tools in full, call any of them."""

from __future__ import annotations

import fnmatch
import json

import anyio.to_thread

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.errors import InvalidInputError, ToolNotFoundError
from pml_gateway.exposure.namespaces import call_signature
from pml_gateway.exposure.schema_text import signature
from pml_gateway.exposure.token_count import count_tokens
from pml_gateway.gateway.answers import data_result
from pml_gateway.gateway.calling import Caller, MetaTool, find
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.gateway.meta_definitions import AVAILABLE, MAX_LIMIT
from pml_gateway.gateway.request import CallOptions, RequestScope
from pml_gateway.gateway.state import GatewayState
from pml_gateway.gateway.usage import UsageNotes
from pml_gateway.meta.arguments import choice, integer, json_object, string
from pml_gateway.meta.gateway_info import GatewayInfo
from pml_gateway.meta.read_result import StoredResults
from pml_gateway.meta.schemas import render_json, render_markdown, render_typescript
from pml_gateway.meta.workflows import WorkflowTools
from pml_gateway.policy.view import View
from pml_gateway.text import first_sentence, shortened
from pml_gateway.types import JsonObject, Ranking

MAX_QUERY = 4000
MAX_NAMES = 50
_GLOB_CHARACTERS = frozenset("*?[")


def build_caller(gateway: Gateway, usage: UsageNotes | None = None) -> Caller:
    """The caller of a gateway with its meta-tools; `usage` takes note of what they do."""
    tools: dict[str, MetaTool] = {}
    notes = usage or UsageNotes()
    caller = Caller(gateway, tools, notes)
    meta = MetaTools(gateway, caller, notes)
    stored = StoredResults(gateway)
    workflows = WorkflowTools(gateway, caller)
    tools |= {
        "search_tools": meta.search_tools,
        "tool_schema": meta.tool_schema,
        "call_tool": meta.call_tool,
        "read_result": stored.read_result,
        "gateway_info": GatewayInfo(gateway).gateway_info,
        "call_batch": workflows.call_batch,
        "execute_workflow": workflows.execute_workflow,
    }
    return caller


class MetaTools:
    """Each method answers one meta-tool; all of them see the catalog through the client's view only."""

    def __init__(self, gateway: Gateway, caller: Caller, usage: UsageNotes) -> None:
        self._gateway = gateway
        self._caller = caller
        self._usage = usage

    async def search_tools(self, scope: RequestScope, arguments: JsonObject, _: CallOptions) -> JsonObject:
        """Ranked hits for a query, tools for a name pattern, or the servers for `*`."""
        state = await self._gateway.searchable()
        view = state.view(scope.client)
        query = string(arguments, "query", default="")[:MAX_QUERY].strip()
        if query in ("", "*"):
            servers = [{"server": server, "tools": count} for server, count in view.servers.items()]
            return data_result({"servers": servers, "total_tools": len(view.tools)})
        limit = integer(arguments, "limit", default=state.settings.search.limit, minimum=1, maximum=MAX_LIMIT)
        offset = integer(arguments, "offset", default=0, minimum=0, maximum=10_000)
        detail = choice(arguments, "detail", ("signature", "name", "schema"))
        server = arguments.get("server")
        if server is not None and (not isinstance(server, str) or server not in view.servers):
            names = ", ".join(view.servers) or "none"
            raise InvalidInputError(f"server {server!r} has no tools here", hint=f"servers: {names}")
        if _GLOB_CHARACTERS & set(query) and " " not in query:
            matching = [(tool, 1.0) for tool in _matching(view, query) if server in (None, tool.upstream_id)]
            ranking = Ranking.LEXICAL
        else:
            found = await anyio.to_thread.run_sync(
                lambda: state.search(view, query, min(offset + limit + 1, 1000), server=server)
            )
            matching = [(tool, score) for tool, score in found.tools if score >= state.settings.search.min_score]
            ranking = found.ranking
        page = matching[offset : offset + limit]
        exact = [
            tool for tool, score in page if score >= 1.0 and query in (tool.qualified_name, tool.source, tool.name)
        ]
        hits = [
            _hit(tool, score, "schema" if len(exact) == 1 and tool is exact[0] else detail)
            | ({} if detail == "name" else _as_action(tool, state, view))
            for tool, score in page
        ]
        answer: JsonObject = {"hits": _within_tokens(hits, arguments)}
        shown = [tool for tool, _ in page[: len(answer["hits"])]]
        self._usage.searched(state, scope, query, shown, offset)
        if len(answer["hits"]) < len(hits):
            answer["omitted_by_max_tokens"] = len(hits) - len(answer["hits"])
        if len(matching) > offset + limit:
            answer["next_offset"] = offset + limit
        if ranking is not Ranking.FUSED:
            answer["ranking"] = ranking.value
        if not hits:
            answer["reason"] = _nothing_found(query, state)
        return data_result(answer)

    async def tool_schema(self, scope: RequestScope, arguments: JsonObject, _: CallOptions) -> JsonObject:
        """The full specification of each tool named; an unknown name is an error of its own among the others."""
        state = await self._gateway.ready()
        view = state.view(scope.client)
        names = arguments.get("names", arguments.get("name"))
        names = [names] if isinstance(names, str) else names
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise InvalidInputError("names: a list of tool names is needed", hint='for example {"names": ["a__b"]}')
        if len(names) > MAX_NAMES:
            raise InvalidInputError(f"names: {len(names)} names; at most {MAX_NAMES} in one call")
        chosen = choice(arguments, "format", ("json", "typescript", "markdown"))
        render = {"json": render_json, "typescript": render_typescript, "markdown": render_markdown}[chosen]
        specifications, unknown = [], []
        for name in dict.fromkeys(names):
            try:
                tool = find(view, name)
                specifications.append(render(tool, self._gateway.shapes.shape_of(scope.client, tool)))
            except ToolNotFoundError as error:
                unknown.append(error)
        if unknown and not specifications:
            raise unknown[0]
        errors = [{"code": error.code.value, "message": error.message, "hint": error.hint} for error in unknown]
        return data_result({"tools": specifications, **({"errors": errors} if errors else {})})

    async def call_tool(self, scope: RequestScope, arguments: JsonObject, options: CallOptions) -> JsonObject:
        """Exactly what the direct call returns, after the arguments have passed the tool's schema."""
        state = await self._gateway.ready()
        name = string(arguments, "name", default=string(arguments, "operation", default=""))
        if not name:
            raise InvalidInputError("name: the name of the tool to call is missing", hint="search_tools finds names")
        view = state.view(scope.client)
        if name in AVAILABLE and view.resolve(name) is None:
            raise InvalidInputError(f"{name} is a meta-tool", hint=f"call {name} itself, not through call_tool")
        tool = self._caller.find(state, scope, name)
        given = json_object(arguments.get("arguments", arguments.get("input")))
        known = string(arguments, "if_none_match", default="") or None
        return (await self._caller.run(scope, tool, given, options, route="meta", if_none_match=known)).result


def _hit(tool: CatalogTool, score: float, detail: str) -> JsonObject:
    hit: JsonObject = {"name": tool.qualified_name, "score": round(score, 3)}
    if detail != "name":
        hit["signature"] = signature(tool.qualified_name, tool.definition["inputSchema"])
        hit["description"] = first_sentence(tool.description or tool.title)
    if detail == "schema":
        hit["description"] = tool.description
        hit["inputSchema"] = tool.definition["inputSchema"]
    if tool.stale:
        hit["unavailable"] = True
    return hit


def _as_action(tool: CatalogTool, state: GatewayState, view: View) -> JsonObject:
    """How a hit is called where namespaces are listed instead of `call_tool`."""
    for namespace in state.namespaces(view).values():
        if (action := namespace.by_tool.get(tool.qualified_name)) is not None:
            return {"signature": call_signature(namespace, action)}
    return {}


def _matching(view: View, pattern: str) -> list[CatalogTool]:
    matched = [
        tool
        for tool in view.searchable
        if any(fnmatch.fnmatchcase(name, pattern) for name in (tool.qualified_name, tool.source, tool.name))
    ]
    return sorted(matched, key=lambda tool: tool.qualified_name)


def _within_tokens(hits: list[JsonObject], arguments: JsonObject) -> list[JsonObject]:
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


def _nothing_found(query: str, state: GatewayState) -> str:
    shown = shortened(query, 80)
    minimum = state.settings.search.min_score
    return f"no tool reaches search.min_score {minimum:g} for {shown!r}; use other words, or '*' for the systems"
