"""The shipped search over labelled sets: figures of `pml eval`, lists of a preset, empty answers, ablations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.ablations import Ablation, replaced
from benchmarks.labelled_sets import LabelledSet
from benchmarks.list_metrics import CutLoss, Lists, cut_loss, lists
from benchmarks.rankers import ANSWER_HITS, Ranker, encoded, peer_figures
from pml_gateway.config.presets import load_preset
from pml_gateway.config.settings import SearchSettings, Settings
from pml_gateway.index.cache import EmbeddingCache
from pml_gateway.index.calibration import CalibratedEmbedder, Calibration
from pml_gateway.index.embedder import Embedder, Embeddings
from pml_gateway.index.evaluation import figures
from pml_gateway.index.search import ToolIndex
from pml_gateway.index.text import ToolDocument
from pml_gateway.reports.search_quality import measure, of_index
from pml_gateway.types import JsonObject, Ranking

LIST_PRESET = "hybrid_balanced"


class RememberingEmbedder:
    """The vectors of queries that were asked before; for runs that measure no time."""

    def __init__(self, embedder: Embedder, calibration: Calibration) -> None:
        self.model_id, self.dimension, self.calibration = embedder.model_id, embedder.dimension, calibration
        self._embedder = embedder
        self._known: dict[str, npt.NDArray[np.float32]] = {}

    def encode(self, texts: Sequence[str]) -> Embeddings:
        """Embed tools (n,) as (n, dimension)."""
        return self._embedder.encode(texts)

    def encode_queries(self, texts: Sequence[str]) -> Embeddings:
        """Embed queries (n,) as (n, dimension), each new one alone."""
        for text in texts:
            if text not in self._known:
                self._known[text] = self._embedder.encode([text])[0]
        return np.stack([self._known[text] for text in texts])


@dataclass(frozen=True, slots=True)
class OwnSearch:
    """The shipped search over one set."""

    labelled: LabelledSet
    embedder: Embedder
    cache: EmbeddingCache

    def figures(self, index: ToolIndex, ranking: Ranking) -> tuple[dict[str, float], Lists, CutLoss]:
        """What `pml eval` prints, then the lists of the preset, and what the default `min_score` costs."""
        subject = of_index(index, dict(self.labelled.rows), self.embedder.model_id, ranking)
        outcomes, _ = measure(subject, self.labelled.queries)
        hybrid = Settings.model_validate(load_preset(LIST_PRESET).values).gateway.hybrid
        measured = figures(outcomes, min_score=subject.min_score)
        threshold, cap = hybrid.semantic_threshold, hybrid.max_underlying_tools
        judged = (index.select(each.text, threshold=threshold, ranking=ranking) for each in self.labelled.queries)
        listed = [[each.key for each in found if each.cut is None][:cap] for found in judged]
        return (
            measured,
            lists(self.labelled.queries, listed, threshold, cap),
            cut_loss(outcomes, subject.min_score, ANSWER_HITS),
        )

    def index(self) -> ToolIndex:
        """The index that all rankings search."""
        return self._built(self.labelled.documents)

    def empty_without_right_tools(self, index: ToolIndex) -> float:
        """The share of queries with an empty answer once their right tools and all of the same name are gone."""
        named: defaultdict[str, list[int]] = defaultdict(list)
        for at, document in enumerate(index.documents):
            named[document.name].append(at)
        name_of = {document.key: document.name for document in index.documents}
        minimum = SearchSettings().min_score
        empty = 0
        for query in self.labelled.queries:
            allowed = np.ones(len(index.documents), dtype=np.bool_)
            for name in {name_of[key] for group in query.groups for key in group if key in name_of}:
                allowed[named[name]] = False
            hits = index.search(query.text, limit=ANSWER_HITS, allowed=allowed).hits
            empty += not any(hit.score >= minimum for hit in hits)
        return empty / len(self.labelled.queries)

    def ablated(self, index: ToolIndex, ablation: Ablation) -> dict[str, float]:
        """The ranking figures of the search without one part."""
        with replaced(ablation.replaced):
            if ablation.rebuilds:
                index = self._built(ablation.documents(self.labelled.documents))
            return ranking_figures(self.labelled, index)

    def _built(self, documents: Sequence[ToolDocument]) -> ToolIndex:
        encoded(self.embedder, documents, self.cache)
        return ToolIndex.build(documents, self.embedder, self.cache)


def ranking_figures(labelled: LabelledSet, index: ToolIndex, ranking: Ranking = Ranking.FUSED) -> dict[str, float]:
    """The figures that need no calibrated score, and no time: vectors may be remembered."""

    def rank(query: str, depth: int) -> list[str]:
        return [hit.key for hit in index.search(query, limit=depth, ranking=ranking).hits]

    measured = peer_figures(Ranker(rank), labelled)
    return {name: value for name, value in measured.items() if not name.endswith("_ms")}


def remembering(embedder: Embedder) -> Embedder:
    """The embedder with a memory for queries, as far as it is calibrated."""
    return RememberingEmbedder(embedder, embedder.calibration) if isinstance(embedder, CalibratedEmbedder) else embedder


def measured_own(
    own: OwnSearch, ablations: Sequence[Ablation], progress: Callable[[str], None]
) -> dict[str, JsonObject]:
    """Everything about the shipped search over one set, by part."""
    index = own.index()
    report: dict[str, JsonObject] = {"systems": {}, "ablations": {}}
    for ranking in Ranking:
        progress(f"pml {ranking.value}")
        measured, listed, loss = own.figures(index, ranking)
        report["systems"][f"pml_{ranking.value}"] = measured
        if ranking is Ranking.FUSED:
            report["lists"], report["empty"] = listed.report(), loss.report()
    again = OwnSearch(own.labelled, remembering(own.embedder), own.cache)
    index = again.index()
    progress("empty answers")
    report["empty"]["empty_without_right_tools"] = again.empty_without_right_tools(index)
    for ablation in ablations:
        progress(ablation.name)
        report["ablations"][ablation.name] = again.ablated(index, ablation)
    return report
