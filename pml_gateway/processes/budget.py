"""What one request may take of the gateway for what others wrote: schemas of servers, expressions of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from pml_gateway.config.settings import LimitSettings
from pml_gateway.errors import BudgetExceededError
from pml_gateway.processes.exceeded import Exceeded
from pml_gateway.processes.workers import Workers
from pml_gateway.shares import OWN

Result = TypeVar("Result")

CHARACTERS_PER_PART = 64
"""Of a text that is built: they take the memory of one part."""


@dataclass(slots=True)
class RequestBudget:
    """What is left for one request, with everything in it: each call of a batch and each step of a workflow.

    Args:
        limits: what it began with.
        workers: where work goes that may take long; without any, to a thread.
        exceeded: the schemas that took too much before.
        share: whose request it is; places beside the event loop are shared fairly.
        steps: evaluations of nodes of expressions that are left; a keyword of a schema counts as five.
        parts: items, members and values that may still be built.
        turn: held by what is done beside the event loop, so that a request of many calls takes one place there.
    """

    limits: LimitSettings = field(default_factory=LimitSettings)
    workers: Workers | None = None
    exceeded: Exceeded = field(default_factory=Exceeded)
    share: str = OWN
    turn: anyio.Lock = field(default_factory=anyio.Lock)
    steps: int = field(init=False)
    parts: int = field(init=False)

    def __post_init__(self) -> None:
        self.steps, self.parts = self.limits.request_steps, self.limits.request_parts

    async def in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """The result of a function that ends by itself before long, made beside the event loop."""
        if self.workers is None:
            return await anyio.to_thread.run_sync(function, *arguments)
        return await self.workers.in_thread(function, *arguments, share=self.share)

    def spend(self, steps: int, parts: int = 0) -> None:
        """Take note of what was used."""
        self.steps -= steps
        self.parts -= parts

    def require(self) -> None:
        """Say so if nothing is left.

        Raises:
            BudgetExceededError: names what ran out, and its setting.
        """
        if self.steps <= 0:
            raise _used_up("request_steps", self.limits.request_steps, "evaluations")
        if self.parts <= 0:
            raise _used_up("request_parts", self.limits.request_parts, "values built")


def _used_up(limit: str, value: int, unit: str) -> BudgetExceededError:
    return BudgetExceededError(
        f"this request has used up its {value} {unit}",
        hint=f"do less in one request, or raise limits.{limit}",
        details={"limit": limit, "value": value, "setting": f"limits.{limit}"},
    )


_CURRENT: ContextVar[RequestBudget | None] = ContextVar("pml_gateway_request_budget", default=None)


def current_budget() -> RequestBudget:
    """That of the request which is being answered; outside of any, one that nothing else is spent of."""
    return _CURRENT.get() or RequestBudget()


@contextmanager
def spending(budget: RequestBudget) -> Iterator[None]:
    """Everything in this context, and in the tasks and threads begun in it, is spent of one budget."""
    token = _CURRENT.set(budget)
    try:
        yield
    finally:
        _CURRENT.reset(token)
