"""Four servers as an office has them, in memory: what they list, and answers that tell what reached them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.scripted_server import Definition, ScriptedServer, text_result

SHARED_DATA = Path(__file__).parents[2] / "tests" / "data"
LOG = "/var/log/app.log"
"""A file whose text is too large for a conversation."""

ISSUES = (
    {"number": 1, "title": "Totals are off by a cent", "state": "open", "author": "ada"},
    {"number": 2, "title": "Invoices have no currency", "state": "closed", "author": "grace"},
    {"number": 3, "title": "The export forgets a row", "state": "open", "author": "grace"},
)

STRING = {"type": "string"}
INTEGER = {"type": "integer"}
BOOLEAN = {"type": "boolean"}
STRINGS = {"type": "array", "items": STRING}
ISSUE = {
    "type": "object",
    "properties": {"number": INTEGER, "title": STRING, "state": STRING, "author": STRING},
    "required": ["number", "title", "state", "author"],
    "additionalProperties": False,
}
STATE = {"type": "string", "enum": ["open", "closed", "all"]}


def _tool(
    name: str, description: str, properties: dict[str, Any], *required: str, output: dict[str, Any] | None = None
) -> Definition:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {
        "name": name,
        "description": description,
        "inputSchema": schema,
        **({"outputSchema": output} if output else {}),
    }


def _fields(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TRACKER = (
    _tool(
        "list_issues",
        "List the issues of the project.",
        {"state": STATE, "author": STRING, "limit": INTEGER, "labels": STRINGS},
        output=_fields(issues={"type": "array", "items": ISSUE}),
    ),
    _tool("get_issue", "Show one issue with its text.", {"number": INTEGER}, "number", output=ISSUE),
    _tool(
        "create_issue",
        "Create a new issue.",
        {"title": STRING, "body": STRING, "labels": STRINGS, "draft": BOOLEAN},
        "title",
        output=_fields(number=INTEGER, title=STRING),
    ),
    _tool(
        "add_comment",
        "Add a comment to an issue.",
        {"issue_number": INTEGER, "text": STRING},
        "issue_number",
        "text",
        output=_fields(id=INTEGER),
    ),
    _tool("close_issue", "Close an issue.", {"number": INTEGER, "reason": STRING}, "number"),
    _tool("ping", "Say whether the tracker answers.", {}),
)
FILES = (
    _tool(
        "read_text_file",
        "Read a text file.",
        {"path": STRING, "head": INTEGER, "tail": INTEGER},
        "path",
        output=_fields(content=STRING),
    ),
    _tool(
        "write_file", "Write a file, replacing what it held.", {"path": STRING, "content": STRING}, "path", "content"
    ),
    _tool("read_multiple_files", "Read several files at once.", {"paths": STRINGS}, "paths"),
    _tool("move_file", "Move or rename a file.", {"source": STRING, "destination": STRING}, "source", "destination"),
)
MAIL = (
    _tool(
        "send_mail",
        "Send a mail.",
        {"to": STRINGS, "subject": STRING, "body": STRING, "high_priority": BOOLEAN},
        "to",
        "subject",
        "body",
    ),
    # Parameters called as keys of meta-tools are.
    _tool("search_mail", "Search mails by their words.", {"query": STRING, "limit": INTEGER, "name": STRING}, "query"),
)
WEATHER = (
    _tool(
        "get_forecast",
        "The weather of the next days in a city.",
        {"city": STRING, "days": INTEGER, "units": {"type": "string", "enum": ["metric", "imperial"]}},
        "city",
        output=_fields(city=STRING, days={"type": "array", "items": _fields(high=INTEGER, low=INTEGER)}),
    ),
    _tool("convert_temperature", "Convert a temperature.", {"value": {"type": "number"}, "to_unit": STRING}, "value"),
)
OFFICE = {"tracker": TRACKER, "files": FILES, "mail": MAIL, "weather": WEATHER}


def office() -> dict[str, ScriptedServer]:
    """The servers, which remember what reached them."""
    return {
        name: ScriptedServer(tools=[dict(tool) for tool in tools], handler=answer) for name, tools in OFFICE.items()
    }


def trades() -> dict[str, ScriptedServer]:
    """Servers with tools as they are published, and some of trades that those do not have."""
    own = [Path(__file__).with_name(name) for name in ("trades.jsonl", "further_tools.jsonl")]
    files = (SHARED_DATA / "servers" / "tools.jsonl", *own)
    tools: dict[str, list[Definition]] = {}
    for line in (line for file in files for line in file.read_text(encoding="utf-8").splitlines()):
        row = json.loads(line)
        definition = {key: row[key] for key in ("name", "description", "annotations") if row.get(key)}
        tools.setdefault(row["server"], []).append({**definition, "inputSchema": row["input_schema"]})
    return {name: ScriptedServer(tools=listed, handler=echo) for name, listed in tools.items()}


async def echo(_: Any, call: dict[str, Any]) -> dict[str, Any]:
    """Say what reached the server."""
    return text_result(f"{call['name']} done with {json.dumps(call.get('arguments') or {}, sort_keys=True)}")


async def answer(_: Any, call: dict[str, Any]) -> dict[str, Any]:
    """As a careless server answers: it takes what it knows of the arguments, and ignores the rest."""
    given = call.get("arguments") or {}
    match call["name"]:
        case "list_issues":
            return _data({"issues": _issues(given)})
        case "get_issue":
            return _data(next((issue for issue in ISSUES if issue["number"] == given.get("number")), ISSUES[0]))
        case "create_issue":
            return _data({"number": 4, "title": given.get("title", "")})
        case "add_comment":
            return _data({"id": 7})
        case "read_text_file" if given.get("path") == LOG:
            return text_result("\n".join(f"{line} INFO invoice {line} was sent" for line in range(20_000)))
        case "read_text_file":
            return text_result(f"the text of {given.get('path')}\nits second line\n")
        case "get_forecast":
            days = [{"high": 20 + day, "low": 10 + day} for day in range(int(given.get("days") or 1))]
            return _data({"city": given.get("city", ""), "days": days})
        case name:
            return text_result(f"{name} done with {json.dumps(given, sort_keys=True)}")


def _issues(given: dict[str, Any]) -> list[dict[str, Any]]:
    state = given.get("state", "open")
    found = [issue for issue in ISSUES if state in ("all", issue["state"])]
    found = [issue for issue in found if given.get("author") in (None, issue["author"])]
    return found[: given.get("limit") or len(found)]


def _data(data: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": json.dumps(data)}], "structuredContent": data}
