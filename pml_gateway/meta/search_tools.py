"""`search_tools`: finds the tools for a task, ranked, or shows the menus of servers."""

from __future__ import annotations

import fnmatch
import json
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import anyio.to_thread

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.prompts_and_resources import Offer
from pml_gateway.catalog.skills import skill_description, skill_name
from pml_gateway.config.settings import Settings
from pml_gateway.errors import GatewayError, InvalidInputError
from pml_gateway.exposure.grouping import Namespace
from pml_gateway.exposure.instructions import Systems
from pml_gateway.exposure.menu import by_use, grouped, menu_line
from pml_gateway.exposure.meta_tool import MetaTool
from pml_gateway.exposure.namespaces import action_call, call_signature
from pml_gateway.exposure.schema_text import short_signature, signature
from pml_gateway.exposure.token_count import count_tokens
from pml_gateway.gateway.call import CallContext
from pml_gateway.gateway.events import ToolsSearched
from pml_gateway.gateway.request import history_of
from pml_gateway.gateway.state import GatewayState
from pml_gateway.meta.arguments import choice, integer, string, strings
from pml_gateway.meta.skills import reading_of
from pml_gateway.policy.view import View
from pml_gateway.results.content import data_result
from pml_gateway.text import counted, escaped, first_sentence, folded, shortened
from pml_gateway.types import Effect, JsonObject, Ranking

MAX_LIMIT = 50
MAX_QUERY = 4000
MAX_UNAVAILABLE = 12
MAX_ABOUT = 100
TELLING = 4
"""Tools that say what a server is for, if it does not say so itself."""

_GLOB_CHARACTERS = frozenset("*?[")


def definition(systems: Systems) -> JsonObject:
    """Return the tool definition; it names the systems behind the gateway, as agents ignore it otherwise."""
    return _described(
        f"Find tools by what they do: ranked names with signatures, ready to call. {_of_skills(systems)}{systems} "
        "Search before saying that something cannot be done. "
        "'*' lists the systems; globs such as fs:read_* match names."
    )


def beside_namespaces(_: Settings, systems: Systems) -> JsonObject:
    """Return the definition next to namespaces; it names only starting systems, which have no namespace yet."""
    said = "Find actions of the other tools by what they do; hits say how to call them, with detail=schema in full."
    return _described(" ".join(filter(None, (said, _of_skills(systems).strip(), systems.wait))))


def _of_skills(systems: Systems) -> str:
    return "Hits of kind skill are instructions for a task: read them first. " if systems.has_skills else ""


def _described(description: str) -> JsonObject:
    return {
        "name": "search_tools",
        "description": description,
        "inputSchema": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "the task in a few words, or a tool's name"},
                "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": 5},
                "offset": {"type": "integer"},
                "server": {"type": ["string", "array"]},
                "detail": {"enum": ["signature", "name", "schema"], "default": "signature"},
                "max_tokens": {"type": "integer", "minimum": 1},
            },
            "required": ["query"],
        },
        "annotations": Effect.READ.hints | {"openWorldHint": False},
    }


_HEADING = re.compile(r"#{1,6}\s|\Z")
_UNDERLINE = re.compile(r"(?:=+|--+)\s*")
"""The beginning of a heading in Markdown or an empty line, and the line below a heading of the other kind."""


@dataclass(frozen=True, slots=True)
class _Found:
    """Tools and skills that a query matches, best first; without scores if they are not ranked."""

    hits: Sequence[CatalogTool | Offer]
    scores: Sequence[float | None]
    ranking: Ranking | None = None
    partial: str = ""
    unknown: tuple[str, ...] = ()
    groups: Sequence[JsonObject] = ()
    is_menu: bool = False


