"""A small server with one of everything, which speaks one protocol era or the other, and not both."""

from __future__ import annotations

from typing import Any, Literal

import mcp_types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND, Icon, TextContent, Tool, ToolAnnotations

Era = Literal["old", "new"]

_FIRST_METHOD: dict[Era, str] = {"old": "initialize", "new": "server/discover"}
NUMBERS = [1, 2, 3]
WEATHER = {"city": "Zürich 🌧", "degrees": 7.5}

_OBJECT = {"type": "object", "properties": {"degrees": {"type": "number"}}, "required": ["degrees"]}
_LIST = {"type": "array", "items": {"type": "integer"}}


def tools(era: Era) -> list[Tool]:
    """A plain tool with every ornament, one with an object as its result and, in the new era, one with a list."""
    plain = Tool(
        name="plain",
        title="Plain",
        description="Answers with a text.",
        input_schema={"type": "object"},
        annotations=ToolAnnotations(read_only_hint=True),
        icons=[Icon(src="https://example.org/plain.png", mime_type="image/png")],
        _meta={"example.org/colour": "green"},
    )
    weather = Tool(name="weather", description="An object.", input_schema={"type": "object"}, output_schema=_OBJECT)
    numbers = Tool(name="numbers", description="A list.", input_schema={"type": "object"}, output_schema=_LIST)
    return [plain, weather, *([numbers] if era == "new" else [])]


def build_server(era: Era) -> Server[Any]:
    """The server; towards the other era it behaves as if its methods did not exist."""

    async def on_list_tools(_ctx: Any, _params: Any) -> mcp_types.ListToolsResult:
        return mcp_types.ListToolsResult(tools=tools(era))

    async def on_call_tool(_ctx: Any, params: mcp_types.CallToolRequestParams) -> mcp_types.CallToolResult:
        structured: Any = {"weather": WEATHER, "numbers": NUMBERS}.get(params.name)
        text = TextContent(type="text", text=f"{params.name} {params.arguments}")
        return mcp_types.CallToolResult(content=[text], structured_content=structured, _meta={"example.org/took": 3})

    async def on_list_prompts(_ctx: Any, _params: Any) -> mcp_types.ListPromptsResult:
        who = mcp_types.PromptArgument(name="who", required=True)
        return mcp_types.ListPromptsResult(
            prompts=[mcp_types.Prompt(name="greet", title="Greet", description="A greeting.", arguments=[who])]
        )

    async def on_get_prompt(_ctx: Any, params: mcp_types.GetPromptRequestParams) -> mcp_types.GetPromptResult:
        text = TextContent(type="text", text=f"Hello {(params.arguments or {})['who']}")
        message = mcp_types.PromptMessage(role="user", content=text)
        return mcp_types.GetPromptResult(description="A greeting.", messages=[message])

    async def on_list_resources(_ctx: Any, _params: Any) -> mcp_types.ListResourcesResult:
        text = mcp_types.Resource(uri="note://today", name="today", title="Today", mime_type="text/plain")
        return mcp_types.ListResourcesResult(resources=[text])

    async def on_list_templates(_ctx: Any, _params: Any) -> mcp_types.ListResourceTemplatesResult:
        day = mcp_types.ResourceTemplate(uri_template="note://{day}", name="day")
        return mcp_types.ListResourceTemplatesResult(resource_templates=[day])

    async def on_read(_ctx: Any, params: mcp_types.ReadResourceRequestParams) -> mcp_types.ReadResourceResult:
        text = mcp_types.TextResourceContents(uri=params.uri, mime_type="text/plain", text=f"note {params.uri}")
        return mcp_types.ReadResourceResult(contents=[text])

    async def on_complete(_ctx: Any, params: mcp_types.CompleteRequestParams) -> mcp_types.CompleteResult:
        return mcp_types.CompleteResult(completion=mcp_types.Completion(values=[f"{params.argument.value}…"]))

    async def one_era(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        other: Era = "new" if era == "old" else "old"
        if ctx.method == _FIRST_METHOD[other]:
            raise MCPError(METHOD_NOT_FOUND, "Method not found")
        return await call_next(ctx)

    server: Server[Any] = Server(
        f"{era}-server",
        version="1",
        on_list_tools=on_list_tools,
        on_call_tool=on_call_tool,
        on_list_prompts=on_list_prompts,
        on_get_prompt=on_get_prompt,
        on_list_resources=on_list_resources,
        on_list_resource_templates=on_list_templates,
        on_read_resource=on_read,
        on_completion=on_complete,
    )
    server.middleware.append(one_era)
    return server
