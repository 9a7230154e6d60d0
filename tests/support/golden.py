"""What a command printed, compared with the text that is kept of it; `PML_GOLDEN=write` writes it anew."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "cli" / "golden"

WRITES = os.environ.get("PML_GOLDEN") == "write"

_CHANGING = (
    (re.compile(r"(?<![\w.])(?!127\.)\d+\.\d+\.\d+(\.?(a|b|rc|dev|post)\d+)*\b(?!\.)"), "X.Y.Z"),
    (re.compile(r"\b(Linux|Darwin|Windows)\b"), "SYSTEM"),
    (re.compile(r"the oldest list \d+ \w+ old"), "the oldest list N s old"),
)


def is_as_before(name: str, text: str) -> None:
    """Compare with the kept text of this name.

    Raises:
        AssertionError: the texts differ.
    """
    file = FOLDER / name
    if WRITES:
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), "if that is wanted: PML_GOLDEN=write pytest tests/cli"


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
    is_as_before(name, text)
