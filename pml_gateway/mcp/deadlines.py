"""Time limits that stand still while a person is asked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar

import anyio


class Deadline:
    """The time limit of one scope."""

    def __init__(self, scope: anyio.CancelScope) -> None:
        self._scope = scope
        self._left = math.inf
        self._pauses = 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let no time pass for the length of this context; contexts may overlap."""
        if self._pauses == 0:
            self._left = self._scope.deadline - anyio.current_time()
            self._scope.deadline = math.inf
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            if self._pauses == 0:
                self._scope.deadline = anyio.current_time() + self._left


_RUNNING: ContextVar[tuple[Deadline, ...]] = ContextVar("pml_gateway_deadlines", default=())


@contextmanager
def within(seconds: float | None) -> Iterator[anyio.CancelScope]:
    """Cancel what runs in this context after so many seconds, not counting those in which a person is asked."""
    with anyio.move_on_after(seconds) as scope:
        token = _RUNNING.set((*_RUNNING.get(), Deadline(scope)))
        try:
            yield scope
        finally:
            _RUNNING.reset(token)


def running() -> tuple[Deadline, ...]:
    """The time limits around the caller, outermost first."""
    return _RUNNING.get()


def forget_limits() -> None:
    """Begin a task that is not bound by the time limits of the one that started it."""
    _RUNNING.set(())


@contextmanager
def paused(deadlines: tuple[Deadline, ...]) -> Iterator[None]:
    """Let no time pass for any of these."""
    with ExitStack() as stack:
        for deadline in deadlines:
            stack.enter_context(deadline.paused())
        yield
