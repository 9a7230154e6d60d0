"""`pml` with a socket beside it that tells what the system cannot: how many asyncio tasks there are.

python -m benchmarks.observed SOCKET serve --http --port 0
"""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import sys
import threading
from collections import Counter

from pml_gateway.cli.app import main as pml

_loops: set[asyncio.AbstractEventLoop] = set()


def main() -> None:
    """Take the socket's path from the command line, and run `pml` with the rest."""
    path = sys.argv.pop(1)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    threading.Thread(target=_answer, args=(listener,), daemon=True).start()
    _note_loops()
    pml()


def _answer(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(json.dumps(tasks()).encode())


def _note_loops() -> None:
    run_forever = asyncio.BaseEventLoop.run_forever

    def noted(self: asyncio.BaseEventLoop) -> None:
        _loops.add(self)
        try:
            run_forever(self)
        finally:
            _loops.discard(self)

    asyncio.BaseEventLoop.run_forever = noted  # type: ignore[method-assign]


def tasks() -> dict[str, int]:
    """Return how many unfinished tasks run each coroutine.

    `gc.get_objects` would find them, too, but a tuple that another thread is building must not be referenced by
    anything else: Python fails there with a SystemError.
    """
    gc.collect()
    running = [task for loop in [*_loops] for task in asyncio.all_tasks(loop)]
    return dict(Counter(getattr(task.get_coro(), "__qualname__", "?") for task in running).most_common())


if __name__ == "__main__":
    main()
