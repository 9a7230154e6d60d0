"""Examples as lines of JSON: whatever is written is read again, and files of others stay within limits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pml_gateway.errors import InvalidInputError
from pml_gateway.example_queries import exchange
from pml_gateway.example_queries.exchange import exported, imported, read_entries, read_lines
from pml_gateway.example_queries.library import ExampleLibrary, ExampleOrigin, LibraryEntry

DIGEST = "0" * 32


def test_names_that_break_lines_are_read_again(tmp_path: Path) -> None:
    name = "a\u2028b\x85c\x0b\x1b[2J\u202ed\ud800"
    file = tmp_path / "team.jsonl"
    file.write_text(
        "".join(exported([LibraryEntry(DIGEST, name, name, ExampleOrigin.OWNER, ("one",))])) + "\n", encoding="utf-8"
    )
    assert all(character.isprintable() for line in read_lines(file) for character in line)
    [entry] = read_entries(read_lines(file), "file")
    assert entry.examples == ("one",)


def test_lines_end_where_lines_of_json_do(tmp_path: Path) -> None:
    file = tmp_path / "team.jsonl"
    file.write_bytes(json.dumps({"digest": DIGEST, "examples": ["a\u2028b"]}, ensure_ascii=False).encode() + b"\r\n")
    assert [entry.digest for entry in read_entries(read_lines(file), "file")] == [DIGEST]


def test_a_file_without_end_is_not_read_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "MAX_IMPORT_BYTES", 1 << 20)
    with pytest.raises(InvalidInputError, match="larger than 1 MB"):
        read_lines(Path("/dev/zero"))


def test_many_lines_of_one_definition_are_no_more_than_one(tmp_path: Path) -> None:
    lines = [
        LibraryEntry(DIGEST, "", "", ExampleOrigin.OWNER, tuple(f"{line} {at}" for at in range(10)))
        for line in range(2_000)
    ]
    result = imported(ExampleLibrary(tmp_path), lines)
    assert (result.examples, result.refused) == (16, 19_984)
