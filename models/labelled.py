"""Labelled retrieval data: turns the JSONL files under $PML_DATA into documents, intents and figures."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pml_gateway.index import ToolDocument

REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Intent:
    """A query and the tools it needs: any one key of each group."""

    text: str
    groups: tuple[frozenset[str], ...]


def data_directory() -> Path:
    """$PML_DATA, or `shared/data` beside the repository."""
    return Path(os.environ.get("PML_DATA", REPOSITORY.parent / "shared" / "data"))


def read_tools(path: Path) -> list[ToolDocument]:
    """The tools of one `tools.jsonl`, keyed by their ids."""
    return [_document(row) for row in _rows(path)]


def read_intents(path: Path) -> list[Intent]:
    """The intents of one `queries.jsonl` or `pairs.*.jsonl`."""
    return [
        Intent(row["query"], tuple(frozenset(group) for group in row.get("gold_groups") or [[g] for g in row["gold"]]))
        for row in _rows(path)
    ]


def retrieval_figures(ranked: Sequence[str], intent: Intent) -> tuple[float, float, float]:
    """(recall@1, recall@5, nDCG@10) of keys ranked best first; a group counts once."""
    recall = [
        sum(bool(group.intersection(ranked[:cut])) for group in intent.groups) / len(intent.groups) for cut in (1, 5)
    ]
    open_groups = list(intent.groups)
    gain = 0.0
    for rank, key in enumerate(ranked[:10]):
        satisfied = next((group for group in open_groups if key in group), None)
        if satisfied is not None:
            open_groups.remove(satisfied)
            gain += 1 / float(np.log2(rank + 2))
    ideal = sum(1 / float(np.log2(rank + 2)) for rank in range(min(len(intent.groups), 10)))
    return recall[0], recall[1], gain / ideal


def right_tools(intent: Intent, keys: Sequence[str], strengths: npt.NDArray[np.float32]) -> list[float]:
    """The strength of the best tool of each group that is in the catalog; `strengths` (n,) belong to `keys`."""
    found = ([float(strengths[at]) for at, key in enumerate(keys) if key in group] for group in intent.groups)
    return [max(values) for values in found if values]


def _rows(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _document(row: dict[str, Any]) -> ToolDocument:
    properties = (row.get("input_schema") or {}).get("properties") or {}
    return ToolDocument(
        key=row["id"],
        server=row.get("server") or "",
        name=row["name"],
        title="",
        description=row.get("description") or "",
        parameters=tuple(properties),
    )
