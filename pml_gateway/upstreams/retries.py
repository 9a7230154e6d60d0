"""Retries after transport failures for requests that are safe to repeat: bounded, jittered, within the deadline."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import anyio

from pml_gateway.errors import GatewayError, UpstreamUnavailableError
from pml_gateway.types import JsonObject, is_idempotent

MAX_RETRIES = 2
FIRST_PAUSE = 0.1
"""Maximum seconds before the first retry; doubled for the second."""

ResultT = TypeVar("ResultT")


async def repeated(
    attempt: Callable[[], Awaitable[ResultT]], deadline: float, may_repeat: Callable[[], bool] = lambda: True
) -> ResultT:
    """Return the outcome of `attempt`, retried after transport failures, before `deadline` (`anyio.current_time`).

    `may_repeat` is checked after a failure. `executed` of the last failure holds for all attempts.

    Raises:
        GatewayError: the last failure, or the first if the upstream refuses retries.
    """
    failure: GatewayError | None = None
    reached = False
    for number in range(MAX_RETRIES + 1):
        if number:
            pause = FIRST_PAUSE * 2 ** (number - 1) * random.uniform(0.5, 1.0)
            if anyio.current_time() + pause >= deadline:
                break
            await anyio.sleep(pause)
        try:
            return await attempt()
        except GatewayError as error:
            if reached and error.details.get("executed") == "no":
                error.details["executed"] = "unknown"
            reached = error.details.get("executed") != "no"
            if not isinstance(error, UpstreamUnavailableError):
                raise
            if failure is not None and "retry_after_seconds" in error.details:
                break
            failure = error
            if "retry_after_seconds" in error.details or not may_repeat():
                break
    assert failure is not None
    raise failure


def repeatable_tools(tools: Iterable[JsonObject]) -> frozenset[str]:
    """Return the names of the tools that their server declares read-only or idempotent."""
    return frozenset(str(tool.get("name")) for tool in tools if is_idempotent(tool.get("annotations")))
