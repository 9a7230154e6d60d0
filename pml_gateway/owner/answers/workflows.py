"""Workflows of the configuration: their state, and running one, or steps from a file."""

from __future__ import annotations

from pml_gateway.errors import ToolNotFoundError
from pml_gateway.owner.context import OperationContext
from pml_gateway.owner.results import ToolResult, Workflows
from pml_gateway.reports.workflows import composite_status
from pml_gateway.text import suggestion
from pml_gateway.types import JsonObject
from pml_gateway.workflow.composite import COMPOSITES


async def workflows(context: OperationContext) -> Workflows:
    """Return the `workflows` with their problems."""
    return {"workflows": composite_status(context.gateway.state)}


async def run_workflow(context: OperationContext, name: str, arguments: JsonObject) -> ToolResult:
    """Return the result of a workflow of the configuration.

    Raises:
        ToolNotFoundError: there is no such workflow.
    """
    server, _, workflow = name.partition(":")
    known = (await context.gateway.wait_for_tools()).composites
    if server == COMPOSITES and workflow not in known:
        raise ToolNotFoundError(
            f"no workflow named {workflow!r}{suggestion(workflow, known)}", hint="pml workflow list names all"
        )
    return await context.meta_tool("call_tool", {"name": name, "arguments": arguments})


async def execute_workflow(context: OperationContext, steps: JsonObject) -> ToolResult:
    """Return the result of steps, as of `execute_workflow`."""
    return await context.meta_tool("execute_workflow", steps)
