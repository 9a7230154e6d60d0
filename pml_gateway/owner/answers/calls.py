"""Calls of tools and workflows with the words of a command line, and the parameters of a tool."""

from __future__ import annotations

import anyio.to_thread

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.ownership import CLIENT_PREFIX
from pml_gateway.config.servers import disabled_tools
from pml_gateway.errors import InvalidInputError, ToolNotFoundError
from pml_gateway.exposure.token_count import count_definition_tokens
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.gateway.tool_list import COUNTED_VERSION
from pml_gateway.owner.arguments import given_arguments, read_flags
from pml_gateway.owner.context import OperationContext
from pml_gateway.owner.results import CalledTool, ToolDescription, ToolResult, Workflows
from pml_gateway.policy.principal import LOCAL
from pml_gateway.reports.workflows import composite_status
from pml_gateway.text import quoted, suggestion, words_of
from pml_gateway.types import SEPARATORS, JsonObject
from pml_gateway.workflow.composite import COMPOSITES


async def call(
    context: OperationContext, name: str, text: str | None, words: list[str], pairs: list[str]
) -> CalledTool:
    """Return the `answer` of the tool, or what is `wrong` with the words: a JSON text, options and pairs."""
    tool = await _found(context.gateway, name)
    given: JsonObject = {}
    if tool is None:
        refuse_disabled(context.gateway, name)
    else:
        schema = tool.input_schema
        try:
            given = given_arguments(text, pairs, schema)
            given = read_flags(schema, words, given)
        except InvalidInputError as error:
            return {"wrong": error.as_json()}
    return {"answer": await context.meta_tool("call_tool", {"name": name, "arguments": given})}


async def describe(context: OperationContext, name: str) -> ToolDescription:
    """Return a tool's name, description, input schema and cost.

    Raises:
        ToolNotFoundError: there is no such tool.
    """
    tool = await _found(context.gateway, name)
    if tool is None:
        refuse_disabled(context.gateway, name)
        closest = context.gateway.state.view(LOCAL).closest(name)
        raise ToolNotFoundError(f"no tool {name!r}", hint=f"closest: {', '.join(closest) or 'none; see pml tools'}")
    definition = tool.as_json(COUNTED_VERSION, as_sent=True)
    return {
        "name": tool.qualified_name,
        "server": tool.upstream_id,
        "tool": tool.name,
        "effect": tool.effect.value,
        "tokens": await anyio.to_thread.run_sync(count_definition_tokens, definition),
        "description": tool.description,
        "inputSchema": tool.input_schema,
    }


async def _found(gateway: Gateway, name: str) -> CatalogTool | None:
    await gateway.connect_once(name)
    return (await gateway.wait_for_tools()).view(LOCAL).resolve(name)


def refuse_disabled(gateway: Gateway, name: str) -> None:
    """Say that a tool or its server is disabled, instead of naming others that are called like it.

    Raises:
        ToolNotFoundError: no tool of this name is there, and that is why.
    """
    state = gateway.state
    servers = state.settings.servers
    for server, definition in servers.items():
        if not definition.enabled and any(name.startswith(server + separator) for separator in SEPARATORS):
            raise ToolNotFoundError(f"{server} is disabled, and with it {name!r}", hint=f"pml enable {quoted(server)}")
    assigned = state.catalog.assignments
    _, _, behind = name.removeprefix(CLIENT_PREFIX).partition("__")
    asked = {words_of(each) for each in (name, behind if name.startswith(CLIENT_PREFIX) else name)}
    called = [
        (server, tool)
        for server, tool in disabled_tools(servers)
        if name == assigned.get((server, tool)) or asked & {words_of(tool), (*words_of(server), *words_of(tool))}
    ]
    if called:
        enabled = " ".join(quoted(f"{server}:{tool}") for server, tool in called)
        raise ToolNotFoundError(
            f"{name!r} is disabled (servers.{called[0][0]}.tools.{called[0][1]}.enabled: false)"
            if len(called) == 1
            else f"{name!r} is disabled: {enabled}",
            hint=f"pml enable {enabled}",
        )


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
