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


def main() -> None:
    """Take the socket's path from the command line, and run `pml` with the rest."""
    path = sys.argv.pop(1)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    threading.Thread(target=_answer, args=(listener,), daemon=True).start()
    pml()


def _answer(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(json.dumps(tasks()).encode())


def tasks() -> dict[str, int]:
    """How many unfinished tasks run each coroutine."""
    gc.collect()
    running = [entry for entry in gc.get_objects() if isinstance(entry, asyncio.Task) and not entry.done()]
    return dict(Counter(getattr(task.get_coro(), "__qualname__", "?") for task in running).most_common())


if __name__ == "__main__":
    main()
