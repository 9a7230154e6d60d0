"""A gateway that clients do not share, and the socket on which its process answers its owner's commands."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial

import anyio

from pml_gateway.files import make_private
from pml_gateway.owner.connection import LineStream, accept, serve_connection
from pml_gateway.owner.process import ServingProcess
from pml_gateway.owner.sockets import OWN, clear_dead
from pml_gateway.paths import Paths
from pml_gateway.reports.status import ProcessStatus, process_status
from pml_gateway.serve.runtime import Runtime
from pml_gateway.serve.unix_sockets import listening_at
from pml_gateway.storage.places import RUN, warn_unwritable


class AloneProcess(ServingProcess):
    """A process with one gateway."""

    def __init__(self, runtime: Runtime, identity: str) -> None:
        """Serve by one gateway with this configuration file."""
        self._runtime = runtime
        self._identity = identity
        self._began = time.monotonic()

    @property
    def runtimes(self) -> Sequence[Runtime]:
        """Return its gateway."""
        return (self._runtime,)

    def snapshot(self) -> ProcessStatus:
        """Return its state and that of its servers."""
        return process_status(self._identity, self.runtimes, self._began, self._runtime.presence.transport)


@asynccontextmanager
async def open_alone(
    opened: AbstractAsyncContextManager[Runtime], paths: Paths, identity: str
) -> AsyncIterator[Runtime]:
    """Open a gateway that answers its owner's commands."""
    async with opened as runtime, anyio.create_task_group() as tasks:
        tasks.start_soon(serve_owner, AloneProcess(runtime, identity), paths)
        yield runtime
        tasks.cancel_scope.cancel()


async def serve_owner(process: ServingProcess, paths: Paths) -> None:
    """Answer commands until cancelled; without a usable directory the gateway runs on without."""
    if sys.platform == "win32":
        return
    # A name of its own, also where a process had this number before: nobody takes one for the other's.
    path = paths.run_dir / f"{os.getpid()}-{os.urandom(4).hex()}{OWN}"
    try:
        make_private(paths.run_dir)
        with listening_at(str(path), str(path.with_suffix(".new"))) as listener:
            try:
                async with process.answering(), anyio.create_task_group() as tasks:
                    tasks.start_soon(clear_dead, paths)
                    await accept(listener, partial(serve_connection, process, _refuse), tasks)
            finally:
                with suppress(OSError):
                    path.unlink()
    except OSError as error:
        warn_unwritable(RUN, paths.run_dir, error)


async def _refuse(_first: bytes, lines: LineStream, _rest: object) -> None:
    lines.tell({"alone": True})
