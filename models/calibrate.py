"""Fit the calibration of a model on labelled training intents and store it beside the model.

    python models/calibrate.py [DIRECTORY]

Reads train/ under $PML_DATA, never dev/. Prints LEXICAL_CURVE for pml_gateway/index/calibration.py as well.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from labelled import Intent, data_directory, read_intents, read_tools, right_tools

from pml_gateway.index import ToolDocument
from pml_gateway.index.calibration import CALIBRATION_FILE, LEXICAL_CURVE, Curve, fit_knots, probe_cosines
from pml_gateway.index.embedder import Embedder
from pml_gateway.index.fusion import fuse
from pml_gateway.index.lexical import LexicalIndex
from pml_gateway.index.onnx import OnnxEmbedder
from pml_gateway.index.shipped import SHIPPED_MODEL
from pml_gateway.index.text import dense_text, lexical_tokens, query_tokens

INTENTS_PER_SOURCE = 400
CATALOG_SIZES = (50, 200, 1000)
INTENTS_PER_TOOL = 5
"""A catalog of n tools serves n / 5 intents, so that most of its tools are wrong for each."""

SHARE = 0.6
FLOOR = 0.5
"""Of the curves for models. A larger share makes lists shorter for single tasks and loses second tools of long ones;
with this floor a query that no tool fits stays below 0.6. Both were chosen on the development sets."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Catalog:
    """Some intents of one source among some tools, with the vectors of both."""

    source: str
    documents: list[ToolDocument]
    intents: list[Intent]
    tool_vectors: Floats
    intent_vectors: Floats


class Evidence:
    """Collects the evidence of right tools by source, so that every source weighs the same."""

    def __init__(self, share: float, floor: float) -> None:
        # the knots are to be found; only share and floor of this curve are used
        self._curve = Curve(((0.0, 0.0), (1.0, 1.0)), share, floor)
        self._by_source: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, source: str, intent: Intent, keys: list[str], raw: Floats, found: npt.NDArray[np.bool_]) -> None:
        """Add one intent; tools that the half could not find are left out."""
        evidence = np.where(found, self._curve.evidence(raw), -np.inf).astype(np.float32)
        self._by_source[source] += [value for value in right_tools(intent, keys, evidence) if np.isfinite(value)]

    def curve(self) -> Curve:
        """The fitted curve."""
        values = np.concatenate([np.asarray(values) for values in self._by_source.values()])
        weights = np.concatenate([np.full(len(values), 1 / len(values)) for values in self._by_source.values()])
        knots = tuple((round(evidence, 4), score) for evidence, score in fit_knots(values, weights))
        return Curve(knots, self._curve.share, self._curve.floor)


def calibrate(directory: Path) -> None:
    """Fit on the training pairs with the model in `directory` and write its calibration file."""
    embedder = OnnxEmbedder(directory)
    fused, dense = Evidence(SHARE, FLOOR), Evidence(SHARE, FLOOR)
    lexical = Evidence(LEXICAL_CURVE.share, LEXICAL_CURVE.floor)
    for catalog in catalogs(embedder):
        index = LexicalIndex([lexical_tokens(document) for document in catalog.documents])
        keys = [document.key for document in catalog.documents]
        for intent, vector in zip(catalog.intents, catalog.intent_vectors, strict=True):
            cosines = catalog.tool_vectors @ vector
            words = index.scores(query_tokens(intent.text))
            every = np.ones(len(keys), dtype=np.bool_)
            fused.add(catalog.source, intent, keys, fuse(cosines, words), every)
            dense.add(catalog.source, intent, keys, cosines, every)
            lexical.add(catalog.source, intent, keys, np.log1p(words), words > 0)
    related, unrelated = probe_cosines(embedder)
    content = {
        "fused": _content(fused.curve()),
        "dense": _content(dense.curve()),
        "probes": {"related": round(related, 4), "unrelated": round(unrelated, 4)},
    }
    (directory / CALIBRATION_FILE).write_text(json.dumps(content) + "\n", encoding="utf-8")
    print(json.dumps(content))
    print("LEXICAL_CURVE", lexical.curve())


def catalogs(embedder: Embedder) -> Iterator[Catalog]:
    """Catalogs of several sizes for the intents of each source: half of the tools from the same source."""
    train = data_directory() / "train"
    tools = read_tools(train / "tools.jsonl")
    at = {tool.key: position for position, tool in enumerate(tools)}
    vectors = embedder.encode([dense_text(tool) for tool in tools])
    by_source: defaultdict[str, list[Intent]] = defaultdict(list)
    for intent in read_intents(train / "pairs.train.jsonl"):
        by_source[_source(next(iter(intent.groups[0])))].append(intent)
    random = np.random.default_rng(0)
    for source, intents in by_source.items():
        chosen = [intents[i] for i in random.permutation(len(intents))[:INTENTS_PER_SOURCE]]
        queries = embedder.encode([intent.text for intent in chosen])
        siblings = np.flatnonzero([_source(tool.key) == source for tool in tools])
        for size in CATALOG_SIZES:
            parts = -(-len(chosen) * INTENTS_PER_TOOL // size)
            for part in np.array_split(random.permutation(len(chosen)), parts):
                needed = [at[key] for i in part for group in chosen[i].groups for key in sorted(group) if key in at]
                others = (*random.permutation(siblings)[: size // 2], *random.permutation(len(tools))[:size])
                members = list(dict.fromkeys((*needed, *map(int, others))))[: max(size, len(set(needed)))]
                intents_here = [chosen[i] for i in part]
                yield Catalog(source, [tools[i] for i in members], intents_here, vectors[members], queries[part])


def _source(key: str) -> str:
    return key.partition("/")[0]


def _content(curve: Curve) -> dict[str, object]:
    return {"knots": curve.knots, "share": curve.share, "floor": curve.floor}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("directory", type=Path, nargs="?", default=Path(__file__).resolve().parent / SHIPPED_MODEL)
    calibrate(parser.parse_args().directory)
