"""Output of commands: answers and tables on stdout, messages on stderr, and exit codes for errors."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pml_gateway.errors import ErrorCode, GatewayError
from pml_gateway.text import escaped, escaped_json, first_sentence

GAP = 2
READABLE_COLUMNS = 26
"""A text that would wrap into less than this goes on lines of its own, where it has the whole width."""
INDENT = 4


def show_table(console: Console, columns: Sequence[str], cells: Sequence[Sequence[Text]]) -> None:
    """Print rows under headings. What does not fit wraps: the widest column, under its row where it is long.

    Where the others do not fit either, the widest of them go under the row as well, each with its name.
    """
    widths = [
        max(len(name), *(_width(row[at]) for row in cells)) if cells else len(name) for at, name in enumerate(columns)
    ]
    # The first column names the row, so that it is never the one to wrap.
    widest = max(range(1, len(columns)), key=lambda at: (widths[at], at), default=0)
    room = console.width - sum(widths) - GAP * (len(columns) - 1) + widths[widest]
    if room >= min(widths[widest] // 2, READABLE_COLUMNS):
        console.print(_table(columns, cells, widest))
        return
    beside, under = list(range(len(columns))), [widest]
    beside.remove(widest)
    while len(beside) > 1 and sum(widths[at] + GAP for at in beside) - GAP > console.width:
        beside.remove(moved := max(beside[1:], key=lambda at: (widths[at], at)))
        under.append(moved)
    heading = tuple(Text(name, style="bold") for name in columns)
    for row in (heading, *cells):
        line = Text(" " * GAP).join(_padded(row[at], widths[at]) for at in beside)
        line.rstrip()
        console.print(line, overflow="fold")
        shown = [at for at in sorted(under) if row[at].plain]
        if len(under) == 1:
            texts = [row[at] for at in shown]
        elif row is heading:
            texts = []
        else:
            texts = _side_by_side([Text(": ").join((heading[at], row[at])) for at in shown], console.width - INDENT)
        for text in texts:
            console.print(Padding(text, (0, 0, 0, INDENT), expand=False))


def _side_by_side(texts: list[Text], room: int) -> list[Text]:
    """Return the texts on one line, where there is room for it."""
    together = Text(" " * GAP).join(texts)
    return [together] if texts and together.cell_len <= room else texts


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


UNBROKEN = "\xa0"
"""A space at which no line is broken; what is printed has plain ones, to be searched for."""

READABLE = 40
"""Columns below which nothing is wrapped any more."""


class ExitCode(IntEnum):
    """The exit codes of `pml`; 78 is EX_CONFIG of sysexits.h."""

    OK = 0
    FAILED = 1
    USAGE = 2
    CONFIGURATION = 78


def answers() -> Console:
    """Return the console of answers, on stdout; without colour where it is no terminal or `NO_COLOR` is set."""
    return Console(file=sys.stdout, highlight=False, emoji=False)


def messages() -> Console:
    """Return the console of messages, on stderr, so that an answer can be piped."""
    return Console(file=sys.stderr, highlight=False, emoji=False)


def printable(text: str) -> str:
    """Text with escapes for what a terminal would obey and no reader sees; servers write descriptions and results."""
    return escaped(text.replace("\r\n", "\n"), but="\n\t")


def say(text: str = "", style: str = "") -> None:
    """Print one answer as it is: never wrapped, no markup."""
    answers().print(Text(printable(text), style=style), soft_wrap=True)


def short_path(path: Path) -> str:
    """Return a path with `~` for the home folder."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def whole(text: str) -> str:
    """Return a text that `wrapped` does not break, such as a number with its unit."""
    return text.replace(" ", UNBROKEN)


def wrapped(text: str, reserved: int = 0) -> list[str]:
    """Lines that fit beside `reserved` columns; a path or a command that is too long stays whole, to be copied."""
    width = max(answers().width - reserved, READABLE)
    lines = [
        line.replace(UNBROKEN, " ")
        for part in text.splitlines()
        for line in textwrap.wrap(part, width, break_long_words=False, break_on_hyphens=False)
    ]
    return lines or [""]


def say_wrapped(text: str) -> None:
    """Print a text of the answer in lines that fit, all but the first indented."""
    first, *more = wrapped(text, INDENT)
    say("\n".join([first, *(" " * INDENT + line for line in more)]))


def note(text: str) -> None:
    """Print a message that is no part of the answer."""
    messages().print(Text(printable(text)), soft_wrap=True)


def note_written(file: Path, backup: Path | None) -> None:
    """Print that a file was written, and where its text before is kept."""
    note(f"wrote {file}{f' (the text before is in {backup})' if backup else ''}")


def warn(text: str) -> None:
    """Print a warning, without any secret that this process knows."""
    messages().print(f"[yellow]warning:[/yellow] {escape(printable(without_known_secrets(text)))}", soft_wrap=True)


def without_known_secrets(text: str) -> str:
    """Return the text with a mask for every secret that was resolved in this process."""
    from pml_gateway.secrets.known import without_known_secrets

    masked: str = without_known_secrets(text)
    return masked


def print_json(value: Any) -> None:
    """Print `value` as JSON, for programs."""
    sys.stdout.write(escaped_json(value, indent=2, default=str) + "\n")


def print_json_line(value: Any) -> None:
    """Print `value` as one line of JSON now, for programs that read on while a command runs."""
    sys.stdout.write(escaped_json(value) + "\n")
    sys.stdout.flush()


def print_diff(diff: str) -> None:
    """Print a unified diff, coloured where colours are shown."""
    for line in diff.splitlines():
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        say(line, style=style)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under headings, readable at 80 columns and without colour: long cells wrap, nothing is cut."""
    show_table(answers(), columns, [tuple(Text(printable(str(cell))) for cell in row) for row in rows])


def print_lines(columns: Sequence[str], rows: Iterable[Sequence[object]], *, shorten: str, lines: int = 1) -> None:
    """Print rows under headings, each on so many lines: the column `shorten` gets the room that is left, and is cut."""
    cells = [[" ".join(str(cell).split()) for cell in row] for row in rows]
    at = columns.index(shorten)
    others = sum(
        max(map(len, (name, *(row[place] for row in cells)))) + GAP for place, name in enumerate(columns) if place != at
    )
    room = max(answers().width - others, READABLE_COLUMNS)
    print_table(columns, [[*row[:at], first_sentence(row[at], room * lines), *row[at + 1 :]] for row in cells])


def error_object(error: GatewayError) -> dict[str, Any]:
    """Return the error as `--json` prints it."""
    from pml_gateway.secrets.known import without_known_secrets

    return {"error": without_known_secrets(error.as_json(without=("retryable",)))}


def told(error: Mapping[str, Any]) -> GatewayError:
    """Return the error that a result of the gateway tells, with its code."""
    given = GatewayError(error["message"], hint=error.get("hint") or "", details=error.get("details"))
    given.code = ErrorCode.__members__.get(str(error.get("code")), given.code)
    return given


def tell(error: GatewayError) -> None:
    """Print `error: ...` with its remedy."""
    messages().print(
        f"[bold red]error:[/bold red] {escape(printable(without_known_secrets(error.message)))}", soft_wrap=True
    )
    if error.hint:
        messages().print(f"  {escape(printable(without_known_secrets(error.hint)))}", soft_wrap=True)


def fail(error: GatewayError, *, as_json: bool = False) -> NoReturn:
    """Tell an error and leave with its exit code.

    Raises:
        typer.Exit: always.
    """
    if as_json:
        print_json(error_object(error))
    else:
        tell(error)
    raise typer.Exit(error.exit_code)
