"""`tool_schema`: full specifications of tools, if a signature is not enough."""

from __future__ import annotations

from pml_gateway.errors import GatewayError, InvalidInputError
from pml_gateway.exposure.instructions import Systems
from pml_gateway.exposure.meta_tool import MetaTool
from pml_gateway.gateway.call import CallContext
from pml_gateway.meta.argument_examples import example_of
from pml_gateway.meta.arguments import choice, strings
from pml_gateway.meta.schemas import render_json, render_markdown, render_typescript
from pml_gateway.results.content import data_result
from pml_gateway.types import Effect, JsonObject

MAX_NAMES = 50


def definition(_: Systems) -> JsonObject:
    """Return the tool definition."""
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
        "annotations": Effect.READ.hints | {"openWorldHint": False},
    }


async def tool_schema(context: CallContext, arguments: JsonObject) -> JsonObject:
    """Return the full specification of each named tool, with an error in place of each unknown one."""
    names = strings(arguments, "names", '["<tool>"]')
    if len(names) > MAX_NAMES:
        raise InvalidInputError(f"names: {len(names)} names; at most {MAX_NAMES} in one call")
    chosen = choice(arguments, "format", ("json", "typescript", "markdown"))
    render = {"json": render_json, "typescript": render_typescript, "markdown": render_markdown}[chosen]
    tools, unknown = [], []
    for name in dict.fromkeys(names):
        try:
            tools.append(context.find(name))
        except GatewayError as error:
            unknown.append(error)
    client, specifications = context.scope.client, []
    recorded = await context.gateway.recorded_arguments(client, tools)
    for tool in tools:
        example = await example_of(tool, recorded.get(tool, ()))
        specifications.append(render(tool, context.gateway.shapes.output_of(client, tool), example))
    if unknown and not specifications:
        raise unknown[0]
    errors = [error.as_json(without=("retryable", "details")) for error in unknown]
    return data_result({"tools": specifications, **({"errors": errors} if errors else {})})


TOOL_SCHEMA = MetaTool("tool_schema", definition, tool_schema, aliases=("schema",))
