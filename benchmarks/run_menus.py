"""Is the menu of a server enough to call its tools right at the first try, and what does it cost?

    python -m benchmarks.run_menus [--show] [--save]

Serves the tools of published servers, and of the clouds (which have no schemas), asks for the menu of each server, and
writes two calls for each tool by its line alone (`benchmarks.menu_lines`): one with the required parameters, one with
all of them. A call is right if the tool's own schema accepts it. What a value means is not judged.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import jsonschema

from benchmarks.harness import table
from benchmarks.labelled_sets import REPOSITORY
from benchmarks.menu_lines import arguments_of
from benchmarks.results import save
from pml_gateway.exposure.token_count import count_tokens
from tests.support.scripted_server import Definition, ScriptedServer
from tests.support.serving import Serving, serving

DATA = REPOSITORY / "tests" / "data"
Servers = dict[str, list[Definition]]


@dataclass(frozen=True, slots=True)
class Line:
    """One tool's line of a menu, and the reasons for which the calls written by it are refused; empty if right."""

    text: str
    tokens: int
    required: str
    every: str


def menus() -> dict[str, Servers]:
    """The servers of each set, with their tools as they list them."""
    recorded: Servers = {}
    for path in sorted((DATA / "upgrades").glob("*.json")):
        recorded[path.stem.replace(".", "-")] = json.loads(path.read_text(encoding="utf-8"))["versions"][-1]["tools"]
    return {"servers": _labelled("servers"), "recorded": recorded, "cloud": _labelled("cloud")}


def _labelled(name: str) -> Servers:
    servers: Servers = {}
    for line in (DATA / name / "tools.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        kept = {key: row[key] for key in ("name", "title", "description") if key in row}
        schema = row.get("input_schema", {"type": "object"})
        servers.setdefault(row["server"], []).append({**kept, "inputSchema": schema})
    return servers


async def read(servers: Servers) -> list[Line]:
    """Ask for all menus, page by page, and judge each line."""
    scripted = {name: ScriptedServer(tools=tools) for name, tools in servers.items()}
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as folder:
        async with serving(Path(folder), scripted, trust={"changes": "notice", "new_servers": "accept"}) as served:
            await served.gateway.refresh(60)
            for name, tools in servers.items():
                schemas = {tool["name"]: tool["inputSchema"] for tool in tools}
                catalog = served.gateway.state.catalog
                for text in await _lines(served, name):
                    tool = catalog.by_name(text.partition("(")[0])
                    assert tool is not None
                    wrong = [_problem(schemas[tool.name], arguments_of(text, optional=each)) for each in (False, True)]
                    tokens = count_tokens(json.dumps(text, ensure_ascii=False) + ",")
                    lines.append(Line(text, tokens, *wrong))
    return lines


async def _lines(served: Serving, server: str) -> list[str]:
    lines: list[str] = []
    offset: int | None = 0
    while offset is not None:
        asked = {"query": "*", "server": server, "offset": offset}
        answer = (await served.call("search_tools", asked))["structuredContent"]
        lines += answer["menu"]
        offset = answer.get("next_offset")
    return lines


def _problem(schema: Any, arguments: dict[str, Any]) -> str:
    """Return the reason for which the schema refuses these arguments; empty if it accepts them."""
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)(schema)
    error = jsonschema.exceptions.best_match(validator.iter_errors(arguments))
    return "" if error is None else f"{error.json_path}: {error.message[:160]}"


def row(name: str, lines: Iterable[Line]) -> dict[str, Any]:
    """The figures of one set."""
    read = list(lines)
    return {
        "set": name,
        "tools": len(read),
        "wrong": sum(bool(line.required) for line in read),
        "wrong with all": sum(bool(line.every) for line in read),
        "tokens a tool": round(sum(line.tokens for line in read) / len(read), 1),
    }


def main() -> None:
    """Ask, judge, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--show", action="store_true", help="show the lines that lead to a refused call")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    rows = []
    for name, servers in menus().items():
        lines = anyio.run(read, servers)
        rows.append(row(name, lines))
        for line in lines if options.show else ():
            if line.required or line.every:
                print(f"{line.required or '-'}\n  {line.every}\n  {line.text}")
    print(table(rows))
    if options.save:
        print(save("menus", {}, {"sets": rows}))


if __name__ == "__main__":
    main()
