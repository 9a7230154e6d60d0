"""Examples as lines of JSON, so that a team writes them once: `{"digest", "name", "server", "origin", "examples"}`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pml_gateway.catalog.hidden_characters import visible
from pml_gateway.errors import InvalidInputError
from pml_gateway.example_queries.library import MAX_ENTRIES, MAX_OFFERED, ExampleLibrary, ExampleOrigin, LibraryEntry
from pml_gateway.index.text import well_formed
from pml_gateway.text import escaped_json

MAX_IMPORT_BYTES = 256 * 1024 * 1024

MAX_NAME = 200
"""Characters of names, which are only shown."""

_DIGEST = re.compile("[0-9a-f]{32}")

_REMEDY = (
    'each line is what pml example-queries export writes: {"digest", "name", "server", "origin", "examples": [texts]}'
)


@dataclass(frozen=True, slots=True)
class ImportResult:
    """Result of an import: number of definitions, new examples, and rejected texts."""

    definitions: int
    examples: int
    refused: int


def exported(entries: Iterable[LibraryEntry]) -> Iterator[str]:
    """Yield a line for each entry."""
    for entry in entries:
        row = {
            "digest": entry.digest,
            "name": entry.name,
            "server": entry.server,
            "origin": entry.origin.value,
            "examples": list(entry.examples),
        }
        yield escaped_json(row)


def read_lines(source: Path | None) -> list[str]:
    """Return the lines of a file, or of stdin.

    Raises:
        InvalidInputError: it cannot be read, or is too large.
    """
    try:
        with sys.stdin.buffer if source is None else source.open("rb") as file:
            content = file.read(MAX_IMPORT_BYTES + 1)
    except OSError as error:
        raise InvalidInputError(
            f"{source} cannot be read: {error}", hint="name a file of pml example-queries export"
        ) from None
    if len(content) > MAX_IMPORT_BYTES:
        raise InvalidInputError(
            f"{source or 'stdin'} is larger than {MAX_IMPORT_BYTES >> 20} MB", hint="import it in parts"
        )
    # Not splitlines, for which texts may hold what ends a line.
    return content.decode("utf-8", "replace").split("\n")


def read_entries(lines: Iterable[str], source: str) -> list[LibraryEntry]:
    """Return the entries that lines say; nothing of them is checked but their shape.

    Raises:
        InvalidInputError: names the line of `source`, and what it should be.
    """
    found: list[LibraryEntry] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if len(found) == MAX_ENTRIES:
            raise InvalidInputError(f"{source} has more than {MAX_ENTRIES:,} lines", hint="import it in parts")
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidInputError(f"line {number} of {source} is no JSON: {error}", hint=_REMEDY) from None
        entry = _entry(row)
        if entry is None:
            raise InvalidInputError(f"line {number} of {source} has no examples of a definition", hint=_REMEDY)
        found.append(entry)
    return found


def _entry(row: Any) -> LibraryEntry | None:
    if not isinstance(row, dict):
        return None
    digest, examples, origin = row.get("digest"), row.get("examples"), row.get("origin", ExampleOrigin.OWNER)
    names = [row.get("name", ""), row.get("server", "")]
    if not isinstance(digest, str) or _DIGEST.fullmatch(digest) is None or not isinstance(examples, list):
        return None
    if origin not in tuple(ExampleOrigin) or not all(isinstance(text, str) for text in (*examples, *names)):
        return None
    name, server = (visible(well_formed(text))[:MAX_NAME] for text in names)
    # What is shipped elsewhere is no part of this gateway: here it is what its owner brought in.
    kept = ExampleOrigin.USE if origin == ExampleOrigin.USE else ExampleOrigin.OWNER
    return LibraryEntry(digest, name, server, kept, tuple(examples[:MAX_OFFERED]))


def imported(library: ExampleLibrary, entries: Iterable[LibraryEntry]) -> ImportResult:
    """Add examples to those that are there, as far as they are sound and there is room.

    Raises:
        GatewayError: the library cannot be written.
    """
    before = {(entry.digest, entry.origin): entry for entry in library.entries()}
    wanted: dict[tuple[str, ExampleOrigin], LibraryEntry] = {}
    offered = 0
    for entry in entries:
        key = entry.digest, entry.origin
        there = wanted.get(key) or before.get(key)
        had = there.examples if there is not None else ()
        known = {text.casefold() for text in had}
        new = tuple(text for text in dict.fromkeys(entry.examples) if text.casefold() not in known)
        offered += len(new)
        name, server = (there.name or entry.name, there.server or entry.server) if there else (entry.name, entry.server)
        wanted[key] = LibraryEntry(entry.digest, name, server, entry.origin, (*had, *new)[:MAX_OFFERED])
    kept = library.put_all(wanted.values())
    had_before = sum(len(before[key].examples) for key in wanted if key in before)
    added = sum(len(entry.examples) for entry in kept) - had_before
    return ImportResult(sum(1 for entry in kept if entry.examples), added, offered - added)
