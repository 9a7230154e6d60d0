"""Pictures of horizontal bars, as SVG, or as PNG where Pillow is installed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from io import BytesIO

from pml_gateway.errors import ConfigurationError
from pml_gateway.installation import EXTRAS, adding
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
PNG_SCALE = 2
"""PNG pixels for each of the picture's, for sharp text on dense screens."""

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


@dataclass(frozen=True, slots=True)
class _Rectangle:
    x: float
    y: float
    width: float
    height: float
    colour: str


@dataclass(frozen=True, slots=True)
class _Text:
    """`y` is the middle of the line; text that ends at `x` is right-aligned."""

    x: float
    y: float
    text: str
    size: int = FONT
    colour: str = INK
    ends_here: bool = False


_Shape = _Rectangle | _Text


def svg(chart: Chart) -> str:
    """The chart as an SVG document."""
    height, shapes = _drawn(chart)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'role="img" aria-label="{escape(chart.title)}" font-family="system-ui, sans-serif">'
    ]
    for shape in shapes:
        match shape:
            case _Rectangle(x, y, width, tall, colour):
                lines.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{tall:g}" fill="{colour}"/>')
            case _Text(x, y, text, size, colour, ends_here):
                anchor = ' text-anchor="end"' if ends_here else ""
                lines.append(
                    f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" dominant-baseline="central"{anchor}>'
                    f"{escape(text)}</text>"
                )
    return "\n".join([*lines, "</svg>", ""])


def png(chart: Chart) -> bytes:
    """The chart as a PNG image.

    Raises:
        ConfigurationError: Pillow is not installed.
    """
    if find_spec("PIL") is None:
        raise ConfigurationError(
            "PNG charts need Pillow, which is not installed",
            hint=f"install it with: {adding(*EXTRAS['chart'])}, or name an .svg file",
        )
    # An optional dependency, and 0.1 s to import.
    from PIL import Image, ImageDraw, ImageFont

    height, shapes = _drawn(chart)
    image = Image.new("RGB", (WIDTH * PNG_SCALE, height * PNG_SCALE), BACKGROUND)
    draw = ImageDraw.Draw(image)
    fonts = {size: ImageFont.load_default(size * PNG_SCALE) for size in (FONT, SMALL)}
    for shape in shapes:
        match shape:
            case _Rectangle(x, y, width, tall, colour):
                corners = (x, y, x + width - 1 / PNG_SCALE, y + tall - 1 / PNG_SCALE)
                draw.rectangle([corner * PNG_SCALE for corner in corners], fill=colour)
            case _Text(x, y, text, size, colour, ends_here):
                place = (x * PNG_SCALE, y * PNG_SCALE)
                draw.text(place, text, fill=colour, font=fonts[size], anchor="rm" if ends_here else "lm")
    content = BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


def _drawn(chart: Chart) -> tuple[int, list[_Shape]]:
    """The height of the picture, and its shapes from the back to the front."""
    footer = FOOTER if chart.footer else 0
    height = MARGIN + TITLE + ROW * len(chart.bars) + footer + MARGIN
    longest = max((bar.value for bar in chart.bars), default=0) or 1
    room = WIDTH - 2 * MARGIN - LABELS - NUMBERS
    shapes: list[_Shape] = [_Rectangle(0, 0, WIDTH, height, BACKGROUND)]
    shapes.append(_Text(MARGIN, MARGIN + TITLE / 2 - 8, chart.title))
    for position, bar in enumerate(chart.bars):
        middle = MARGIN + TITLE + ROW * position + ROW / 2
        label = shortened(bar.label, MAX_LABEL)
        start = MARGIN + LABELS
        # A bar that is there can be seen.
        width = max(round(room * max(bar.value, 0) / longest, 1), 1)
        shapes.append(_Text(start - 10, middle, label, ends_here=True))
        shapes.append(_Rectangle(start, middle - BAR / 2, width, BAR, BARS[bar.is_marked]))
        shapes.append(_Text(start + width + 8, middle, bar.text, SMALL, PALE))
    if chart.footer:
        shapes.append(_Text(MARGIN, height - MARGIN - FOOTER / 2 + 6, chart.footer, SMALL, PALE))
    return height, shapes
