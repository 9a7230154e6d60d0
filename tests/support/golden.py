"""What a command printed, compared with the text that is kept of it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "cli" / "golden"

UPDATE = "UPDATE_GOLDEN"
"""The variable that makes a run write the kept texts instead of comparing them."""

_CHANGING = (
    (re.compile(r"(?<![\w.])(?!127\.)\d+\.\d+\.\d+(\.?(a|b|rc|dev|post)\d+)*\b(?!\.)"), "X.Y.Z"),
    (re.compile(r"\b(Linux|Darwin|Windows)\b"), "SYSTEM"),
    (re.compile(r"the oldest list \d+ \w+ old"), "the oldest list N s old"),
)


def check_golden(name: str, printed: str, replaced: Mapping[str, str]) -> None:
    """Compare after putting placeholders for paths, versions and times.

    Raises:
        AssertionError: the texts differ.
    """
    text = printed
    # The longest first: a home contains its files.
    for value in sorted(replaced, key=len, reverse=True):
        text = text.replace(value, replaced[value])
    for pattern, placeholder in _CHANGING:
        text = pattern.sub(placeholder, text)
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    path = FOLDER / name
    if os.environ.get(UPDATE):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