async def search_tools(context: CallContext, arguments: JsonObject) -> JsonObject:
    """Return ranked hits for a query, the menus of some servers, what a pattern matches, or the servers for `*`."""
    await context.gateway.first_lists(context.view)
    state = await context.gateway.wait_for_search()
    view = state.view(context.scope.client)
    context = replace(context, state=state, view=view)
    query = string(arguments, "query", default="")[:MAX_QUERY].strip()
    servers = strings(arguments, "server", '["<server>"]') if arguments.get("server") else []
    is_menu = query in ("", "*")
    if is_menu and not servers:
        return data_result(_overview(context, arguments))
    is_pattern = not is_menu and bool(_GLOB_CHARACTERS & set(query)) and " " not in query
    usual = MAX_LIMIT if is_menu or is_pattern else state.settings.search.limit
    limit = integer(arguments, "limit", default=usual, minimum=1, maximum=MAX_LIMIT)
    offset = integer(arguments, "offset", default=0, minimum=0, maximum=10_000)
    if missing := [each for each in servers if each not in view.servers and each not in view.skilled_servers]:
        raise _no_server(context, missing[0])
    if is_menu:
        found = await anyio.to_thread.run_sync(_menu, state, view, servers)
    elif is_pattern:
        matching = [each for each in _matching(view, query) if not servers or each.upstream_id in servers]
        found = _Found(matching, [1.0] * len(matching))
    else:
        found = await _ranked(context, query, servers, offset + limit + 1)
    answer, shown = _page(context, found, arguments, query, slice(offset, offset + limit))
    context.gateway.events.publish(ToolsSearched(state, context.scope, query, shown, offset))
    history = history_of(context.scope, state.settings.gateway)
    if history is not None and not (is_menu or is_pattern):
        history.note_search(query, time.time())
    if not found.hits:
        answer["reason"] = _nothing_found(query, state, view, found.unknown)
    elif offset >= len(found.hits):
        what = "hit" if view.skills else "tool"
        answer["reason"] = f"offset {offset} is past the last of {counted(len(found.hits), what)}"
    return data_result(answer | _unavailable(context, enough=len(found.hits) >= limit, query=query))


async def _ranked(context: CallContext, query: str, servers: Collection[str], count: int) -> _Found:
    """Return the best tools and skills for a query; those below `search.min_score` are left out."""
    state, view = context.state, context.view
    found = await anyio.to_thread.run_sync(lambda: state.search(view, query, min(count, 1000), servers=servers))
    skills, among = await anyio.to_thread.run_sync(state.search_skills, view, query, servers)
    hits: list[tuple[CatalogTool | Offer, float]] = [*found.tools, *skills]
    kept = [(hit, score) for hit, score in hits if score >= state.settings.search.min_score]
    kept.sort(key=lambda each: -each[1])
    waiting = " ".join(context.gateway.unavailable(view)).casefold()
    return _Found(
        [hit for hit, _ in kept],
        [score for _, score in kept],
        ranking if (ranking := (among or found).ranking) is not Ranking.FUSED else None,
        found.partial,
        tuple(word for word in (among or found).unknown if word not in waiting),
    )


def _page(
    context: CallContext, found: _Found, arguments: JsonObject, query: str, page: slice
) -> tuple[JsonObject, list[CatalogTool]]:
    """Return the answer for one page of what was found, and the tools on it."""
    hits, scores = found.hits[page], found.scores[page]
    detail = choice(arguments, "detail", ("signature", "name", "schema"))
    answer: JsonObject = {"groups": found.groups} if found.groups and not page.start else {}
    described: Sequence[Any]
    if found.is_menu and arguments.get("detail") is None:
        key, described = (
            "menu",
            [_line_of(context, hit) for hit in hits],
        )
    else:
        exact = [
            tool
            for tool, score in zip(hits, scores, strict=True)
            if score == 1 and isinstance(tool, CatalogTool) and query in _names(context.view, tool)
        ]
        # A schema says nothing of actions, by which tools are called next to namespaces.
        has_schema = len(exact) == 1 and arguments.get("detail") is None and _action(context, exact[0]) is None
        details = ["schema" if has_schema and hit is exact[0] else detail for hit in hits]
        key, described = "hits", list(map(partial(hit_of, context), hits, scores, details))
    fitting = _within_tokens(described, arguments, answer)
    if described and not fitting and answer:
        answer, fitting = {}, _within_tokens(described, arguments, {})
    answer[key] = fitting
    shown = hits[: len(fitting)]
    if len(shown) < len(hits):
        answer["omitted_by_max_tokens"] = len(hits) - len(shown)
    if shown and len(found.hits) > page.start + len(shown):
        answer["next_offset"] = page.start + len(shown)
    if found.ranking is not None:
        answer["ranking"] = found.ranking.value
    if found.partial:
        answer["partial"] = found.partial
    if found.unknown:
        answer["unknown_words"] = list(found.unknown)
    return answer, [hit for hit in shown if isinstance(hit, CatalogTool)]


