"""Example queries that replicas have in common: a document beside the library, which takes over what changes in it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from pml_gateway.storage import kinds
from pml_gateway.storage.documents import Document, model_document

if TYPE_CHECKING:
    from pml_gateway.storage.shared_documents import SharedDocuments

MAX_SHARED = 10_000
"""Definitions whose examples replicas share, those written last; a replica keeps more that it once had."""


class SharedExamples(BaseModel):
    """The examples of one origin for one definition; none if they were removed."""

    model_config = ConfigDict(frozen=True)

    name: str
    server: str
    texts: tuple[str, ...]
    at: float


class SharedLibrary(BaseModel):
    """Examples by the digest of their definition and their origin, the last written at the end."""

    model_config = ConfigDict(frozen=True)

    entries: Mapping[str, SharedExamples] = Field(default_factory=dict)

    def having(self, written: Mapping[tuple[str, str], tuple[str, str, tuple[str, ...]]]) -> SharedLibrary:
        """Return the examples with those written now: name, server and texts by digest and origin."""
        now = time.time()
        added = {
            f"{digest}:{origin}": SharedExamples(name=name, server=server, texts=texts, at=now)
            for (digest, origin), (name, server, texts) in written.items()
        }
        kept = {key: each for key, each in self.entries.items() if key not in added}
        return _newest([*kept.items(), *added.items()])


def _newest(entries: Iterable[tuple[str, SharedExamples]]) -> SharedLibrary:
    return SharedLibrary(entries=dict([*entries][-MAX_SHARED:]))


def merged(mine: SharedLibrary, theirs: SharedLibrary) -> SharedLibrary:
    """Return what was written last of both."""
    latest = dict(theirs.entries)
    for key, each in mine.entries.items():
        known = latest.get(key)
        if known is None or (each.at, each.texts) > (known.at, known.texts):
            latest[key] = each
    return _newest(sorted(latest.items(), key=lambda item: (item[1].at, item[0])))


def shared_file(directory: Path) -> Document[SharedLibrary]:
    """Return the copy of what replicas share, beside the library in a directory."""
    return model_document(kinds.SHARED_EXAMPLES, directory / "shared.json", SharedLibrary)


def shared_library(documents: SharedDocuments, directory: Path) -> Document[SharedLibrary]:
    """Return what replicas share, with its copy beside the library in a directory."""
    return documents.shared("example-queries", shared_file(directory), merged)
