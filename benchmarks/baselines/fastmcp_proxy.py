"""FastMCP's `create_proxy` with its defaults, of the FastMCP installed here.

python -m benchmarks.baselines.fastmcp_proxy URL
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from fastmcp.server import create_proxy

from benchmarks.peers import Endpoint, Upstream
from benchmarks.processes import running
from benchmarks.serving import serve


@asynccontextmanager
async def start(upstream: Upstream) -> AsyncIterator[Endpoint]:
    """The proxy in a process of its own."""
    async with running([sys.executable, "-m", __name__, upstream.url]) as process:
        yield Endpoint(f"{process.origin}/mcp", process.pid)


if __name__ == "__main__":
    anyio.run(serve, create_proxy(sys.argv[1], name="proxy").http_app(path="/mcp"))
