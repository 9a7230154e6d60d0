"""Tokens of an answer of five hits, with the outcome of tools in their signatures.

    python -m benchmarks.run_answers [--limit 40]

`search_tools` of whole gateways, asked over HTTP: one in front of the servers of the recorded tasks (what their tools
give is declared), and one each in front of the tools of a labelled set or of recorded sessions, served from memory
(what results hold is inferred from them). Only answers of five hits count.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, quantiles
from typing import Any

import anyio

from benchmarks.conversation import answer_text
from benchmarks.harness import table
from benchmarks.labelled_sets import REPOSITORY, dev_directory, read_set
from benchmarks.markdown_block import markdown_table, write_block
from benchmarks.more_tasks import MORE_TASKS
from benchmarks.more_workspace import make_larger_workspace
from benchmarks.recorded_sessions import SOURCES, read_source
from benchmarks.results import save
from benchmarks.tasks import TASKS
from pml_gateway.config.settings import Settings
from pml_gateway.exposure.token_count import count_tokens
from pml_gateway.mcp.transport import open_streams
from pml_gateway.text import first_sentence
from pml_gateway.types import JsonObject
from tests.e2e.install import install
from tests.support.scripted_server import ScriptedServer, text_result
from tests.support.serving import Serving, serving

README = Path(__file__).resolve().parent / "README.md"
BLOCK = "answers"
LIMIT = 40
SEED = 7
HITS = 5
MAX_MEAN = 450
SETS = ("apibank", "mcpproxy_golden", "mcptoolbenchpp", "restbench", "toolalpaca")
"""The labelled sets whose tools declare parameters, and are as many as one person may have connected."""


@dataclass(frozen=True, slots=True)
class Tools:
    """Tools by server, and what they are searched for."""

    name: str
    servers: Mapping[str, Sequence[JsonObject]]
    queries: Sequence[str]


def labelled(directory: Path) -> Tools:
    """The tools of a labelled set."""
    labelled_set = read_set(directory)
    servers: dict[str, list[JsonObject]] = {}
    for row in labelled_set.rows.values():
        definition = {"name": row["name"], "description": row.get("description") or ""}
        servers.setdefault(row.get("server", "tools"), []).append({**definition, "inputSchema": row["input_schema"]})
    return Tools(labelled_set.name, servers, [query.text for query in labelled_set.queries])


def recorded(name: str) -> Tools:
    """The tools of recorded sessions, with what their results hold as if it were declared."""
    source = read_source(name)
    outputs = source.outputs()
    servers: dict[str, list[JsonObject]] = {}
    for tool in source.tools.values():
        output = outputs.get(tool.qualified_name, {})
        known = {"outputSchema": output} if output.get("type") == "object" else {}
        servers.setdefault(tool.upstream_id, []).append({**tool.definition, **known})
    return Tools(name, servers, [text for session in source.sessions for text, _ in session.requests if text.strip()])


def drawn(queries: Sequence[str], limit: int) -> list[str]:
    """Each text once, at most so many of them, drawn with a fixed seed."""
    distinct = list(dict.fromkeys(queries))
    return distinct if len(distinct) <= limit else random.Random(SEED).sample(distinct, limit)


async def measured(name: str, serve: Serving, queries: Sequence[str]) -> JsonObject:
    """The figures of one gateway."""
    sizes, known, hits = [], 0, 0
    for query in queries:
        answer = await serve.call("search_tools", {"query": query})
        found: list[JsonObject] = answer["structuredContent"]["hits"]
        if len(found) == HITS:
            sizes.append(count_tokens(answer_text(answer)))
            hits += HITS
            known += sum(" -> " in hit["signature"] for hit in found)
    if len(sizes) < 2:
        raise SystemExit(f"{name}: {len(sizes)} of {len(queries)} answers have {HITS} hits")
    return {
        "tools of": name,
        "tools": len(serve.gateway.state.catalog.tools),
        "answers": len(sizes),
        "tokens, mean": round(mean(sizes)),
        "90 % are below": round(quantiles(sizes, n=10)[-1]),
        "largest": max(sizes),
        "hits that say what comes back": round(known / hits, 2),
    }


async def _answer(_: Any, __: JsonObject) -> JsonObject:
    """No tool is called."""
    return text_result("")


async def of_memory(tools: Tools, limit: int) -> JsonObject:
    """The figures for tools that are served from memory."""
    upstreams = {name: ScriptedServer(list(listed), _answer, id=name) for name, listed in tools.servers.items()}
    with tempfile.TemporaryDirectory(prefix="pml-answers-") as folder:
        async with serving(Path(folder), upstreams) as serve:
            return await measured(tools.name, serve, drawn(tools.queries, limit))


async def of_real_servers(limit: int) -> JsonObject:
    """The figures for the servers of the recorded tasks, searched for those tasks and for what their tools say."""
    with tempfile.TemporaryDirectory(prefix="pml-answers-") as folder:
        workspace = make_larger_workspace(install(), Path(folder) / "work")
        servers = {name: entry for name, entry in workspace.servers.items() if name not in workspace.down}
        async with serving(
            Path(folder), {}, Settings.model_validate({"servers": servers}), open_streams=open_streams
        ) as serve:
            described = [first_sentence(tool.description) for tool in serve.gateway.state.catalog.tools]
            searched = [query for task in (*TASKS, *MORE_TASKS) for query in task.searches]
            return await measured("nine real servers", serve, [*searched, *drawn(described, limit)])


async def run(arguments: argparse.Namespace) -> None:
    """Measure, print, save."""
    rows = [await of_real_servers(arguments.limit)]
    published = REPOSITORY / "tests" / "data" / "servers"
    sets = [labelled(folder) for folder in (published, *(dev_directory() / name for name in SETS))]
    for tools in (*sets, *map(recorded, SOURCES)):
        print(f"{tools.name} ...", file=sys.stderr)
        rows.append(await of_memory(tools, arguments.limit))
    print(table(rows))
    print(_average(rows))
    if not arguments.no_save:
        print(save("answers", {"limit": arguments.limit}, {"answers": rows}))
        write_block(README, BLOCK, _block(rows))


def _average(rows: Sequence[JsonObject]) -> str:
    average = mean(row["tokens, mean"] for row in rows)
    return f"On average over these {average:.0f} tokens; at most {MAX_MEAN} are meant to be."


def _block(rows: Sequence[JsonObject]) -> str:
    return f"{markdown_table(rows)}\n\n{_average(rows)}"


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--limit", type=int, default=LIMIT, help="queries of each set at most")
    parser.add_argument("--no-save", action="store_true", help="print only")
    with suppress(KeyboardInterrupt):
        anyio.run(run, parser.parse_args())


if __name__ == "__main__":
    main()
