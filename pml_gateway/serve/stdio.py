"""The gateway over its own stdin and stdout, until the client leaves or a signal asks it to."""

from __future__ import annotations

import os
import sys

import anyio
from mcp.server.stdio import stdio_server

from pml_gateway.serve.draining import Unanswered
from pml_gateway.serve.runtime import OpenRuntime
from pml_gateway.serve.signals import stop_on_signals

DRAIN_SECONDS = 5.0
"""How long calls in flight may go on after a signal; children then get their own grace, all within ten seconds."""


async def serve_stdio(open_runtime: OpenRuntime) -> None:
    """Serve one client. A signal lets calls in flight finish, closes the upstreams and ends the process."""
    async with stdio_server() as (read, write):
        signalled, unanswered = False, Unanswered()
        async with open_runtime() as runtime, anyio.create_task_group() as tasks:

            async def shut_down() -> None:
                nonlocal signalled
                signalled = True
                await unanswered.answered(DRAIN_SECONDS)
                tasks.cancel_scope.cancel()

            tasks.start_soon(stop_on_signals, shut_down)
            options = runtime.server.create_initialization_options()
            await runtime.server.run(unanswered.read(read), unanswered.write(write), options)
            tasks.cancel_scope.cancel()
        if signalled:
            # A thread still waits for the client's next line and cannot be interrupted; everything else has ended.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
