"""Files for measuring search: queries, tools and examples as lines of JSON, and the first queries of a catalog."""

from __future__ import annotations

import json
import stat
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.errors import GatewayError, InvalidInputError
from pml_gateway.files import usual_mode, write_atomically
from pml_gateway.index.evaluation import (
    EXAMPLES_LAYOUT,
    LabelledQuery,
    drawn,
    labelled_queries,
    own_words,
    read_rows,
    tool_documents,
    tool_examples,
)
from pml_gateway.index.models import load_embedder
from pml_gateway.index.search import ToolIndex
from pml_gateway.index.text import ToolDocument
from pml_gateway.reports.search_quality import MeasuredIndex, of_index
from pml_gateway.types import JsonObject, Ranking

LINES = "one JSON object on each line"


def read_queries(file: Path, hint: str = LINES) -> list[LabelledQuery]:
    """Return the queries of a file.

    Raises:
        InvalidInputError: the file cannot be read, or is not one of queries.
    """
    return list(labelled_queries(_rows(file, "queries", hint), str(file)))


class FileTools:
    """Tools of files with their examples; of two with one id the first counts."""

    def __init__(self, *files: Path) -> None:
        self._rows: dict[str, JsonObject] = {}
        self._documents: dict[str, ToolDocument] = {}
        self.repeated: dict[Path, int] = {}
        """Number of tools of a file that have the id of another one."""
        for file in files:
            read = _rows(file, "tools", LINES)
            if again := len(read) - len({row.get("id") for row in read if isinstance(row.get("id"), str)}):
                self.repeated[file] = again
            for row, document in zip(read, tool_documents(read, str(file)), strict=True):
                if document.key not in self._documents:
                    self._rows[document.key], self._documents[document.key] = row, document

    def take_examples(self, file: Path, share: float, seed: int) -> None:
        """Add the examples of a file, for a share of the tools that it has examples of."""
        read = tool_examples(_rows(file, "examples", EXAMPLES_LAYOUT), str(file), self._documents)
        for key, texts in drawn(read, share, seed).items():
            self._documents[key] = replace(self._documents[key], examples=texts)

    def index(self, model: str, ranking: Ranking) -> MeasuredIndex:
        """Build the index of all tools. CPU work."""
        embedder = None if ranking is Ranking.LEXICAL else load_embedder(model)
        index = ToolIndex.build(list(self._documents.values()), embedder)
        return of_index(index, self._rows, embedder.model_id if embedder else "", ranking)


def _rows(file: Path, content: str, hint: str) -> list[JsonObject]:
    try:
        with file.open(encoding="utf-8") as lines:
            rows = read_rows(lines, str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{file} cannot be read: {error}", hint=hint) from None
    if not rows:
        raise InvalidInputError(f"{file} holds no {content}", hint=hint)
    return rows


def starter_rows(tools: Collection[CatalogTool]) -> list[JsonObject]:
    """Return one query for all tools that say the same: any of them is right.

    Raises:
        GatewayError: there is no tool.
    """
    alike: dict[str, list[str]] = {}
    for tool in tools:
        text = own_words(tool.name, tool.description or tool.title)
        alike.setdefault(text, []).append(tool.qualified_name)
    if not alike:
        raise GatewayError(
            "there is no tool to write a query for", hint="pml upstreams --probe says why servers list none"
        )
    return [
        {"query": text, "gold": keys[:1], **({"gold_groups": [keys]} if len(keys) > 1 else {})}
        for text, keys in alike.items()
    ]


def write_rows(target: Path, rows: Sequence[JsonObject]) -> None:
    """Write rows as lines of JSON, whole or not at all: what they replace may be a day's work.

    Raises:
        InvalidInputError: the file cannot be written.
    """
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else usual_mode()
        write_atomically(target, text.encode("utf-8", "backslashreplace"), mode)
    except OSError as error:
        raise InvalidInputError(
            f"{target} cannot be written: {error}", hint="name another file with --output"
        ) from None
