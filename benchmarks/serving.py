"""Serves an ASGI application on a free loopback port and says which, for servers started by benchmarks."""

from __future__ import annotations

import socket
import sys

import uvicorn
from starlette.types import ASGIApp


async def serve(app: ASGIApp) -> None:
    """Listen until terminated. Access logs are off: they cost as much as a call."""
    # With the protocol left at 0, asyncio would not switch Nagle's algorithm off and every answer would wait 40 ms.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    sys.stderr.write(f"listening on http://127.0.0.1:{listener.getsockname()[1]}/mcp\n")
    sys.stderr.flush()
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, timeout_graceful_shutdown=1, timeout_keep_alive=75
    )
    await uvicorn.Server(config).serve(sockets=[listener])
