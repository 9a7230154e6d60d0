"""An MCP server for the files of one folder: read, write, search, compare, arrange."""

from __future__ import annotations

import difflib
import hashlib
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Literal

from fastmcp.server import FastMCP
from pydantic import Field

from pml_gateway.demo.servers.launch import (
    ADDS,
    CHANGES,
    READS,
    REPLACES,
    SETS,
    RefusedError,
    path_argument,
    serve,
    server_of,
    tool,
)
from pml_gateway.demo.servers.root import MAX_TEXT_BYTES, Root

FilePath = Annotated[str, Field(description="File path relative to the root folder, e.g. 'reports/june.md'.")]
FolderPath = Annotated[str, Field(description="Folder path relative to the root folder; '.' is the root itself.")]
LineCount = Annotated[int, Field(ge=1, le=10_000, description="How many lines to return.")]
Text = Annotated[str, Field(max_length=MAX_TEXT_BYTES, description="The text, as UTF-8.")]
Limit = Annotated[int, Field(ge=1, le=1000, description="At most this many results.")]

MAX_LINE = 500
"""Longer lines are cut in search results: minified files have lines of megabytes."""


@dataclass(frozen=True, slots=True)
class Entry:
    path: str
    kind: Literal["file", "folder", "link", "other"]
    bytes: int
    modified: str


@dataclass(frozen=True, slots=True)
class Listing:
    entries: list[Entry]
    truncated: bool


@dataclass(frozen=True, slots=True)
class Match:
    path: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Matches:
    matches: list[Match]
    files_searched: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class Written:
    path: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Replaced:
    path: str
    replacements: int


@dataclass(frozen=True, slots=True)
class Digest:
    path: str
    algorithm: str
    hexdigest: str


