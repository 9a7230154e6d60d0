"""The budget of one request for work on foreign input: schemas of servers, expressions of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from cachetools import FIFOCache

from pml_gateway.config.settings import LimitSettings
from pml_gateway.errors import BudgetExceededError
from pml_gateway.processes.workers import Workers
from pml_gateway.quotas import OWN

Result = TypeVar("Result")

CHARACTERS_PER_PART = 64
"""Characters of a built text that count as one part, since they take as much memory."""

MAX_EXCEEDED = 1000
"""Maximum number of schemas that are remembered as too slow; the oldest are dropped first."""

_CURRENT: ContextVar[RequestBudget | None] = ContextVar("pml_gateway_request_budget", default=None)


def exceeded_schemas() -> MutableMapping[str, str]:
    """Return an empty record of schemas that exceed a limit, bounded in number."""
    return FIFOCache(MAX_EXCEEDED)


@dataclass(slots=True)
class RequestBudget:
    """The remaining budget of one request, including all calls of a batch and all steps of a workflow.

    Args:
        limits: the initial budget.
        workers: where slow work runs; None to use a thread.
        exceeded: the limit that checks with a schema exceeded before, by the hash of the schema.
        quota_key: the client that it counts for; worker places are shared fairly.
        steps: remaining evaluations of expression nodes; a keyword of a schema counts as five.
        parts: remaining items, members and values to build.
        turn: lock for work outside the event loop, so that a request with many calls takes only one place.
    """

    limits: LimitSettings = field(default_factory=LimitSettings)
    workers: Workers | None = None
    exceeded: MutableMapping[str, str] = field(default_factory=exceeded_schemas)
    quota_key: str = OWN
    turn: anyio.Lock = field(default_factory=anyio.Lock)
    steps: int = field(init=False)
    parts: int = field(init=False)

    def __post_init__(self) -> None:
        self.steps, self.parts = self.limits.request_steps, self.limits.request_parts

    async def in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run a function that is certain to end soon in a thread, and return its result."""
        if self.workers is None:
            return await anyio.to_thread.run_sync(function, *arguments)
        return await self.workers.in_thread(function, *arguments, quota_key=self.quota_key)

    def spend(self, steps: int, parts: int = 0) -> None:
        """Deduct what was used."""
        self.steps -= steps
        self.parts -= parts

    def require(self) -> None:
        """Check that some budget is left.

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


def current_budget() -> RequestBudget:
    """Return the budget of the current request; outside of a request, a new one."""
    return _CURRENT.get() or RequestBudget()


@contextmanager
def spending(budget: RequestBudget) -> Iterator[None]:
    """Spend one budget for everything in this context, including tasks and threads started in it."""
    token = _CURRENT.set(budget)
    try:
        yield
    finally:
        _CURRENT.reset(token)
