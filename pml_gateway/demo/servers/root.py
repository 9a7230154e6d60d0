"""Confines paths given by a caller to one folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pml_gateway.demo.servers.launch import RefusedError

MAX_TEXT_BYTES = 4 * 1024 * 1024
"""Texts are read whole; more than this would not fit any model's context."""

MAX_ENTRIES = 20_000
"""A walk stops here, so that a search in a huge folder answers in bounded time."""


@dataclass(frozen=True, slots=True)
class Root:
    """One folder, given resolved. Every path handed out lies inside it after following symbolic links."""

    folder: Path

    def inside(self, path: str) -> Path:
        """The resolved place of `path`, which need not exist."""
        if "\0" in path:
            raise RefusedError("a path cannot contain a null character")
        try:
            resolved = (self.folder / path).resolve()
        except (OSError, RuntimeError) as exc:  # RuntimeError: a loop of links, before Python 3.13
            raise RefusedError(f"{path!r} cannot be resolved: a loop of links, or a name that is too long") from exc
        if not resolved.is_relative_to(self.folder):
            raise RefusedError(f"{path!r} is outside the root folder; use a path relative to the root")
        return resolved

    def entry(self, path: str) -> Path:
        """The place of `path` with its last part not followed, to move or delete a link rather than its target."""
        given = Path(path)
        if given.name in {"", ".."}:
            raise RefusedError(f"{path!r} names the root folder or a parent; name an entry inside the root")
        place = self.inside(str(given.parent)) / given.name
        if not place.is_symlink():
            self.inside(path)
        return place

    def file(self, path: str) -> Path:
        """An existing regular file."""
        place = self.inside(path)
        if place.is_dir():
            raise RefusedError(f"{path!r} is a folder, not a file; list_directory shows what is in it")
        if not place.exists():
            raise RefusedError(f"there is no file {path!r}; find_files searches by name")
        if not place.is_file():
            raise RefusedError(f"{path!r} is not a regular file")
        return place

    def folder_at(self, path: str) -> Path:
        """An existing folder."""
        place = self.inside(path)
        if not place.is_dir():
            raise RefusedError(f"there is no folder {path!r}")
        return place

    def text(self, path: str) -> str:
        """The UTF-8 text of a file, line ends kept."""
        place = self.file(path)
        size = place.stat().st_size
        if size > MAX_TEXT_BYTES:
            raise RefusedError(f"{path!r} has {size} bytes, more than {MAX_TEXT_BYTES}; use read_head or read_tail")
        try:
            return place.read_bytes().decode()
        except UnicodeDecodeError as exc:
            raise RefusedError(f"{path!r} is not UTF-8 text: {exc.reason} at byte {exc.start}") from exc

    def relative(self, place: Path) -> str:
        """How callers name a place: relative to the root, with forward slashes."""
        return place.relative_to(self.folder).as_posix()

    def walk(self, path: str) -> Iterator[Path]:
        """Readable regular files below a folder in name order, links left out, at most `MAX_ENTRIES`."""
        seen = 0
        for parent, folders, names in os.walk(self.folder_at(path)):
            folders.sort()
            for name in sorted(names):
                seen += 1
                if seen > MAX_ENTRIES:
                    return
                place = Path(parent, name)
                if not place.is_symlink() and place.is_file() and os.access(place, os.R_OK):
                    yield place