@dataclass(frozen=True, slots=True)
class Counts:
    path: str
    lines: int
    words: int
    characters: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Files:
    """The tools; paths are confined by `root`."""

    root: Root

    @tool(READS, plain_text=True)
    def read_file(
        self,
        path: FilePath,
        start_line: Annotated[int, Field(ge=1, description="First line to return, counted from 1.")] = 1,
        max_lines: LineCount = 2000,
    ) -> str:
        """Read a text file, whole or a range of lines. Says at the end when lines are left."""
        lines = self.root.text(path).splitlines(keepends=True)
        last = start_line - 1 + max_lines
        text = "".join(lines[start_line - 1 : last])
        left = len(lines) - last
        return f"{text}\n[{left} more lines; continue with start_line={last + 1}]" if left > 0 else text

    @tool(READS, plain_text=True)
    def read_head(self, path: FilePath, lines: LineCount = 10) -> str:
        """Return the first lines of a text file, however large it is."""
        with self.root.file(path).open("rb") as file:
            start = file.read(MAX_TEXT_BYTES)
        return "".join(start.decode(errors="replace").splitlines(keepends=True)[:lines])

    @tool(READS, plain_text=True)
    def read_tail(self, path: FilePath, lines: LineCount = 10) -> str:
        """Return the last lines of a text file, such as the newest entries of a log."""
        place = self.root.file(path)
        with place.open("rb") as file:
            file.seek(max(0, place.stat().st_size - MAX_TEXT_BYTES))
            end = file.read(MAX_TEXT_BYTES)
        return "".join(end.decode(errors="replace").splitlines(keepends=True)[-lines:])

    @tool(REPLACES)
    def write_file(
        self,
        path: FilePath,
        content: Text,
        overwrite: Annotated[bool, Field(description="Replace the file if it exists; otherwise refuse.")] = False,
    ) -> Written:
        """Write a text file, creating missing folders. An existing file is kept unless `overwrite` is true."""
        place = self.root.inside(path)
        if place.is_dir():
            raise RefusedError(f"{path!r} is a folder")
        if place.exists() and not overwrite:
            raise RefusedError(f"{path!r} exists; pass overwrite=true to replace it, or use append_to_file")
        place.parent.mkdir(parents=True, exist_ok=True)
        return Written(self.root.relative(place), place.write_bytes(content.encode()))

    @tool(ADDS)
    def append_to_file(self, path: FilePath, content: Text) -> Written:
        """Add text at the end of a file, creating the file when it does not exist."""
        place = self.root.inside(path)
        if place.exists():
            self.root.file(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("ab") as file:
            return Written(self.root.relative(place), file.write(content.encode()))

    @tool(CHANGES)
    def replace_in_file(
        self,
        path: FilePath,
        old: Annotated[str, Field(min_length=1, description="The exact text to find.")],
        new: Annotated[str, Field(description="The text to put in its place.")],
        expected: Annotated[int | None, Field(ge=1, description="Refuse unless it occurs this often.")] = None,
    ) -> Replaced:
        """Replace every occurrence of an exact text in a file. Nothing is written when it does not occur."""
        text = self.root.text(path)
        found = text.count(old)
        if not found:
            raise RefusedError(f"the text to replace does not occur in {path!r}")
        if expected is not None and found != expected:
            raise RefusedError(f"the text occurs {found} times in {path!r}, expected {expected}; nothing was changed")
        self.root.file(path).write_bytes(text.replace(old, new).encode())
        return Replaced(path, found)

    @tool(READS)
    def list_directory(self, path: FolderPath = ".") -> Listing:
        """List what is directly in a folder: names, kinds, sizes and times of change."""
        places = sorted(self.root.folder_at(path).iterdir())
        return Listing([self._entry(place) for place in places[:1000]], len(places) > 1000)

    @tool(READS, plain_text=True)
    def directory_tree(
        self,
        path: FolderPath = ".",
        depth: Annotated[int, Field(ge=1, le=10, description="How many levels to show.")] = 3,
    ) -> str:
        """Draw a folder and its subfolders as an indented tree."""
        lines = [f"{path.rstrip('/')}/"]
        self._draw(self.root.folder_at(path), depth, "  ", lines)
        return "\n".join(lines)

    @tool(READS)
    def find_files(
        self,
        pattern: Annotated[str, Field(max_length=200, description="Shell pattern for the name, e.g. '*.md'.")],
        path: FolderPath = ".",
        limit: Limit = 100,
    ) -> Listing:
        """Find files by name anywhere below a folder. The pattern is compared with the name and the whole path."""
        found = [
            place
            for place in self.root.walk(path)
            if fnmatch(place.name, pattern) or fnmatch(self.root.relative(place), pattern)
        ]
        return Listing([self._entry(place) for place in found[:limit]], len(found) > limit)

    @tool(READS)
    def search_text(
        self,
        text: Annotated[str, Field(min_length=1, max_length=500, description="The literal text to look for.")],
        path: FolderPath = ".",
        file_pattern: Annotated[str, Field(max_length=200, description="Only files with such names.")] = "*",
        ignore_case: Annotated[bool, Field(description="Treat upper and lower case alike.")] = True,
        limit: Limit = 100,
    ) -> Matches:
        """Search the contents of all files for a text (grep). Returns the matching lines with file and line number."""
        wanted = text.casefold() if ignore_case else text
        matches: list[Match] = []
        searched = 0
        for place in self.root.walk(path):
            if not fnmatch(place.name, file_pattern) or place.stat().st_size > MAX_TEXT_BYTES:
                continue
            searched += 1
            for number, line in enumerate(place.read_bytes().decode(errors="replace").splitlines(), 1):
                if wanted in (line.casefold() if ignore_case else line):
                    matches.append(Match(self.root.relative(place), number, line[:MAX_LINE]))
            if len(matches) > limit:
                return Matches(matches[:limit], searched, True)
        return Matches(matches, searched, False)

    @tool(READS)
    def file_info(self, path: FilePath) -> Entry:
        """Tell the kind, size and time of change of a file or folder."""
        place = self.root.inside(path)
        if not place.exists():
            raise RefusedError(f"there is no file or folder {path!r}")
        return self._entry(place)

    @tool(READS)
    def hash_file(
        self,
        path: FilePath,
        algorithm: Annotated[Literal["sha256", "sha512", "sha1", "md5"], Field(description="Hash function.")] = (
            "sha256"
        ),
    ) -> Digest:
        """Compute the checksum of a file, to compare it with a published one."""
        with self.root.file(path).open("rb") as file:
            return Digest(path, algorithm, hashlib.file_digest(file, algorithm).hexdigest())

    @tool(READS)
    def count_words(self, path: FilePath) -> Counts:
        """Count the lines, words, characters and bytes of a text file."""
        text = self.root.text(path)
        return Counts(path, len(text.splitlines()), len(text.split()), len(text), len(text.encode()))

    @tool(READS, plain_text=True)
    def compare_files(
        self,
        old_path: FilePath,
        new_path: FilePath,
        context: Annotated[int, Field(ge=0, le=20, description="Unchanged lines shown around a change.")] = 3,
    ) -> str:
        """Show the differences between two text files as a unified diff."""
        old, new = (self.root.text(path).splitlines() for path in (old_path, new_path))
        lines = difflib.unified_diff(old, new, old_path, new_path, n=context, lineterm="")
        return "\n".join(lines) or "the files are equal"

    @tool(SETS)
    def create_directory(self, path: FolderPath) -> Entry:
        """Create a folder and its missing parents; an existing one is left as it is."""
        place = self.root.inside(path)
        place.mkdir(parents=True, exist_ok=True)
        return self._entry(place)

    @tool(CHANGES)
    def move_file(
        self,
        source: FilePath,
        destination: Annotated[str, Field(description="New path relative to the root folder; must be free.")],
    ) -> Entry:
        """Move or rename a file or folder. An existing destination is never replaced."""
        origin, target = self.root.entry(source), self._free(destination)
        if not origin.exists() and not origin.is_symlink():
            raise RefusedError(f"there is no file or folder {source!r}")
        if target.is_relative_to(origin):
            raise RefusedError(f"cannot move {source!r} into itself")
        target.parent.mkdir(parents=True, exist_ok=True)
        origin.rename(target)
        return self._entry(target)

    @tool(ADDS)
    def copy_file(
        self,
        source: FilePath,
        destination: Annotated[str, Field(description="Path of the copy, relative to the root; must be free.")],
    ) -> Entry:
        """Copy one file. An existing destination is never replaced."""
        origin, target = self.root.file(source), self._free(destination)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(origin, target)
        return self._entry(target)

    @tool(REPLACES)
    def delete_file(self, path: FilePath) -> str:
        """Delete one file, link or empty folder for good."""
        place = self.root.entry(path)
        if place.is_dir() and not place.is_symlink():
            place.rmdir()
        else:
            place.unlink()
        return f"deleted {path}"

    def _free(self, path: str) -> Path:
        target = self.root.inside(path)
        if target.exists():
            raise RefusedError(f"{path!r} exists already; choose another destination or delete it first")
        return target

    def _entry(self, place: Path) -> Entry:
        stat = place.lstat()
        kind: Literal["file", "folder", "link", "other"] = "other"
        if place.is_symlink():
            kind = "link"
        elif place.is_dir():
            kind = "folder"
        elif place.is_file():
            kind = "file"
        modified = datetime.fromtimestamp(stat.st_mtime, UTC).isoformat(timespec="seconds")
        return Entry(self.root.relative(place), kind, stat.st_size, modified)

    def _draw(self, folder: Path, depth: int, indent: str, lines: list[str]) -> None:
        for place in sorted(folder.iterdir()):
            if len(lines) > 1000:
                return
            is_folder = place.is_dir() and not place.is_symlink()
            lines.append(f"{indent}{place.name}{'/' if is_folder else ''}")
            if is_folder and depth > 1:
                self._draw(place, depth - 1, f"{indent}  ", lines)


def build(folder: Path) -> FastMCP[None]:
    """The server for one existing folder."""
    files = Files(Root(folder.resolve(strict=True)))
    return server_of(files, "files", "Reads, searches and changes the files of one folder. Paths are relative to it.")


if __name__ == "__main__":
    serve(build(path_argument("Serve the files of one folder over MCP (stdio).", "ROOT")))
