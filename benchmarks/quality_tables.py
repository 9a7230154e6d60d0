"""Turns the figures of `run_quality` into Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from benchmarks.quality_targets import OWN, Sets, mean_of, targets

TITLES = {
    "fastmcp_bm25": "FastMCP BM25",
    "fastmcp_regex": "FastMCP regex",
    "minilm_dense": "MiniLM dense",
    "rank_fusion": "rank fusion",
    "pml_lexical": "pml lexical",
    "pml_dense": "pml dense",
    "pml_fused": "pml fused",
}
DETAILS = {
    "recall@1": "R@1",
    "recall@3": "R@3",
    "recall@5": "R@5",
    "recall@10": "R@10",
    "mrr": "MRR",
    "hit@10": "hit@10",
    "all_gold@10": "all gold@10",
    "coverage@0.5": "kept .5",
    "coverage@0.6": ".6",
    "coverage@0.7": ".7",
    "list_median@0.5": "list .5",
    "list_median@0.6": ".6",
    "list_median@0.7": ".7",
    "empty_rate": "empty",
    "tokens_5_hits": "tokens",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
}
COUNTS = ("list_median@0.5", "list_median@0.6", "list_median@0.7", "tokens_5_hits")
ABSENT = "—"


def markdown(report: Mapping[str, Any]) -> str:
    """All tables of a report, each under one sentence that says what it shows."""
    plain, distracted = report["sets"], report["distracted"]
    parts = [f"Model `{report['model']}`; {_queries(plain)} queries of {len(plain)} sets.", _target_table(report)]
    parts += ["nDCG@10 on every set:", _systems_table(plain, "ndcg@10")]
    if distracted:
        added = max(row["distractors"] for row in distracted.values())
        parts += [f"nDCG@10 with {added:,} distractors in each catalog:", _systems_table(distracted, "ndcg@10")]
        parts += ["Recall@5 with the distractors:", _systems_table(distracted, "recall@5")]
    parts += ["pml fused, every figure of `pml eval`:", _details_table(plain)]
    if distracted:
        parts += ["The same with the distractors:", _details_table(distracted)]
    parts += [
        "Lists of `hybrid_balanced`, and answers once the right tools (and all of the same name) are gone:",
        _answers_table(plain, distracted),
    ]
    if any(row["ablations"] for row in plain.values()):
        parts += ["pml fused with one part taken out, mean nDCG@10 over the sets:", _ablations_table(plain, distracted)]
    parts += [
        "Recall@1 among tools that differ by little, our own:",
        _systems_table(report["near_duplicates"], "recall@1"),
    ]
    parts += ["Our own requests over the tools of published servers, recall@1:"]
    parts += [_systems_table(report["real_servers"], "recall@1")]
    parts += ["Recall@5:", _systems_table(report["real_servers"], "recall@5")]
    parts += ["Recall@5 of queries in other languages:", _languages_table(report["multilingual"])]
    if report["int8"]:
        parts += [
            "Cosines of the shipped 8-bit model and of its float32 original, nDCG@10:",
            _int8_table(report["int8"]),
        ]
    return "\n\n".join(parts)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; pipes in cells are escaped."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def replace_block(text: str, name: str, content: str) -> str:
    """The text with what stands between `<!-- name:begin -->` and `<!-- name:end -->` replaced.

    Raises:
        ValueError: naming the marker that is not there exactly once, in this order.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    for marker in (begin, end):
        if text.count(marker) != 1:
            raise ValueError(f"{marker} occurs {text.count(marker)} times instead of once")
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{end} stands before {begin}")
    return f"{before}{begin}\n\n{content.strip()}\n\n{end}{after}"


def _target_table(report: Mapping[str, Any]) -> str:
    rows = ((row.what, row.promised, row.measured or ABSENT, row.verdict) for row in targets(report))
    return table(("what", "target", "measured", ""), rows)


