"""Whether the tools that a hit names as related are those whose results fed it, or that it fed.

    python -m benchmarks.run_related [--sources workbench nestful]

From recorded sessions under $PML_DATA: a tool and another are a pair where a value that nobody had written flowed from
the result of one into an argument of the other. For each tool with such a partner in one half of the tasks, the figures
say how often one of the first two related tools is a partner. `links` knows the definitions of the tools and nothing
else; `links_shapes` also what results of the other half of the tasks showed. Against them: the two tools of the same
server nearest in meaning, the two most called in the other half of the tasks, and those of the same server.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from benchmarks.harness import table
from benchmarks.recorded_sessions import SOURCES, Source, flows, read_source
from benchmarks.results import save
from pml_gateway.catalog.ownership import Ownership
from pml_gateway.gateway.state import documents, linked_tool
from pml_gateway.index import Embedder, load_embedder
from pml_gateway.index.links import Links
from pml_gateway.index.text import dense_text
from pml_gateway.types import JsonObject

NAMED = 2
"""Related tools of a hit."""

WITHOUT_RESULTS = "toolbench_cot"

Ranked = Callable[[str], list[str]]
"""Other tools for one, best first."""


def partners(source: Source, *, of_test: bool = True) -> dict[str, set[str]]:
    """For each tool those that fed it or that it fed, in one half of the tasks."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for session in source.sessions:
        calls = session.calls
        for flow in flows(calls) if session.is_for_test is of_test else ():
            one, two = calls[flow.producer].tool, calls[flow.consumer].tool
            if flow.is_fresh and one != two and {one, two} <= source.tools.keys():
                found[one].add(two)
                found[two].add(one)
    return dict(found)


def hit_rate(ranked: Ranked, wanted: Mapping[str, set[str]]) -> float:
    """The share of tools for which a partner is among the first ones named."""
    return sum(bool(wanted[tool] & set(ranked(tool)[:NAMED])) for tool in wanted) / len(wanted)


def linked(source: Source, outputs: Mapping[str, JsonObject]) -> Ranked:
    """By links, with the outputs that are known."""
    links = Links.build([linked_tool(tool, outputs.get(name)) for name, tool in source.tools.items()])
    return lambda tool: list(links.related(tool))


def near_on_server(source: Source, embedder: Embedder) -> Ranked:
    """Tools of the same server by meaning."""
    names = list(source.tools)
    texts = [dense_text(document) for document in documents(list(source.tools.values()), Ownership())]
    vectors = embedder.encode(texts)
    cosines: npt.NDArray[np.float32] = vectors @ vectors.T
    positions = {name: at for at, name in enumerate(names)}

    def ranked(tool: str) -> list[str]:
        row = cosines[positions[tool]]
        return sorted(_siblings(source, tool), key=lambda name: -row[positions[name]])

    return ranked


def popular(source: Source, *, on_server: bool) -> Ranked:
    """Tools by how often they were called in the other half of the tasks."""
    sessions = [session for session in source.sessions if not session.is_for_test]
    counts = Counter(call.tool for session in sessions for call in session.calls)

    def ranked(tool: str) -> list[str]:
        others = _siblings(source, tool) if on_server else [name for name in source.tools if name != tool]
        return sorted(others, key=lambda name: -counts[name])

    return ranked


def _siblings(source: Source, tool: str) -> list[str]:
    server = source.tools[tool].upstream_id
    return [name for name, each in source.tools.items() if each.upstream_id == server and name != tool]


def figures(source: Source, embedder: Embedder) -> JsonObject:
    """One row: the hit rates over one source."""
    wanted = partners(source)
    ways = {
        "same_server": near_on_server(source, embedder),
        "popular": popular(source, on_server=False),
        "popular_on_server": popular(source, on_server=True),
        "links": linked(source, {}),
        "links_shapes": linked(source, source.outputs()),
    }
    named = [len(ways["links"](tool)[:NAMED]) for tool in wanted]
    rates = {name: hit_rate(ranked, wanted) for name, ranked in ways.items()}
    return {"source": source.name, "tools": len(wanted), **rates, "named": sum(named) / len(named)}


def run(arguments: argparse.Namespace) -> None:
    """Measure, print, save."""
    embedder = load_embedder("builtin")
    rows = [figures(read_source(name), embedder) for name in arguments.sources]
    means = {key: sum(row[key] for row in rows) / len(rows) for key in rows[0] if key != "source"}
    rows.append({"source": "mean", **means, "tools": sum(row["tools"] for row in rows)})
    print(table(rows))
    if not arguments.no_save:
        print(save("related", {"named": NAMED}, {"related": rows}))


def main() -> None:
    """Parse and run."""
    sources = [name for name in SOURCES if name != WITHOUT_RESULTS]
    parser = argparse.ArgumentParser(description="Whether related tools are those that feed each other.")
    parser.add_argument("--sources", nargs="+", choices=sources, default=sources)
    parser.add_argument("--no-save", action="store_true", help="print only")
    with suppress(KeyboardInterrupt):
        run(parser.parse_args())


if __name__ == "__main__":
    main()
