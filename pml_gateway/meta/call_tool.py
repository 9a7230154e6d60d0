"""`call_tool`: calls any tool by name."""

from __future__ import annotations

from pml_gateway.errors import InvalidInputError
from pml_gateway.exposure.instructions import Systems
from pml_gateway.exposure.meta_tool import RESERVED, MetaTool
from pml_gateway.gateway.calling import CallContext, search_hint
from pml_gateway.meta.arguments import json_object, string
from pml_gateway.results.content import noted
from pml_gateway.types import JsonObject


def definition(_: Systems) -> JsonObject:
    """Return the tool definition."""
    return {
        "name": "call_tool",
        "description": "Call any tool by name; large results come as references.",
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


async def call_tool(context: CallContext, arguments: JsonObject) -> JsonObject:
    """Check the arguments, call the tool and return its result, or a reference to it."""
    name = string(arguments, "name", default="")
    if not name:
        hint = f'write "name": "<tool>"; {search_hint(context.view, context.state)}'
        raise InvalidInputError("name: the name of the tool to call is missing", hint=hint)
    if name in RESERVED and context.view.has_meta_tool(name):
        raise InvalidInputError(
            f"{name} is a meta-tool",
            hint=f"call {name} itself, not through call_tool; a server's tool of that name is called as server:{name}",
        )
    given = json_object(arguments.get("arguments"))
    server = arguments.get("server")
    name, given, ignored = context.callees.tool_call(name, given, server)
    tool = context.find(name)
    known = string(arguments, "if_none_match", default="") or None
    settled = await context.caller.run(
        context.scope, context.view, tool, given, context.options, route="meta", if_none_match=known
    )
    ignored = tuple(f"/arguments{each}" for each in ignored)
    return noted(settled.result, ignored=ignored)


CALL_TOOL = MetaTool("call_tool", definition, call_tool, aliases=("call",), unlisted=("server",), is_call=True)
