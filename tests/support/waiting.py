"""Waits with an end: for something that holds, and for a swap of the gateway's state after which it does."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from pml_gateway.gateway.gateway import Gateway

LIMIT = 60


async def until(condition: Any) -> None:
    """Wait until something holds."""
    with anyio.fail_after(LIMIT):
        while not condition():  # noqa: ASYNC110  # what others do has no event here
            await anyio.sleep(0.01)


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something holds that is asked for."""
    with anyio.fail_after(LIMIT):
        while not await condition():  # noqa: ASYNC110  # what others do has no event here
            await anyio.sleep(0.02)


def wait_for(condition: Callable[[], bool], what: str, limit: float = LIMIT) -> None:
    """Wait until something holds, where no event loop runs."""
    tick = threading.Event()
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        if condition():
            return
        tick.wait(0.05)
    raise AssertionError(f"not within {limit:g} s: {what}")


async def swapped(gateway: Gateway, condition: Callable[[], object]) -> None:
    """Wait for a swap after which the condition holds."""
    changed = anyio.Event()

    def look(*_: object) -> None:
        if condition():
            changed.set()

    stop = gateway.current.on_swap(look)
    look()
    try:
        with anyio.fail_after(LIMIT):
            await changed.wait()
    finally:
        stop()
