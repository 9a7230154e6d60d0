"""Charts of horizontal bars, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from pml_gateway.text import shortened

WIDTH = 800
LABELS = 190
"""Pixels left of the bars, for about 25 characters."""

NUMBERS = 200
"""Pixels right of the longest bar, for what is written behind it."""

MARGIN = 20
ROW = 30
BAR = 18
TITLE = 34
FOOTER = 26
FONT = 14
SMALL = 12
MAX_LABEL = 24
BACKGROUND, INK, PALE = "#ffffff", "#1f2328", "#59636e"
BARS = ("#0969da", "#8250df")
"""Colours of a bar, and of one that is marked."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One row: what it is, how long its bar is, what is written behind it, and whether it is marked."""

    label: str
    value: float
    text: str
    is_marked: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A title, bars on one scale, and a line below."""

    title: str
    bars: Sequence[Bar]
    footer: str = ""


def svg(chart: Chart) -> str:
    """Return the chart as an SVG document."""
    footer = FOOTER if chart.footer else 0
    height = MARGIN + TITLE + ROW * len(chart.bars) + footer + MARGIN
    longest = max((bar.value for bar in chart.bars), default=0) or 1
    room = WIDTH - 2 * MARGIN - LABELS - NUMBERS
    start = MARGIN + LABELS
    shapes = [_rectangle(0, 0, WIDTH, height, BACKGROUND), _text(MARGIN, MARGIN + TITLE / 2 - 8, chart.title)]
    for position, bar in enumerate(chart.bars):
        middle = MARGIN + TITLE + ROW * position + ROW / 2
        # A bar that is there can be seen.
        width = max(round(room * max(bar.value, 0) / longest, 1), 1)
        shapes += [
            _text(start - 10, middle, shortened(bar.label, MAX_LABEL), ends_here=True),
            _rectangle(start, middle - BAR / 2, width, BAR, BARS[bar.is_marked]),
            _text(start + width + 8, middle, bar.text, SMALL, PALE),
        ]
    if chart.footer:
        shapes.append(_text(MARGIN, height - MARGIN - FOOTER / 2 + 6, chart.footer, SMALL, PALE))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'role="img" aria-label="{escape(chart.title)}" font-family="system-ui, sans-serif">'
    )
    return "\n".join([head, *shapes, "</svg>", ""])


def _rectangle(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, size: int = FONT, colour: str = INK, *, ends_here: bool = False) -> str:
    """Return a line of text whose middle is at `y`; one that ends at `x` is right-aligned."""
    anchor = ' text-anchor="end"' if ends_here else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" dominant-baseline="central"{anchor}>'
        f"{escape(text)}</text>"
    )
