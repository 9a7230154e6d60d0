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

_PATH_BODY = r"\w[^{}<>\n\\\s]{0,299}"
_WHOLE = re.compile(
    rf"(?P<escape>\\)?(?:\{{(?P<brace>{_PATH_BODY})\}}|<(?P<angle>{_PATH_BODY})>|#(?P<hash>{_PATH_BODY})"
    rf"|%(?P<percent>{_PATH_BODY})%|\$(?P<dollar>{_PATH_BODY}))\Z"
)
"""What is too common as a part of a text, but all of it."""

_NUMBERED = re.compile(r"\.\d+(?=[.\[]|\Z)")

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
    if (whole := _whole(text, names)) is not None:
        yield whole
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


def may_be_one(text: str) -> bool:
    """Whether a text could hold a reference of any kind: most cannot."""
    return "$" in text or "{{" in text or "<<" in text or text.startswith(("{", "<", "#", "%", "\\"))


def _whole(text: str, names: Container[str]) -> LookAlike | None:
    """The text as `{a.title}`, `<a.title>`, `#a.title`, `%a.title%`, `$steps.a.title` or `$a.0.title`."""
    found = _WHOLE.match(text)
    if found is None:
        return None
    dollar = found["dollar"]
    body = dollar or found["brace"] or found["angle"] or found["hash"] or found["percent"]
    root = _ROOT.match(body)
    is_step = root is not None and root["root"] in names
    if dollar is not None and is_step and not _NUMBERED.search(body):
        return None
    if is_step and root is not None and (root["root"].isdigit() or _PATH.fullmatch(root["rest"]) is None):
        return None
    reference = _reference(body, names, with_path=True)
    return None if reference is None else LookAlike(0, len(text), reference, found["escape"] is not None)


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
