"""What examples cost: time of a search, memory, and what a start and a restart compute.

    python -m benchmarks.run_examples_cost [--tools 1000 10000 100000] [--queries 300] [--restart 20000] [--no-save]

Takes the tools, intents and looked-up vectors of `benchmarks.run_scale`, and gives every tool eight examples: words of
its description, with vectors near its own. Queries are encoded by the model, inside the time that is reported; so are
the texts of the first start. Every step runs in a fresh process on one core. Saves JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import table
from benchmarks.results import save
from benchmarks.run_scale import (
    COLD_TOOLS,
    SEED,
    Counting,
    Looked,
    catalog,
    digests,
    encode_corpus,
    files_mib,
    in_fresh_process,
    intents,
    latencies,
    timed,
)
from benchmarks.run_search import resident_mib
from benchmarks.synthetic import data_folder
from pml_gateway.gateway.indexing import SLICE
from pml_gateway.index.cache import ENTRIES_PER_TOOL, EmbeddingCache
from pml_gateway.index.embedder import Embeddings
from pml_gateway.index.search import ToolIndex, all_examples
from pml_gateway.index.text import ToolDocument, dense_text

EXAMPLES = 8
WORDS = 9
ENCODING_SEARCHES = 60


def main() -> None:
    """Parse, measure, save, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tools", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--restart", type=int, default=20_000, help="known tools of a restart; 0 for none")
    parser.add_argument("--first", type=int, default=COLD_TOOLS, help="new tools of a first start; 0 for none")
    parser.add_argument("--no-save", action="store_true", help="print only")
    arguments = parser.parse_args()
    if not (data_folder() / "dev" / "distractors.jsonl").is_file():
        raise SystemExit(f"there are no tools in {data_folder()}; name the folder of the labelled tools in PML_DATA")
    measured: dict[str, Any] = {"sizes": []}
    with tempfile.TemporaryDirectory() as folder:
        vectors = Path(folder) / "vectors.npy"
        in_fresh_process(encode_corpus, vectors)
        for size in arguments.tools:
            home = Path(folder) / str(size)
            row = in_fresh_process(searches, size, arguments.queries, vectors, home)
            measured["sizes"].append(row | in_fresh_process(memory, size, home))
            print(json.dumps(measured["sizes"][-1]))
        if arguments.first:
            measured["first_start"] = in_fresh_process(first_start, arguments.first)
        if arguments.restart:
            measured["restart"] = in_fresh_process(restart, arguments.restart, vectors)
    print(json.dumps(measured, indent=2))
    print(table(measured["sizes"]))
    if not arguments.no_save:
        print(save("examples_cost", {"queries": arguments.queries, "examples": EXAMPLES, "seed": SEED}, measured))


def asked(documents: Sequence[ToolDocument]) -> list[ToolDocument]:
    """The tools with examples."""
    draw = random.Random(SEED)
    given = []
    for document in documents:
        words = [*document.description.split(), document.name]
        examples = (f"{' '.join(draw.choices(words, k=WORDS))} {number}" for number in range(EXAMPLES))
        given.append(replace(document, examples=tuple(examples)))
    return given


class LookedRequests(Looked):
    """As `Looked`, with examples as variants of their tools."""

    def __init__(self, documents: Sequence[ToolDocument], origins: Sequence[int], corpus: Embeddings) -> None:
        super().__init__(documents, origins, corpus)
        hashes = np.concatenate((self._hashes, digests([text for each in documents for text in each.examples])))
        places = np.concatenate((self._origins, np.repeat(origins, [len(each.examples) for each in documents])))
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._origins = hashes[order], places[order].astype(np.int32)


def vector_cache(size: int, home: Path) -> EmbeddingCache:
    """The cache of the vectors of a catalog of this size."""
    return EmbeddingCache(home / "embeddings", max_entries=round(ENTRIES_PER_TOOL * size))


