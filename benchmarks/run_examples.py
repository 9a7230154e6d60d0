"""What search gains by knowing what tools are asked, where all tools are known so, half of them, and few among many.

    python -m benchmarks.run_examples --examples DIRECTORY [--cache DIR]

DIRECTORY holds `SET.jsonl`, rows `{"id", "examples": [texts]}`, for labelled sets under $PML_DATA; those of our own
sets lie in tests/data. They must have been written from the tools alone: who has seen the queries measures memory.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.labelled_sets import (
    DISTRACTORS,
    REPOSITORY,
    LabelledSet,
    dev_directory,
    multilingual_sets,
    near_duplicates,
    read_set,
    read_tools,
    set_names,
)
from benchmarks.markdown_block import write_block
from benchmarks.own_search import remembering
from benchmarks.rankers import encoded
from benchmarks.results import save
from pml_gateway.index.cache import EmbeddingCache
from pml_gateway.index.embedder import Embedder
from pml_gateway.index.evaluation import QueryOutcome, drawn, figures, read_rows, tool_examples
from pml_gateway.index.models import load_embedder
from pml_gateway.index.search import ToolIndex

README = Path(__file__).resolve().parent / "README.md"
DRAWS = 5
"""Halves of the tools, each drawn with another seed."""

LISTED = 1_000
FIGURES = ("recall@1", "recall@5", "ndcg@10")
LISTS = ("coverage@0.5", "coverage@0.6", "coverage@0.7", "list_median@0.5", "list_median@0.6", "list_median@0.7")
CACHE_ENTRIES = 1_000_000
MOST_QUERIES = 700
"""Of one set, drawn: what more would tell is small beside the differences between sets."""

Examples = Mapping[str, tuple[str, ...]]
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Measured:
    """One set, and what its tools are asked."""

    labelled: LabelledSet
    examples: Examples
    embedder: Embedder
    cache: EmbeddingCache

    def outcomes(self, examples: Examples, labelled: LabelledSet | None = None) -> list[QueryOutcome]:
        """What each query finds where these examples are known, in another catalog if one is given."""
        labelled = labelled or self.labelled
        documents = [replace(each, examples=examples.get(each.key, ())) for each in labelled.documents]
        encoded(self.embedder, documents, self.cache)
        index = ToolIndex.build(documents, self.embedder, self.cache)
        found = (index.search(query.text, limit=LISTED).hits for query in labelled.queries)
        return [
            QueryOutcome(query, tuple((hit.key, hit.score) for hit in hits), 0.0, 0)
            for query, hits in zip(labelled.queries, found, strict=True)
        ]

    def row(self, distractors: Mapping[str, Any]) -> dict[str, Any]:
        """All figures of the set."""
        none, whole = self.outcomes({}), self.outcomes(self.examples)
        halves = [drawn(self.examples, 0.5, seed) for seed in range(DRAWS)]
        half = [self.outcomes(examples) for examples in halves]
        row: dict[str, Any] = {
            "tools": len(self.labelled.rows),
            "with_examples": len(self.examples),
            "queries": len(none),
            "none": told(none),
            "half": mean(map(told, half)),
            "all": told(whole),
        }
        for name, known in (("known", True), ("unknown", False)):
            pairs = [
                (told([none[at] for at in chosen]), told([outcomes[at] for at in chosen]))
                for examples, outcomes in zip(halves, half, strict=True)
                if (chosen := [at for at, each in enumerate(none) if _is_known(each, examples) is known])
            ]
            if pairs:
                before, after = zip(*pairs, strict=True)
                row[f"half, {name}"] = {"before": mean(before), "after": mean(after)}
        if distractors:
            more = self.labelled.distracted(distractors)
            row["distracted"] = {
                "tools": len(more.rows),
                "none": told(self.outcomes({}, more)),
                "all": told(self.outcomes(self.examples, more)),
            }
        return row


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and save what was measured whole."""
    options = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        cache = EmbeddingCache(options.cache or Path(scratch), max_entries=CACHE_ENTRIES)
        embedder = load_embedder("builtin")
        path = dev_directory() / DISTRACTORS
        distractors = read_tools(path) if path.exists() and not options.no_distractors else {}
        rows: dict[str, Any] = {}
        for labelled, examples in labelled_sets(options.examples):
            if options.sets and labelled.name not in options.sets:
                continue
            print(f"{labelled.name}: {len(examples)} of {len(labelled.rows)} tools", file=sys.stderr, flush=True)
            rows[labelled.name] = Measured(labelled, examples, remembering(embedder), cache).row(distractors)
    report = {"model": embedder.model_id, "draws": DRAWS, "sets": rows, "means": means(rows)}
    print(json.dumps(report, indent=2) if options.json else markdown(report))
    if options.sets or options.no_distractors or options.examples is None:
        print("a partial run is not saved", file=sys.stderr)
    elif not options.no_save:
        print(save("examples", {"sets": len(rows)}, _rounded(report), name="examples.json"), README, file=sys.stderr)
        write_block(README, "examples", markdown(report))
    return 0


