"""How well search finds tools, beside what peers find, on every labelled development set.

    python -m benchmarks.run_quality [--cache DIR] [--sets NAME ...] [--no-distractors] [--limit N]
        [--peers-from benchmarks/results/quality.json] [--json]

Takes the sets from $PML_DATA (default `../shared/data` beside the repository), and nothing from a network. A whole run
writes `benchmarks/results/quality.json` and the tables in `benchmarks/README.md`; a partial one only prints.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.ablations import ABLATIONS, Ablation
from benchmarks.baselines import fastmcp_bm25, fastmcp_regex, minilm_dense, rank_fusion
from benchmarks.labelled_sets import (
    DISTRACTORS,
    LabelledSet,
    dev_directory,
    multilingual_sets,
    near_duplicates,
    read_set,
    read_tools,
    real_servers,
    set_names,
)
from benchmarks.own_search import LIST_PRESET, OwnSearch, measured_own, ranking_figures
from benchmarks.quality_tables import markdown, replace_block
from benchmarks.quantisation import compare, float_reference
from benchmarks.rankers import peer_figures
from benchmarks.results import save
from pml_gateway.index.cache import EmbeddingCache
from pml_gateway.index.embedder import Embedder
from pml_gateway.index.models import load_embedder
from pml_gateway.index.search import ToolIndex
from pml_gateway.types import JsonObject, Ranking

README = Path(__file__).resolve().parent / "README.md"
CACHE_ENTRIES = 1_000_000
"""Vectors of several models over all sets; the product's own limit would drop some of them."""


@dataclass(frozen=True, slots=True)
class Models:
    """What encodes: the shipped model, the published one where it is installed, and their vectors on disk."""

    shipped: Embedder
    minilm: Embedder | None
    cache: EmbeddingCache


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and save what was measured whole; 0 also where there is nothing to measure with."""
    options = _parser().parse_args(arguments)
    directory = dev_directory()
    names = set_names(directory)
    if not names:
        print(
            f"skipped: no labelled sets in {directory}; PML_DATA names the directory that holds dev/", file=sys.stderr
        )
        return 0
    unknown = sorted(set(options.sets or ()) - set(names))
    if unknown:
        print(f"error: no set {', '.join(unknown)} in {directory}; there are {', '.join(names)}", file=sys.stderr)
        return 2
    chosen = [read_set(directory / name, options.limit) for name in options.sets or names]
    with tempfile.TemporaryDirectory() as scratch:
        report = measured(chosen, _models(options.cache or Path(scratch)), directory, options)
    print(json.dumps(report, indent=2) if options.json else markdown(report))
    if options.sets or options.limit or options.no_distractors or options.no_ablations:
        print("a partial run is not saved", file=sys.stderr)
    elif not options.no_save:
        settings = {"lists": LIST_PRESET, "sets": len(chosen), "queries": sum(len(each.queries) for each in chosen)}
        path = save("quality", settings, report, name="quality.json")
        README.write_text(
            replace_block(README.read_text(encoding="utf-8"), "quality", markdown(report)), encoding="utf-8"
        )
        print(path, README, file=sys.stderr)
    return 0


def measured(
    sets: Sequence[LabelledSet], models: Models, directory: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """The whole report; `sets` and `distracted` hold one entry for each set."""
    ablations: tuple[Ablation, ...] = () if options.no_ablations else ABLATIONS
    report: dict[str, Any] = {"model": models.shipped.model_id, "sets": {}, "distracted": {}}
    distractors = {} if options.no_distractors else read_tools(directory / DISTRACTORS)
    saved: JsonObject = json.loads(options.peers_from.read_text(encoding="utf-8")) if options.peers_from else {}
    for labelled in sets:
        every = {"sets": labelled} | ({"distracted": labelled.distracted(distractors)} if distractors else {})
        for part, each in every.items():
            peers = saved.get(part, {}).get(each.name)
            report[part][each.name] = measured_set(each, models, ablations, peers)
    alike = near_duplicates()
    peers = saved.get("near_duplicates", {}).get(alike.name)
    report["near_duplicates"] = {alike.name: measured_set(alike, models, (), peers)}
    peers = saved.get("real_servers", {})
    report["real_servers"] = {
        each.name: measured_set(each, models, (), peers.get(each.name)) for each in real_servers()
    }
    report["multilingual"] = multilingual(models, saved.get("multilingual", {}))
    report["int8"] = int8(sets, models, options.float_model)
    if not report["int8"] and saved.get("model") == report["model"]:
        report["int8"] = saved["int8"]
    return {name: _rounded(part) for name, part in report.items()}


def measured_set(
    labelled: LabelledSet, models: Models, ablations: Sequence[Ablation], saved: JsonObject | None = None
) -> JsonObject:
    """Every peer and the shipped search over one set; peers from a saved report of the same tools and queries."""

    def progress(what: str) -> None:
        print(f"{labelled.name}, {len(labelled.rows):,} tools: {what}", file=sys.stderr, flush=True)

    if saved is not None and (saved["tools"], saved["queries"]) == (len(labelled.rows), len(labelled.queries)):
        systems = {name: each for name, each in saved["systems"].items() if not name.startswith("pml_")}
    else:
        systems = _peers(labelled, models, progress)
    own = measured_own(OwnSearch(labelled, models.shipped, models.cache), ablations, progress)
    return {
        "tools": len(labelled.rows),
        "distractors": labelled.distractors,
        "queries": len(labelled.queries),
        **own,
        "systems": systems | own["systems"],
    }


def _peers(labelled: LabelledSet, models: Models, progress: Callable[[str], None]) -> JsonObject:
    progress("FastMCP")
    bm25 = fastmcp_bm25.build(labelled)
    rankers = {"fastmcp_bm25": bm25, "fastmcp_regex": fastmcp_regex.build(labelled)}
    if models.minilm is not None:
        progress("MiniLM")
        dense = minilm_dense.build(labelled, models.minilm, models.cache)
        rankers |= {"minilm_dense": dense, "rank_fusion": rank_fusion.build(bm25.rank, dense.rank)}
    return {name: peer_figures(ranker, labelled) for name, ranker in rankers.items()}


def multilingual(models: Models, saved: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Recall@5 by language, and of all queries together; without MiniLM its figures are those of a saved report."""
    rows: dict[str, dict[str, float]] = {}
    for labelled in multilingual_sets():
        index = ToolIndex.build(labelled.documents, models.shipped, models.cache)
        row: dict[str, float] = {"n": len(labelled.queries)}
        if models.minilm is not None:
            base = minilm_dense.build(labelled, models.minilm, models.cache)
            row["minilm_dense"] = peer_figures(base, labelled)["recall@5"]
        elif (known := saved.get(labelled.name, {})).get("n") == row["n"] and "minilm_dense" in known:
            row["minilm_dense"] = known["minilm_dense"]
        for ranking in (Ranking.DENSE, Ranking.FUSED):
            row[f"pml_{ranking.value}"] = ranking_figures(labelled, index, ranking)["recall@5"]
        rows[labelled.name] = row
    total = sum(row["n"] for row in rows.values())
    systems = [name for name in next(iter(rows.values())) if name != "n"]
    means = {name: sum(row[name] * row["n"] for row in rows.values()) / total for name in systems}
    return {**rows, "all": {"n": total, **means}}


