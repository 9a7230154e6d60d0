"""FastMCP servers with the tools of a scripted one, and their clients of both eras, all in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastmcp import Client, FastMCP
from fastmcp.tools import Tool
from fastmcp.tools.base import ToolResult
from mcp_types import CallToolResult, ToolAnnotations
from pydantic import Field

from tests.support.scripted_server import Definition, ScriptedServer, text_result

ERAS = {"handshake": "legacy", "modern": "2026-07-28"}


class ScriptedTool(Tool):
    """A tool of a definition, which its scripted server answers and takes note of."""

    server: Any = Field(exclude=True)

    @classmethod
    def of(cls, server: ScriptedServer, definition: Definition) -> ScriptedTool:
        """The tool as FastMCP has it."""
        hints = definition.get("annotations")
        return cls(
            server=server,
            name=definition["name"],
            description=definition["description"],
            parameters=definition["inputSchema"],
            output_schema=definition.get("outputSchema"),
            annotations=None if hints is None else ToolAnnotations.model_validate(hints),
        )

    async def run(self, arguments: dict[str, Any]) -> ToolResult:
        """What the scripted server answers."""
        call = {"name": self.name, "arguments": arguments}
        self.server.calls.append(call)
        handler = self.server.handler
        result = (
            text_result(f"{self.name} {sorted(arguments.items())}") if handler is None else await handler(None, call)
        )
        return ToolResult.from_mcp_result(CallToolResult.model_validate(result))


def fastmcp_of(scripted: ScriptedServer, name: str, tools: Iterable[Definition] | None = None) -> FastMCP[Any]:
    """A FastMCP server with the tools of a scripted one."""
    server: FastMCP[Any] = FastMCP(name)
    for definition in scripted.tools if tools is None else tools:
        server.add_tool(ScriptedTool.of(scripted, definition))
    return server


@dataclass
class FastMCPServing:
    """A client in memory, with the answers as they went over the wire."""

    client: Client[Any]

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        """The result of a call."""
        result = await self.client.call_tool_mcp(name, dict(arguments or {}), **options)
        dumped: dict[str, Any] = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        return dumped

    async def listed(self, **options: Any) -> list[dict[str, Any]]:
        """The definitions on the list."""
        found = await self.client.list_tools_mcp(**options)
        return [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in found.tools]

    async def names(self, **options: Any) -> list[str]:
        """The names on the list."""
        return [tool["name"] for tool in await self.listed(**options)]


@asynccontextmanager
async def connected(server: FastMCP[Any], era: str = "modern", **options: Any) -> AsyncIterator[FastMCPServing]:
    """A client of this era at the server."""
    async with Client(server, mode=ERAS[era], cache=False, **options) as client:
        yield FastMCPServing(client)
