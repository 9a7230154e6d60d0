"""What a FastMCP server's clients get of three transforms: nothing, FastMCP's BM25 search, and our `Exposure`.

    PML_DATA=... python -m benchmarks.run_fastmcp [--sets servers mcpproxy_golden] [--limit 100] [--save]

The same server with the same tools under the same names, the same queries, one client each, in memory: what is timed
is `search_tools` as a client calls it, in turns, so that load meets both alike. Every answer is checked: no error, at
most five hits, each a tool of the catalog. Tokens are o200k_base.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
from fastmcp import Client, FastMCP
from fastmcp.server.transforms import Transform
from fastmcp.server.transforms.search import BM25SearchTransform
from fastmcp.tools import Tool

from benchmarks.labelled_sets import REPOSITORY, LabelledSet, dev_directory, read_set, set_names
from benchmarks.rankers import ANSWER_HITS
from benchmarks.results import save
from pml_gateway.exposure.token_count import count_tokens
from pml_gateway.fastmcp import Exposure
from pml_gateway.index.evaluation import LabelledQuery, QueryOutcome, figures, input_schema

OWN = "servers"
"""Our own requests over the tools of published servers, in tests/data."""

FIGURES = ("n", "recall@1", "recall@5", "tokens_5_hits", "p50_ms", "p99_ms")


@dataclass
class Subject:
    """One way of listing, with what was measured of it."""

    name: str
    transform: Transform | None
    list_tokens: int = 0
    outcomes: list[QueryOutcome] = field(default_factory=list)


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=[OWN], help=f"{OWN}, or sets of $PML_DATA")
    parser.add_argument("--limit", type=int, help="queries of each set, drawn with a fixed seed")
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results")
    arguments = parser.parse_args()
    # Names of other sets are not ours to judge.
    logging.getLogger("mcp.shared.tool_name_validation").setLevel(logging.ERROR)
    measured = {name: anyio.run(measure, read(name, arguments.limit)) for name in arguments.sets}
    print(json.dumps(measured, indent=2))
    if arguments.save:
        print(save("fastmcp", {"sets": arguments.sets, "limit": arguments.limit}, {"results": measured}))


def read(name: str, limit: int | None) -> LabelledSet:
    """One set by its name, its keys written as names that every client takes."""
    if name != OWN and name not in set_names(dev_directory()):
        raise SystemExit(f"no set {name!r}; choose from {', '.join([OWN, *set_names(dev_directory())])}")
    found = read_set(REPOSITORY / "tests" / "data" / OWN if name == OWN else dev_directory() / name, limit)
    rows = {legal(key): row for key, row in found.rows.items()}
    if len(rows) < len(found.rows):
        raise SystemExit(f"{name}: two tools of this set would have one name")
    queries = (
        replace(query, groups=tuple(frozenset(map(legal, group)) for group in query.groups)) for query in found.queries
    )
    return LabelledSet(name, rows, tuple(queries))


def legal(key: str) -> str:
    """A key as a tool's name."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", key)


async def measure(labelled: LabelledSet) -> dict[str, Any]:
    """The figures of each way over one set."""
    exposure = Exposure()
    subjects = [
        Subject("all listed", None),
        Subject("FastMCP BM25", BM25SearchTransform(max_results=ANSWER_HITS)),
        Subject("Exposure", exposure),
    ]
    async with AsyncExitStack() as stack:
        clients: dict[str, Client[Any]] = {}
        for subject in subjects:
            client = await stack.enter_async_context(Client(server_of(labelled, subject.transform), cache=False))
            clients[subject.name] = client
            subject.list_tokens = count_tokens(_compact([_dumped(tool) for tool in await client.list_tools()]))
        first = labelled.queries[0]
        await hits_of(clients["Exposure"], own_hits, first, labelled)
        if not await exposure.wait_for_index(600):
            raise SystemExit("the index was not ready within 600 seconds")
        searching: Mapping[str, Callable[[Any], list[str]]] = {"FastMCP BM25": peer_hits, "Exposure": own_hits}
        for query in (first, *labelled.queries):
            for subject in subjects:
                if subject.name in searching:
                    outcome = await hits_of(clients[subject.name], searching[subject.name], query, labelled)
                    subject.outcomes.append(outcome)
    return {subject.name: report(subject) for subject in subjects} | {"tools": len(labelled.rows)}


def server_of(labelled: LabelledSet, transform: Transform | None) -> FastMCP[Any]:
    """A server with the tools of a set under their keys."""
    server: FastMCP[Any] = FastMCP("catalog")
    for key, row in labelled.rows.items():
        schema = input_schema(row)
        properties = schema.get("properties")
        parameters = schema if isinstance(properties, dict) else {**schema, "properties": {}}
        server.add_tool(Tool(name=key, description=row.get("description"), parameters=parameters))
    if transform is not None:
        server.add_transform(transform)
    return server


async def hits_of(
    client: Client[Any], read_hits: Callable[[Any], list[str]], query: LabelledQuery, labelled: LabelledSet
) -> QueryOutcome:
    """One search as a client makes it: the hits, the time, and what a model reads of the answer."""
    began = time.perf_counter()
    result = await client.call_tool_mcp("search_tools", {"query": query.text})
    milliseconds = (time.perf_counter() - began) * 1000
    hits = read_hits(result.structured_content)
    if result.is_error or len(hits) > ANSWER_HITS or not set(hits) <= labelled.rows.keys():
        raise SystemExit(f"{query.text!r} was answered with {hits}")
    text = "".join(block.text for block in result.content if block.type == "text")
    return QueryOutcome(query, tuple((hit, 0.0) for hit in hits), milliseconds, count_tokens(text))


def own_hits(answer: Any) -> list[str]:
    """The names in an answer of ours."""
    return [hit["name"] for hit in answer["hits"]]


def peer_hits(answer: Any) -> list[str]:
    """The names in an answer of FastMCP's."""
    return [tool["name"] for tool in answer["result"]]


def report(subject: Subject) -> dict[str, Any]:
    """What one way costs and finds; the first search of each is not counted."""
    if not subject.outcomes:
        return {"list_tokens": subject.list_tokens}
    measured = figures(subject.outcomes[1:], min_score=0)
    return {"list_tokens": subject.list_tokens, **{name: measured[name] for name in FIGURES}}


def _dumped(tool: Any) -> dict[str, Any]:
    dumped: dict[str, Any] = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dumped


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


if __name__ == "__main__":
    main()
