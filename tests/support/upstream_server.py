"""A small real MCP server over stdio for process tests: `upstream_server.py [--tools N] [--hang-while FILE] ...`."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import mcp_types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

TEXT = {"type": "object", "properties": {"message": {"type": "string"}, "seconds": {"type": "number"}}}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", type=int, default=0)
    parser.add_argument("--hang-while", type=Path, help="never answer if this file exists at the start")
    parser.add_argument("--dead-while", type=Path, help="exit at once if this file exists at the start")
    parser.add_argument("--spawned", type=Path, help="append the process id to this file")
    parser.add_argument(
        "--cancelled", type=Path, help="append a line to this file for every slow call that is cancelled"
    )
    parser.add_argument("--stubborn", action="store_true", help="stay when stdin ends and when asked to terminate")
    parser.add_argument("--http", type=Path, help="serve HTTP on a free port, and write its URL to this file")
    options = parser.parse_args()
    if options.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.spawned is not None:
        with options.spawned.open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")
    if options.dead_while is not None and options.dead_while.exists():
        sys.exit(1)
    if options.hang_while is not None and options.hang_while.exists():
        time.sleep(600)
        sys.exit(1)
    anyio.run(_serve, options.tools, options.cancelled, options.http)
    if options.stubborn:
        time.sleep(600)


async def _serve(count: int, cancelled: Path | None, url_file: Path | None) -> None:
    names = ["echo", "slow", "environment", "crash", *(f"extra_{number}" for number in range(count))]
    tools = [
        mcp_types.Tool(name=name, description=f"{name} does what its name says.", input_schema=TEXT) for name in names
    ]

    async def on_list(_ctx: Any, _params: Any) -> mcp_types.ListToolsResult:
        return mcp_types.ListToolsResult(tools=tools)

    async def on_call(_ctx: Any, params: mcp_types.CallToolRequestParams) -> mcp_types.CallToolResult:
        arguments = params.arguments or {}
        match params.name:
            case "slow":
                if "started" in arguments:
                    Path(arguments["started"]).touch()  # noqa: ASYNC240
                try:
                    await anyio.sleep(arguments.get("seconds", 1))
                except anyio.get_cancelled_exc_class():
                    _note(cancelled)
                    raise
                text = "slept"
            case "environment":
                text = "\n".join(sorted(f"{key}={value}" for key, value in os.environ.items()))
            case "crash":
                os._exit(3)
            case _:
                text = str(arguments.get("message", ""))
        return mcp_types.CallToolResult(content=[mcp_types.TextContent(type="text", text=text)])

    server: Server[Any] = Server("upstream", version="1", on_list_tools=on_list, on_call_tool=on_call)
    if url_file is not None:
        await _serve_http(server, url_file)
        return
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def _serve_http(server: Server[Any], url_file: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    url_file.with_suffix(".new").write_text(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", encoding="utf-8")
    url_file.with_suffix(".new").rename(url_file)
    config = uvicorn.Config(server.streamable_http_app(), log_level="warning", timeout_graceful_shutdown=1)
    await uvicorn.Server(config).serve(sockets=[listener])


def _note(cancelled: Path | None) -> None:
    if cancelled is not None:
        with cancelled.open("a", encoding="utf-8") as file:
            file.write("cancelled\n")


if __name__ == "__main__":
    main()
