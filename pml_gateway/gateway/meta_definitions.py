"""`call_batch` and `execute_workflow` as clients list them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pml_gateway.config.settings import Settings
from pml_gateway.types import JsonObject


def batch_definition() -> JsonObject:
    """The definition of `call_batch`."""
    return {
        "name": "call_batch",
        "description": "Several independent calls at once; each answers ok or error in its own slot.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "calls": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "name": {"type": "string"},
                            "arguments": {"type": "object"},
                            "id": {"type": "string"},
                        },
                        "required": ["name"],
                    },
                },
                "max_parallel": {"type": "integer"},
            },
            "required": ["calls"],
        },
    }


def workflow_definition() -> JsonObject:
    """The definition of `execute_workflow`."""
    return {
        "name": "execute_workflow",
        "description": (
            "Run dependent calls in one request: results flow from step to step without passing through you. "
            '"$id.path" or "$0.items[*].id" (JMESPath) in arguments is an earlier result, and orders the steps; others '
            'run in parallel. "$item" is the item of for_each. A transform step (JMESPath over $id) calls nothing. '
            "return: final or step ids keeps answers short. With only intent: suggests a plan."
        ),
        "inputSchema": {
            "type": "object",
            "properties": {
                "steps": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "id": {"type": "string"},
                            "tool": {"type": "string"},
                            "arguments": {"type": "object"},
                            "transform": {"type": "string"},
                            "for_each": {"description": "a list, or a reference to one"},
                            "when": {"type": "string"},
                            "depends_on": {"type": "array", "items": {"type": "string"}},
                        },
                    },
                },
                "intent": {"type": "string"},
                "on_error": {"enum": ["continue", "continue_all", "stop"]},
                "budget": {"type": "object", "description": "max_steps, max_tokens, max_seconds"},
                "dry_run": {"type": "boolean"},
                "return": {"description": "all, final or [ids]"},
            },
        },
    }


AVAILABLE = (
    "search_tools",
    "tool_schema",
    "call_tool",
    "call_batch",
    "execute_workflow",
    "read_result",
    "gateway_info",
)
"""The meta-tools this version serves, in the order in which they are listed."""

INFO_SECTIONS = ("overview", "upstreams", "tokens", "problems", "lineage")
"""What `gateway_info` can be asked for."""

ALIASES: Mapping[str, str] = {
    "search": "search_tools",
    "mcp_search": "search_tools",
    "schema": "tool_schema",
    "call": "call_tool",
    "batch": "call_batch",
}
"""Names other gateways gave them; a real tool of that name wins."""

RESERVED = frozenset(AVAILABLE)
"""Names no upstream tool is given."""

MAX_NAMED_SYSTEMS = 12
MAX_SYSTEM_NAME = 40
MAX_LIMIT = 50


def enabled_meta_tools(settings: Settings) -> tuple[str, ...]:
    """The meta-tools that can be called; without references there is nothing to read."""
    unused = {"read_result"} if settings.references.mode == "off" else set()
    return tuple(name for name in AVAILABLE if name in settings.gateway.meta_tools and name not in unused)


def meta_tool_definitions(enabled: Iterable[str], servers: Sequence[str]) -> list[JsonObject]:
    """The definitions of the enabled meta-tools; the search names the systems behind it, or agents ignore it."""
    definitions = {
        "search_tools": _search(servers),
        "tool_schema": _schema(),
        "call_tool": _call(),
        "read_result": _read(),
        "gateway_info": _info(),
        "call_batch": batch_definition(),
        "execute_workflow": workflow_definition(),
    }
    wanted = set(enabled)
    return [definitions[name] for name in AVAILABLE if name in wanted]


def _systems(servers: Sequence[str]) -> str:
    if not servers:
        return "No system is available now."
    named = ", ".join(server[:MAX_SYSTEM_NAME] for server in servers[:MAX_NAMED_SYSTEMS])
    more = len(servers) - MAX_NAMED_SYSTEMS
    return f"Systems: {named}{f' and {more} more' if more > 0 else ''}."


def meta_tools_beside_namespaces(settings: Settings) -> tuple[str, ...]:
    """The meta-tools listed with namespaces, which take the calls: the search, and what their answers may need."""
    kept = {"search_tools", "gateway_info"}
    if settings.references.mode in ("meta", "all"):
        kept.add("read_result")
    return tuple(name for name in enabled_meta_tools(settings) if name in kept)


def namespace_meta_definitions(settings: Settings) -> list[JsonObject]:
    """The meta-tools beside namespaces; the search need not name the systems, and says whose actions it finds."""
    search = _described_search(
        "Find actions of the other tools by what they do; hits say how to call them, with detail=schema in full."
    )
    definitions = meta_tool_definitions(meta_tools_beside_namespaces(settings), ())
    return [search if definition["name"] == "search_tools" else definition for definition in definitions]


def _search(servers: Sequence[str]) -> JsonObject:
    return _described_search(
        f"Find tools by what they do: ranked names with signatures, ready for call_tool. {_systems(servers)} "
        "Search before saying that something cannot be done. "
        "'*' lists the systems; globs such as fs:read_* match names."
    )


def _described_search(description: str) -> JsonObject:
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
        "annotations": {"readOnlyHint": True, "openWorldHint": False},
    }


def _schema() -> JsonObject:
    return {
        "name": "tool_schema",
        "description": "Full description and schemas of tools, when a signature is not enough.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "names": {"type": "array", "items": {"type": "string"}, "minItems": 1},
                "format": {"enum": ["json", "typescript", "markdown"], "default": "json"},
            },
            "required": ["names"],
        },
        "annotations": {"readOnlyHint": True, "openWorldHint": False},
    }


def _call() -> JsonObject:
    return {
        "name": "call_tool",
        "description": "Call any tool by name; returns exactly what the tool returns.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "arguments": {"type": "object"},
                "if_none_match": {"type": "string"},
            },
            "required": ["name"],
        },
    }


def _read() -> JsonObject:
    return {
        "name": "read_result",
        "description": 'Page a stored result; tools take {"$ref": ref, "path": jmespath} as argument.',
        "inputSchema": {
            "type": "object",
            "properties": {
                "ref": {"type": "string"},
                "path": {"type": "string"},
                "offset": {"type": "integer"},
                "limit": {"type": "integer"},
            },
            "required": ["ref"],
        },
        "annotations": {"readOnlyHint": True},
    }


def _info() -> JsonObject:
    return {
        "name": "gateway_info",
        "description": "How this gateway is set up: mode, systems, token costs, problems, where a reference came from.",
        "inputSchema": {
            "type": "object",
            "properties": {"section": {"enum": list(INFO_SECTIONS)}, "ref": {"type": "string"}},
        },
        "annotations": {"readOnlyHint": True, "openWorldHint": False},
    }
