"""The PyPI package mcp-proxy: HTTP in front, one stdio server behind.

Its upstream hop is cheaper than that of the others, which reach the upstream over HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.client import Era
from benchmarks.install_peers import peer_python
from benchmarks.peers import Endpoint, Upstream
from benchmarks.processes import UVICORN_RUNNING, running


@asynccontextmanager
async def start(upstream: Upstream) -> AsyncIterator[Endpoint]:
    """The proxy with a synthetic server of its own over stdio. It is built on an SDK of the handshake era."""
    program = [str(peer_python("mcp-proxy")), "-m", "mcp_proxy", "--pass-environment", "--port", "0", "--"]
    async with running([*program, *upstream.command], announcement=UVICORN_RUNNING) as process:
        yield Endpoint(f"{process.origin}/mcp", process.pid, eras=(Era.HANDSHAKE,))
