"""Worker processes: started, started again when they end, and ended in order before the Redis that they share."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from signal import Signals

import anyio
import anyio.abc

from pml_gateway.config.settings import HttpSettings
from pml_gateway.log import get_logger
from pml_gateway.serve.workers.accepting import Accepting, Phase
from pml_gateway.serve.workers.handover import Handover

logger = get_logger(__name__)

PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 30.0
"""Shortest and longest pause before a worker that ended is started again; it doubles unless it had run for a minute."""

STEADY_SECONDS = 60.0

KILL_SECONDS = 5.0
"""Seconds beyond the workers' own time to end before they are killed."""

START_SECONDS = 60.0
"""Seconds for the first worker to take connections before the others are started all the same."""

STILL_SECONDS = 60.0
"""Seconds without taking a connection that waits for it after which a worker is killed: no work takes it so long."""


@dataclass(frozen=True, slots=True)
class Crew:
    """The workers of one gateway."""

    count: int
    command: Sequence[str]
    """Command line of a worker, without the description of its handover, which follows."""
    environ: Mapping[str, str]
    url: str
    """URL by which clients know the gateway."""


async def serve_by_workers(
    crew: Crew, accepting: Accepting, settings: HttpSettings, on_listening: Callable[[], None], stop: anyio.Event
) -> None:
    """Serve by worker processes until `stop`; `on_listening` is called once one takes connections.

    Raises:
        SystemExit: the first worker ended before it took connections, with its exit code.
    """
    workers = _Workers(crew, accepting)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(workers.keep, 1)
            tasks.start_soon(workers.pass_on_hangups)
            tasks.start_soon(workers.start_others, tasks, on_listening)
            await stop.wait()
            accepting.begin_stop()
            await workers.end(settings.drain_seconds + settings.shutdown_seconds + KILL_SECONDS)
            tasks.cancel_scope.cancel()
    finally:
        accepting.close()
        with anyio.CancelScope(shield=True):
            await workers.end(0)


class _Workers:
    def __init__(self, crew: Crew, accepting: Accepting) -> None:
        self._crew = crew
        self._accepting = accepting
        self._running: dict[int, anyio.abc.Process] = {}
        self._is_ending = False
        self._first_is_open = anyio.Event()

    async def start_others(self, tasks: anyio.abc.TaskGroup, on_listening: Callable[[], None]) -> None:
        """Start the other workers after the first, so that packages are installed and listings written once."""
        with anyio.move_on_after(START_SECONDS):
            await self._first_is_open.wait()
        for number in range(2, self._crew.count + 1):
            tasks.start_soon(self.keep, number)
        await self._first_is_open.wait()
        on_listening()

    async def keep(self, number: int) -> None:
        """Run one worker, and start another in its place when it ends."""
        pause = PAUSE_SECONDS
        while not self._is_ending:
            began = anyio.current_time()
            try:
                code, was_open = await self._run(number)
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
            except OSError as error:
                # The system has no room for another process, say; the other workers go on.
                if not self._first_is_open.is_set():
                    raise
                code, was_open, how = 1, False, f"not started: {error.strerror}"
            if self._is_ending:
                return
            if code and not was_open and not self._first_is_open.is_set():
                # It has said why; another one would do the same.
                raise SystemExit(code)
            if anyio.current_time() - began > STEADY_SECONDS:
                pause = PAUSE_SECONDS
            logger.error("worker %d ended (%s); its sessions are gone; started again in %g s", number, how, pause)
            await anyio.sleep(pause)
            pause = min(pause * 2, MAX_PAUSE_SECONDS)

    async def _run(self, number: int) -> tuple[int, bool]:
        """Run a worker to its end; return its exit code, and whether it had taken connections."""
        own, others = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with own:
            with others:
                process = await anyio.open_process(
                    [*self._crew.command, Handover.argument(number, others, self._crew.url)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=None,
                    env=self._crew.environ,
                    # A signal from the terminal is for this process, which passes it on.
                    start_new_session=True,
                    pass_fds=(others.fileno(),),
                )
            self._running[number] = process
            if self._is_ending:
                self._signal(Signals.SIGTERM)
            with self._accepting.worker(number, own, self._first_is_open.set) as worker:
                while True:
                    with anyio.move_on_after(STILL_SECONDS / 2):
                        code = await process.wait()
                        break
                    if worker.is_stuck(STILL_SECONDS):
                        logger.error("worker %d has read nothing for %g s and is killed", number, STILL_SECONDS)
                        self._signal(Signals.SIGKILL, {number})
                del self._running[number]
                return code, worker.phase is not Phase.STARTING

    async def pass_on_hangups(self) -> None:
        """Pass on each SIGHUP, at which a worker lists every server anew; one that starts would end by it."""
        with anyio.open_signal_receiver(Signals.SIGHUP) as signals:
            async for _ in signals:
                self._signal(Signals.SIGHUP, {each.number for each in self._accepting.workers if each.phase})

    async def end(self, seconds: float) -> None:
        """End all workers in order, and kill those that run after this time."""
        self._is_ending = True
        self._signal(Signals.SIGTERM)
        with anyio.move_on_after(seconds):
            await self._all_ended()
        if self._running:
            logger.error("workers %s did not end in time and are killed", ", ".join(map(str, sorted(self._running))))
            self._signal(Signals.SIGKILL)
            await self._all_ended()

    async def _all_ended(self) -> None:
        for process in [*self._running.values()]:
            await process.wait()

    def _signal(self, sent: Signals, numbers: Collection[int] | None = None) -> None:
        for number, process in self._running.items():
            if numbers is None or number in numbers:
                with suppress(ProcessLookupError):
                    process.send_signal(sent)
