"""Schemas whose validation exceeded a limit: remembered by their hash, for all gateways on this home."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import anyio
import anyio.to_thread

from pml_gateway.files import locked, write_atomically
from pml_gateway.log import get_logger
from pml_gateway.signal import CoalescedSignal

logger = get_logger(__name__)

FORMAT = 1
SAVE_SECONDS = 1.0
MAX_REMEMBERED = 1000
"""Maximum number of hashes kept; the oldest are dropped first."""


class ExceededSchemas:
    """Hashes of schemas that exceeded a limit, each with the limit; saved to a file if one is given."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._found: dict[str, str] = {}
        self._unsaved = CoalescedSignal(SAVE_SECONDS)

    def __contains__(self, digest: str) -> bool:
        return digest in self._found

    @property
    def known(self) -> Mapping[str, str]:
        """Return each hash with the limit that was exceeded."""
        return self._found

    def add(self, digest: str, why: str) -> None:
        """Remember a hash."""
        if digest not in self._found:
            self._found[digest] = why
            self._unsaved.ask()

    async def run(self) -> None:
        """Load the hashes from disk, then save them after changes until cancelled."""
        try:
            self._found = {**await anyio.to_thread.run_sync(self.on_disk), **self._found}
            await self._unsaved.run(self._save)
        finally:
            if self._unsaved.is_due:
                with anyio.CancelScope(shield=True):
                    await self._save()

    def on_disk(self) -> dict[str, str]:
        """Return each hash in the file with the limit that was exceeded."""
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
