"""The tools that the scenarios `tasks-*` call, on a server of FastMCP with its extension for tasks.

`python tasks_server.py`, with a Python that has `fastmcp-tasks`, serves them over HTTP and says where on stderr.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from datetime import timedelta
from typing import Any

import uvicorn
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.utilities.tasks import TaskConfig
from fastmcp_tasks import TasksExtension  # type: ignore[import-not-found]  # in an environment of its own
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

server = FastMCP("tasks")
server.add_extension(TasksExtension())
POLL = timedelta(milliseconds=100)
OPTIONAL, REQUIRED = TaskConfig(mode="optional", poll_interval=POLL), TaskConfig(mode="required", poll_interval=POLL)


def question(key: str, message: str) -> dict[str, Any]:
    """One question for a text, under a key."""
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    params = ElicitRequestFormParams(message=message, requested_schema=schema)
    return {key: ElicitRequest(method="elicitation/create", params=params)}


@server.tool
async def greet(name: str = "nobody") -> str:
    """Greet at once, and never as a task."""
    return f"Hello, {name}!"


@server.tool(task=OPTIONAL)
async def slow_compute(seconds: float = 0, label: str = "") -> str:
    """Work for a while."""
    await asyncio.sleep(seconds)
    return f"computed {label}"


@server.tool(task=REQUIRED)
async def failing_job() -> str:
    """Fail, as a task only."""
    raise ToolError("it failed")


@server.tool(task=OPTIONAL)
async def protocol_error_job() -> str:
    """End with an error of the protocol."""
    raise MCPError(-32603, "the backend is gone")


@server.tool(task=OPTIONAL)
async def confirm_delete(ctx: Context, filename: str = "") -> Any:
    """Ask one question."""
    if not ctx.input_responses:
        return InputRequiredResult(input_requests=question("confirm", f"Delete {filename}?"))
    return f"deleted {filename}"


@server.tool(task=OPTIONAL)
async def multi_input(ctx: Context) -> Any:
    """Ask two questions at once."""
    if not ctx.input_responses:
        return InputRequiredResult(input_requests={**question("one", "First?"), **question("two", "Second?")})
    return "both answered"


@server.tool(task=REQUIRED)
async def test_tool_with_task(ctx: Context) -> Any:
    """Ask for a name, and say it."""
    if not ctx.input_responses:
        return InputRequiredResult(input_requests=question("user_name", "Who are you?"))
    return f"Hello, {ctx.input_responses}"


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0))
    sys.stderr.write(f"listening on http://127.0.0.1:{listener.getsockname()[1]}/mcp\n")
    sys.stderr.flush()
    uvicorn.Server(uvicorn.Config(server.http_app(), log_level="warning")).run(sockets=[listener])
