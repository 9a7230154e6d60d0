"""An upstream with as many realistic tools as asked for, and one that echoes, over stdio or HTTP.

    python -m benchmarks.synthetic --tools 700 [--http]

It is as fast as the SDK allows, so that the ratio to it flatters nobody: the list is built once and a call looks one
schema up.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent, Tool

from benchmarks.processes import REPOSITORY
from benchmarks.serving import serve

ECHO = "echo_payload"
BYTES_PER_TOOL = 629
"""Makes 700 tools about 440 kB of `tools/list`, as much as 20 popular servers send."""

PAGE_TOOLS = 1000
"""The SDK's client refuses a server-sent event of more than 1 MiB, so a longer list must come in pages."""

SEED = 7
_LEGAL_NAME = re.compile(r"^[a-zA-Z][a-zA-Z0-9_-]{1,40}$")
_VERBS = ("create", "delete", "export", "find", "get", "import", "list", "move", "share", "update")
_NOUNS = ("account", "branch", "calendar", "contact", "document", "invoice", "issue", "message", "page", "report")
_ECHO_TOOL = {
    "name": ECHO,
    "description": "Return the payload unchanged.",
    "inputSchema": {
        "type": "object",
        "properties": {"payload": {"type": "string", "description": "Any text."}},
        "required": ["payload"],
    },
}


def synthetic_tools(count: int, *, seed: int = SEED) -> list[dict[str, Any]]:
    """`count` tools, the first one the echo; the same for the same arguments and data."""
    if count < 1:
        raise ValueError(f"there is always the echo tool; got {count}")
    generator = random.Random(seed)
    source = itertools.chain(_real_tools(generator), _invented_tools(generator))
    chosen, used, size = [_ECHO_TOOL], {ECHO}, 0
    for tool in source:
        if len(chosen) == count:
            break
        length = len(json.dumps(tool, separators=(",", ":")))
        # Steers the average: past the target only small tools are taken, below it only large ones.
        if (size + length) / len(chosen) > BYTES_PER_TOOL * 1.1 and length > BYTES_PER_TOOL:
            continue
        if size / len(chosen) < BYTES_PER_TOOL * 0.9 and length < BYTES_PER_TOOL:
            continue
        name = next(name for name in _variants(tool["name"]) if name not in used)
        used.add(name)
        size += length
        chosen.append({**tool, "name": name})
    return chosen


def data_folder() -> Path:
    """Where the labelled tools are, if they are."""
    return Path(os.environ.get("PML_DATA") or REPOSITORY.parent / "shared" / "data")


def _real_tools(generator: random.Random) -> list[dict[str, Any]]:
    """Tools of published MCP servers, shuffled; none when the data is not there."""
    path = data_folder() / "dev" / "distractors.jsonl"
    if not path.exists():
        return []
    tools = []
    with path.open(encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            schema = row.get("input_schema")
            if not _LEGAL_NAME.match(row["name"]) or not _is_valid(schema):
                continue
            tools.append({"name": row["name"], "description": row.get("description") or "", "inputSchema": schema})
    generator.shuffle(tools)
    return tools


def _is_valid(schema: object) -> bool:
    """One tool that breaks the protocol makes the whole list an error, for every peer."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return False
    properties = schema.get("properties", {})
    return isinstance(properties, dict) and all(isinstance(value, dict) for value in properties.values())


def _invented_tools(generator: random.Random) -> Iterator[dict[str, Any]]:
    while True:
        verb, noun = generator.choice(_VERBS), generator.choice(_NOUNS)
        fields = generator.sample(_NOUNS, k=generator.randint(2, 6))
        properties = {
            f"{field}_id": {
                "type": generator.choice(["string", "integer", "boolean"]),
                "description": f"Which {field} the {noun} belongs to; leave it out to {verb} any.",
            }
            for field in fields
        }
        yield {
            "name": f"{verb}_{noun}",
            "description": f"{verb.capitalize()} one {noun} of the workspace, chosen by {', '.join(fields)}.",
            "inputSchema": {"type": "object", "properties": properties, "required": [f"{fields[0]}_id"]},
        }


def _variants(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}_{number}" for number in itertools.count(2))


def build(tools: Sequence[Mapping[str, Any]], name: str = "synthetic") -> Server[Any]:
    """A server with these tools; the echo returns its payload, the others their name and arguments."""
    models = [Tool.model_validate(tool) for tool in tools]
    starts = range(0, len(models), PAGE_TOOLS)
    pages = {
        str(start) if start else None: ListToolsResult(
            tools=models[start : start + PAGE_TOOLS],
            next_cursor=str(start + PAGE_TOOLS) if start + PAGE_TOOLS in starts else None,
        )
        for start in starts
    }
    schemas: dict[str, Mapping[str, Any]] = {tool["name"]: tool["inputSchema"] for tool in tools}

    async def list_tools(context: object, params: PaginatedRequestParams | None) -> ListToolsResult:
        return pages[params.cursor if params else None]

    async def call_tool(context: object, params: CallToolRequestParams) -> CallToolResult:
        arguments = params.arguments or {}
        if params.name not in schemas:
            return CallToolResult(content=[TextContent(type="text", text=f"unknown tool {params.name}")], is_error=True)
        text = arguments["payload"] if params.name == ECHO else json.dumps([params.name, arguments], sort_keys=True)
        return CallToolResult(content=[TextContent(type="text", text=text)])

    return Server(
        name, version="1", on_list_tools=list_tools, on_call_tool=call_tool, get_tool_input_schema=schemas.get
    )


async def serve_stdio(server: Server[Any]) -> None:
    """Serve one client over stdin and stdout."""
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def main() -> None:
    """Parse and serve."""
    parser = argparse.ArgumentParser(description="An upstream with many tools.")
    parser.add_argument("--tools", type=int, default=700)
    parser.add_argument("--seed", type=int, default=SEED, help="another seed gives other tools")
    parser.add_argument("--http", action="store_true", help="listen on a free port instead of stdio")
    arguments = parser.parse_args()
    server = build(synthetic_tools(arguments.tools, seed=arguments.seed))
    if arguments.http:
        anyio.run(serve, server.streamable_http_app())
    else:
        anyio.run(serve_stdio, server)


if __name__ == "__main__":
    main()
