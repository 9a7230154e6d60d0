"""Calls of the server's own tools, about which rules and limits decide before FastMCP runs them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastmcp.tools import Tool
from fastmcp.tools.base import ToolResult
from fastmcp.utilities.tasks import TaskConfig
from mcp_types import CallToolResult
from pydantic import PrivateAttr

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.errors import GatewayError
from pml_gateway.fastmcp.host import RefusedResult, as_json
from pml_gateway.gateway.call import TOOL_CALL, Attempt, CallContext
from pml_gateway.gateway.decisions import Decision
from pml_gateway.processes.budget import spending
from pml_gateway.results.answers import error_result
from pml_gateway.types import JsonObject

Run = Callable[[JsonObject], Awaitable[ToolResult]]

Decide = Callable[[Tool, JsonObject, Run], Awaitable[ToolResult]]
"""Runs a tool with these arguments, unless that is decided against."""

AT_ONCE_ONLY: dict[str, Any] = {"task_config": TaskConfig(mode="forbidden"), "execution": None}
"""Fields of a tool that never runs as a task: FastMCP starts those past everything that could decide about them."""


class DecidedTool(Tool):
    """A tool that is called by name, by a meta-tool or by another tool, always after a decision."""

    _tool: Tool = PrivateAttr()
    _decide: Decide = PrivateAttr()

    @classmethod
    def of(cls, tool: Tool, decide: Decide) -> DecidedTool:
        """Return a tool that lists like this one."""
        fields = {name: getattr(tool, name) for name in Tool.model_fields}
        made = cls.model_construct(**{**fields, **AT_ONCE_ONLY})
        made._tool, made._decide = tool, decide
        return made

    async def run(self, arguments: dict[str, Any]) -> ToolResult:
        """Answer a call of a tool that this one is a part of."""
        return await self._decide(self._tool, arguments, self._tool.run)

    async def _run(self, arguments: dict[str, Any]) -> ToolResult:
        return await self._decide(self._tool, arguments, self._tool._run)

    def get_span_attributes(self) -> dict[str, Any]:
        """Return those of the tool itself."""
        return self._tool.get_span_attributes()


class _ServedCall(Attempt):
    """One call of a tool of the server."""

    def __init__(self, context: CallContext, tool: CatalogTool, arguments: JsonObject, run: Run) -> None:
        super().__init__(context, TOOL_CALL, tool.qualified_name, arguments)
        self.tool, self.server, self._run = tool, tool.upstream_id, run
        self.answer: ToolResult | None = None

    def resolve(self) -> None:
        """FastMCP found the tool."""

    async def authorise(self) -> Decision:
        """Return no refusal: FastMCP has asked its middleware, and the blacklist was asked when the tool was found."""
        return None

    async def send(self) -> JsonObject:
        """Return what FastMCP answers."""
        self.answer = await self._run(self.arguments)
        return as_json(self.answer, self.name)


async def decided(context: CallContext, tool: CatalogTool, arguments: JsonObject, run: Run) -> ToolResult:
    """Return the answer of a tool, or the refusal of its call as a result."""
    call = _ServedCall(context, tool, arguments, run)
    try:
        with spending(context.gateway.new_budget(context.scope.client.quota_key)):
            await call.run()
    except GatewayError as error:
        if call.refusal is None:
            raise
        refused = RefusedResult.from_mcp_result(CallToolResult.model_validate(error_result(error)))
        assert isinstance(refused, RefusedResult)
        refused.error = error
        return refused
    assert call.answer is not None
    return call.answer