def _systems_table(sets: Sets, figure: str) -> str:
    systems = [system for system in TITLES if any(system in row["systems"] for row in sets.values())]
    rows = []
    for name, row in sets.items():
        values = [row["systems"].get(system, {}).get(figure) for system in systems]
        rows.append([name, f"{row['tools']:,}", *_best_marked(values)])
    if len(sets) > 1:
        rows.append(["mean", "", *_best_marked([mean_of(sets, system, figure) for system in systems])])
    return table(("set", "tools", *(TITLES[system] for system in systems)), rows)


def _details_table(sets: Sets) -> str:
    rows = []
    for name, row in sets.items():
        own = row["systems"][OWN]
        rows.append([name, *(_detail(key, own[key]) for key in DETAILS)])
    return table(("set", *DETAILS.values()), rows)


def _detail(figure: str, value: float) -> str:
    if figure in COUNTS:
        return f"{value:.0f}"
    return f"{value:.1f}" if figure.endswith("_ms") else _share(value)


def _answers_table(plain: Sets, distracted: Sets) -> str:
    rows = []
    for name, row in plain.items():
        cells = [name]
        for part in (row, distracted.get(name)):
            cells += _answer_cells(part)
        rows.append(cells)
    head = ("right tool listed", "list", "empty", "R@5 lost")
    return table(("set", *head, *(f"{title}, distractors" for title in head)), rows)


def _answer_cells(row: Mapping[str, Any] | None) -> list[str]:
    if row is None:
        return [ABSENT] * 4
    lists, empty = row["lists"], row["empty"]
    return [
        _share(lists["right_tool_listed"]),
        f"{lists['median_length']:.0f}",
        _share(empty["empty_without_right_tools"]),
        f"{empty['recall_loss']:.3f}",
    ]


def _ablations_table(plain: Sets, distracted: Sets) -> str:
    names = list(next(iter(plain.values()))["ablations"])
    rows = []
    for name in (None, *names):
        cells = ["nothing" if name is None else name]
        for sets in (plain, distracted):
            cells += _ablation_cells(sets, name)
        rows.append(cells)
    return table(("taken out", "nDCG@10", "change", "with distractors", "change"), rows)


def _ablation_cells(sets: Sets, name: str | None) -> list[str]:
    whole = mean_of(sets, OWN, "ndcg@10")
    if whole is None:
        return [ABSENT, ABSENT]
    if name is None:
        return [_share(whole), ""]
    value = fmean(row["ablations"][name]["ndcg@10"] for row in sets.values())
    return [_share(value), f"{value - whole:+.3f}"]


def _languages_table(languages: Mapping[str, Mapping[str, float]]) -> str:
    systems = [system for system in TITLES if any(system in row for row in languages.values())]
    rows = (
        [name, f"{row['n']:.0f}", *_best_marked([row.get(system) for system in systems])]
        for name, row in languages.items()
    )
    return table(("language", "queries", *(TITLES[system] for system in systems)), rows)


def _int8_table(comparison: Mapping[str, Any]) -> str:
    rows = [
        [name, _share(row["float32"]), _share(row["int8"]), f"{row['int8'] - row['float32']:+.3f}"]
        for name, row in comparison["sets"].items()
    ]
    rows.append(["mean", "", "", f"{-comparison['mean_loss']:+.3f}"])
    return table(("set", "float32", "int8", "change"), rows)


def _best_marked(values: Sequence[float | None]) -> list[str]:
    best = max((value for value in values if value is not None), default=None)
    return [ABSENT if value is None else f"**{_share(value)}**" if value == best else _share(value) for value in values]


def _share(value: float) -> str:
    """Three decimals without the zero before them."""
    return f"{value:.3f}".removeprefix("0") if 0 <= value < 1 else f"{value:.3f}"


def _queries(sets: Sets) -> str:
    return f"{sum(row['queries'] for row in sets.values()):,}"
