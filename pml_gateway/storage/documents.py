"""Documents: files that are read and replaced whole, and changed by one process at a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from pml_gateway.errors import ConfigurationError
from pml_gateway.files import LOCK_SECONDS, Signature, locked, signature, write_atomically
from pml_gateway.log import get_logger
from pml_gateway.storage.kinds import StoredKind
from pml_gateway.storage.places import free_aside

logger = get_logger(__name__)

READ_AT_ONCE = 4 * 1024 * 1024
"""Bytes of JSON that are read in one go, some 0.05 s."""

DAMAGE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""Exceptions of decoding content that another program wrote, or another version."""

ContentT = TypeVar("ContentT")
ResultT = TypeVar("ResultT")
ModelT = TypeVar("ModelT", bound=BaseModel)


_TOLD: set[str] = set()
"""Kinds of records of which it was said that one cannot be read."""


def readable(what: str, read: Callable[[], ResultT]) -> ResultT | None:
    """Return what `read` makes of a record; None if it is of no use. For each kind of record, that is said once."""
    try:
        return read()
    except DAMAGE as error:
        if what not in _TOLD:
            _TOLD.add(what)
            logger.warning("%s cannot be read (%s); was it written by another version?", what, type(error).__name__)
        return None


class DamagedDocumentError(ValueError):
    """Content that cannot be used."""


class Document(Generic[ContentT]):
    """A document that processes share. Every method blocks: call it in a thread."""

    def __init__(
        self,
        kind: StoredKind,
        path: Path,
        *,
        decode: Callable[[bytes], ContentT],
        encode: Callable[[ContentT], str],
        empty: Callable[[], ContentT],
        lock_seconds: float = LOCK_SECONDS,
    ) -> None:
        """Name the document; its file need not exist.

        Args:
            kind: its row in the table of kinds.
            path: the file.
            decode: reads its bytes; raises one of `DAMAGE` if they are of no use.
            encode: returns the text of its content.
            empty: makes the content of a document that does not exist.
            lock_seconds: how long a change waits for other processes.
        """
        self.kind = kind
        self.path = path
        self.decode = decode
        self.encode = encode
        self.empty = empty
        self.lock_seconds = lock_seconds

    @property
    def signature(self) -> Signature:
        """Return a value that changes whenever the content does; None if there is no document."""
        return signature(self.path)

    def load(self) -> ContentT:
        """Return the content.

        Raises:
            OSError: it cannot be read.
            DamagedDocumentError: it is of no use.
        """
        try:
            return self.decode(self.path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return self.empty()
        except DAMAGE as error:
            raise DamagedDocumentError(str(error) or type(error).__name__) from error

    def read(self) -> ContentT:
        """Return the content; if it cannot be read or is of no use, log that and return none."""
        try:
            return self.load()
        except (OSError, DamagedDocumentError) as error:
            logger.warning("%s is unreadable (%s); starting without it (%s)", self.path, error, self.kind.name)
            return self.empty()

    def require(self, hint: str) -> ContentT:
        """Return the content, if there is no doing without; `hint` says what to do with a damaged document.

        Raises:
            ConfigurationError: it cannot be read or is of no use.
        """
        try:
            return self.load()
        except DamagedDocumentError as error:
            raise ConfigurationError(f"{self.path} is damaged", hint=hint) from error
        except OSError as error:
            raise ConfigurationError(
                f"{self.path} cannot be read: {error.strerror}", hint="check its owner and mode"
            ) from error

    def write(self, content: ContentT) -> None:
        """Replace the content; a reader sees the old or the new one.

        Raises:
            OSError: it cannot be written.
        """
        write_atomically(self.path, self.encode(content))

    def locked(self) -> AbstractContextManager[None]:
        """Return a context in which no other process changes the document.

        Raises:
            OSError: another process holds it for too long, or its folder cannot be written.
        """
        return locked(self.path, self.lock_seconds)

    def exclusively(self, work: Callable[[], ResultT]) -> ResultT:
        """Return the result of work that reads and writes the document; nobody else changes it meanwhile.

        Work on a document that replicas share may be done more than once.

        Raises:
            OSError: as `locked` does.
            SharedStateError: replicas share the document, and it cannot be reached.
        """
        with self.locked():
            return work()

    def change(self, update: Callable[[ContentT], ContentT]) -> ContentT:
        """Replace the content by what `update` returns for it; nobody else changes it meanwhile.

        `update` leaves the content that it is given as it is; if it returns an equal one, nothing is written.

        Raises:
            OSError: it cannot be written.
            SharedStateError: replicas share the document, and it cannot be reached.
        """

        def work() -> ContentT:
            before = self.read()
            content = update(before)
            if content != before:
                self.write(content)
            return content

        return self.exclusively(work)

    def copy(self, to: Path) -> None:
        """Copy the document as it is to another path, if it exists.

        Raises:
            OSError: it cannot be read or written.
        """
        if self.path.exists():
            with self.locked():
                write_atomically(to, self.path.read_bytes())

    def set_aside(self) -> bool:
        """Rename a damaged document, for its owner to look at; return True if that was possible."""
        try:
            self.path.replace(free_aside(self.path.with_suffix(".damaged")))
        except OSError:
            return False
        return True

    def delete(self) -> bool:
        """Delete the document; return True if there was one.

        Raises:
            OSError: it cannot be deleted.
        """
        try:
            self.path.unlink()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True


def model_document(kind: StoredKind, path: Path, model: type[ModelT]) -> Document[ModelT]:
    """Return a document whose content is a pydantic model with a default for each field."""

    def encode(content: ModelT) -> str:
        return json.dumps(content.model_dump(mode="json"), indent=2) + "\n"

    return Document(kind, path, decode=model.model_validate_json, encode=encode, empty=model)


def parsed(content: bytes, version: int | None = None) -> Any:
    """Return the JSON of a document.

    Raises:
        ValueError: it is no JSON, or its `format` is not the `version`.
        RecursionError: it is nested too deep.
    """
    # A hook in Python takes three times as long, and lets other threads have their turn meanwhile.
    value = json.loads(content, object_hook=_unchanged if len(content) > READ_AT_ONCE else None)
    if version is not None and value["format"] != version:
        raise DamagedDocumentError(f"format {value['format']!r} instead of {version}")
    return value


def compact(value: object) -> str:
    """Return a value as JSON without white space."""
    return json.dumps(value, separators=(",", ":"))


def _unchanged(value: dict[str, Any]) -> dict[str, Any]:
    return value
