"""How search holds up in catalogs of up to a hundred thousand tools, and what building and changing them costs.

    python -m benchmarks.run_scale [--tools 10000 100000] [--queries 300] [--no-save]

Takes published tools and intents from $PML_DATA (default `../shared/data` beside the repository). Catalogs larger than
that are made of variants: some words of the texts exchanged, some noise added to the vectors. Vectors of tools are
looked up instead of computed, and how long computing takes is measured on 10,000 real tools; queries are encoded by
the model, inside the time that is reported. Every size runs in a fresh process on one core. The exact reference is a
scan of all vectors in full precision. Saves JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from benchmarks.harness import table
from benchmarks.metrics import percentile
from benchmarks.results import save
from benchmarks.run_search import document, peak_mib, read, resident_mib
from benchmarks.synthetic import data_folder
from pml_gateway.index.cache import ENTRIES_PER_TOOL, EmbeddingCache
from pml_gateway.index.calibration import shipped_directory
from pml_gateway.index.embedder import Embeddings
from pml_gateway.index.evidence import Mask
from pml_gateway.index.models import OnnxEmbedder, load_embedder
from pml_gateway.index.search import ToolIndex
from pml_gateway.index.text import ToolDocument, dense_text
from pml_gateway.index.vectors import FULL_PRECISION_LIMIT, VectorIndex

SEED = 7
NOISE = 0.5
"""Length of what is added to a vector of length 1: a variant's cosine with its original is 0.89, as of two published
tools that do the same."""

WORDS_EXCHANGED = 0.3
RECALL_QUERIES = 100
DEPTHS = (10, 50)
MASKS = (0.5, 0.01, 0.0005)
HITS = 5
CHANGED = 20
ENCODED = 10_000
COLD_TOOLS = 1_000
SCANNED_AT_ONCE = 50_000
WARM_UP = 20

Result = TypeVar("Result")


def main() -> None:
    """Parse, measure, save, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tools", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--encoded", type=int, default=ENCODED, help="real tools to measure encoding on; 0 for none")
    parser.add_argument("--no-save", action="store_true", help="print only")
    arguments = parser.parse_args()
    if not (data_folder() / "dev" / "distractors.jsonl").is_file():
        raise SystemExit(f"there are no tools in {data_folder()}; name the folder of the labelled tools in PML_DATA")
    measured: dict[str, Any] = {}
    if arguments.encoded:
        measured["encoding"] = in_fresh_process(encoding, arguments.encoded)
        measured["cold"] = in_fresh_process(cold)
        print(json.dumps(measured, indent=2))
    with tempfile.TemporaryDirectory() as folder:
        vectors = Path(folder) / "vectors.npy"
        in_fresh_process(encode_corpus, vectors)
        measured["sizes"] = []
        for size in arguments.tools:
            measured["sizes"].append(in_fresh_process(scale, size, arguments.queries, vectors))
            print(json.dumps(measured["sizes"][-1], indent=2))
    print(table([{name: row[name] for name in ("tools", "p50_ms", "p99_ms", "build_s")} for row in measured["sizes"]]))
    settings = {"queries": arguments.queries, "seed": SEED, "noise": NOISE, "words_exchanged": WORDS_EXCHANGED}
    if not arguments.no_save:
        print(save("scale", settings, measured))


def in_fresh_process(measure: Callable[..., Result], *arguments: object) -> Result:
    """The result of a function that starts with empty memory."""
    with multiprocessing.get_context("spawn").Pool(1, initializer=on_one_core) as pool:
        return pool.apply(measure, arguments)


def on_one_core() -> None:
    """Keep this process to the core it runs on, where the system can."""
    logging.basicConfig(level=logging.WARNING)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


class Counting:
    """The shipped model, which counts the texts it embeds."""

    def __init__(self) -> None:
        self._model = OnnxEmbedder(shipped_directory())
        self.model_id: str = self._model.model_id
        self.dimension: int = self._model.dimension
        self.calibration = self._model.calibration
        self.encoded = 0

    def encode(self, texts: Sequence[str]) -> Embeddings:
        """Embed and count."""
        self.encoded += len(texts)
        return self._model.encode(texts)


class Looked(Counting):
    """The shipped model, but texts of known tools get the vectors that were made for them."""

    def __init__(self, documents: Sequence[ToolDocument], origins: Sequence[int], corpus: Embeddings) -> None:
        super().__init__()
        self._corpus = corpus
        hashes = digests([dense_text(document) for document in documents])
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._origins = hashes[order], np.asarray(origins, dtype=np.int32)[order]

    def encode(self, texts: Sequence[str]) -> Embeddings:
        """Look up, and embed what is not there; only that counts."""
        hashes = digests(texts)
        at = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        known = self._hashes[at] == hashes
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        if known.any():
            vectors[known] = perturbed(self._corpus[self._origins[at[known]]], hashes[known])
        rest = np.flatnonzero(~known)
        vectors[rest] = super().encode([texts[row] for row in rest.tolist()])
        return vectors

    def encode_queries(self, texts: Sequence[str]) -> Embeddings:
        """Embed without looking up: this is what is timed."""
        return super().encode(texts)


