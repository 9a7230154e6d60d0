"""Labelled tools and queries: turns the rows of JSONL files into documents and queries with their right tools."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pml_gateway.errors import InvalidInputError
from pml_gateway.index.text import ToolDocument
from pml_gateway.types import JsonObject


@dataclass(frozen=True, slots=True)
class LabelledQuery:
    """A query and the tools it needs: any one key of each group."""

    text: str
    groups: tuple[frozenset[str], ...]


def read_rows(lines: Iterable[str], source: str) -> list[JsonObject]:
    """The JSON objects of a JSONL file, empty lines left out; raises InvalidInputError naming the line."""
    return [_object(line, f"{source}:{number}") for number, line in enumerate(lines, 1) if line.strip()]


def tool_document(row: JsonObject) -> ToolDocument:
    """The document of `{"id", "server"?, "name", "title"?, "description"?, "input_schema"?}`, keyed by its id."""
    properties = input_schema(row).get("properties")
    return ToolDocument(
        key=row["id"],
        server=row.get("server") or "",
        name=row["name"],
        title=row.get("title") or "",
        description=row.get("description") or "",
        parameters=tuple(properties) if isinstance(properties, dict) else (),
    )


def tool_documents(rows: Iterable[JsonObject], source: str) -> Iterator[ToolDocument]:
    """The documents of all rows; raises InvalidInputError where one lacks its id or name."""
    for row in rows:
        missing = [field for field in ("id", "name") if not isinstance(row.get(field), str)]
        if missing:
            raise InvalidInputError(
                f"a tool in {source} has no {' and no '.join(missing)}: {str(row)[:80]}",
                hint='a tool is {"id", "name", "server"?, "description"?, "input_schema"?}',
            )
        yield tool_document(row)


def labelled_queries(rows: Iterable[JsonObject], source: str) -> Iterator[LabelledQuery]:
    """The queries of all rows; `gold_groups` wins over `gold`, whose tools are all needed."""
    for row in rows:
        groups = row.get("gold_groups") or [[key] for key in row.get("gold") or ()]
        if not isinstance(row.get("query"), str) or not groups or not all(groups):
            raise InvalidInputError(
                f"a query in {source} has no text or no right tool: {str(row)[:80]}",
                hint='a query is {"query", "gold": [tool ids], "gold_groups"?: [[alternatives], ...]}',
            )
        yield LabelledQuery(row["query"], tuple(frozenset(group) for group in groups))


def input_schema(row: JsonObject) -> JsonObject:
    """The input schema of a tool row; empty if it has none."""
    schema = row.get("input_schema")
    return schema if isinstance(schema, dict) else {}


def _object(line: str, place: str) -> JsonObject:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InvalidInputError(f"{place} is no JSON: {error}", hint="one JSON object on each line") from None
    if not isinstance(row, dict):
        raise InvalidInputError(f"{place} is no JSON object", hint="one JSON object on each line")
    return row