def int8(sets: Sequence[LabelledSet], models: Models, named: Path | None) -> JsonObject:
    """Cosines of the shipped model beside those of its float32 original; nothing where that is not here."""
    reference = float_reference([path for path in (named, minilm_dense.weights()) if path is not None])
    if reference is None:
        print("no float32 original of the shipped model here (--float-model): int8 is not compared", file=sys.stderr)
        return {}
    return compare(sets, models.shipped, load_embedder(str(reference)), models.cache)


def _models(cache: Path) -> Models:
    weights = minilm_dense.weights()
    if weights is None:
        print(f"the package {minilm_dense.PACKAGE} is not installed: no figures of MiniLM", file=sys.stderr)
    minilm = None if weights is None else load_embedder(str(weights))
    return Models(load_embedder("builtin"), minilm, EmbeddingCache(cache, max_entries=CACHE_ENTRIES))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="How well search finds tools, beside what peers find.")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="keep the vectors of tools here between runs")
    parser.add_argument("--sets", nargs="+", metavar="NAME", help="only these sets")
    parser.add_argument("--limit", type=_count, metavar="N", help="at most N queries of each set")
    parser.add_argument("--no-distractors", action="store_true")
    parser.add_argument("--no-ablations", action="store_true")
    parser.add_argument("--float-model", type=Path, metavar="DIR", help="the float32 original of the shipped model")
    parser.add_argument(
        "--peers-from",
        type=Path,
        metavar="FILE",
        help="take the peers' figures (and, of the same model, those of int8) from a saved run of the same sets",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--no-save", action="store_true", help="print only")
    return parser


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{count} queries measure nothing; at least 1")
    return count


def _rounded(value: Any) -> Any:
    """Six digits are more than any set can tell, and keep the file the same where the figures are."""
    if isinstance(value, float):
        return round(value, 6)
    return {key: _rounded(item) for key, item in value.items()} if isinstance(value, dict) else value


if __name__ == "__main__":
    raise SystemExit(main())
