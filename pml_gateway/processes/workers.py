"""Work outside the event loop: in a few threads, or in worker processes that are terminated if they exceed a limit."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, TypeVar

import anyio
import anyio.to_thread

from pml_gateway.errors import OverloadedError
from pml_gateway.processes.worker import OUT_OF_MEMORY
from pml_gateway.quotas import OWN, FairPlaces

WORKER = Path(__file__).with_name("worker.py")
MAX_WORKERS = 2
"""Maximum worker processes, and threads: hostile work queues here, per client, instead of blocking all threads."""

MEMORY_BYTES = 512 * 1024**2
"""Address space of one process; it needs 60 MB of it before the first question."""

WAIT_SECONDS = 15.0
"""Seconds of wall-clock time for one answer on a busy machine, and for the wait for a place before it."""

ENDING_SECONDS = 2.0

Result = TypeVar("Result")


class Limit(StrEnum):
    """The limit that a worker exceeded."""

    TIME = "time"
    MEMORY = "memory"
    MACHINE = "machine"
    """There was no answer in time, perhaps because the machine is busy."""


class WorkerLimitError(Exception):
    """The work was terminated."""

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit.value)
        self.limit = limit


def out_of_turn(what: str) -> OverloadedError:
    """Return the error for work that got no answer in time; `what` describes the work that was not done."""
    return OverloadedError(
        f"{what} within {WAIT_SECONDS:g} s, for the machine has too much to do", hint="try again in a moment"
    )


class Workers:
    """The worker processes of one gateway, started when first needed. Created by `open_workers`."""

    def __init__(self) -> None:
        self._is_open = True
        self._idle: list[subprocess.Popen[bytes]] = []
        self._running: set[subprocess.Popen[bytes]] = set()
        self._places = FairPlaces(MAX_WORKERS)
        self._threads = FairPlaces(MAX_WORKERS)
        self._exchanges = anyio.CapacityLimiter(2 * MAX_WORKERS)

    @property
    def pids(self) -> list[int]:
        """Return the ids of the current processes."""
        return sorted(process.pid for process in (*self._idle, *self._running) if process.poll() is None)

    async def in_thread(self, function: Callable[..., Result], *arguments: Any, quota_key: str = OWN) -> Result:
        """Run a function that is certain to end soon in a thread, counted for this key, and return its result."""
        await self._threads.wait(quota_key)
        try:
            return await anyio.to_thread.run_sync(function, *arguments)
        finally:
            self._threads.give_back(quota_key)

    async def in_process(
        self, function: Callable[..., Result], *arguments: Any, seconds: float, quota_key: str = OWN
    ) -> Result:
        """Run a module-level function in another process and return its result; arguments and result are plain values.

        Args:
            function: the function to call; its module is imported in the process.
            arguments: for the function.
            seconds: limit of processor time.
            quota_key: the client that it counts for; the one with the fewest running tasks is served next.

        Raises:
            WorkerLimitError: a limit was exceeded, and the process was terminated.
        """
        question = (function.__module__, function.__name__, arguments, seconds)
        async with self._place(quota_key):
            while True:
                process = self._idle.pop() if self._idle else None
                is_fresh = process is None
                if not self._is_open:
                    raise WorkerLimitError(Limit.MACHINE)
                if process is None:
                    process = await anyio.to_thread.run_sync(_start, limiter=self._exchanges)
                self._running.add(process)
                try:
                    answer = await self._ask(process, question)
                except BaseException:
                    await self._end(process)
                    raise
                finally:
                    self._running.discard(process)
                if not isinstance(answer, _Ended):
                    self._idle.append(process)
                    result: Result = answer
                    return result
                if answer.status != 0 or is_fresh:
                    raise WorkerLimitError(_LIMITS.get(answer.status, Limit.MACHINE))
                # The process had been idle for so long that it has just ended: try another.

    async def close(self) -> None:
        """Terminate every process."""
        self._is_open = False
        for process in (*self._idle, *self._running):
            await self._end(process)
        self._idle.clear()

    @asynccontextmanager
    async def _place(self, quota_key: str) -> AsyncIterator[None]:
        try:
            with anyio.fail_after(WAIT_SECONDS):
                await self._places.wait(quota_key)
        except TimeoutError:
            raise WorkerLimitError(Limit.MACHINE) from None
        try:
            yield
        finally:
            self._places.give_back(quota_key)

    async def _ask(self, process: subprocess.Popen[bytes], question: tuple[Any, ...]) -> Any:
        with anyio.move_on_after(WAIT_SECONDS):
            return await anyio.to_thread.run_sync(
                _exchange, process, question, abandon_on_cancel=True, limiter=self._exchanges
            )
        raise WorkerLimitError(Limit.MACHINE)

    async def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(_reap, process, limiter=self._exchanges)


@asynccontextmanager
async def open_workers() -> AsyncIterator[Workers]:
    """Yield the workers of a gateway; their processes end with this context."""
    workers = Workers()
    try:
        yield workers
    finally:
        with anyio.CancelScope(shield=True):
            await workers.close()


_LIMITS = {OUT_OF_MEMORY: Limit.MEMORY}
if sys.platform != "win32":
    _LIMITS |= {-signal.SIGPROF: Limit.TIME, -signal.SIGSEGV: Limit.MEMORY, -signal.SIGABRT: Limit.MEMORY}


class _Ended:
    """Returned instead of an answer if the process ended, with its exit status."""

    def __init__(self, status: int) -> None:
        self.status = status


class _PlainValues(pickle.Unpickler):
    """An unpickler of answers that refuses everything but plain values, so that no code runs here."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is no plain value")


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        # Isolated and without site-packages: it starts in 12 ms.
        [sys.executable, "-I", "-S", str(WORKER), str(MEMORY_BYTES), *sys.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # No variables of the gateway, and no signals meant for its terminal.
        env={},
        start_new_session=True,
    )


def _exchange(process: subprocess.Popen[bytes], question: tuple[Any, ...]) -> Any:
    """Ask a question and wait for the answer, or for the end of the process."""
    try:
        _say(process, question)
        return _PlainValues(_pipe(process.stdout)).load()
    except (OSError, EOFError, pickle.UnpicklingError, ValueError):
        return _Ended(_reap(process))


def _say(process: subprocess.Popen[bytes], value: object) -> None:
    stdin = _pipe(process.stdin)
    # Written in pieces, so that other threads can run even if the value is large.
    pickle.dump(value, stdin, protocol=pickle.HIGHEST_PROTOCOL)
    stdin.flush()


def _reap(process: subprocess.Popen[bytes]) -> int:
    """Close the pipes of a process that is ending, and return its exit status."""
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):
            _pipe(pipe).close()
    try:
        return process.wait(ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream
