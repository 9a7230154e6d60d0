"""An MCP server for the files of one folder: read, write, search, compare, arrange."""

from __future__ import annotations

import difflib
import hashlib
import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Literal

from fastmcp.server import FastMCP
from pydantic import Field

from pml_gateway.demo.servers.launch import QUIET, READS, REPLACES, WRITES, add_tools

File = Annotated[str, Field(description="File path relative to the root folder, e.g. 'reports/june.md'.")]
Folder = Annotated[str, Field(description="Folder path relative to the root folder; '.' is the root itself.")]
Destination = Annotated[str, Field(description="New path relative to the root folder; must be free.")]
StartLine = Annotated[int, Field(ge=1, description="First line to return, counted from 1.")]
LineCount = Annotated[int, Field(ge=1, le=10_000, description="How many lines to return.")]
Content = Annotated[str, Field(description="The text, as UTF-8.")]
Overwrite = Annotated[bool, Field(description="Replace the file if it exists; otherwise refuse.")]
Old = Annotated[str, Field(min_length=1, description="The exact text to find.")]
Pattern = Annotated[str, Field(max_length=200, description="Shell pattern for the name, e.g. '*.md'.")]
Text = Annotated[str, Field(min_length=1, max_length=500, description="The literal text to look for.")]
Flag = Annotated[bool, Field(description="Treat upper and lower case alike.")]
Limit = Annotated[int, Field(ge=1, le=1000, description="At most this many results.")]
Algorithm = Annotated[Literal["sha256", "sha512", "sha1", "md5"], Field(description="Hash function.")]

MAX_BYTES = 4 * 1024 * 1024  # texts are read whole; more would not fit any model's context
MAX_LINE = 500  # minified files have lines of megabytes
KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}


@dataclass(frozen=True, slots=True)
class Entry:
    path: str
    kind: str
    bytes: int
    modified: str


@dataclass(frozen=True, slots=True)
class FolderListing:
    entries: list[Entry]
    truncated: bool


