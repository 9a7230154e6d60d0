"""References as other systems write them, `{{a.title}}` or `${a.title}`, with the spelling that works here."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

MAX_SPELLED = 5
"""Maximum number of placeholders of one text in a hint."""

_ROOT = r"(?:\d+|[A-Za-z_][A-Za-z0-9_-]*)"
_PATH = r"(?:\.\w+|\.\*|\[[^\[\]]*\])*"
_BODY = r"[^{}\n\\]{1,300}?"
_FOUND = re.compile(
    r"\$\$(?:\{\{)?"
    rf"|(?P<escape>\\)?(?:\$?\{{{{2,3}}(?P<braces>{_BODY})\}}{{2,3}}|\$\{{(?P<shell>{_BODY})\}})"
    rf"|\A(?=.{{1,300}}\Z)\$(?P<numbered>[A-Za-z_][A-Za-z0-9_-]*{_PATH}\.\d+{_PATH})\Z"
)
"""An escaped dollar sign, or a possible placeholder with the backslash that makes it text.

The length of bodies is bounded, so that no text takes long to search.
"""

_STEP = re.compile(
    rf"\$?(?P<root>{_ROOT})(?:\.(?:outputs?|results?|json)(?=[.\[]))?(?P<path>{_PATH})(?=[\s|]|\Z)", re.ASCII
)
"""A step and a path, without the field in which other systems wrap results."""

_PREFIX = re.compile(r"\$?(?:steps?|nodes?|tasks?|outputs?|results?)\.")
"""Other systems' names for all steps."""

_LIKE_A_STEP = re.compile(
    r"(?i)(?:prev|previous|last|prior|item|steps?|nodes?|tasks?|calls?|outputs?|results?|responses?)(?:[_-]?\d|_|\Z)"
)
"""Roots that can only mean a step or an item, even if there is none with this name."""

_GOES_ON = re.compile(r"[\w(\[]|\.[\w*\"]")
"""Text after a reference that would be read as part of it."""


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A placeholder in a text: its position, the reference that it means, and whether a backslash makes it text."""

    start: int
    end: int
    reference: str
    is_escaped: bool


def placeholders(text: str, names: Container[str], *, with_path: bool = False) -> Iterator[Placeholder]:
    """Yield the placeholders that refer to a step; ignore the syntax of other templates.

    One that is a whole text also counts if no step has its name, but steps could, as in `{{step1.title}}`.

    Args:
        text: any text.
        names: the steps by index and id, and all other roots.
        with_path: True to yield only those with a path after the step.
    """
    for found in _FOUND.finditer(text):
        body = found["braces"] or found["shell"] or found["numbered"]
        step = None if body is None else _step(body.strip(), names)
        if step is None:
            continue
        is_known, path = step["root"] in names, re.sub(r"\.(\d+)", r"[\1]", step["path"])
        is_whole = found.end() == len(text) and not text[: found.start()].strip("\\")
        # `{{0}}` and `${1}` are positions in other templates.
        is_meant = path or not (with_path or step["root"].isdigit())
        if is_known and is_meant:
            yield Placeholder(found.start(), found.end(), f"${step['root']}{path}", found["escape"] is not None)
        elif not with_path and is_whole and path and _LIKE_A_STEP.match(step["root"]):
            yield Placeholder(found.start(), found.end(), f"$<id of a step>{path}", found["escape"] is not None)


def _step(body: str, names: Container[str]) -> re.Match[str] | None:
    """Return the root and the path in a placeholder, after another system's name for all steps."""
    found = _STEP.match(body)
    prefix = _PREFIX.match(body)
    if prefix is None or (found is not None and found["root"] in names):
        return found
    named = _STEP.match(body, prefix.end())
    return named if named is not None and named["root"] in names else found


def spelled(text: str, found: Sequence[Placeholder]) -> str:
    """Return a hint that says what to write instead of each placeholder."""
    first = found[:MAX_SPELLED]
    hints = [f'write "{each.reference}" instead of "{text[each.start : each.end]}"' for each in first]
    joined = [each.reference for each in first if _GOES_ON.match(text, each.end)]
    hints += [f"with text right behind it: {reference} | join('', [to_string(@), '.md'])" for reference in joined[:1]]
    return "; ".join(dict.fromkeys(hints))


def without_escapes(text: str, found: Sequence[Placeholder]) -> str:
    """Return the text without the backslashes before placeholders."""
    starts = [each.start for each in found if each.is_escaped]
    parts = [text[begin:end] for begin, end in zip([0, *(at + 1 for at in starts)], [*starts, len(text)], strict=True)]
    return "".join(parts)
