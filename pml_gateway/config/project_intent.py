"""What a project says of itself becomes an intent: the text by which tools are selected for whoever works in it."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pml_gateway.config.document import is_there
from pml_gateway.config.project import MAX_INTENT_CHARACTERS, cleaned

MAX_BYTES = 256 * 1024
"""Of a file that describes a project; what is further down describes something else."""

MAX_CHARACTERS = 240
"""Of an intent that is derived: two sentences select better than a page."""

MIN_CHARACTERS = 12

READMES = ("README.md", "README.rst", "README.txt", "README", "readme.md")

_SKIPPED = re.compile(r"^\s*(#|=|-{3}|\*{3}|!\[|\[!|<|>|\||```|\.\. |:)|^\s*$")
"""Lines of a README that are no prose: headings, rules, images, badges, HTML, quotes, tables and directives."""

_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_MARKUP = re.compile(r"[*_`]{1,3}(?=\S)|(?<=\S)[*_`]{1,3}")


@dataclass(frozen=True, slots=True)
class DerivedIntent:
    """An intent, and the file it was read from."""

    text: str
    file: Path


def derive_intent(project: Path) -> DerivedIntent | None:
    """The project's own description, or the first paragraph of its README; None where it says nothing of itself."""
    for file, text in _descriptions(project):
        short = _shortened(cleaned(text, MAX_INTENT_CHARACTERS * 4))
        if len(short) >= MIN_CHARACTERS:
            return DerivedIntent(short, file)
    return None


def _descriptions(project: Path) -> Iterator[tuple[Path, str]]:
    for name, keys in (
        ("pyproject.toml", (("project", "description"), ("tool", "poetry", "description"))),
        ("package.json", (("description",),)),
        ("Cargo.toml", (("package", "description"), ("workspace", "package", "description"))),
        ("composer.json", (("description",),)),
        ("deno.json", (("description",),)),
    ):
        values = _values(project / name)
        for key in keys:
            found: Any = values
            for part in key:
                found = found.get(part) if isinstance(found, dict) else None
            if isinstance(found, str):
                yield project / name, found
    for name in READMES:
        text = _text(project / name)
        if text is not None:
            yield project / name, _first_paragraph(text)
            return


def _values(file: Path) -> Mapping[str, Any]:
    text = _text(file)
    if text is None:
        return {}
    try:
        values = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError):
        # A broken file says nothing.
        return {}
    return values if isinstance(values, dict) else {}


def _text(file: Path) -> str | None:
    try:
        if not is_there(file) or not file.is_file():
            return None
        with file.open("rb") as stream:
            content = stream.read(MAX_BYTES)
    except OSError:
        return None
    return content.decode("utf-8", "ignore")


def _first_paragraph(text: str) -> str:
    lines: list[str] = []
    in_code = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            in_code = not in_code
        if in_code or _SKIPPED.match(line):
            if lines and len(" ".join(lines)) >= MIN_CHARACTERS:
                break
            lines = []
            continue
        lines.append(line.strip())
    return _MARKUP.sub("", _LINK.sub(r"\1", " ".join(lines)))


def _shortened(text: str) -> str:
    """Whole sentences up to the limit; of a longer first sentence, its first words."""
    if len(text) <= MAX_CHARACTERS:
        return text
    sentences = re.split(r"(?<=[.!?])\s+", text)
    kept = ""
    for sentence in sentences:
        if len(kept) + len(sentence) + 1 > MAX_CHARACTERS:
            break
        kept = f"{kept} {sentence}".strip()
    return kept or text[:MAX_CHARACTERS].rsplit(" ", 1)[0]
