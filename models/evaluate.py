"""Measure a model on the development sets under $PML_DATA: retrieval per ranking, coverage and length of lists.

    python models/evaluate.py [--model MODEL] [--intents N] [--distractors N]

Prints one line per set; `recall@1 recall@5 nDCG@10` per ranking, then at 0.5 / 0.6 / 0.7 the share of right tools kept
and the median length of the list.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
from labelled import data_directory, read_intents, read_tools, retrieval_figures

from pml_gateway.index import Embedder, SearchResult, ToolIndex, load_embedder
from pml_gateway.index.labelled import LabelledQuery
from pml_gateway.types import Ranking

THRESHOLDS = (0.5, 0.6, 0.7)


def evaluate(directory: Path, embedder: Embedder, intents_wanted: int, distractors: int) -> dict[str, list[float]]:
    """Figures of one set: per ranking retrieval, and for fused and lexical coverage and list lengths."""
    tools = read_tools(directory / "tools.jsonl")
    random = np.random.default_rng(0)
    if distractors:
        extra = read_tools(directory.parent / "distractors.jsonl")
        tools += [extra[i] for i in random.permutation(len(extra))[:distractors]]
    intents = read_intents(directory / "queries.jsonl")
    intents = [intents[i] for i in sorted(random.permutation(len(intents))[:intents_wanted])]
    index = ToolIndex.build(tools, embedder)
    figures: dict[str, list[float]] = {}
    for ranking in Ranking:
        results = [index.search(intent.text, limit=len(tools), ranking=ranking) for intent in intents]
        retrieval = [
            retrieval_figures([hit.key for hit in result.hits[:10]], intent)
            for result, intent in zip(results, intents, strict=True)
        ]
        figures[ranking.value] = [float(value) for value in np.mean(retrieval, axis=0)]
        figures[f"{ranking.value} lists"] = list_figures(results, intents)
    return figures


def list_figures(results: list[SearchResult], intents: list[LabelledQuery]) -> list[float]:
    """Coverage at each threshold, then the median number of hits at each."""
    kept: list[list[bool]] = []
    lengths: list[list[int]] = []
    for result, intent in zip(results, intents, strict=True):
        passing = [{hit.key for hit in result.hits if hit.score >= threshold} for threshold in THRESHOLDS]
        kept += [[bool(group & keys) for keys in passing] for group in intent.groups]
        lengths.append([len(keys) for keys in passing])
    coverage: npt.NDArray[np.float64] = np.mean(kept, axis=0)
    return [*map(float, coverage), *map(float, np.median(lengths, axis=0))]


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="builtin")
    parser.add_argument("--intents", type=int, default=1000, help="at most this many of each set")
    parser.add_argument("--distractors", type=int, default=0, help="unrelated tools added to each catalog")
    arguments = parser.parse_args()
    embedder = load_embedder(arguments.model)
    for directory in sorted(path for path in (data_directory() / "dev").iterdir() if path.is_dir()):
        figures = evaluate(directory, embedder, arguments.intents, arguments.distractors)
        for kind, values in figures.items():
            print(
                f"{directory.name:16} {kind:14}",
                *(f"{value:.3f}".rstrip("0").rstrip(".") for value in values),
                flush=True,
            )


if __name__ == "__main__":
    main()
