"""A client's visit as a program of its own: starts a gateway, lists, searches and calls, and prints what it got.

python visit.py stdio|http QUERY TOOL ARGUMENTS COMMAND...
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters

VISIT_SECONDS = 120


async def visit(server: Any, query: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """What a list, a search and a call are answered with."""
    async with asyncio.timeout(VISIT_SECONDS), Client(server) as client:
        listed = await client.list_tools()
        found = await client.call_tool("search_tools", {"query": query})
        called = await client.call_tool("call_tool", {"name": tool, "arguments": arguments})
    return {
        "listed": [each.name for each in listed.tools],
        "found": str(found.structured_content or found.content),
        "called": str(called.structured_content or called.content),
        "failed": bool(found.is_error or called.is_error),
    }


def main(transport: str, query: str, tool: str, arguments: str, *command: str) -> None:
    """Visit a gateway over stdio, or over HTTP on a port that it chooses."""
    asked = (query, tool, json.loads(arguments))
    if transport == "stdio":
        parameters = StdioServerParameters(
            command=command[0], args=list(command[1:]), env=dict(os.environ), cwd=Path.cwd()
        )
        try:
            sys.stdout.write(json.dumps(asyncio.run(visit(parameters, *asked))))
        finally:
            # The gateway of the machine stays for the next client.
            subprocess.run([*command[:-1], "down"], capture_output=True, timeout=VISIT_SECONDS, check=False)
        return
    with subprocess.Popen([*command, "--http", "--port", "0"], stderr=subprocess.PIPE, text=True) as gateway:
        assert gateway.stderr is not None
        log = []
        for line in gateway.stderr:
            log.append(line)
            if "listening on " in line:
                break
        else:
            sys.exit("".join(log))
        try:
            url = line.partition("listening on ")[2].split()[0]
            sys.stdout.write(json.dumps(asyncio.run(visit(url, *asked))))
        finally:
            gateway.terminate()
            gateway.communicate(timeout=VISIT_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
