"""Edits of configuration files, served by the running gateway; a broken file changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread

from pml_gateway.config.load import LoadedSettings
from pml_gateway.errors import ConfigurationError
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.log import get_logger

logger = get_logger(__name__)

LoadSettings = Callable[[], LoadedSettings]
DEBOUNCE_MILLISECONDS = 100
STEP_MILLISECONDS = 50
"""How often the watcher looks; each look takes processor time, in every gateway, all day."""


async def follow_files(gateway: Gateway, loaded: LoadedSettings, load: LoadSettings, watched: tuple[Path, ...]) -> None:
    """Load again after every change of a watched file, for as long as the owner's task group lives.

    The files of pins and of requests are watched as well.

    Directories are watched rather than files, because editors replace files instead of writing to them.
    """
    from watchfiles import awatch

    pins = gateway.warden.file.path.absolute()
    requests = gateway.requests.library.path.absolute()
    for folder in (pins.parent, requests.parent):
        with suppress(OSError):
            # Made here, because a folder that comes later is not watched; a read-only home has nothing to watch.
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = {pins, requests, *(path.absolute() for path in (*loaded.files, *watched))}
    directories = {path.parent for path in files if _is_folder(path.parent)}
    if not directories:
        return
    stop = anyio.Event()
    async with one_more_thread(), anyio.create_task_group() as tasks:
        tasks.start_soon(_set_when_cancelled, stop)
        try:
            changes = awatch(
                *directories,
                watch_filter=lambda _change, path: Path(path) in files,
                debounce=DEBOUNCE_MILLISECONDS,
                step=STEP_MILLISECONDS,
                recursive=False,
                stop_event=stop,
            )
            async for changed in changes:
                paths = {Path(path) for _, path in changed}
                if pins in paths:
                    await gateway.readmit()
                if requests in paths:
                    gateway.requests_changed()
                if paths - {pins, requests}:
                    await reload(gateway, load)
        except (OSError, RuntimeError) as error:
            logger.warning("the configuration is no longer watched (%s); restart after an edit", error)
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def one_more_thread() -> AsyncIterator[None]:
    """Room for a thread that waits for as long as this context lasts: it must not be missing where there is work."""
    threads = anyio.to_thread.current_default_thread_limiter()
    threads.total_tokens += 1
    try:
        yield
    finally:
        threads.total_tokens -= 1


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except PermissionError:
        # It lies in a folder that may not be entered.
        return False


async def reload(gateway: Gateway, load: LoadSettings) -> str | None:
    """Load the configuration and serve by it; what is wrong with it, where it is broken."""
    try:
        fresh = await anyio.to_thread.run_sync(load)
    except ConfigurationError as error:
        logger.error("configuration rejected, the one before it serves on: %s", error)
        return str(error)
    for warning in fresh.warnings:
        logger.warning("%s", warning)
    await gateway.reload(fresh.settings)
    return None


async def _set_when_cancelled(stop: anyio.Event) -> None:
    """The watcher's thread cannot be cancelled; it looks at this event instead."""
    try:
        await anyio.sleep_forever()
    finally:
        stop.set()
