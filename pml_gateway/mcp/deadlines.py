"""Time limits that pause while a user is asked, and are extended when a server reports progress."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, Self

import anyio

_RUNNING: ContextVar[tuple[Deadline, ...]] = ContextVar("pml_gateway_deadlines", default=())


class Deadline:
    """A time limit (`anyio.current_time`) that cancels its context; renewals cannot extend it past its end.

    Time in which a user is asked does not count.
    """

    def __init__(self, deadline: float = math.inf, end: float = math.inf) -> None:
        self.was_renewed = False
        self._scope = anyio.CancelScope(deadline=deadline)
        self._end = end
        self._left = math.inf
        self._paused_at = 0.0
        self._pauses = 0

    def __enter__(self) -> Self:
        self._scope.__enter__()
        self._token = _RUNNING.set((*_RUNNING.get(), self))
        return self

    def __exit__(self, *raised: Any) -> bool:
        _RUNNING.reset(self._token)
        return bool(self._scope.__exit__(*raised))

    @property
    def cancelled_caught(self) -> bool:
        """Return True if the context was cancelled by this deadline."""
        return self._scope.cancelled_caught

    @property
    def is_at_end(self) -> bool:
        """Return True if no renewal can extend it."""
        return self._scope.deadline >= self._end

    def renew(self, seconds: float) -> None:
        """Extend the deadline to at least this many seconds from now, but not past the end."""
        self.was_renewed = True
        if self._pauses:
            self._left = max(self._left, min(seconds, self._end - self._paused_at))
        else:
            self._scope.deadline = max(self._scope.deadline, min(anyio.current_time() + seconds, self._end))

    def cancel(self) -> None:
        """Cancel the scope now."""
        self._scope.cancel()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock in this context; contexts may overlap."""
        if self._pauses == 0:
            self._paused_at = anyio.current_time()
            self._left = self._scope.deadline - self._paused_at
            self._scope.deadline = math.inf
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            if self._pauses == 0:
                now = anyio.current_time()
                self._end += now - self._paused_at
                self._scope.deadline = now + self._left


def within(seconds: float | None) -> Deadline:
    """Return a limit that cancels its context after this many seconds, not counting time in which a user is asked."""
    return Deadline() if seconds is None else Deadline(anyio.current_time() + seconds)


def running() -> tuple[Deadline, ...]:
    """Return the time limits around the caller, outermost first."""
    return _RUNNING.get()


def forget_limits() -> None:
    """Detach the current task from the time limits of the task that started it."""
    _RUNNING.set(())


@contextmanager
def paused(deadlines: tuple[Deadline, ...]) -> Iterator[None]:
    """Stop the clock of all these deadlines in this context."""
    with ExitStack() as stack:
        for deadline in deadlines:
            stack.enter_context(deadline.paused())
        yield
