"""Files that are watched for changes, with one watcher per process."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.abc
import anyio.to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from pml_gateway.files import Signature, signature
from pml_gateway.log import ThrottledWarning, get_logger
from pml_gateway.signal import CoalescedSignal

logger = get_logger(__name__)

DEBOUNCE_MILLISECONDS = 100
STEP_MILLISECONDS = 50
"""Seconds between two looks of the watcher; each takes processor time."""

JOINING_SECONDS = 0.05
"""Seconds to wait for further subscribers, since a watcher gets all of its folders at its start."""

OVERLAP_SECONDS = 0.5
"""Seconds that the previous watcher continues: it reports changes with a delay."""

LOOK_SECONDS = 1.0
"""Time limit in seconds for a disk to list folders."""

AGAIN_SECONDS = 60.0
"""After which it is tried again to watch what could not be watched."""


@dataclass(slots=True, eq=False)
class _Follower:
    files: frozenset[Path]
    within: frozenset[Path]
    folders: frozenset[Path]
    send: MemoryObjectSendStream[frozenset[Path]]
    before: Mapping[Path, Signature]
    """As the files were when they were asked for, until they are watched."""


class FileChanges:
    """Watcher of files, active while any are followed and `run` is running.

    Systems have few watchers to give, and one takes its time to end, also where its process is killed.
    """

    def __init__(self) -> None:
        self._followers: list[_Follower] = []
        self._folders = frozenset[Path]()
        self._differs = CoalescedSignal(JOINING_SECONDS)
        self._failed = ThrottledWarning(logger)

    @asynccontextmanager
    async def of(
        self, files: Collection[Path], within: Collection[Path] = ()
    ) -> AsyncIterator[MemoryObjectReceiveStream[frozenset[Path]]]:
        """Yield the paths that changed, appeared or disappeared, each time; not those in a missing folder.

        They are `files`, and everything directly `within` a folder. Folders are watched rather than files, because
        editors replace files instead of writing to them.
        """
        wanted, contents = (frozenset(path.absolute() for path in paths) for paths in (files, within))
        folders, before = await anyio.to_thread.run_sync(_look_at, wanted, contents, abandon_on_cancel=True)
        send, receive = anyio.create_memory_object_stream[frozenset[Path]](math.inf)
        follower = _Follower(wanted, contents, folders, send, before)
        with send, receive:
            self._followers.append(follower)
            self._differs.ask()
            try:
                yield receive
            finally:
                self._followers.remove(follower)
                self._differs.ask()

    async def run(self) -> None:
        """Watch, for as long as the owner's task group lives."""
        stop = anyio.Event()
        async with anyio.create_task_group() as tasks:
            try:
                while True:
                    await self._differs.next()
                    folders = frozenset[Path]().union(*(each.folders for each in self._followers))
                    with anyio.move_on_after(LOOK_SECONDS):
                        # One that went would have none of them watched.
                        folders = await anyio.to_thread.run_sync(_existing, folders, abandon_on_cancel=True)
                    if folders != self._folders:
                        before, stop = stop, anyio.Event()
                        if folders:
                            await tasks.start(self._look, folders, stop)
                        self._folders = folders
                        tasks.start_soon(_end_later, before)
                    await self._catch_up()
            finally:
                stop.set()

    async def _catch_up(self) -> None:
        """Tell those who are new of what changed before it was watched."""
        for follower in list(self._followers):
            if follower.before:
                before, follower.before = follower.before, {}
                with anyio.move_on_after(LOOK_SECONDS):
                    now = await anyio.to_thread.run_sync(_signatures, before, abandon_on_cancel=True)
                    self._tell({file for file in now if now[file] != before[file]})

    async def _look(
        self, folders: frozenset[Path], stop: anyio.Event, *, task_status: anyio.abc.TaskStatus[None]
    ) -> None:
        from watchfiles import awatch

        async with _one_more_thread(), anyio.create_task_group() as tasks:
            tasks.start_soon(_set_when_cancelled, stop)
            try:
                changes = awatch(
                    *folders,
                    watch_filter=None,
                    debounce=DEBOUNCE_MILLISECONDS,
                    step=STEP_MILLISECONDS,
                    recursive=False,
                    stop_event=stop,
                )
                # The watcher stands before anything else of this process runs.
                task_status.started()
                async for changed in changes:
                    self._tell({Path(path) for _, path in changed})
            except (OSError, RuntimeError, ValueError) as error:
                self._failed.warning("edits of files are not noticed now (%s)", error)
                with anyio.move_on_after(AGAIN_SECONDS):
                    await stop.wait()
                self._folders = frozenset()
                self._differs.ask()
            tasks.cancel_scope.cancel()

    def _tell(self, changed: Collection[Path]) -> None:
        for follower in self._followers:
            of_its = follower.files.intersection(changed)
            if follower.within:
                of_its |= {path for path in changed if path.parent in follower.within}
            if of_its:
                follower.send.send_nowait(of_its)


def _look_at(files: Collection[Path], within: Collection[Path]) -> tuple[frozenset[Path], dict[Path, Signature]]:
    return _existing({*(file.parent for file in files), *within}), _signatures({*files, *within})


def _signatures(files: Collection[Path]) -> dict[Path, Signature]:
    return {file: signature(file) for file in files}


def _existing(folders: Collection[Path]) -> frozenset[Path]:
    return frozenset(folder for folder in folders if _can_be_watched(folder))


def _can_be_watched(folder: Path) -> bool:
    """Return True if a folder exists and can be watched; one that cannot would end the whole watcher."""
    try:
        str(folder).encode()
        return folder.is_dir()
    except (OSError, UnicodeError):
        # It may not be entered, lies on a disk that has gone, or has a name that is no text.
        return False


@asynccontextmanager
async def _one_more_thread() -> AsyncIterator[None]:
    """Room for a thread that waits for as long as this context lasts: it must not be missing where there is work."""
    threads = anyio.to_thread.current_default_thread_limiter()
    threads.total_tokens += 1
    try:
        yield
    finally:
        threads.total_tokens -= 1


async def _end_later(stop: anyio.Event) -> None:
    await anyio.sleep(OVERLAP_SECONDS)
    stop.set()


async def _set_when_cancelled(stop: anyio.Event) -> None:
    """End the watcher's thread, which cannot be cancelled and looks at this event instead."""
    try:
        await stop.wait()
    finally:
        stop.set()
