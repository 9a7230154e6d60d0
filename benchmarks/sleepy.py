"""A stdio upstream whose one tool answers after as many milliseconds as it is asked to, however many calls wait.

python -m benchmarks.sleepy
"""

from __future__ import annotations

from typing import Any

import anyio
import mcp_types
from mcp.server.lowlevel import Server

from benchmarks.synthetic import serve_stdio

SLEEP = {
    "name": "sleep",
    "description": "Answer after some milliseconds with the given text.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "milliseconds": {"type": "integer", "minimum": 0},
            "text": {"type": "string"},
            "after": {"type": "array"},
        },
        "required": ["milliseconds"],
    },
}


def build() -> Server[Any]:
    """The server."""

    async def on_list(_ctx: Any, _params: Any) -> mcp_types.ListToolsResult:
        return mcp_types.ListToolsResult(tools=[mcp_types.Tool.model_validate(SLEEP)])

    async def on_call(_ctx: Any, params: mcp_types.CallToolRequestParams) -> mcp_types.CallToolResult:
        arguments = params.arguments or {}
        await anyio.sleep(arguments["milliseconds"] / 1000)
        text = str(arguments.get("text", ""))
        return mcp_types.CallToolResult(content=[mcp_types.TextContent(type="text", text=text)])

    return Server("sleepy", version="1", on_list_tools=on_list, on_call_tool=on_call)


if __name__ == "__main__":
    anyio.run(serve_stdio, build())
