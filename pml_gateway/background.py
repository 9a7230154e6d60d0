"""Background tasks of an upstream that outlive the request which started them."""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import anyio.abc

from pml_gateway.errors import UpstreamUnavailableError
from pml_gateway.signal import Signal

Work = Callable[[], Coroutine[Any, Any, None]]


class Background:
    """Tasks that end with `run`; each runs in the context of the code that started it."""

    def __init__(self) -> None:
        self._new: deque[tuple[contextvars.Context, Work]] = deque()
        self._started = Signal()
        self._is_over = False

    def start(self, work: Work) -> None:
        """Start `work` soon; it must handle its own errors.

        Raises:
            UpstreamUnavailableError: the owner has ended.
        """
        if self._is_over:
            raise UpstreamUnavailableError("no longer configured", hint="call again")
        self._new.append((contextvars.copy_context(), work))
        self._started.set()

    async def run(self) -> None:
        """Run the started work, for as long as the owner's task group lives."""
        async with anyio.create_task_group() as tasks:
            try:
                while True:
                    self._start_new(tasks)
                    await self._started.wait()
            finally:
                # Work that has not begun yet begins cancelled, as its caller waits for the outcome.
                self._is_over = True
                self._start_new(tasks)

    def _start_new(self, tasks: anyio.abc.TaskGroup) -> None:
        while self._new:
            context, work = self._new.popleft()
            context.run(tasks.start_soon, work)
