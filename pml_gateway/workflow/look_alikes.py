"""References as other systems write them, `{{a.title}}` or `${a.title}`, where they name steps that there are."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass

_BODY = r"[^{}<>\n\\]{1,300}?"
_FOUND = re.compile(
    r"\$\$(?:\{\{)?"
    rf"|(?:\A(?P<before>\\+)?=|(?P<escape>\\)?)(?:\$?\{{\{{\{{?(?P<braces>{_BODY})\}}\}}\}}?|\$\{{(?P<shell>{_BODY})\}}|<<(?P<angles>{_BODY})>>)"
)
"""A dollar sign that is escaped, or what could be a reference, with the backslash that makes it text."""

_PATH_BODY = r"\w[^{}<>\n\\\s]{0,299}"
_WHOLE = re.compile(
    rf"(?P<escape>\\+)?(?:(?:[=@#$]?\{{\{{?|[@#$][\[(]|<%=?|\{{%|<)\s?(?P<inside>{_PATH_BODY}?)\s?(?:\}}\}}?|[\])]|%>|%\}}|>)"
    rf"|[@#](?P<mark>{_PATH_BODY})|%(?P<percent>{_PATH_BODY})%|\$\.(?P<json>{_PATH_BODY})|\$(?P<dollar>{_PATH_BODY})"
    rf"|(?P<bare>\w[\w.-]{{0,99}}\[[\w.*'\"\[\]-]{{1,199}}))\Z"
)
"""What is too common as a part of a text, but all of it."""

_UNKNOWN = re.compile(
    r"(?P<escape>\\+)?=?\$?\{\{?\s?\$?(?P<root>[A-Za-z_][\w-]{0,63})(?P<rest>[.\[][^{}<>\n\\]{1,300}?)\s?\}\}?\Z"
)
_LIKE_STEPS = re.compile(
    r"(?i)(?:prev|previous|last|prior|item|steps?|nodes?|tasks?|calls?|outputs?|results?|responses?)(?:[_-]?\d|_|\Z)"
)
"""Roots that can only have been meant for a step or an item, though there is none of this name."""

_OPTIONAL = re.compile(r"\?(?=[.\[])")
_NUMBERED = re.compile(r"\.\d+(?=[.\[]|\Z)")

_OF_STEPS = re.compile(
    r"(?:workflow\.)?(?:steps?|nodes?|tasks?|needs|outputs?|results?|body|actions)(?:\.|\[\s*['\"]?|\(\s*['\"])|\(\s*['\"]"
)
_ROOT = re.compile(r"(?P<root>\d+|[A-Za-z_][A-Za-z0-9_-]*)(?:['\"]?[\])])?(?P<rest>(?:[.\[\s|].*)?)\Z")
_PATH = re.compile(r"(?:\.[A-Za-z_][A-Za-z0-9_]*|\.\d+|\.\*|\[[^\[\]]*\])*")
_QUOTED = re.compile(r"\[['\"]([A-Za-z_][A-Za-z0-9_]*)['\"]\]")
_WRAPPERS = re.compile(
    r"(?:\.(?:item|first\(\)|outputs?|json|results?|parameters|structuredContent))+(?=[.\[])|\.(?:outputs?|json)\Z"
)
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
        return
    if "{{" not in text and "${" not in text and "<<" not in text:
        return
    is_known = False
    for found in _FOUND.finditer(text):
        body = found["braces"] or found["shell"] or found["angles"]
        if body is None:
            continue
        reference = _reference(
            body.strip().removeprefix("$"), names, with_path=with_path or found["angles"] is not None
        )
        if reference is not None:
            is_known = True
            is_escaped = found["escape"] is not None or found["before"] is not None
            yield LookAlike(found.start(), found.end(), reference, is_escaped)
    if not (is_known or with_path) and (unknown := _unknown(text, names)) is not None:
        yield unknown


def may_be_one(text: str) -> bool:
    """Whether a text could hold a reference of any kind: most cannot."""
    return any(sign in text for sign in ("$", "{{", "<<", "[")) or text.startswith(("{", "<", "#", "%", "@", "\\"))


def _whole(text: str, names: Container[str]) -> LookAlike | None:
    """The text as `{a.title}`, `<a.title>`, `#a.title`, `%a.title%`, `$steps.a.title` or `$a.0.title`."""
    found = _WHOLE.match(text)
    if found is None:
        return None
    body = next(each for each in found.groups()[1:] if each is not None)
    has_quotes = "'" in body or '"' in body
    path = body if found["dollar"] is not None and has_quotes else _OPTIONAL.sub("", body)
    root = _ROOT.match(path)
    is_step = root is not None and root["root"] in names
    if found["dollar"] is not None and is_step and path == body and not _NUMBERED.search(body):
        return None
    is_number = root is not None and root["root"].isdigit() and "{{" not in text
    if is_step and root is not None and (is_number or _PATH.fullmatch(root["rest"]) is None):
        return None
    body = path
    reference = _reference(body, names, with_path=True)
    return None if reference is None else LookAlike(0, len(text), reference, found["escape"] is not None)


def _unknown(text: str, names: Container[str]) -> LookAlike | None:
    """The text as `{{step1.title}}`, though there is no such step: its reference is none."""
    found = _UNKNOWN.match(text)
    if found is None or found["root"] in names or _LIKE_STEPS.match(found["root"]) is None:
        return None
    return LookAlike(0, len(text), "", found["escape"] is not None)


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
    body = _OPTIONAL.sub("", body)
    root = _ROOT.match(body)
    if root is not None and root["root"] in names:
        path = _path(root["rest"])
        # `{{0}}` and `${1}` are places of other templates.
        return f"${root['root']}{path}" if path or not (with_path or root["root"].isdigit()) else None
    of_steps = _OF_STEPS.match(body)
    root = _ROOT.match(body, of_steps.end()) if of_steps is not None else None
    if root is None or root["root"] not in names:
        return None
    return f"${root['root']}{_path(root['rest'])}"


def _path(rest: str) -> str:
    wrapper = _WRAPPERS.match(rest)
    found = _PATH.match(rest, wrapper.end() if wrapper is not None else 0)
    path = _QUOTED.sub(r".\1", found[0]) if found is not None else ""
    return re.sub(r"\.(\d+)", r"[\1]", path)