@dataclass(frozen=True, slots=True)
class Match:
    path: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Files:
    """The tools of the server. No path leads outside `root`, which is given resolved."""

    root: Path

    def read_file(self, path: File, start_line: StartLine = 1, max_lines: LineCount = 2000) -> str:
        """Read a text file, whole or a range of lines. Says at the end when lines are left."""
        lines = self._text(path).splitlines(keepends=True)
        last = start_line - 1 + max_lines
        more = f"\n[{len(lines) - last} more lines; continue with start_line={last + 1}]" if len(lines) > last else ""
        return "".join(lines[start_line - 1 : last]) + more

    def read_tail(self, path: File, lines: LineCount = 10) -> str:
        """Return the last lines of a text file, such as the newest entries of a log."""
        with self._file(path).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_BYTES))
            return "".join(file.read().decode(errors="replace").splitlines(keepends=True)[-lines:])

    def write_file(self, path: File, content: Content, overwrite: Overwrite = False) -> Entry:
        """Write a text file, creating missing folders. An existing file is kept unless `overwrite` is true."""
        place = self._file(path) if overwrite and self._inside(path).exists() else self._free(path)
        place.write_bytes(content.encode())
        return self._entry(place)

    def replace_in_file(self, path: File, old: Old, new: Content) -> int:
        """Replace every occurrence of an exact text in a file. Nothing is written when it does not occur."""
        text = self._text(path)
        found = text.count(old)
        if not found:
            raise ValueError(f"the text to replace does not occur in {path!r}")
        self._file(path).write_bytes(text.replace(old, new).encode())
        return found

    def list_directory(self, path: Folder = ".") -> FolderListing:
        """List what is directly in a folder: names, kinds, sizes and times of change."""
        places = sorted(self._inside(path).iterdir())
        return FolderListing([self._entry(each) for each in places[:1000]], len(places) > 1000)

    def find_files(self, pattern: Pattern, path: Folder = ".", limit: Limit = 100) -> FolderListing:
        """Find files by name anywhere below a folder. The pattern is compared with the name and the whole path."""
        places = self._walk(path)
        found = [each for each in places if fnmatch(each.name, pattern) or fnmatch(self._name(each), pattern)]
        return FolderListing([self._entry(each) for each in found[:limit]], len(found) > limit)

    def search_text(self, text: Text, path: Folder = ".", ignore_case: Flag = True, limit: Limit = 100) -> list[Match]:
        """Search the contents of all files for a text (grep). Returns the matching lines with file and line number."""
        wanted = text.casefold() if ignore_case else text
        matches: list[Match] = []
        for place in self._walk(path):
            if place.stat().st_size > MAX_BYTES:
                continue
            for number, line in enumerate(place.read_bytes().decode(errors="replace").splitlines(), 1):
                if wanted in (line.casefold() if ignore_case else line):
                    matches.append(Match(self._name(place), number, line[:MAX_LINE]))
            if len(matches) >= limit:
                break
        return matches[:limit]

    def file_info(self, path: File) -> Entry:
        """Tell the kind, size and time of change of a file or folder."""
        return self._entry(self._inside(path))

    def hash_file(self, path: File, algorithm: Algorithm = "sha256") -> str:
        """Compute the checksum of a file, to compare it with a published one."""
        with self._file(path).open("rb") as file:
            return hashlib.file_digest(file, algorithm).hexdigest()

    def count_words(self, path: File) -> dict[str, int]:
        """Count the lines, words, characters and bytes of a text file."""
        text = self._text(path)
        parts = {"lines": text.splitlines(), "words": text.split(), "characters": text, "bytes": text.encode()}
        return {name: len(part) for name, part in parts.items()}

    def compare_files(self, old_path: File, new_path: File) -> str:
        """Show the differences between two text files as a unified diff."""
        old, new = (self._text(path).splitlines() for path in (old_path, new_path))
        lines = difflib.unified_diff(old, new, old_path, new_path, lineterm="")
        return "\n".join(lines) or "the files are equal"

    def create_directory(self, path: Folder) -> Entry:
        """Create a folder and its missing parents; an existing one is left as it is."""
        place = self._inside(path)
        place.mkdir(parents=True, exist_ok=True)
        return self._entry(place)

    def move_file(self, source: File, destination: Destination) -> Entry:
        """Move or rename a file or folder. An existing destination is never replaced."""
        origin = self._unfollowed(source)
        origin.lstat()
        return self._entry(origin.rename(self._free(destination)))

    def delete_file(self, path: File) -> str:
        """Delete one file, link or empty folder for good."""
        place = self._unfollowed(path)
        place.rmdir() if place.is_dir() and not place.is_symlink() else place.unlink()
        return f"deleted {path}"

    def _inside(self, path: str) -> Path:
        """Return a path after following links; it need not exist."""
        place = os.path.realpath(self.root / path)
        # After a loop of links, other links are left in the path.
        if not Path(place).is_relative_to(self.root) or os.path.realpath(place) != place:
            raise ValueError(f"{path!r} is outside the root folder; use a path relative to the root")
        return Path(place)

    def _unfollowed(self, path: str) -> Path:
        """Return a path without following its last part: a link rather than its target."""
        parent, name = os.path.split(path)
        if name in {"", ".", ".."}:
            raise ValueError(f"{path!r} does not name an entry of a folder")
        return self._inside(parent) / name

    def _file(self, path: str) -> Path:
        place = self._inside(path)
        if not place.is_file():
            raise ValueError(f"{path!r} is not a regular file; find_files searches by name")
        return place

    def _free(self, path: str) -> Path:
        """Return a path at which nothing exists yet; create its folder if it is missing."""
        place = self._inside(path)
        if place.exists():
            raise ValueError(f"{path!r} exists already; choose another path or delete it first")
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def _text(self, path: str) -> str:
        place = self._file(path)
        if place.stat().st_size > MAX_BYTES:
            raise ValueError(f"{path!r} has more than {MAX_BYTES} bytes; use read_tail")
        return place.read_bytes().decode()

    def _walk(self, path: str) -> Iterator[Path]:
        """Yield readable regular files below a folder, without links."""
        places = (Path(parent, name) for parent, _, names in os.walk(self._inside(path)) for name in sorted(names))
        for place in places:
            if not place.is_symlink() and place.is_file() and os.access(place, os.R_OK):
                yield place

    def _name(self, place: Path) -> str:
        return place.relative_to(self.root).as_posix()

    def _entry(self, place: Path) -> Entry:
        status = place.lstat()
        modified = datetime.fromtimestamp(status.st_mtime, UTC).isoformat(timespec="seconds")
        return Entry(self._name(place), KINDS.get(stat.S_IFMT(status.st_mode), "other"), status.st_size, modified)


def build(folder: Path) -> FastMCP[None]:
    """Return the server for one existing folder, the working directory if none is given."""
    server = FastMCP[None]("files", "Reads, searches and changes the files of one folder. Paths are relative to it.")
    files = Files(folder.resolve(strict=True))
    add_tools(server, READS, files.read_file, files.read_tail, files.compare_files, plain_text=True)
    add_tools(server, READS, files.list_directory, files.find_files, files.search_text)
    add_tools(server, READS, files.file_info, files.hash_file, files.count_words)
    add_tools(server, WRITES, files.create_directory)
    add_tools(server, REPLACES, files.write_file, files.replace_in_file, files.move_file, files.delete_file)
    return server


if __name__ == "__main__":
    build(Path(*sys.argv[1:2])).run(**QUIET)