def _line_of(context: CallContext, hit: CatalogTool | Offer) -> str:
    """Return the line of a hit in a menu."""
    if isinstance(hit, CatalogTool):
        return menu_line(hit, _call(context, hit, short_signature), context.outcome_of(hit))
    return escaped(f"skill {skill_name(hit)}: {reading_of(context, hit)} # {first_sentence(skill_description(hit))}")


def _skill_hit(context: CallContext, skill: Offer, score: float | None, detail: str) -> JsonObject:
    ranked = {} if score is None else {"score": round(score, 3)}
    described: JsonObject = {"kind": "skill", "name": skill_name(skill), **ranked, "server": skill.upstream_id}
    if detail != "name":
        described["description"] = skill_description(skill)
    return described | {"read": reading_of(context, skill)}


def hit_of(
    context: CallContext, tool: CatalogTool | Offer, score: float | None, detail: str = "signature"
) -> JsonObject:
    """Return the description of a hit for this client; without a score, of a tool that was not searched for."""
    if isinstance(tool, Offer):
        return _skill_hit(context, tool, score, detail)
    described: JsonObject = {"name": tool.qualified_name}
    if score is not None:
        described["score"] = round(score, 3)
    match detail:
        case "signature":
            described["signature"] = _call(context, tool, signature) + context.outcome_of(tool)
            described["description"] = first_sentence(tool.description or tool.title)
        case "schema":
            if (found := _action(context, tool)) is not None:
                described["call"] = action_call(*found, ["…"])
            if outcome := context.outcome_of(tool).strip():
                described["outcome"] = outcome
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


def _call(context: CallContext, tool: CatalogTool, written: Callable[[str, JsonObject], str]) -> str:
    """Return the call of a tool as `written`, by its name, or as an action if namespaces are listed."""
    if (found := _action(context, tool)) is not None:
        return call_signature(*found)
    return written(tool.qualified_name, tool.definition["inputSchema"])


def _action(context: CallContext, tool: CatalogTool) -> tuple[Namespace, str] | None:
    """Return the namespace of a tool, with its action there; None if no namespaces are listed."""
    for namespace in context.state.namespaces(context.view).values():
        if (action := namespace.by_tool.get(tool.qualified_name)) is not None:
            return namespace, action
    return None


def _overview(context: CallContext, arguments: JsonObject) -> JsonObject:
    """Return all servers: the number of tools of each, and what it is for."""
    state, view = context.state, context.view
    used = _used(state, view)
    servers = [
        {
            "server": server,
            **({"tools": count} if (count := view.servers.get(server)) else {}),
            **({"skills": count} if (count := view.skilled_servers.get(server)) else {}),
            "about": _about(view, server, used),
        }
        for server in dict.fromkeys((*view.servers, *view.skilled_servers))
    ]
    answer: JsonObject = {"total_tools": len(view.tools), **_unavailable(context, enough=False, query="")}
    if view.skills:
        answer["total_skills"] = len(view.skills)
    if wait := state.systems(view).wait:
        answer["note"] = wait
    fitting = _within_tokens(servers, arguments, answer)
    omitted = {"omitted_by_max_tokens": missing} if (missing := len(servers) - len(fitting)) else {}
    return {"servers": fitting, **answer, **omitted}


def _about(view: View, server: str, used: Mapping[CatalogTool, int]) -> str:
    """Return what a server is for: the first sentence of its instructions, or the names of some tools or skills."""
    if said := first_sentence(_below_headings(view.instructions.get(server, "")), MAX_ABOUT):
        return said
    names = [tool.name for tool in by_use(_tools_of(view, server), used)] or [
        skill_name(each) for each in _skills_of(view, server)
    ]
    more = len(names) - TELLING
    return shortened(", ".join(names[:TELLING]), MAX_ABOUT) + (f" and {more} more" if more > 0 else "")


