"""The process that a bridge starts: listens before any large import, so that no other bridge starts a second one."""

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
from pml_gateway.working_directory import WorkingDirectory

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping


COLLECTED_AFTER = (10_000, 20, 20)
"""Thresholds of the garbage collector, higher than the defaults: garbage of clients and servers that come and go is
collected less often, in larger parts."""


def serve(paths: Paths, config_file: Path | None, started_by: str, http: Mapping[str, object] | None = None) -> int:
    """Run as the gateway of a home and configuration, and return the exit code; return at once if one runs already.

    With `http`, it also listens on HTTP; these are the arguments of that command: `host`, `port`, and `owner`.
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
        # Imported modules stay, and collecting garbage during the imports would take a quarter of their time.
        gc.disable()
        import anyio

        from pml_gateway.local.machine import run

        gc.freeze()
        gc.set_threshold(*COLLECTED_AFTER)
        gc.enable()
        identity = paths.identity(config_file)
        serving = (endpoint, listener, life_lock, paths, identity, started_by, http, request is not None)
        anyio.run(run, *serving, backend_options={"use_uvloop": True})
    except Exception as error:
        # Waiting bridges have no other way to learn the reason.
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
    """Run `python -m pml_gateway.local.server --home HOME --config FILE`."""
    words = argparse.ArgumentParser()
    words.add_argument("--home", required=True)
    words.add_argument("--config", type=Path, required=True)
    given = words.parse_args()
    paths = Paths.from_environ(
        {**WorkingDirectory.here().environ, "PML_HOME": given.home, "PML_CONFIG": str(given.config)}
    )
    code = serve(paths, given.config, "client")
    sys.stderr.flush()
    # A normal exit would wait for every thread, and one that reads a hanging file cannot be stopped.
    os._exit(code)


if __name__ == "__main__":
    main()
