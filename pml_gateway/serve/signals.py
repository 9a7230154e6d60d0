"""SIGTERM and SIGINT end the gateway in order; a second one, or too long an end, at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio

from pml_gateway.log import get_logger

logger = get_logger(__name__)


ENDING_SECONDS = 1.0
"""What work that holds nothing of value is given to end, after a signal."""


async def until_signalled(work: Callable[[], Awaitable[None]]) -> signal.Signals | None:
    """Run `work`, which has nothing to lose, to its end or to the first signal; returns that signal.

    A process that was started in the background of a script ignores SIGINT, and what Python makes of one elsewhere is
    a single cancellation, which a wait that ends at that moment can swallow. The signals are received here instead, and
    the work stays cancelled. If it has not ended `ENDING_SECONDS` later, be it for a thread or a child, the process
    ends all the same; its children are then ended by the process that watches over them.
    """
    received: list[signal.Signals] = []
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with anyio.create_task_group() as tasks:
            scope = anyio.CancelScope()

            async def listen() -> None:
                async for each in signals:
                    if received:
                        _end_at_once(each)
                    received.append(each)
                    # No task of the loop: neither a blocked loop nor its closing is to stop this.
                    limit = threading.Timer(ENDING_SECONDS, os._exit, [exit_code_of(each)])
                    limit.daemon = True
                    limit.start()
                    scope.cancel()

            tasks.start_soon(listen)
            with scope:
                await work()
            tasks.cancel_scope.cancel()
    return received[0] if received else None


def exit_code_of(received: signal.Signals) -> int:
    """What a process that a signal ended exits with, as shells have it."""
    return 128 + received


@asynccontextmanager
async def first_signal() -> AsyncIterator[anyio.Event]:
    """The event that the first signal sets. Who sends a second does not want to wait: it ends the process at once.

    Entered before all that takes time to end, so that the second is heard until everything has.
    """
    signalled = anyio.Event()
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with anyio.create_task_group() as tasks:

            async def listen() -> None:
                async for received in signals:
                    if signalled.is_set():
                        _end_at_once(received)
                    logger.info("%s: stopping; a second one ends at once", received.name)
                    signalled.set()

            tasks.start_soon(listen)
            yield signalled
            tasks.cancel_scope.cancel()


def _end_at_once(received: signal.Signals) -> None:
    """As if the signal had never been handled, so that whoever waits for the process sees why it ended."""
    signal.signal(received, signal.SIG_DFL)
    os.kill(os.getpid(), received)