def _below_headings(text: str) -> str:
    """Return a text without the headings that it begins with; if it is nothing else, the headings without marks."""
    lines = [line.strip() for line in text.splitlines()]
    at = 0
    while at < len(lines):
        if _HEADING.match(lines[at]):
            at += 1
        elif at + 1 < len(lines) and _UNDERLINE.fullmatch(lines[at + 1]):
            at += 2
        else:
            break
    return "\n".join(lines[at:]) or text.strip("#=- \n")


def _tools_of(view: View, server: str) -> list[CatalogTool]:
    return [tool for tool in view.tools if tool.upstream_id == server]


def _skills_of(view: View, server: str) -> list[Offer]:
    return [skill for skill in view.skills.values() if skill.upstream_id == server]


def _used(state: GatewayState, view: View) -> dict[CatalogTool, int]:
    """Return the place of each tool that was called before, the most used first; none if calls are not recorded."""
    return {tool: place for place, tool in enumerate(state.used(view))} if state.settings.activity.record else {}


def _menu(state: GatewayState, view: View, servers: Sequence[str]) -> _Found:
    """Return the tools and skills of these servers, in groups if they are many, with the place where each begins."""
    used, hits = _used(state, view), list[CatalogTool | Offer]()
    groups: list[JsonObject] = []
    for server in dict.fromkeys(servers):
        named = grouped(_tools_of(view, server), used)
        for name, members in named.items():
            if name or len(servers) > 1:
                within = {"server": server} if len(servers) > 1 else {}
                groups.append(
                    {**within, **({"group": name} if name else {}), "tools": len(members), "offset": len(hits)}
                )
            hits += members
        hits += _skills_of(view, server)
    has_groups = any("group" in each for each in groups)
    return _Found(hits, [None] * len(hits), groups=groups if has_groups else (), is_menu=True)


def _matching(view: View, pattern: str) -> list[CatalogTool | Offer]:
    matched = [tool for tool in view.tools if any(fnmatch.fnmatchcase(name, pattern) for name in _names(view, tool))]
    skills = [
        skill
        for uri, skill in view.skills.items()
        for name in [skill_name(skill)]
        if any(fnmatch.fnmatchcase(each, pattern) for each in (uri, name, f"{skill.upstream_id}:{name}"))
    ]
    return [*sorted(matched, key=lambda tool: tool.qualified_name), *skills]


def _names(view: View, tool: CatalogTool) -> tuple[str, ...]:
    """Return the names of a tool; its own name only if it is not another server's."""
    is_its_own = view.catalog.ownership.allows(tool.name, tool.upstream_id)
    return (tool.qualified_name, tool.source, *((tool.name,) if is_its_own else ()))


def _within_tokens(described: Sequence[Any], arguments: JsonObject, answer: JsonObject) -> Sequence[Any]:
    """Return the first of these that fit into `max_tokens`, together with what the answer has already."""
    if arguments.get("max_tokens") is None:
        return described
    budget = integer(arguments, "max_tokens", default=1, minimum=1, maximum=10**9)
    kept: list[Any] = []
    for each in (answer, *described):
        budget -= count_tokens(json.dumps(each, ensure_ascii=False, separators=(",", ":")))
        if budget < 0:
            break
        kept.append(each)
    return kept[1:]


def _nothing_found(query: str, state: GatewayState, view: View, unknown: Sequence[str]) -> str:
    shown = shortened(query, 80)
    if wait := state.systems(view).wait:
        return f"no tool that is known yet fits {shown!r}. {wait}"
    minimum = state.settings.search.min_score
    if unknown:
        return f"no tool knows {' or '.join(map(repr, unknown))}, of {shown!r}; '*' lists the servers"
    return f"no tool reaches search.min_score {minimum:g} for {shown!r}; use other words, or '*' for the servers"


SEARCH_TOOLS = MetaTool(
    "search_tools", definition, search_tools, aliases=("search", "mcp_search"), beside_namespaces=beside_namespaces
)
