"""What a bridge starts: listens before anything large is imported, so that nobody starts another one meanwhile."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pml_gateway.local.endpoint import Endpoint
from pml_gateway.local.up_request import UpRequest
from pml_gateway.paths import Paths
from pml_gateway.workplace import Workplace

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping


COLLECTED_AFTER = (10_000, 20, 20)
"""Objects, and collections of younger ones, after which garbage is looked for: what clients and servers that come and
go make is taken up seldom, in larger parts."""


def serve(paths: Paths, config_file: Path | None, started_by: str, http: Mapping[str, object] | None = None) -> int:
    """Be the gateway of a home and configuration until it is to end; the exit code. A second one ends at once.

    With `http` it listens as the command of that name has it: with `host`, `port`, and the `owner` who attaches.
    """
    endpoint = Endpoint.of(paths.home, paths.identity(config_file))
    endpoint.prepare()
    life_lock = endpoint.take_life()
    if life_lock is None:
        return 0
    request = UpRequest.read(endpoint.up_request) if started_by == "client" else None
    if request is not None:
        started_by, http = "up", request.http
    listener = endpoint.listen()
    try:
        # What is imported stays, so that looking for garbage in it takes a quarter of the time for nothing.
        gc.disable()
        import anyio

        from pml_gateway.local.machine import run

        gc.freeze()
        gc.set_threshold(*COLLECTED_AFTER)
        gc.enable()
        serving = (endpoint, listener, life_lock, paths, started_by, http, request is not None)
        anyio.run(run, *serving, backend_options={"use_uvloop": True})
    except Exception as error:
        # Those that wait would hear nothing else of it.
        _refuse_all(listener, f"the gateway could not start ({type(error).__name__}: {error})", endpoint.log)
        raise
    return 0


def _refuse_all(listener: socket.socket, message: str, log: str) -> None:
    refused = {"message": message, "hint": f"its log says more: {log}", "exit": 1}
    with contextlib.suppress(OSError):
        listener.setblocking(False)
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"!" + json.dumps({"refused": refused}).encode() + b"\n")


def main() -> None:
    """`python -m pml_gateway.local.server --home HOME --config FILE`."""
    words = argparse.ArgumentParser()
    words.add_argument("--home", required=True)
    words.add_argument("--config", type=Path, required=True)
    given = words.parse_args()
    paths = Paths.from_environ({**Workplace.here().environ, "PML_HOME": given.home, "PML_CONFIG": str(given.config)})
    code = serve(paths, given.config, "client")
    sys.stderr.flush()
    # A thread that reads a file which never answers cannot be ended, and would be waited for.
    os._exit(code)


if __name__ == "__main__":
    main()
