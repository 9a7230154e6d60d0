"""Edits of configuration files, served by the running gateway; a broken file changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

import anyio.to_thread

from pml_gateway.config.load import LoadedSettings
from pml_gateway.errors import ConfigurationError
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.log import get_logger

logger = get_logger(__name__)

LoadSettings = Callable[[], LoadedSettings]

APPLIED = "the configuration was read anew and is served"
"""Position in the log after the last problem of the previous configuration."""


async def follow_files(gateway: Gateway, loaded: LoadedSettings, load: LoadSettings, watched: tuple[Path, ...]) -> None:
    """Load again after every change of a watched file, for as long as the owner's task group lives.

    The files of pins and of example queries are watched as well.
    """
    pins = gateway.trust_gate.file.path.absolute()
    library = gateway.shared.examples.library
    examples = {library.path.absolute(), library.shared_path.absolute()}
    for folder in (pins.parent, library.path.parent):
        with suppress(OSError):
            # Made here, because a folder that comes later is not watched; a read-only home has nothing to watch.
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = {pins, *examples, *(path.absolute() for path in (*loaded.files, *watched))}
    async with gateway.shared.file_changes.of(files) as changes:
        if await anyio.to_thread.run_sync(changed_since, files - {pins, *examples}, loaded.read_at):
            await reload(gateway, load)
        async for changed in changes:
            if pins in changed:
                await gateway.updates.readmit()
            if examples & changed:
                gateway.indexer.renew()
            if changed - {pins, *examples}:
                await reload(gateway, load)


def changed_since(files: Collection[Path], read_at: float) -> bool:
    """Return True if a file was written since then, or so shortly before that the clock of its disk cannot tell."""
    changed = [0.0]
    for file in files:
        with suppress(OSError):
            changed.append(file.stat().st_mtime)
    return max(changed) >= read_at - CLOCK_SECONDS


CLOCK_SECONDS = 0.02


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
    logger.info(APPLIED)
    return None
