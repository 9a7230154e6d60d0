"""Schemas whose validation exceeded a limit: remembered by their hash, for all gateways on this home."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import anyio
import anyio.to_thread

from pml_gateway.log import get_logger
from pml_gateway.signal import CoalescedSignal
from pml_gateway.storage import kinds
from pml_gateway.storage.documents import Document, compact, parsed

logger = get_logger(__name__)

FORMAT = 1
SAVE_SECONDS = 1.0
MAX_REMEMBERED = 1000
"""Maximum number of hashes kept; the oldest are dropped first."""


class ExceededSchemas:
    """Hashes of schemas that exceeded a limit, each with the limit; saved to a file if one is given."""

    def __init__(self, path: Path | None = None) -> None:
        self._document = None if path is None else _document(path)
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
        return {} if self._document is None else self._document.read()

    async def _save(self) -> None:
        try:
            await anyio.to_thread.run_sync(self._write, dict(self._found))
        except OSError as error:
            logger.warning("what took too much is not remembered beyond this process (%s)", error)

    def _write(self, found: dict[str, str]) -> None:
        if self._document is not None:
            self._document.change(lambda before: dict([*{**before, **found}.items()][-MAX_REMEMBERED:]))


def _document(path: Path) -> Document[dict[str, str]]:
    return Document(
        kinds.EXCEEDED_SCHEMAS,
        path,
        decode=lambda content: {str(key): str(why) for key, why in parsed(content, FORMAT)["exceeded"].items()},
        encode=lambda exceeded: compact({"format": FORMAT, "exceeded": exceeded}),
        empty=dict,
    )
