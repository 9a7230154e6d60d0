"""A table becomes one marked block of a Markdown file; the rest of the file stays as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of equal keys as a Markdown table; numbers stand at the right, with separators between thousands."""
    heads = list(rows[0])
    numeric = [all(isinstance(row[head], int | float) for row in rows) for head in heads]
    rule = ["---:" if is_number else "---" for is_number in numeric]
    lines = [heads, rule, *([_cell(row[head]) for head in heads] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def put_block(text: str, name: str, body: str) -> str:
    """`text` with the block of this name replaced, or added at its end."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    block = f"{begin}\n{body.strip()}\n{end}"
    before, found, rest = text.partition(begin)
    if not found:
        return f"{text.rstrip()}\n\n{block}\n".lstrip()
    _, closed, after = rest.partition(end)
    if not closed:
        raise ValueError(f"{begin!r} has no {end!r}; put it back by hand")
    return f"{before}{block}{after}"


def write_block(path: Path, name: str, body: str) -> None:
    """Put a block into a file, which is made if there is none."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    path.write_text(put_block(text, name, body), encoding="utf-8")


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
