"""Sharing of identical reads within one run, unless something was written between them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import anyio

from pml_gateway.types import JsonObject
from pml_gateway.workflow.outcome import StepOutcome

MAX_KEY_LENGTH = 1024 * 1024
"""Maximum number of characters that identify a call; a longer one is not compared with others."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call of a tool, with the answers to its earlier questions."""

    tool: str
    arguments: JsonObject
    refs: tuple[str, ...] = ()
    if_none_match: str | None = None
    responses: JsonObject | None = None
    state: str | None = None


@dataclass(slots=True)
class _Shared:
    step_id: str
    finished: anyio.Event
    outcome: StepOutcome | None = None


class SharedReads:
    """The read-only calls of one run, by tool and arguments."""

    def __init__(self) -> None:
        self._writes = 0
        self._shared: dict[str, _Shared] = {}

    @contextmanager
    def write(self) -> Iterator[None]:
        """Mark a call that may change something: reads begun before or during it are not shared with later ones."""
        self._writes += 1
        try:
            yield
        finally:
            self._writes += 1

    async def once(
        self,
        step_id: str,
        invocation: Invocation,
        call: Callable[[], Awaitable[StepOutcome]],
        *,
        timeout: float | None = None,
    ) -> StepOutcome:
        """Return the outcome of an identical call with the same time limit, or make this call."""
        key = json.dumps(
            [self._writes, invocation.tool, invocation.arguments, invocation.if_none_match, timeout],
            sort_keys=True,
            ensure_ascii=False,
        )
        if len(key) > MAX_KEY_LENGTH:
            return await call()
        first = self._shared.get(key)
        # A call that carries answers is the one that asked; the others continue with its outcome.
        if first is not None and invocation.responses is None:
            await first.finished.wait()
            if first.outcome is not None:
                return replace(first.outcome, shared_with=first.step_id, question=None)
        shared = self._shared[key] = _Shared(step_id, anyio.Event())
        try:
            shared.outcome = await call()
            return shared.outcome
        finally:
            shared.finished.set()
