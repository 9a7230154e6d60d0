"""Counts the turns that other tasks have while one works."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import anyio
import anyio.lowlevel

Result = TypeVar("Result")


async def turns_of_others(work: Coroutine[Any, Any, Result]) -> tuple[Result, int]:
    """Return what the work returns, and how many turns another task had until then."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        result = await work
        tasks.cancel_scope.cancel()
    return result, turns
