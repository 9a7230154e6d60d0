"""SIGTERM and SIGINT become an orderly end; a second one, an end at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import anyio

from pml_gateway.log import get_logger

logger = get_logger(__name__)


async def stop_on_signals(stop: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `stop` at the first signal, for as long as it takes; who sends a second does not want to wait."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with anyio.create_task_group() as tasks:
            first: signal.Signals | None = None
            async for received in signals:
                if first is not None:
                    _end_at_once(received)
                first = received
                logger.info("%s: finishing calls in flight", received.name)
                tasks.start_soon(stop)


def _end_at_once(received: signal.Signals) -> None:
    """As if the signal had never been handled, so that whoever waits for the process sees why it ended."""
    signal.signal(received, signal.SIG_DFL)
    os.kill(os.getpid(), received)
