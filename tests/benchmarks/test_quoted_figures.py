"""A figure that several pages say is the same on each, and is the one that was measured."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

import pytest

from benchmarks.token_figures import REPOSITORY
from pml_gateway.example_queries.shipped import ShippedExamples
from pml_gateway.index.calibration import COVERAGE, shipped_directory

RESULTS = REPOSITORY / "benchmarks" / "results"
DOCS = "pml_gateway/docs"
FIGURES = f"{DOCS}/figures.md"
DECISIONS = "DECISIONS.md"

NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?|\.\d+")

Quality = Mapping[str, Any]


def text_of(page: str) -> str:
    return (REPOSITORY / page).read_text(encoding="utf-8")


def saved(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def share(value: float) -> str:
    return f"{value:.3f}".lstrip("0")


def means(sets: Quality, figure: str, *systems: str) -> list[float]:
    return [fmean(each["systems"][system][figure] for each in sets.values()) for system in systems]


PEERS = ("pml_fused", "minilm_dense", "rank_fusion", "fastmcp_bm25")


def of_quality() -> Iterator[tuple[str, str, dict[str, str]]]:
    quality = saved("quality.json")
    sets = quality["sets"]
    queries = f"{sum(each['queries'] for each in sets.values()):,}"
    yield "queries", queries, {"README.md": r"nine sets, ([\d,]+) queries", FIGURES: r"labelled sets, ([\d,]+) queries"}
    fused, minilm, ranks, bm25 = map(share, means(sets, "ndcg@10", *PEERS))
    yield (
        "nDCG",
        fused,
        {
            "README.md": r"\(nDCG@10\) \| (\.\d+)",
            FIGURES: r"mean of nine sets \| (\.\d+)",
            DECISIONS: r"mean nDCG@10 of (\.\d+)",
        },
    )
    yield "nDCG of rank fusion", ranks, {DECISIONS: r"rank fusion has (\.\d+)"}
    yield "nDCG of MiniLM", minilm, {"README.md": r"MiniLM (\.\d+)", FIGURES: r"mean of nine sets \| \S+ \| (\.\d+)"}
    yield "nDCG of BM25", bm25, {"README.md": r"BM25 (\.\d+)", FIGURES: r"mean of nine sets \|.* (\.\d+) \|$"}
    distracted = " | ".join(map(share, means(quality["distracted"], "ndcg@10", *PEERS)))
    yield "nDCG among others", distracted, {FIGURES: r"14,227 other tools \| (.*) \|$"}
    golden = means({"": sets["mcpproxy_golden"]}, "ndcg@10", *PEERS)
    yield "nDCG of the golden set", " | ".join(map(share, golden)), {FIGURES: r"47 paraphrases \| (.*) \|$"}
    reached = means(sets, "coverage@0.5", "pml_fused") + means(sets, "coverage@0.6", "pml_fused")
    reached += means(sets, "coverage@0.7", "pml_fused")
    percent = " / ".join(f"{100 * each:.0f}" for each in reached)
    triple = r"(\d\d / \d\d / \d\d) %"
    yield (
        "coverage",
        percent,
        {
            FIGURES: rf"keep {triple}",
            f"{DOCS}/modes.md": triple,
            f"{DOCS}/settings.md": rf"keep the right one in {triple}",
            DECISIONS: rf"development sets it\s+is {triple}",
            "models/README.md": rf"it keeps {triple}",
        },
    )
    cloud = quality["near_duplicates"]["cloud"]["systems"]
    first = [f"{100 * cloud[each]['recall@1']:.0f} %" for each in ("pml_fused", "minilm_dense")]
    yield "first of alike tools", first[0], {FIGURES: r"it comes first in (\d+ %)"}
    yield "first of alike tools, MiniLM", first[1], {FIGURES: r"\(MiniLM: (\d+ %)"}
    empty = fmean(each["empty"]["empty_without_right_tools"] for each in sets.values())
    yield (
        "empty answers",
        f"{100 * empty:.1f} %",
        {FIGURES: r"seldom \((\S+ %)\)", DECISIONS: r"(\S+) % of answers are empty"},
    )


def of_the_package() -> Iterator[tuple[str, str, dict[str, str]]]:
    aimed = " / ".join(f"{100 * part:.0f}" for score, part in COVERAGE if score in (0.5, 0.6, 0.7))
    triple = r"(\d\d / \d\d / \d\d) %"
    yield (
        "coverage that is aimed at",
        aimed,
        {
            "pml_gateway/index/calibration.py": triple,
            DECISIONS: rf"are meant to include the right one for {triple}",
            "models/README.md": rf"still holds the right tool for {triple}",
        },
    )
    size = (shipped_directory() / "model.onnx").stat().st_size / 1e6
    yield (
        "size of the model",
        f"{size:.1f}",
        {DECISIONS: r"\(([\d.]+) MB\)", "models/README.md": r"model.onnx` \(([\d.]+) MB\)"},
    )
    yield (
        "size of the model, rounded",
        f"{size:.0f}",
        {f"{DOCS}/search.md": r"a (\d+) MB embedding", "CHANGELOG.md": r"shipped (\d+) MB"},
    )
    servers = ShippedExamples().servers()
    told = f"{sum(len(each.tools) for each in servers):,} tools of {len(servers)}"
    yield "shipped examples", told, {f"{DOCS}/search.md": r"for ([\d,]+ tools of \d+) public servers"}


def of_one_page() -> Iterator[tuple[str, str, dict[str, str]]]:
    """Figures whose page is the one with all figures; others repeat them."""
    page = text_of(FIGURES)

    def said(pattern: str) -> str:
        [found] = re.findall(pattern, page, re.M)
        return str(found)

    readme = {
        "calls": (
            r"`tools/call`, 10 tools, .*?\| (.*) \| \S+ ms / – \|$",
            r"one call over HTTP, 10 tools \| (.*) \| `bench",
        ),
        "calls, 5,000 tools": (
            r"the same, 5,000 tools \| (.*) \| \S+ ms / – \|$",
            r"the same, 5,000 tools \| (.*) \| \|$",
        ),
        "calls a second": (r"calls a second, .*?10 tools \| (.*) \| 585", r"calls a second, 16 clients \| (.*) \| \|$"),
        "lists": (r"480 kB \| (.*) \| \| 128", r"480 kB \| (.*) \| `bench"),
        "start": (r"5 dead or hanging, manifest \| (\S+ to \S+ s)", r"dead or hanging \| (.*?) \|"),
        "memory": (r"model loaded \| (\d+ MiB \(\d+)", r"right after indexing\) \| (.*?)\) \|"),
    }
    for what, (source, place) in readme.items():
        yield what, said(source), {"README.md": place}
    searched = said(r"query encoding included, 10,000 tools \| (.*?) ms")
    yield "search in many tools", searched, {"README.md": r"search in 10,000 tools \| (.*?) ms"}
    listed, meta, flows, _ = re.findall(r"[\d,]+", said(r"with workflows / namespaces \| (.*?) \|"))
    yield "tasks", f"{meta} {flows} {listed}", {"README.md": r"reads and writes \| (.*) \| `bench"}
    machine = f"{DOCS}/machine.md"
    yield (
        "memory of three clients",
        said(r"resident \| (1,\d+ MiB \| \d+ MiB)"),
        {machine: r"15 processes, (.* MiB) \| 9 processes, (.* MiB)"},
    )
    yield (
        "memory of a client",
        said(r"resident and processor time \| (.*) \|$"),
        {machine: r"each further client, 10 servers \| (.*) \|$"},
    )
    yield (
        "first list of a client",
        said(r"first list of a further client, median and longest \| (.*) \|$"),
        {machine: r"its first list, median and longest \| (.*) \|$"},
    )
    for row in re.findall(r"^\| (?:FastMCP `BM25|`Exposure`).*$", page, re.M):
        yield f"FastMCP {row[-20:]}", row, {f"{DOCS}/fastmcp.md": f"({re.escape(row)})"}
    asked = {"README.md": r"three bundled MCP servers \((\d+) tools"}
    [bundled] = re.findall(r"three bundled MCP servers \((\d+) tools", text_of(f"{DOCS}/quickstart.md"))
    yield "bundled tools", bundled, asked


ROWS: list[tuple[str, str, dict[str, str]]] = [
    row for each in (of_quality, of_the_package, of_one_page) for row in each()
]


@pytest.mark.parametrize(("said", "places"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_a_figure_is_the_same_wherever_it_is_said(said: str, places: dict[str, str]) -> None:
    for page, pattern in places.items():
        found = list(re.finditer(pattern, text_of(page), re.M))
        assert len(found) == 1, f"{page} says {pattern!r} {len(found)} times instead of once"
        shown = " ".join(found[0].groups())
        assert NUMBER.findall(shown) == NUMBER.findall(said), page


def test_one_figure_is_said_in_one_unit() -> None:
    """Sizes that were measured are MiB; limits and downloads of round numbers may be MB."""
    measured = {each for page in (FIGURES, "README.md") for each in re.findall(r"([\d,]+) MiB", text_of(page))}
    for page in (REPOSITORY / DOCS).glob("*.md"):
        assert not measured & set(re.findall(r"([\d,]+) MB", page.read_text(encoding="utf-8"))), page.name
