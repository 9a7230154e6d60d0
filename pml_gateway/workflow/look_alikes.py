"""References as other systems write them, `{{a.title}}` or `${a.title}`, where they name steps that there are."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass

_BODY = r"[^{}<>\n\\]{1,300}?"
_FOUND = re.compile(
    r"\$\$(?:\{\{)?"
    rf"|(?P<escape>\\)?(?:\$?\{{\{{\{{?(?P<braces>{_BODY})\}}\}}\}}?|\$\{{(?P<shell>{_BODY})\}}|<<(?P<angles>{_BODY})>>)"
)
"""A dollar sign that is escaped, or what could be a reference, with the backslash that makes it text."""

_OF_STEPS = re.compile(r"(?:workflow\.)?(?P<kind>steps?|nodes?|tasks?|outputs?|results?)(?:\.|\[\s*['\"]?|\(\s*['\"])")
_ROOT = re.compile(r"(?P<root>\d+|[A-Za-z_][A-Za-z0-9_-]*)(?:['\"]?[\])])?(?P<rest>(?:[.\[\s|].*)?)\Z")
_PATH = re.compile(r"(?:\.[A-Za-z_][A-Za-z0-9_]*|\.\d+|\.\*|\[[^\[\]]*\])*")
_WRAPPERS = re.compile(r"\.(?:outputs?|json)(?=[.\[]|\Z)")
"""What other systems put between a step and its result."""


@dataclass(frozen=True, slots=True)
class LookAlike:
    """One of them: where it stands, what it would be here, and whether a backslash says that it is meant as text."""

    start: int
    end: int
    reference: str
    is_escaped: bool


def look_alikes(text: str, names: Container[str], *, with_path: bool = False) -> Iterator[LookAlike]:
    """Those in a text whose root is one of the names; all other text of that kind is left alone.

    Args:
        text: any.
        names: steps by index and id, and the other roots that there are.
        with_path: only those that go on behind the step.
    """
    if "{{" not in text and "${" not in text and "<<" not in text:
        return
    for found in _FOUND.finditer(text):
        body = found["braces"] or found["shell"] or found["angles"]
        if body is None:
            continue
        reference = _reference(
            body.strip().removeprefix("$"), names, with_path=with_path or found["angles"] is not None
        )
        if reference is not None:
            yield LookAlike(found.start(), found.end(), reference, found["escape"] is not None)


def without_escapes(text: str, found: list[LookAlike]) -> str:
    """The text without the backslashes before what was found."""
    for each in reversed(found):
        if each.is_escaped:
            text = text[: each.start] + text[each.start + 1 :]
    return text


def as_references(text: str, found: list[LookAlike]) -> str:
    """The text with references in the place of what was found."""
    for each in reversed(found):
        if not each.is_escaped:
            text = text[: each.start] + each.reference + text[each.end :]
    return text


def _reference(body: str, names: Container[str], *, with_path: bool) -> str | None:
    root = _ROOT.match(body)
    if root is not None and root["root"] in names:
        path = _path(root["rest"])
        # `{{0}}` and `${1}` are places of other templates.
        return f"${root['root']}{path}" if path or not (with_path or root["root"].isdigit()) else None
    of_steps = _OF_STEPS.match(body)
    root = _ROOT.match(body, of_steps.end()) if of_steps is not None else None
    if root is None or root["root"] not in names:
        return None
    return f"${root['root']}{_path(_WRAPPERS.sub('', root['rest'], count=1))}"


def _path(rest: str) -> str:
    found = _PATH.match(rest)
    return re.sub(r"\.(\d+)", r"[\1]", found[0]) if found is not None else ""
