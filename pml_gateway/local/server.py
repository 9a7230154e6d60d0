"""What a bridge starts: listens before anything large is imported, so that nobody starts another one meanwhile."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from pml_gateway.local.endpoint import Endpoint
from pml_gateway.local.spare import Spare, Will, fork_spare, written_will
from pml_gateway.paths import Paths
from pml_gateway.workplace import Workplace

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping


COLLECTED_AFTER = (10_000, 20, 20)
"""Objects, and collections of younger ones, after which garbage is looked for: what clients and servers that come and
go make is taken up seldom, in larger parts."""


def serve(
    paths: Paths,
    config_file: Path | None,
    started_by: str,
    http: Mapping[str, object] | None = None,
    *,
    has_spare: bool = False,
) -> int:
    """Be the gateway of a home and configuration until it is to end; the exit code. A second one ends at once.

    With `http` it listens as the command of that name has it: with `host`, `port`, and the `owner` who attaches. With
    a spare, a second process goes on in its place where it is killed; both return from here.
    """
    endpoint = Endpoint.of(paths.home, paths.identity(config_file))
    endpoint.prepare()
    will, before = Will(started_by, http=http), 0
    while (life_lock := endpoint.take_life()) is not None:
        if not before and started_by == "client":
            will, before = written_will(endpoint.will) or (will, 0)
        listener = endpoint.listen()
        spare: Spare | Will | None = None
        try:
            # What is imported stays, so that looking for garbage in it takes a quarter of the time for nothing.
            gc.disable()
            import anyio

            from pml_gateway.local.machine import run

            # What is imported late is there for the spare as well.
            import_module("anyio._backends._asyncio")
            import_module("uvloop")

            gc.freeze()
            gc.set_threshold(*COLLECTED_AFTER)
            gc.enable()
            own = os.getpid()
            spare = fork_spare(will, (life_lock, listener.fileno()), _prepare) if has_spare else None
            if isinstance(spare, Will):
                listener.detach()
                will, before = spare, own
                continue
            serving = (endpoint, listener, life_lock, paths, will, spare, before)
            anyio.run(run, *serving, backend_options={"use_uvloop": True})
        except Exception as error:
            # Those that wait would hear nothing else of it.
            _refuse_all(listener, f"the gateway could not start ({type(error).__name__}: {error})", endpoint.log)
            raise
        finally:
            if isinstance(spare, Spare):
                spare.dismiss()
        return 0
    return 0


def _prepare() -> None:
    """Import what every gateway comes to need once it has clients; not what runs the model, which is for one alone."""
    for name in ("jsonschema", "faiss", "tokenizers"):
        import_module(name)


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
    words.add_argument("--started-by", default="client")
    given = words.parse_args()
    paths = Paths.from_environ({**Workplace.here().environ, "PML_HOME": given.home, "PML_CONFIG": str(given.config)})
    code = serve(paths, given.config, given.started_by, has_spare=True)
    sys.stderr.flush()
    # A thread that reads a file which never answers cannot be ended, and would be waited for.
    os._exit(code)


if __name__ == "__main__":
    main()
