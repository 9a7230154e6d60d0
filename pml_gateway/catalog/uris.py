"""Resource URIs compared: does one fit an RFC 6570 template, where does it come from, how else can it be written."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import unquote

MAX_URI = 16_384
"""Characters of a URI that is matched against templates; longer ones fit none."""

_EXPRESSION = re.compile(r"\{([^{}]*)\}")
_ENDS_SEGMENT = "/?#"
_DECODINGS = 3


@lru_cache(maxsize=4096)
def _parts(template: str) -> tuple[tuple[str, bool, bool], ...]:
    """(literal, is expression, stays within one segment) in order; the operators of RFC 6570 but the plain one may
    expand to anything, nothing included."""
    parts: list[tuple[str, bool, bool]] = []
    for position, text in enumerate(_EXPRESSION.split(template)):
        if position % 2:
            parts.append(("", True, not text.startswith(("+", "#", ".", "/", ";", "?", "&"))))
        elif text:
            parts.append((text, False, False))
    return tuple(parts)


def literal_length(template: str) -> int:
    """The characters a template fixes: the more, the more closely it fits what it matches."""
    return sum(len(literal) for literal, _, _ in _parts(template))


def matches_template(template: str, uri: str) -> bool:
    """Whether a URI may be an expansion of a template. Takes time linear in the URI for each part of the template.

    Matching is generous where RFC 6570 is ambiguous: the server that owns the template has the last word.
    """
    if len(uri) > MAX_URI:
        return False
    # All ends that the parts so far may have, as in a walk over every possibility at once.
    ends = {0}
    for literal, is_expression, within_segment in _parts(template):
        if not is_expression:
            ends = {end + len(literal) for end in ends if uri.startswith(literal, end)}
        elif within_segment:
            ends = _to_segment_ends(uri, ends)
        elif ends:
            ends = set(range(min(ends), len(uri) + 1))
        if not ends:
            return False
    return len(uri) in ends


def _to_segment_ends(uri: str, ends: set[int]) -> set[int]:
    reached: set[int] = set()
    for end in sorted(ends):
        while end not in reached:
            reached.add(end)
            if end == len(uri) or uri[end] in _ENDS_SEGMENT:
                break
            end += 1
    return reached


def origin(uri: str) -> tuple[str, ...]:
    """What a URI shares with others of its server: scheme and authority, then the scheme, unless the web shares it."""
    scheme, separator, rest = uri.partition(":")
    scheme = scheme.lower()
    if not separator:
        return ()
    authority = re.split(r"[/?#{]", rest.removeprefix("//"), maxsplit=1)[0].lower() if rest.startswith("//") else ""
    of_authority = (f"{scheme}://{authority}",) if authority else ()
    return of_authority if scheme in ("http", "https") else (*of_authority, scheme)


def spellings(uri: str) -> frozenset[str]:
    """A URI as it is and as a lenient server may read it: decoded, without dot segments, its origin in lower case."""
    found = {uri}
    decoded = uri
    for _ in range(_DECODINGS):
        decoded = unquote(decoded)
        found.add(decoded)
    return frozenset(found.union(*(_normal(each) for each in found)))


def _normal(uri: str) -> tuple[str, str]:
    """Without dot segments: with the authority apart from the path, and as one with it, as careless servers have it."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        head, colon, rest = uri.partition(":")
        return uri, head.lower() + colon + rest
    authority, slash, path = rest.partition("/")
    path = path.lstrip("/")
    start = f"{scheme.lower()}://"
    return f"{start}{authority.lower()}{slash}{_without_dots(path)}", f"{start}{_without_dots(rest)}"


def _without_dots(path: str) -> str:
    segments: list[str] = []
    for segment in path.replace("\\", "/").split("/"):
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment)
    lead = path[: len(path) - len(path.lstrip("/"))]
    return lead + "/".join(segments) + ("/" if path.endswith("/") and segments else "")
