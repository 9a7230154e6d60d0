"""Tools and intents for the tests of search."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pml_gateway.index.text import ToolDocument

REPOSITORY = Path(__file__).resolve().parents[2]
SHARED_DATA = Path(os.environ.get("PML_DATA", REPOSITORY.parent / "shared" / "data"))


def tool(key: str, description: str = "", *, parameters: tuple[str, ...] = (), title: str = "") -> ToolDocument:
    """A document for `server__name`."""
    server, _, name = key.partition("__")
    return ToolDocument(key, server, name, title, description, parameters)


OFFICE = (
    tool("mail__send_message", "Send an email to one or more recipients", parameters=("recipients", "subject")),
    tool("mail__search_inbox", "Find emails by sender, subject or date"),
    tool("files__read_file", "Read the contents of a file on disk", parameters=("path",)),
    tool("files__writeFile", "Create a file or replace its contents", parameters=("path", "content")),
    tool("calendar__create-event", "Add an appointment to the calendar", parameters=("start", "attendees")),
    tool("weather__forecast", "Predict rain and temperature for a city"),
    tool("database__run_query", "Execute a SQL statement and return its rows", parameters=("sql",)),
)


def labelled_tools() -> tuple[list[ToolDocument], list[tuple[str, str]]]:
    """The labelled set of this repository: tools, and intents with the key of the right tool."""
    rows = read_rows(REPOSITORY / "tests" / "data" / "tool_search.jsonl")
    tools = [
        tool(f"{row['server']}__{row['name']}", row["description"], parameters=tuple(row["parameters"]))
        for row in rows
        if "name" in row
    ]
    return tools, [(row["query"], row["gold"]) for row in rows if "query" in row]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
