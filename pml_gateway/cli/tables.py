"""Rows under headings become lines that a terminal of 80 columns can show, with nothing cut off."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

GAP = 2
READABLE_COLUMNS = 26
"""A text that would wrap into less than this goes on lines of its own, where it has the whole width."""
INDENT = 4


def show_table(console: Console, columns: Sequence[str], cells: Sequence[Sequence[Text]]) -> None:
    """Print rows under headings. What does not fit wraps: the widest column, under its row where it is long."""
    widths = [
        max(len(name), *(_width(row[at]) for row in cells)) if cells else len(name) for at, name in enumerate(columns)
    ]
    # The first column names the row, so that it is never the one to wrap.
    widest = max(range(1, len(columns)), key=lambda at: (widths[at], at), default=0)
    room = console.width - sum(widths) - GAP * (len(columns) - 1) + widths[widest]
    if room >= min(widths[widest] // 2, READABLE_COLUMNS):
        console.print(_table(columns, cells, widest))
        return
    heading = tuple(Text(name, style="bold") for name in columns)
    for row in (heading, *cells):
        kept = [_padded(cell, widths[at]) for at, cell in enumerate(row) if at != widest]
        line = Text(" " * GAP).join(kept)
        line.rstrip()
        console.print(line, overflow="fold")
        if row[widest].plain:
            console.print(Padding(row[widest], (0, 0, 0, INDENT), expand=False))


def _table(columns: Sequence[str], cells: Iterable[Sequence[Text]], widest: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    for position, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=position != widest)
    for row in cells:
        table.add_row(*row)
    return table


def _padded(cell: Text, width: int) -> Text:
    padded = cell.copy()
    padded.pad_right(width - cell.cell_len)
    return padded


def _width(cell: Text) -> int:
    return max((Text(line).cell_len for line in cell.plain.splitlines()), default=0)
