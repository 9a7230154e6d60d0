"""Records of tasks that outlive the gateway: id, owner and state. Results are kept in the store of results."""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter

from pml_gateway.files import lock_if_free, take_lock
from pml_gateway.log import get_logger
from pml_gateway.storage import kinds
from pml_gateway.storage.documents import Document, compact, parsed, readable

logger = get_logger(__name__)

MAX_FILES = 32
"""Maximum number of files of earlier processes that are read; older ones are deleted."""


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """One task; `owner` is a digest of its client's id, and times are in Unix seconds."""

    id: str
    owner: str
    status: str
    is_error: bool
    created_at: float
    updated_at: float
    ttl: float


TASK_RECORD = TypeAdapter(TaskRecord)
"""Reads records, also those of other versions, which may have further fields."""


class TaskRecords:
    """The records of one gateway, in a file that is locked as long as it runs. Every method blocks."""

    def __init__(self, folder: Path, identity: str) -> None:
        """Name the file; it is written with the first task."""
        self._pattern = f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}-"
        self._folder = folder
        self._own = self._document(folder / f"{self._pattern}{secrets.token_hex(8)}.json")
        self._locks: list[int] = []
        self._is_writable = True

    def read(self) -> list[TaskRecord]:
        """Return the unexpired records of gateways that have ended."""
        try:
            found = sorted(self._folder.glob(f"{self._pattern}*.json"), key=os.path.getmtime, reverse=True)
            return [record for at, path in enumerate(found) for record in self._of_ended(path, at < MAX_FILES)]
        except OSError as error:
            logger.debug("no tasks of earlier processes: %s", error)
            return []

    def write(self, records: Sequence[TaskRecord]) -> None:
        """Replace the own records. If that fails, log it once: the tasks are then unknown after a restart."""
        if not self._is_writable:
            return
        try:
            if not self._locks and (lock := take_lock(self._own.path)) is not None:
                self._locks.append(lock)
            self._own.write(list(records))
        except OSError as error:
            self._is_writable = False
            logger.warning("tasks will be unknown after a restart of the gateway: %s", error)

    def close(self) -> None:
        """Leave the records to the next gateway; delete the file if there are none."""
        if self._locks:
            if not self._own.read():
                self._delete(self._own.path)
            os.close(self._locks.pop())

    def _of_ended(self, path: Path, is_wanted: bool) -> list[TaskRecord]:
        with lock_if_free(path) as is_ended:
            if not is_ended:
                return []
            now = time.time()
            records = [each for each in self._document(path).read() if each.created_at + each.ttl > now]
            if not (records and is_wanted):
                self._delete(path)
            return records if is_wanted else []

    def _delete(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        path.with_name(f".{path.name}.lock").unlink(missing_ok=True)

    def _document(self, path: Path) -> Document[list[TaskRecord]]:
        return Document(kinds.TASKS, path, decode=_decoded, encode=_encoded, empty=list)


def _decoded(content: bytes) -> list[TaskRecord]:
    records = (readable("a task", partial(TASK_RECORD.validate_python, each)) for each in parsed(content))
    return [record for record in records if record is not None]


def _encoded(records: list[TaskRecord]) -> str:
    return compact([asdict(each) for each in records])
