"""The gateway over the process's own stdin and stdout, until the client leaves or a signal asks it to."""

from __future__ import annotations

import os
import signal
import sys

import anyio
from mcp.server.stdio import stdio_server

from pml_gateway.log import get_logger
from pml_gateway.server.runtime import OpenRuntime

logger = get_logger(__name__)

DRAIN_SECONDS = 5.0
"""How long calls in flight may go on after a signal; children then get their own grace, all within ten seconds."""


async def serve_stdio(open_runtime: OpenRuntime) -> None:
    """Serve one client. A signal lets calls in flight finish, closes the upstreams and ends the process."""
    async with stdio_server() as (read, write):
        signalled = False
        async with open_runtime() as runtime, anyio.create_task_group() as tasks:

            async def watch_signals() -> None:
                nonlocal signalled
                with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                    async for _ in signals:
                        signalled = True
                        await runtime.gateway.drain(DRAIN_SECONDS)
                        tasks.cancel_scope.cancel()

            tasks.start_soon(watch_signals)
            await runtime.server.run(read, write, runtime.server.create_initialization_options())
            tasks.cancel_scope.cancel()
        if signalled:
            # A thread still waits for the client's next line and cannot be interrupted; everything else has ended.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