def digests(texts: Sequence[str]) -> npt.NDArray[np.uint64]:
    """A number for each text, the same in every run."""
    joined = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(joined, dtype=np.uint64)


def perturbed(vectors: Embeddings, seeds: npt.NDArray[np.uint64]) -> Embeddings:
    """Each vector (n, dimension) with noise of its own, of length 1."""
    noise = np.stack(
        [np.random.Generator(np.random.SFC64(int(seed))).standard_normal(vectors.shape[1]) for seed in seeds]
    )
    moved = vectors + (NOISE / vectors.shape[1] ** 0.5) * noise.astype(np.float32)
    normal: Embeddings = moved / np.linalg.norm(moved, axis=1, keepdims=True)
    return normal


def corpus_documents() -> list[ToolDocument]:
    """All published tools of the data, each text once."""
    files = (data_folder() / "dev" / "distractors.jsonl", data_folder() / "train" / "mcp_docs.jsonl")
    documents = [document(row) for file in files for row in read(file)]
    return list({dense_text(each): each for each in documents}.values())


def encode_corpus(file: Path) -> None:
    """Vectors of the published tools, for all sizes."""
    np.save(file, load_embedder("builtin").encode([dense_text(each) for each in corpus_documents()]))


def intents(count: int) -> list[str]:
    """Labelled intents of two development sets."""
    sets = ("mcpproxy_golden", "mcptoolbenchpp")
    rows = [row["query"] for name in sets for row in read(data_folder() / "dev" / name / "queries.jsonl")]
    return random.Random(SEED).sample(rows, min(count, len(rows)))


def catalog(size: int) -> tuple[list[ToolDocument], list[int]]:
    """`size` tools and the published tool that each is a variant of; the published ones come first."""
    published = corpus_documents()
    draw = random.Random(SEED)
    draw.shuffle(order := list(range(len(published))))
    documents = [replace(published[at], key=f"tool{number}") for number, at in enumerate(order[:size])]
    origins = order[:size]
    while len(documents) < size:
        origin = draw.randrange(len(published))
        documents.append(variant(published[origin], published[draw.randrange(len(published))], len(documents), draw))
        origins.append(origin)
    return documents, origins


def variant(tool: ToolDocument, other: ToolDocument, number: int, draw: random.Random) -> ToolDocument:
    """A tool with words of another one."""
    words, donated = tool.description.split(), other.description.split() or [other.name]
    for at in range(len(words)):
        if draw.random() < WORDS_EXCHANGED:
            words[at] = donated[draw.randrange(len(donated))]
    name = tool.name if draw.random() < 0.5 else f"{tool.name}_{other.name.split('_')[-1]}"
    # a word of its own, as identifiers and product names are, keeps texts apart
    description = f"{' '.join(words)} {draw.choice(donated)} v{number % 10_000}"
    return ToolDocument(f"tool{number}", tool.server, name, "", description, tool.parameters)


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """A result, and the seconds it took."""
    started = time.perf_counter()
    result = work()
    return result, round(time.perf_counter() - started, 2)


def encoding(count: int) -> dict[str, Any]:
    """How fast real tools are embedded, without a cache."""
    texts = [dense_text(each) for each in corpus_documents()]
    texts = random.Random(SEED).sample(texts, min(count, len(texts)))
    model, load_s = timed(lambda: load_embedder("builtin"))
    _, seconds = timed(lambda: model.encode(texts))
    return {"tools": len(texts), "load_s": load_s, "seconds": seconds, "tools_per_s": round(len(texts) / seconds, 1)}


def cold() -> dict[str, Any]:
    """The first index of 1,000 tools, the one after a restart, and the one after one description was edited."""
    documents = random.Random(SEED).sample(corpus_documents(), COLD_TOOLS)
    edited = [replace(documents[0], description=documents[0].description + " Now with paging."), *documents[1:]]
    measured: dict[str, Any] = {"tools": len(documents)}
    with tempfile.TemporaryDirectory() as folder:
        for step, tools in (("cold", documents), ("restart", documents), ("one_edit", edited)):
            started = time.perf_counter()
            model = Counting()
            ToolIndex.build(tools, model, EmbeddingCache(Path(folder)))
            measured[f"{step}_s"] = round(time.perf_counter() - started, 2)
            measured[f"{step}_embeddings"] = model.encoded
    return measured


@dataclass(frozen=True)
class Bench:
    """One catalog with the places its index is kept in."""

    documents: list[ToolDocument]
    model: Looked
    cache: EmbeddingCache

    def build(self, documents: Sequence[ToolDocument] | None = None) -> ToolIndex:
        """The index as a gateway builds it."""
        tools = self.documents if documents is None else documents
        return ToolIndex.build(tools, self.model, self.cache)


