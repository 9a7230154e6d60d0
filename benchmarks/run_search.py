"""How long a search takes, and how much memory an index holds, by catalog size.

    python benchmarks/run_search.py [--tools 1000 10000] [--queries 200] [--ranking fused]

Takes tools and intents from $PML_DATA (default `../shared/data` beside the repository), else makes them up, which is
said in the output. Every size runs in a fresh process. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import random
import resource
import sys
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from pml_gateway.index.models import load_embedder
from pml_gateway.index.search import ToolIndex
from pml_gateway.index.text import ToolDocument
from pml_gateway.types import Ranking

REPOSITORY = Path(__file__).resolve().parents[1]
WARM_UP = 10
EXPECTED_HITS = 5


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tools", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--model", default="builtin", help="a model, or `none` for lexical search")
    parser.add_argument("--ranking", type=Ranking, choices=list(Ranking), default=Ranking.FUSED)
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    results = []
    for size in arguments.tools:
        with context.Pool(1) as pool:
            results.append(pool.apply(measure, (size, arguments.queries, arguments.model, arguments.ranking)))
    machine = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
    print(json.dumps({"question": "search", "machine": machine, "results": results}, indent=2))


def measure(size: int, query_count: int, model: str, ranking: Ranking) -> dict[str, Any]:
    """Build an index of `size` tools and time searches one after the other, encoding included."""
    bare = resident_mib()
    tools, queries, source = workload(size, query_count)
    texts = resident_mib()
    started = time.perf_counter()
    embedder = None if model == "none" else load_embedder(model)
    loaded = time.perf_counter()
    index = ToolIndex.build(tools, embedder)
    built = time.perf_counter()
    for query in queries[:WARM_UP]:
        index.search(query, limit=EXPECTED_HITS, ranking=ranking)
    times = []
    for query in queries:
        begin = time.perf_counter()
        result = index.search(query, limit=EXPECTED_HITS, ranking=ranking)
        times.append((time.perf_counter() - begin) * 1e3)
        if embedder is not None and len(result.hits) != EXPECTED_HITS:
            raise SystemExit(f"{query!r} found {len(result.hits)} tools instead of {EXPECTED_HITS}")
    return {
        "tools": size,
        "queries": len(queries),
        "texts": source,
        "model": embedder.model_id if embedder else None,
        "ranking": result.ranking,
        "p50_ms": round(median(times), 2),
        "p99_ms": round(quantiles(times, n=100)[98], 2),
        "load_s": round(loaded - started, 2),
        "build_s": round(built - loaded, 2),
        "resident_mib": {"before": bare, "with_texts": texts, "after": resident_mib(), "peak": peak_mib()},
    }


def workload(size: int, query_count: int) -> tuple[list[ToolDocument], list[str], str]:
    """`size` tools and `query_count` intents, and where they come from."""
    data = Path(os.environ.get("PML_DATA", REPOSITORY.parent / "shared" / "data")) / "dev"
    draw = random.Random(0)
    if not (data / "distractors.jsonl").is_file():
        return generated(size, draw), [sentence(draw, 12) for _ in range(query_count)], "generated"
    rows = draw.sample(read(data / "distractors.jsonl"), size)
    intents = [
        row["query"] for name in ("mcpproxy_golden", "mcptoolbenchpp") for row in read(data / name / "queries.jsonl")
    ]
    return (
        [document(row) for row in rows],
        draw.sample(intents, query_count),
        "distractors, mcpproxy_golden, mcptoolbenchpp",
    )


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def document(row: dict[str, Any]) -> ToolDocument:
    """One row of a tool file as a document."""
    properties = (row.get("input_schema") or {}).get("properties") or {}
    return ToolDocument(
        row["id"], row.get("server") or "", row["name"], "", row.get("description") or "", tuple(properties)
    )


def generated(size: int, draw: random.Random) -> list[ToolDocument]:
    """Tools of made-up words with the lengths of real ones."""
    return [
        ToolDocument(
            f"server{i % 40}__tool{i}", f"server{i % 40}", f"tool_{i}", "", sentence(draw, 25), ("path", "limit")
        )
        for i in range(size)
    ]


def sentence(draw: random.Random, words: int) -> str:
    """Made-up words, some of them frequent."""
    return " ".join(f"word{int(draw.paretovariate(0.7)) % 5000}" for _ in range(words))


def resident_mib() -> float:
    """Resident memory of this process now; the peak where /proc is missing."""
    status = Path("/proc/self/statm")
    if not status.exists():
        return peak_mib()
    return round(int(status.read_text().split()[1]) * resource.getpagesize() / 2**20, 1)


def peak_mib() -> float:
    """Largest resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)


if __name__ == "__main__":
    main()
