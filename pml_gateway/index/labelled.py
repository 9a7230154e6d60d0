"""Labelled tools and queries: turns the rows of JSONL files into documents and queries with their right tools."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

from pml_gateway.errors import InvalidInputError
from pml_gateway.index.text import ToolDocument
from pml_gateway.types import JsonObject

TOOL_LAYOUT = 'a tool is {"id", "name", "server"?, "title"?, "description"?, "input_schema"?}'
QUERY_LAYOUT = 'a query is {"query", "gold": [tool ids], "gold_groups"?: [[alternatives], ...]}'

SHOWN = 80
"""Characters of a faulty row that an error shows."""

BYTE_ORDER_MARK = "\ufeff"
"""What some editors put at the beginning of a file."""


@dataclass(frozen=True, slots=True)
class LabelledQuery:
    """A query and the tools it needs: any one key of each group."""

    text: str
    groups: tuple[frozenset[str], ...]


def read_rows(lines: Iterable[str], source: str) -> list[JsonObject]:
    """The JSON objects of a JSONL file, empty lines left out; raises InvalidInputError naming the line."""
    texts = (line.removeprefix(BYTE_ORDER_MARK) for line in lines)
    return [_object(line, f"{source}:{number}") for number, line in enumerate(texts, 1) if line.strip()]


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
    """The documents of all rows; raises InvalidInputError where one lacks its id or name, or holds no text."""
    for row in rows:
        missing = [field for field in ("id", "name") if not _is_text(row.get(field))]
        if missing:
            raise InvalidInputError(
                f"a tool in {source} has no {' and no '.join(missing)}: {str(row)[:SHOWN]}", hint=TOOL_LAYOUT
            )
        for field in ("server", "title", "description"):
            if not isinstance(row.get(field), str | None):
                raise InvalidInputError(
                    f"the {field} of tool {row['id']!r} in {source} is no text: {str(row[field])[:SHOWN]}",
                    hint=TOOL_LAYOUT,
                )
        yield tool_document(row)


def labelled_queries(rows: Iterable[JsonObject], source: str) -> Iterator[LabelledQuery]:
    """The queries of all rows; `gold_groups` wins over `gold`, whose tools are all needed.

    A tool or group that is named twice is needed once. Raises InvalidInputError for a row of another layout.
    """
    for row in rows:
        if not _is_text(row.get("query")):
            raise InvalidInputError(f"a query in {source} has no text: {str(row)[:SHOWN]}", hint=QUERY_LAYOUT)
        groups = row.get("gold_groups") or _alone(row.get("gold"))
        if not _is_list(groups) or not all(_is_list(group) and all(map(_is_text, group)) for group in groups):
            raise InvalidInputError(
                f"the query {row['query'][:SHOWN]!r} in {source} names no right tools: {str(groups)[:SHOWN]}",
                hint=QUERY_LAYOUT,
            )
        yield LabelledQuery(row["query"], tuple(dict.fromkeys(frozenset(group) for group in groups)))


def input_schema(row: JsonObject) -> JsonObject:
    """The input schema of a tool row; empty if it has none."""
    schema = row.get("input_schema")
    return schema if isinstance(schema, dict) else {}


def _alone(gold: object) -> object:
    """Each tool of `gold` as a group of its own; anything but a list as it is."""
    return [[key] for key in gold] if isinstance(gold, list) else gold


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list) and bool(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _object(line: str, place: str) -> JsonObject:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{place} is no JSON: {error}", hint="one JSON object on each line") from None
    if not isinstance(row, dict):
        raise InvalidInputError(f"{place} is no JSON object", hint="one JSON object on each line")
    return row
