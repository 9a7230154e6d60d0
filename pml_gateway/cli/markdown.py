"""Markdown as a terminal shows it: tables lose no text in 80 columns, and a link to a page is the command for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Markdown, TableElement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pml_gateway.cli.output import GAP, INDENT, READABLE_COLUMNS

_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)([^)#]*)[^)]*\)")
_PAGE = re.compile(r"([a-z-]+)\.md")


class FittedTable(TableElement):
    """A table whose cells wrap where each column stays readable; elsewhere every row becomes a short list."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, or its rows one below the other."""
        header = self.header.row.cells if self.header and self.header.row else []
        rows = [[cell.content for cell in row.cells] for row in (self.body.rows if self.body else ())]
        names = [cell.content for cell in header]
        first, *others = [
            max(name.cell_len, *(row[at].cell_len for row in rows)) if rows else name.cell_len
            for at, name in enumerate(names)
        ]
        needed = first + sum(min(width, READABLE_COLUMNS) + GAP for width in others)
        if needed <= options.max_width:
            yield _table(names, rows)
        else:
            for row in rows:
                yield from _as_list(names, row)


class TerminalMarkdown(Markdown):
    """A page of the documentation, or other Markdown of our own."""

    elements: ClassVar[dict[str, Any]] = {**Markdown.elements, "table_open": FittedTable}

    def __init__(self, text: str) -> None:
        # An address is shown, for not every terminal opens links.
        super().__init__(_LINK.sub(_as_command, _COMMENT.sub("", text)), hyperlinks=False)


def _as_command(link: re.Match[str]) -> str:
    name, target = link.groups()
    page = _PAGE.fullmatch(target)
    return f"{name} (`pml docs {page[1]}`)" if page else name


def _table(names: Sequence[Text], rows: Sequence[Sequence[Text]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    for at, name in enumerate(names):
        table.add_column(name, overflow="fold", no_wrap=at == 0)
    for row in rows:
        table.add_row(*row)
    return table


def _as_list(names: Sequence[Text], row: Sequence[Text]) -> RenderResult:
    yield row[0]
    for name, cell in zip(names[1:], row[1:], strict=True):
        if cell.plain:
            label = f"{name.plain}: " if name.plain and len(row) > 2 else ""
            yield Padding(Text.assemble(label, cell), (0, 0, 0, INDENT), expand=False)
