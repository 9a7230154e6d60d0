"""Which schemas took too much when they were checked with: remembered by their hash, for every gateway on this home."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import anyio
import anyio.to_thread

from pml_gateway.files import locked, write_atomically
from pml_gateway.log import get_logger
from pml_gateway.signal import Coalesced

logger = get_logger(__name__)

FORMAT = 1
SAVE_SECONDS = 1.0
MAX_REMEMBERED = 1000
"""Hashes kept; those found longest ago go first."""


class Exceeded:
    """Hashes of what exceeded a limit, each with what it ran into; kept in a file if it has one."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._found: dict[str, str] = {}
        self._unsaved = Coalesced(SAVE_SECONDS)

    def __contains__(self, digest: str) -> bool:
        return digest in self._found

    @property
    def known(self) -> Mapping[str, str]:
        """Each hash with what it ran into."""
        return self._found

    def add(self, digest: str, why: str) -> None:
        """Remember one from now on."""
        if digest not in self._found:
            self._found[digest] = why
            self._unsaved.ask()

    async def run(self) -> None:
        """Load what is on disk, then save after changes, for as long as the owner's task group lives."""
        try:
            self._found = {**await anyio.to_thread.run_sync(self.on_disk), **self._found}
            await self._unsaved.run(self._save)
        finally:
            if self._unsaved.is_due:
                with anyio.CancelScope(shield=True):
                    await self._save()

    def on_disk(self) -> dict[str, str]:
        """Each hash in the file with what it ran into."""
        if self._path is None:
            return {}
        try:
            raw = json.loads(self._path.read_bytes())
            return {str(digest): str(why) for digest, why in raw["exceeded"].items()} if raw["format"] == FORMAT else {}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            logger.warning("%s is unreadable (%s); starting without", self._path, type(error).__name__)
            return {}

    async def _save(self) -> None:
        try:
            await anyio.to_thread.run_sync(self._write, dict(self._found))
        except OSError as error:
            logger.warning("what took too much is not remembered beyond this process (%s)", error)

    def _write(self, found: dict[str, str]) -> None:
        if self._path is None:
            return
        with locked(self._path):
            whole = list({**self.on_disk(), **found}.items())[-MAX_REMEMBERED:]
            write_atomically(self._path, json.dumps({"format": FORMAT, "exceeded": dict(whole)}))
