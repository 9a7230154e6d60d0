"""The labelled sets under $PML_DATA and in tests/data, as tools and the queries that need them."""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pml_gateway.index.evaluation import LabelledQuery, labelled_queries, read_rows, tool_document, tool_documents
from pml_gateway.index.text import ToolDocument
from pml_gateway.types import JsonObject

REPOSITORY = Path(__file__).resolve().parents[1]
TOOLS, QUERIES, DISTRACTORS = "tools.jsonl", "queries.jsonl", "distractors.jsonl"


@dataclass(frozen=True)
class LabelledSet:
    """Tools by key and queries; `distractors` counts the tools that no query needs."""

    name: str
    rows: Mapping[str, JsonObject]
    queries: tuple[LabelledQuery, ...]
    distractors: int = 0

    @cached_property
    def documents(self) -> tuple[ToolDocument, ...]:
        """The tools as the index reads them, in the order of `rows`."""
        return tuple(tool_document(row) for row in self.rows.values())

    def distracted(self, rows: Mapping[str, JsonObject]) -> LabelledSet:
        """This set with more tools; of two with one id the set's own stays."""
        merged = {**self.rows, **{key: row for key, row in rows.items() if key not in self.rows}}
        return LabelledSet(self.name, merged, self.queries, len(merged) - len(self.rows))


def dev_directory() -> Path:
    """`dev` of $PML_DATA, or of `shared/data` beside the repository."""
    return Path(os.environ.get("PML_DATA", REPOSITORY.parent / "shared" / "data")) / "dev"


def set_names(directory: Path) -> list[str]:
    """The sets that lie in a directory."""
    return sorted(path.parent.name for path in directory.glob(f"*/{QUERIES}"))


def read_set(directory: Path, limit: int | None = None) -> LabelledSet:
    """One set, of its queries at most `limit` drawn with a fixed seed."""
    queries = list(labelled_queries(_rows(directory / QUERIES), str(directory / QUERIES)))
    if limit is not None and limit < len(queries):
        queries = [queries[at] for at in sorted(random.Random(0).sample(range(len(queries)), limit))]
    return LabelledSet(directory.name, read_tools(directory / TOOLS), tuple(queries))


def read_tools(path: Path) -> dict[str, JsonObject]:
    """The tools of one file by id; of two with one id the first counts."""
    rows = _rows(path)
    tools: dict[str, JsonObject] = {}
    for row, document in zip(rows, tool_documents(rows, str(path)), strict=True):
        tools.setdefault(document.key, row)
    return tools


def near_duplicates() -> LabelledSet:
    """Our own tools of five clouds, families that differ by verb and resource, and a query for each tool."""
    return read_set(REPOSITORY / "tests" / "data" / "cloud")


def real_servers() -> tuple[LabelledSet, LabelledSet]:
    """Our own requests over the tools of published servers, in two halves that chance made.

    Ranking was improved with the first half in view, and judged on the second once.
    """
    whole = read_set(REPOSITORY / "tests" / "data" / "servers")

    def half(number: int) -> tuple[LabelledQuery, ...]:
        return tuple(query for query in whole.queries if zlib.crc32(query.text.encode()) % 2 == number)

    return (LabelledSet("servers, in view", whole.rows, half(0)), LabelledSet("servers, unseen", whole.rows, half(1)))


def multilingual_sets() -> Iterator[LabelledSet]:
    """The queries in other languages over the tools of tests/data, one set for each language."""
    data = REPOSITORY / "tests" / "data"
    tools: dict[str, JsonObject] = {}
    for row in _rows(data / "tool_search.jsonl"):
        if "name" in row:
            key = f"{row['server']}__{row['name']}"
            properties: JsonObject = {parameter: {} for parameter in row["parameters"]}
            tools[key] = {**row, "id": key, "input_schema": {"properties": properties}}
    path = data / "multilingual_queries.jsonl"
    rows = _rows(path)
    for language in dict.fromkeys(row["language"] for row in rows):
        spoken = [row for row in rows if row["language"] == language]
        yield LabelledSet(language, tools, tuple(labelled_queries(spoken, str(path))))


def _rows(path: Path) -> Sequence[JsonObject]:
    with path.open(encoding="utf-8") as lines:
        return read_rows(lines, str(path))
