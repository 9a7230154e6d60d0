"""FastMCP's client with its extension for tasks: `python fastmcp_tasks_client.py URL` prints what it sees as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.exceptions import ToolError
from fastmcp_tasks import call_tool_task  # type: ignore[import-not-found]  # in an environment of its own

SECONDS = 60


async def answer(message: str, *_: Any) -> Any:
    """Answer whatever a task asks."""
    return ElicitResult(action="accept", content={"name": message})


async def result_of(call: Any) -> Any:
    """The text of a result, or what the client raises."""
    try:
        result = await call
    except ToolError as error:
        return f"ToolError: {error}"
    return result.content[0].text


async def see(url: str) -> dict[str, Any]:
    async with Client(url, elicitation_handler=answer) as client:
        seen: dict[str, Any] = {"no task": await result_of(client.call_tool("greet", {"name": "you"}))}
        for name in ("slow_compute", "failing_job", "protocol_error_job", "confirm_delete", "multi_input"):
            seen[f"awaited {name}"] = await result_of(client.call_tool(name, {}))
        task = await call_tool_task(client, "slow_compute", {"seconds": 0.3, "label": "x"})
        seen["created"] = (await task.status()).status
        seen["ended"] = (await task.wait(timeout=SECONDS)).status
        seen["result"] = await result_of(task.result())
        held = await call_tool_task(client, "slow_compute", {"seconds": SECONDS})
        await held.cancel()
        seen["cancelled"] = (await held.wait(timeout=SECONDS)).status
        seen["cancelled result"] = str(await result_of(held.result())).replace(held.task_id, "ID")
        asking = await call_tool_task(client, "confirm_delete", {"filename": "f"})
        waiting = await asking.wait(state="input_required", timeout=SECONDS)
        seen["asked"] = [each["params"]["message"] for each in (waiting.input_requests or {}).values()]
        seen["answered"] = await result_of(asking.result())
    return seen


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(see(sys.argv[1]))))
