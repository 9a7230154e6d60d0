"""SIGTERM and SIGINT end the gateway and its commands in order; a second one, or too long an end, at once.

The handlers run in the main thread between any two steps, so that not even a blocked event loop keeps a process alive.
What Python makes of a SIGINT in an event loop is a single cancellation, which a wait that ends at that moment swallows;
and a process that was started in the background of a script ignores SIGINT. Neither is so here.
"""

from __future__ import annotations

import _thread
import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

import anyio

from pml_gateway.log import get_logger

logger = get_logger(__name__)

ENDING_SECONDS = 3.0
"""Seconds that a command gets to end after a signal: more than it takes to end servers in order."""

ResultT = TypeVar("ResultT")


def run_until_signalled(work: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Run `work` in an event loop of its own, to its end or to the first signal, from which on it stays cancelled.

    If it has not ended `ENDING_SECONDS` later, be it for a thread or a child, the process ends all the same; its
    children are then ended by the process that watches over them.

    Raises:
        KeyboardInterrupt: SIGINT ended it.
        SystemExit: SIGTERM ended it.
    """
    received: signal.Signals | None = None
    loop: asyncio.AbstractEventLoop | None = None
    scope: anyio.CancelScope | None = None
    over = _thread.allocate_lock()

    async def cancellable() -> ResultT:
        nonlocal loop, scope
        with anyio.CancelScope() as scope:
            loop = asyncio.get_running_loop()
            if received is not None:
                scope.cancel()
            try:
                return await work()
            finally:
                loop = None
        raise AssertionError("only a signal cancels it")

    def end(first: signal.Signals) -> None:
        nonlocal received
        received = first
        # No task of the loop, which may be blocked, and no `Thread`, whose locks may be held by what is interrupted.
        _thread.start_new_thread(_end_unless, (over, first))
        if loop is not None and scope is not None:
            loop.call_soon_threadsafe(scope.cancel)

    with _heard(end), over:
        try:
            return anyio.run(cancellable, backend_options={"use_uvloop": True})
        finally:
            # Whatever the work has made of its cancellation.
            if received is signal.SIGINT:
                raise KeyboardInterrupt
            if received is not None:
                raise SystemExit(_exit_code(received))


@asynccontextmanager
async def first_signal() -> AsyncIterator[anyio.Event]:
    """Yield an event that the first signal sets. A second signal ends the process at once.

    Entered before all that takes time to end, so that the second is heard until everything has.
    """
    signalled, loop = anyio.Event(), asyncio.get_running_loop()

    def tell(first: signal.Signals) -> None:
        logger.info("%s: stopping; a second one ends at once", first.name)
        signalled.set()

    with _heard(lambda first: loop.call_soon_threadsafe(tell, first)):
        yield signalled


@contextmanager
def _heard(react: Callable[[signal.Signals], object]) -> Iterator[None]:
    """Have `react` called for the first signal, between any two steps of the main thread, and the second one end it.

    Where this is not the main thread, signals are left to what that one does.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_first = True

    def handle(number: int, _frame: object) -> None:
        nonlocal is_first
        received = signal.Signals(number)
        if not is_first:
            _end_at_once(received)
        is_first = False
        react(received)

    before = {each: signal.signal(each, handle) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _end_at_once(received: signal.Signals) -> None:
    """As if the signal had never been handled, so that whoever waits for the process sees why it ended."""
    signal.signal(received, signal.SIG_DFL)
    os.kill(os.getpid(), received)


def _end_unless(over: _thread.LockType, received: signal.Signals) -> None:
    """End the process, unless this lock can be had before."""
    if not over.acquire(timeout=ENDING_SECONDS):
        os._exit(_exit_code(received))


def _exit_code(received: signal.Signals) -> int:
    """Return the exit code of a process that a signal ended, as shells report it."""
    return 128 + received