def labelled_sets(directory: Path | None) -> Iterator[tuple[LabelledSet, Examples]]:
    """The sets for whose tools there are examples: our own, and those of a directory of `SET.jsonl`."""
    data = REPOSITORY / "tests" / "data"
    languages = tuple(multilingual_sets())
    spoken = tuple(query for each in languages for query in each.queries)
    own = (
        near_duplicates(),
        replace(read_set(data / "servers"), name="servers"),
        LabelledSet("languages", languages[0].rows, spoken),
    )
    if directory is not None:
        for name in set_names(dev_directory()):
            file = directory / f"{name}.jsonl"
            if file.exists():
                labelled = read_set(dev_directory() / name, MOST_QUERIES)
                examples = _examples(file, labelled)
                if 2 * len(examples) > len(labelled.rows):
                    yield labelled, examples
    for labelled in own:
        yield labelled, _examples(data / labelled.name / "examples.jsonl", labelled)


def told(outcomes: Sequence[QueryOutcome]) -> Figures:
    """The figures of this benchmark."""
    measured = figures(outcomes, min_score=0)
    return {name: measured[name] for name in (*FIGURES, *LISTS)}


def mean(many: Any) -> Figures:
    """Each figure's mean."""
    listed: list[Figures] = list(many)
    return {name: fmean(each[name] for each in listed) for name in listed[0]}


def means(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Over the sets, each counting once."""
    parts: defaultdict[str, list[Figures]] = defaultdict(list)
    for row in rows.values():
        for name in ("none", "half", "all"):
            parts[name].append(row[name])
            if name in row.get("distracted", ()):
                parts[f"distracted, {name}"].append(row["distracted"][name])
        for name in ("half, known", "half, unknown"):
            for when, each in row.get(name, {}).items():
                parts[f"{name}, {when}"].append(each)
    return {name: mean(each) for name, each in parts.items()}


def markdown(report: Mapping[str, Any]) -> str:
    """Tables of a report."""
    rows, middle = report["sets"], report["means"]
    lines = [
        f"Model `{report['model']}`; half: the mean of {report['draws']} draws. nDCG@10 and recall@1 / recall@5:",
        "",
        "| set | tools | none | half | all | none | half | all |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, row in (*rows.items(), ("mean", middle)):
        ndcg = [f"{row[part]['ndcg@10']:.3f}" for part in ("none", "half", "all")]
        recalls = [f"{row[part]['recall@1']:.3f} / {row[part]['recall@5']:.3f}" for part in ("none", "half", "all")]
        tools = f"{row['with_examples']:,} of {row['tools']:,}" if "tools" in row else ""
        lines.append(f"| {' | '.join((name, tools, *ndcg, *recalls))} |")
    lines += [
        "",
        "Where half of the tools have examples, recall@1 / recall@5 before and after, of queries all of whose tools",
        "have some and of those none of whose tools have any; and nDCG@10 among distractors, which have none:",
        "",
        "| set | with, before | after | without, before | after | distracted, none | all |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, row in rows.items():
        cells = [_recalls(row.get(f"half, {part}", {}).get(at)) for part in ("known", "unknown") for at in WHEN]
        far = row.get("distracted")
        cells += [f"{far[part]['ndcg@10']:.3f}" if far else "" for part in ("none", "all")]
        lines.append(f"| {' | '.join((name, *cells))} |")
    cells = [_recalls(middle.get(f"half, {part}, {at}")) for part in ("known", "unknown") for at in WHEN]
    far = {part: middle.get(f"distracted, {part}") for part in ("none", "all")}
    cells += [f"{each['ndcg@10']:.3f}" if each else "" for each in far.values()]
    lines.append(f"| {' | '.join(('mean', *cells))} |")
    lines += [
        "",
        "Needed tools that score at least .5 / .6 / .7, and the median length of the lists cut there:",
        "",
        "| set | none | half | all | none | half | all |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, row in (*rows.items(), ("mean", middle)):
        kept = [" / ".join(f"{row[part][each]:.2f}" for each in LISTS[:3]) for part in ("none", "half", "all")]
        long = [" / ".join(f"{row[part][each]:.0f}" for each in LISTS[3:]) for part in ("none", "half", "all")]
        lines.append(f"| {' | '.join((name, *kept, *long))} |")
    return "\n".join(lines)


WHEN = ("before", "after")


def _recalls(measured: Figures | None) -> str:
    return f"{measured['recall@1']:.3f} / {measured['recall@5']:.3f}" if measured else ""


def _is_known(outcome: QueryOutcome, examples: Examples) -> bool | None:
    """Whether the tools that a query needs have examples; None where some have."""
    having = {not group.isdisjoint(examples) for group in outcome.query.groups}
    return having.pop() if len(having) == 1 else None


def _examples(file: Path, labelled: LabelledSet) -> Examples:
    with file.open(encoding="utf-8") as lines:
        return tool_examples(read_rows(lines, str(file)), str(file), labelled.rows)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    return {key: _rounded(item) for key, item in value.items()} if isinstance(value, dict) else value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="What search gains by knowing what tools are asked.")
    parser.add_argument("--examples", type=Path, metavar="DIR", help="SET.jsonl for sets under $PML_DATA")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="keep the vectors of tools here between runs")
    parser.add_argument("--sets", nargs="+", metavar="NAME", help="only these sets")
    parser.add_argument("--no-distractors", action="store_true")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--no-save", action="store_true", help="print only")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
