"""`call_tool`: calls any tool by name."""

from __future__ import annotations

from functools import partial

from pml_gateway.config.settings import CALLS_BY_EFFECT
from pml_gateway.errors import InvalidInputError
from pml_gateway.exposure.instructions import Systems
from pml_gateway.exposure.meta_tool import MetaTool
from pml_gateway.gateway.call import CallContext, search_hint
from pml_gateway.gateway.tool_call import ToolCall
from pml_gateway.meta.arguments import json_object, string
from pml_gateway.results.content import noted
from pml_gateway.types import Effect, JsonObject

ETAG = "if_none_match"
_CALLS = {
    Effect.READ: "Call a [read] tool.",
    Effect.WRITE: "Call a [read] or [write] tool.",
    Effect.DESTRUCTIVE: "Call any tool, [unknown] too.",
}


def definition(systems: Systems) -> JsonObject:
    """Return the tool definition."""
    called = _definition("call_tool", "Call any tool by name; large results come as references.", systems.effect)
    called["inputSchema"]["properties"][ETAG] = {"type": "string"}
    return {**called, "inputSchema": {**called["inputSchema"], "required": ["name"]}}


def _definition(name: str, description: str, effect: Effect) -> JsonObject:
    return {
        "name": name,
        "description": description,
        "annotations": effect.promise,
        "inputSchema": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "arguments": {"type": "object"}},
        },
    }


async def call_tool(context: CallContext, arguments: JsonObject, max_effect: Effect = Effect.DESTRUCTIVE) -> JsonObject:
    """Check the arguments, call the tool and return its result, or a reference to it."""
    name = string(arguments, "name", default="")
    if not name:
        hint = f'write "name": "<tool>"; {search_hint(context.view, context.scope.client, context.state)}'
        raise InvalidInputError("name: the name of the tool to call is missing", hint=hint)
    if any(name == tool.name for tool in context.meta_tools.enabled(context.settings)):
        raise InvalidInputError(
            f"{name} is a meta-tool",
            hint=f"call {name} itself, not through call_tool; a server's tool of that name is called as server:{name}",
        )
    given = json_object(arguments.get("arguments"))
    server = arguments.get("server")
    name, given, ignored = context.callees.tool_call(name, given, server)
    known = string(arguments, ETAG, default="") or None
    result = await ToolCall(context, name, given, "meta", if_none_match=known, max_effect=max_effect).run()
    return noted(result, ignored=(f"/arguments{each}" for each in ignored))


def _by_effect(name: str, effect: Effect) -> MetaTool:
    return MetaTool(
        name,
        lambda _: _definition(name, _CALLS[effect], effect),
        partial(call_tool, max_effect=effect),
        unlisted=("server", ETAG),
        is_call=True,
    )


CALL_TOOL = MetaTool("call_tool", definition, call_tool, aliases=("call",), unlisted=("server",), is_call=True)
CALL_TOOLS_BY_EFFECT = tuple(_by_effect(name, effect) for name, effect in CALLS_BY_EFFECT.items())