def scale(size: int, query_count: int, vectors: Path) -> dict[str, Any]:
    """Everything about one size."""
    documents, origins = catalog(size)
    corpus = np.load(vectors)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(
            documents,
            Looked(documents, origins, corpus),
            EmbeddingCache(Path(folder) / "embeddings", max_entries=round(ENTRIES_PER_TOOL * size)),
        )
        before = resident_mib()
        (index, build_s) = timed(bench.build)
        bits = 32 if size <= FULL_PRECISION_LIMIT else 16
        measured: dict[str, Any] = {"tools": size, "bits": bits, "build_s": build_s}
        measured |= {"cache_mib": files_mib(Path(folder) / "embeddings"), "built_peak_mib": peak_mib()}
        del index
        index, measured["load_s"] = timed(bench.build)
        queries = intents(query_count)
        measured |= latencies(index, queries)
        measured["resident_mib"] = {"texts_and_model": before, "with_index": resident_mib()}
        measured["masked"] = masked(index, queries, size)
        del index
        measured |= changes(bench, queries)
        measured["recall"] = recalls(bench, queries[:RECALL_QUERIES])
        measured["peak_mib"] = peak_mib()
    return measured


def latencies(index: ToolIndex, queries: Sequence[str], allowed: Mask | None = None) -> dict[str, Any]:
    """Milliseconds of searches one after the other, encoding included; every one must find something."""
    for query in queries[:WARM_UP]:
        index.search(query, limit=HITS, allowed=allowed)
    times = []
    for query in queries:
        started = time.perf_counter()
        hits = index.search(query, limit=HITS, allowed=allowed).hits
        times.append((time.perf_counter() - started) * 1e3)
        if len(hits) != HITS or (allowed is not None and not all(allowed[hit.position] for hit in hits)):
            raise SystemExit(f"{query!r} found {len(hits)} tools instead of {HITS}, or hidden ones")
    return {name: round(percentile(times, at), 2) for name, at in (("p50_ms", 50), ("p99_ms", 99))}


def masked(index: ToolIndex, queries: Sequence[str], size: int) -> list[dict[str, Any]]:
    """Latencies where a policy leaves a share of the tools."""
    draw = np.random.default_rng(SEED)
    rows = []
    for share in MASKS:
        allowed = draw.random(size) < share
        allowed[draw.choice(size, HITS, replace=False)] = True
        rows.append({"allowed": int(np.count_nonzero(allowed)), **latencies(index, queries, allowed)})
    return rows


def changes(bench: Bench, queries: Sequence[str]) -> dict[str, Any]:
    """What the next index costs when tools were edited, came and went."""
    edited = [replace(each, description=f"{each.description} Now with paging.") for each in bench.documents[:1]]
    came = [
        replace(each, key=f"{each.key}_new", description=f"{each.description} In bulk.")
        for each in bench.documents[1 : CHANGED + 1]
    ]
    steps = (("one_edit", [*edited, *bench.documents[1:]]), ("changed", [*edited, *bench.documents[1:-CHANGED], *came]))
    measured: dict[str, Any] = {}
    for step, documents in steps:
        before = bench.model.encoded
        index, seconds = timed(lambda documents=documents: bench.build(documents))  # type: ignore[misc]
        measured[step] = {"seconds": seconds, "embeddings": bench.model.encoded - before}
        measured[step] |= latencies(index, queries)
        del index
    return measured


def recalls(bench: Bench, queries: Sequence[str]) -> dict[str, Any]:
    """The share of the exact nearest that the index finds."""
    vectors = VectorIndex(bench.cache.encode(bench.model, [dense_text(each) for each in bench.documents]))
    encoded = [bench.model.encode_queries([query])[0] for query in queries]
    reference = nearest_of_all(bench, np.stack(encoded))
    measured: dict[str, Any] = {}
    for depth in DEPTHS:
        found = [set(vectors.nearest(query, depth).tolist()) for query in encoded]
        measured[f"dense@{depth}"] = shared([set(row[:depth]) for row in reference], found)
    return measured


def nearest_of_all(bench: Bench, queries: Embeddings) -> list[list[int]]:
    """The exact nearest of each query (q, dimension), from vectors in full precision, block by block."""
    depth = max(DEPTHS)
    best: list[list[tuple[float, int]]] = [[] for _ in queries]
    for start in range(0, len(bench.documents), SCANNED_AT_ONCE):
        block = bench.documents[start : start + SCANNED_AT_ONCE]
        scan = VectorIndex(bench.model.encode([dense_text(each) for each in block]))
        for number, query in enumerate(queries):
            positions = scan.nearest(query, depth)
            similarities = scan.similarities(query, positions)
            pairs = zip(similarities.tolist(), (positions + start).tolist(), strict=True)
            best[number] = sorted([*best[number], *pairs], reverse=True)[:depth]
    return [[position for _, position in row] for row in best]


def shared(expected: Sequence[set[int]], found: Sequence[set[int]]) -> float:
    """Mean share of the expected that was found."""
    return round(float(np.mean([len(a & b) / len(a) for a, b in zip(expected, found, strict=True)])), 4)


def files_mib(folder: Path) -> float:
    """What lies in a folder."""
    return round(sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20, 1)


if __name__ == "__main__":
    main()