def searches(size: int, query_count: int, vectors: Path, home: Path) -> dict[str, Any]:
    """Latencies with and without examples, of one catalog; all of it is stored afterwards."""
    plain, origins = catalog(size)
    documents, corpus = asked(plain), np.load(vectors)
    queries = intents(query_count)
    cache = vector_cache(size, home)
    model = LookedRequests(documents, origins, corpus)
    index = ToolIndex.build(plain, model, cache)
    measured = {"tools": size, **{f"{name}_without": ms for name, ms in latencies(index, queries).items()}}
    index = ToolIndex.build(documents, model, cache)
    measured |= latencies(index, queries)
    return measured | {"cache_mib": files_mib(home / "embeddings")}


def memory(size: int, home: Path) -> dict[str, Any]:
    """KiB of a tool that has examples: their vectors and their texts."""
    documents, model = asked(catalog(size)[0]), Counting()
    all_examples(asked(documents[:1]), model, None)  # what is loaded once is not of these tools
    model.encoded, before = 0, resident_mib()
    examples = all_examples(documents, model, vector_cache(size, home))
    gc.collect()
    vectors = resident_mib() - before
    if model.encoded or not examples:
        raise SystemExit(f"{model.encoded} texts were encoded again")
    return {"kib_per_tool": round(vectors * 1024 / size, 2), "text_kib_per_tool": round(text_kib(documents) / size, 2)}


def text_kib(documents: Sequence[ToolDocument]) -> float:
    """What the texts of examples take in memory, beside their vectors."""
    return sum(sys.getsizeof(each.examples) + sum(map(sys.getsizeof, each.examples)) for each in documents) / 1024


def first_start(size: int) -> dict[str, Any]:
    """Seconds until new tools are found by words, by their own vectors and by examples, and searches meanwhile."""
    documents, model = asked(catalog(size)[0]), Counting()
    queries = intents(ENCODING_SEARCHES)
    with tempfile.TemporaryDirectory() as folder:
        cache = EmbeddingCache(Path(folder))
        words, words_s = timed(lambda: ToolIndex.build(documents, None))
        words.search(queries[0], limit=5)
        _, own_s = timed(lambda: cache.encode(model, [dense_text(each) for each in documents]))
        index = words.with_known_vectors(model, cache)

        def encode() -> None:
            for start in range(0, size, SLICE):
                cache.encode_examples(model, [each.examples for each in documents[start : start + SLICE]])

        encoding = threading.Thread(target=encode)
        encoding.start()
        meanwhile = latencies(index, queries)
        _, rest_s = timed(encoding.join)
        steps = {"words_s": words_s, "own_vectors_s": own_s, "examples_s_after_searches": rest_s}
        return {"tools": size, "examples": EXAMPLES * size, **steps, "searches_meanwhile": meanwhile}


def restart(size: int, vectors: Path) -> dict[str, Any]:
    """What a process computes that finds all vectors stored, and how soon it has them."""
    documents, origins = catalog(size)
    documents, corpus = asked(documents), np.load(vectors)
    with tempfile.TemporaryDirectory() as folder:
        model = LookedRequests(documents, origins, corpus)
        ToolIndex.build(documents, model, EmbeddingCache(Path(folder)))
        known = Counting()
        words, words_s = timed(lambda: ToolIndex.build(documents, None))
        index, vectors_s = timed(lambda: words.with_known_vectors(known, EmbeddingCache(Path(folder))))
        if index.lacking or index.lacking_examples:
            raise SystemExit("a restart lacks vectors")
        changed = [replace(documents[0], examples=("something that nobody asked so far",)), *documents[1:]]
        encoded = known.encoded
        _, change_s = timed(lambda: all_examples(changed, known, EmbeddingCache(Path(folder))))
        measured = {"tools": size, "words_s": words_s, "vectors_s": vectors_s, "texts_encoded": encoded}
        return measured | {"one_change_s": change_s, "one_change_texts": known.encoded - encoded}


if __name__ == "__main__":
    main()
