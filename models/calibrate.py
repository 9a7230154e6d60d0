"""Fit the calibration of a model on labelled intents for tools it was not trained on, and store it beside the model.

    python models/calibrate.py [DIRECTORY] [--check]

Reads train/ under $PML_DATA, never dev/. Prints LEXICAL_CURVE for pml_gateway/index/calibration.py as well. `--check`
fits nothing: it prints what the stored curves keep where no, half or all tools have examples.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from labelled import WRITTEN_INTENTS, data_directory, is_held_out, listed_tools, read_intents, read_tools, right_tools

from pml_gateway.index.calibration import (
    CALIBRATION_FILE,
    LEXICAL_CURVE,
    SHIPPED_MODEL,
    Calibration,
    Curve,
    fit_knots,
    probe_cosines,
)
from pml_gateway.index.embedder import Embedder, Embeddings
from pml_gateway.index.evaluation import THRESHOLDS, LabelledQuery
from pml_gateway.index.models import OnnxEmbedder
from pml_gateway.index.search import ToolIndex
from pml_gateway.index.text import MAX_EXAMPLES, ToolDocument
from pml_gateway.types import Ranking

INTENTS_PER_SOURCE = 400
CATALOG_SIZES = (50, 200, 1000)
INTENTS_PER_TOOL = 5
"""A catalog of n tools serves n / 5 intents, so that most of its tools are wrong for each."""

COVERAGE_MARGIN = 0.01
"""Fitted above what is promised: the labelled intents of a source are more alike than unseen ones are to them."""

FOUND_WITHIN = 5
LOST_TO_NOTHING = 0.005
"""Of the intents with a right tool among the first FOUND_WITHIN, this share may be told that nothing fits. 0.01 would
empty 5 instead of 4 % of the answers that should be empty, and lose more indirect questions."""

WRITTEN = "written"
"""The source of our own intents."""

SHARE = 0.6
FLOOR = 0.5
"""Of the curves for models. A larger share makes lists shorter for single tasks and loses second tools of long ones;
with this floor a query that no tool fits stays below 0.6. Both were chosen on the development sets."""

Floats = npt.NDArray[np.float32]


_UNFITTED = Curve(((0.0, 0.0), (1.0, 1.0)), share=0.0, floor=0.0)


@dataclass(frozen=True, slots=True)
class Catalog:
    """Some intents of one source among some tools."""

    source: str
    documents: list[ToolDocument]
    intents: list[LabelledQuery]


class RememberingEmbedder:
    """An embedder without a calibration yet that encodes each text once: tools occur in many catalogs."""

    calibration = Calibration(_UNFITTED, _UNFITTED, related=1.0, unrelated=0.0)

    def __init__(self, embedder: Embedder) -> None:
        self.model_id = embedder.model_id
        self.dimension = embedder.dimension
        self._embedder = embedder
        self._known: dict[str, npt.NDArray[np.float32]] = {}

    def encode(self, texts: Sequence[str]) -> Embeddings:
        """Embed texts, each new one alone."""
        for text in texts:
            if text not in self._known:
                self._known[text] = self._embedder.encode([text])[0]
        return np.stack([self._known[text] for text in texts])


class Evidence:
    """Collects the evidence of right tools by source, so that every source weighs the same."""

    def __init__(self, share: float, floor: float) -> None:
        # the knots are to be found; only share and floor of this curve are used
        self._curve = Curve(((0.0, 0.0), (1.0, 1.0)), share, floor)
        self._by_source: defaultdict[str, list[float]] = defaultdict(list)
        self._found: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, source: str, intent: LabelledQuery, keys: list[str], raw: Floats) -> None:
        """Add one intent with the keys and strengths of all tools found; the others could not be listed anyway."""
        self._by_source[source] += right_tools(intent, keys, self._curve.evidence(raw))
        first = [keys[at] for at in np.argsort(-raw)[:FOUND_WITHIN]]
        if any(not group.isdisjoint(first) for group in intent.groups):
            self._found[source].append(float(raw.max()))

    def curve(self) -> Curve:
        """The fitted curve."""
        knots = tuple(
            (round(evidence, 4), score) for evidence, score in fit_knots(*_weighted(self._by_source), COVERAGE_MARGIN)
        )
        best, weights = _weighted(self._found)
        order = np.argsort(best)
        lost = np.cumsum(weights[order]) / weights.sum()
        nothing = float(best[order][np.searchsorted(lost, LOST_TO_NOTHING)])
        return Curve(knots, self._curve.share, self._curve.floor, round(max(nothing, 0.0), 4))


def _weighted(by_source: Mapping[str, list[float]]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """All values (n,) with weights (n,) that make every source count the same."""
    return (
        np.concatenate([np.asarray(values) for values in by_source.values()]),
        np.concatenate([np.full(len(values), 1 / len(values)) for values in by_source.values()]),
    )


def calibrate(directory: Path) -> None:
    """Fit on labelled intents with the model in `directory` and write its calibration file."""
    embedder = RememberingEmbedder(OnnxEmbedder(directory))
    evidence = {
        Ranking.FUSED: Evidence(SHARE, FLOOR),
        Ranking.DENSE: Evidence(SHARE, FLOOR),
        Ranking.LEXICAL: Evidence(LEXICAL_CURVE.share, LEXICAL_CURVE.floor),
    }
    for catalog in catalogs():
        index = ToolIndex.build(catalog.documents, embedder)
        for intent in catalog.intents:
            for ranking, collected in evidence.items():
                positions, raw = index.strengths(intent.text, len(catalog.documents), None, ranking)
                collected.add(catalog.source, intent, [catalog.documents[at].key for at in positions], raw)
    related, unrelated = probe_cosines(embedder)
    content = {
        "fused": _content(evidence[Ranking.FUSED].curve()),
        "dense": _content(evidence[Ranking.DENSE].curve()),
        "probes": {"related": round(related, 4), "unrelated": round(unrelated, 4)},
    }
    (directory / CALIBRATION_FILE).write_text(json.dumps(content) + "\n", encoding="utf-8")
    print(json.dumps(content))
    # its words settle whether anything fits: without one in common there is no candidate
    print("LEXICAL_CURVE", evidence[Ranking.LEXICAL].curve())


def check(directory: Path) -> None:
    """Print the coverage of our own intents and the lengths of lists where the other intents of tools are examples."""
    embedder = RememberingEmbedder(OnnxEmbedder(directory))
    embedder.calibration = Calibration.read(directory)
    tools, position_of = listed_tools(data_directory() / "train")
    asked: defaultdict[str, list[str]] = defaultdict(list)
    for intent in read_intents(WRITTEN_INTENTS):
        if len(intent.groups) == 1:
            for position in {position_of[key] for key in intent.groups[0]}:
                asked[tools[position].key].append(intent.text)
    scores: defaultdict[float, list[float]] = defaultdict(list)
    lengths: defaultdict[float, list[list[int]]] = defaultdict(list)
    for catalog in catalogs():
        if catalog.source != WRITTEN:
            continue
        here = {intent.text for intent in catalog.intents}
        for share in (0.0, 0.5, 1.0):
            random = np.random.default_rng(0)
            documents = [
                replace(each, examples=tuple(text for text in asked[each.key] if text not in here)[:MAX_EXAMPLES])
                if random.random() < share
                else each
                for each in catalog.documents
            ]
            index = ToolIndex.build(documents, embedder)
            for intent in catalog.intents:
                positions, raw = index.strengths(intent.text, len(documents), None, Ranking.FUSED)
                reached = embedder.calibration.fused.scores(raw)
                scores[share] += right_tools(intent, [documents[at].key for at in positions], reached)
                lengths[share].append([int(np.count_nonzero(reached >= threshold)) for threshold in THRESHOLDS])
    for share, found in scores.items():
        kept = [round(float(np.mean(np.asarray(found) >= threshold)), 3) for threshold in THRESHOLDS]
        print(f"examples of {share:.0%}: coverage {kept}, median list {np.median(lengths[share], axis=0).tolist()}")


def catalogs() -> Iterator[Catalog]:
    """Catalogs of several sizes for the intents of each source: half of the tools from the same source."""
    train = data_directory() / "train"
    listed, position_of = listed_tools(train)
    labelled = read_tools(train / "tools.jsonl")
    tools = [*labelled, *listed]
    sources = np.asarray([*(_source(tool.key) for tool in labelled), *(WRITTEN for _ in listed)])
    at = {tool.key: position for position, tool in enumerate(labelled)}
    at |= {key: len(labelled) + position for key, position in position_of.items()}
    by_source: defaultdict[str, list[LabelledQuery]] = defaultdict(list)
    for intent in (*read_intents(train / "pairs.train.jsonl"), *read_intents(WRITTEN_INTENTS)):
        if any(is_held_out(key) for group in intent.groups for key in group):
            by_source[str(sources[at[min(intent.groups[0])]])].append(intent)
    random = np.random.default_rng(0)
    for source, intents in by_source.items():
        chosen = [intents[i] for i in random.permutation(len(intents))[:INTENTS_PER_SOURCE]]
        siblings = np.flatnonzero(sources == source)
        for size in CATALOG_SIZES:
            parts = -(-len(chosen) * INTENTS_PER_TOOL // size)
            for part in np.array_split(random.permutation(len(chosen)), parts):
                needed = [at[key] for i in part for group in chosen[i].groups for key in sorted(group)]
                others = (*random.permutation(siblings)[: size // 2], *random.permutation(len(tools))[:size])
                members = list(dict.fromkeys((*needed, *map(int, others))))[: max(size, len(set(needed)))]
                yield Catalog(source, [tools[i] for i in members], [_known(chosen[i], tools, at) for i in part])


def _known(intent: LabelledQuery, tools: Sequence[ToolDocument], at: Mapping[str, int]) -> LabelledQuery:
    """The intent with the keys under which its tools stand in the catalog."""
    return LabelledQuery(intent.text, tuple(frozenset(tools[at[key]].key for key in group) for group in intent.groups))


def _source(key: str) -> str:
    return key.partition("/")[0]


def _content(curve: Curve) -> dict[str, object]:
    return {"knots": curve.knots, "share": curve.share, "floor": curve.floor, "nothing": curve.nothing}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("directory", type=Path, nargs="?", default=Path(__file__).resolve().parent / SHIPPED_MODEL)
    parser.add_argument("--check", action="store_true", help="print what the stored curves keep with examples")
    options = parser.parse_args()
    (check if options.check else calibrate)(options.directory)
