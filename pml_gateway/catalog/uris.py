"""Comparison of resource URIs: their canonical form, their possible readings, and whether they match a template.

Servers read URIs in many ways. A client's URI is forwarded in one canonical form, and rules are checked against all
its possible readings, of which there is nearly always only one.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TypeVar
from urllib.parse import quote, unquote

MAX_URI = 16_384
"""Maximum number of characters of a URI; longer ones are not requested from any server."""

MAX_REMEMBERED = 1_024
"""Maximum number of characters of a URI in the large cache: clients choose which URIs they request."""

DECODINGS = 2
"""Number of superfluous decodings that readings allow for; a careless server decodes a URI more than once."""

_Form = TypeVar("_Form")

_EXPRESSION = re.compile(r"\{([^{}]*)\}")
_ENDS_SEGMENT = "/?#"
_EXAMPLES = {"#": "#x", ".": ".x", "/": "/x", ";": ";x=x", "?": "?x=x", "&": "&x=x"}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_DRIVE = re.compile(r"[A-Za-z][:|]")
_PERCENT = re.compile(r"%[0-9A-Fa-f]{2}|%")
_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]")
_USER = re.compile(r"([a-z][a-z0-9+.-]*://)[^/?#@]*(?:@[^/?#@]*)*@")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_AROUND = "".join(map(chr, range(0x21)))
_TABS_AND_LINE_ENDS = str.maketrans("", "", "\t\r\n")
_IN_PATHS = "/!$&'()*+,;=:@"
_ASCII = "".join(map(chr, range(0x21, 0x7F)))
_DEFAULT_PORTS = {"http": "80", "https": "443", "ws": "80", "wss": "443", "ftp": "21"}
"""Default ports of the special schemes of the WHATWG URL standard other than `file`."""

_HOST_AND_PORT = re.compile(r"(//(?:[^@]*@)?)(\[[^]]*\]|[^:]*)(.*)", re.DOTALL)


def _remembered(function: Callable[[str], _Form]) -> Callable[[str], _Form]:
    short, long = lru_cache(maxsize=2048)(function), lru_cache(maxsize=16)(function)
    return lambda uri: short(uri) if len(uri) <= MAX_REMEMBERED else long(uri)


@lru_cache(maxsize=4096)
def _parts(template: str) -> tuple[tuple[str, bool, bool], ...]:
    """Return the parts of a template: (literal, is expression, stays within one segment) in order.

    Expressions with an operator of RFC 6570 may expand to anything, including nothing.
    """
    parts: list[tuple[str, bool, bool]] = []
    for position, text in enumerate(_EXPRESSION.split(with_scheme(template, scheme_of(template)))):
        if position % 2:
            parts.append(("", True, not text.startswith(("+", "#", ".", "/", ";", "?", "&"))))
        elif text:
            parts.append((text, False, False))
    return tuple(parts)


def literal_length(template: str) -> int:
    """Return the number of characters that a template fixes: the more, the closer is its match."""
    return sum(len(literal) for literal, _, _ in _parts(template))


def matches_template(template: str, uri: str) -> bool:
    """Return True if a URI may be an expansion of a template.

    This takes time linear in the URI for each part of the template. Matching is generous if RFC 6570 is ambiguous:
    the server that owns the template has the last word.
    """
    if len(uri) > MAX_URI:
        return False
    uri = with_scheme(uri, scheme_of(uri))
    # All positions at which the parts so far may end, so that every possibility is followed at once.
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


def example(template: str) -> str:
    """Return a URI that fits a template."""
    return _EXPRESSION.sub(lambda found: _EXAMPLES.get(found[1][:1], "x"), template)


def scheme_of(uri: str) -> str:
    """Return the scheme of a URI or template in lower case; empty if it is not fixed."""
    return _split(uri.strip(" "))[0]


def written_scheme(uri: str) -> str:
    """Return the scheme of a URI or template as it is written; empty if it is not fixed."""
    found = _SCHEME.fullmatch(uri.strip(" "))
    return found[1] if found else ""


def with_scheme(uri: str, scheme: str) -> str:
    """Return a URI or template with this spelling of its scheme; without a scheme it stays unchanged."""
    found = _SCHEME.fullmatch(uri)
    return f"{scheme}:{found[2]}" if found else uri


def origin(uri: str) -> tuple[str, ...]:
    """Return what URIs of one server have in common: scheme and authority, then the scheme unless it is the web's."""
    scheme, separator, rest = uri.partition(":")
    scheme = scheme.lower()
    if not separator:
        return ()
    authority = re.split(r"[/?#{]", rest.removeprefix("//"), maxsplit=1)[0].lower() if rest.startswith("//") else ""
    of_authority = (f"{scheme}://{authority}",) if authority else ()
    return of_authority if scheme in ("http", "https") else (*of_authority, scheme)


def unusable(uri: str) -> str:
    """Return why a URI cannot be requested, as in `contains U+0000, a control character`; empty if it can.

    Every reader treats control characters and lone surrogates differently. Readers of files agree to ignore tabs and
    line ends.
    """
    if len(uri) > MAX_URI:
        return f"has {len(uri)} characters, over {MAX_URI}"
    flat = uri.translate(_TABS_AND_LINE_ENDS)
    text = flat if _split(flat)[0] == "file" else uri
    found = _CONTROL.search(text)
    character = found[0] if found else "\0" if any("\0" in each for each in _decodings(text, DECODINGS + 1)) else ""
    return f"contains U+{ord(character):04X}, a control character" if character else ""


def is_malformed(uri: str) -> bool:
    """Return True for a URI of the web that WHATWG parsers refuse; other readers may take it for anything."""
    return _web_form(uri) is None


@_remembered
def canonical(uri: str) -> str:
    """Return a URI in the canonical form in which it is forwarded.

    A `file:` URI is read as in the WHATWG standard and means a path, so host, dot segments, empty segments and encoded
    separators are removed. A URI of the web (`https:`, `ws:`, `ftp:`) is serialised as in that standard, and left
    unchanged if it is malformed. In others, only differences that RFC 3986 ignores are removed, but the case of letters
    is kept in possible parameters. Fragments and empty queries are removed.
    """
    text = uri.strip(" ")
    scheme, rest = _split(text.translate(_TABS_AND_LINE_ENDS))
    if scheme == "file":
        path, query = _cut(rest)
        decoded = unquote(_whatwg_path(path), errors="surrogateescape")
        ends = "/" if decoded.endswith(("/", "/.", "/..")) else ""
        written = quote(_resolved(decoded), safe=_IN_PATHS, errors="surrogateescape")
        return f"file://{written.rstrip('/')}{ends or ('/' if written == '/' else '')}{_escaped(query)}"
    form = _web_form(text)
    scheme, rest = _split(form or "")
    if not scheme:
        return text
    path, query = _cut(_escaped(rest))
    authority, path = _authority(path)
    if path.startswith("/") and any(each in (".", "..") for each in path.split("/")):
        path = _without_dots(path)
        # A path must not become an authority.
        path = path if authority else f"/{path.lstrip('/')}"
    path = "" if authority and path == "/" else path
    return f"{scheme}:{_host(scheme, authority)}{path}{query}"


@_remembered
def readings(uri: str) -> frozenset[str]:
    """Return all possible readings of a URI: decoded, with `/` between segments, without insignificant parts.

    Two URIs that are the same for some reader have a reading in common. There are several readings if readers disagree:
    about `..` after an empty or encoded segment, about backslashes, about double encoding.
    """
    return frozenset(
        reading
        for written in {uri, canonical(uri)}
        for text in _decodings(written, DECODINGS)
        for parsed in {text, _web_form(text) or text}
        for reading in _readings(parsed.strip(_AROUND))
    )


def without_user(reading: str) -> str:
    """Return a reading without the user, for readers that only look at the host."""
    return _USER.sub(r"\1", reading, count=1)


def _decodings(uri: str, times: int) -> Iterator[str]:
    yield uri
    for _ in range(times):
        decoded = unquote(uri)
        if decoded == uri:
            return
        uri = decoded
        yield uri


def _readings(uri: str) -> Iterator[str]:
    flat = uri.translate(_TABS_AND_LINE_ENDS)
    scheme, rest = _split(flat)
    if scheme == "file" or flat.startswith(("/", "\\")):
        path, _ = _cut(rest)
        paths = {unquote(_whatwg_path(path)), unquote(_python_path(path))}
        if not scheme:
            # Without a scheme, the text may itself be a path.
            paths |= {rest, unquote(path)}
        yield from (f"file://{_resolved(each)}" for path in paths for each in _with_either_slash(path))
        if scheme:
            return
    scheme, rest = _split(uri)
    if not scheme:
        yield from (uri, unquote(uri))
        return
    path, query = _cut(rest)
    for read in _with_either_slash(unquote(path)):
        authority, below = _authority(read)
        parts = {(authority, _resolved(below))}
        if len(authority) > 2:
            # Careless servers read all that follows the scheme as one path.
            parts.add(_authority(f"/{_resolved(read[1:])}"))
        for host, resolved in parts:
            below = f"{resolved.rstrip('/')}{unquote(query)}"
            yield from (f"{scheme}:{named}{below}" for named in _host_names(scheme, host))


def _host_names(scheme: str, authority: str) -> set[str]:
    """Return the authority as readers may know it: host without a final dot, in Unicode, or its mapped IPv4 address."""
    named = unicodedata.normalize("NFKC", _host(scheme, authority)).lower()
    found = _HOST_AND_PORT.fullmatch(named)
    if found is None:
        return {named}
    before, host, port = found.groups()
    names = {host.rstrip(".")}
    if host.startswith("["):
        names.add(_mapped_address(host))
    elif "xn--" in host and scheme in _DEFAULT_PORTS:
        names.add(".".join(map(_in_unicode, host.rstrip(".").split("."))))
    return {f"{before}{name}{port}" for name in names}


def _in_unicode(label: str) -> str:
    """Return a label of a host name decoded from Punycode; any other label unchanged."""
    from ada_url import idna_to_unicode

    return (label.startswith("xn--") and label.isascii() and idna_to_unicode(label)) or label


def _mapped_address(host: str) -> str:
    """Return the IPv4 address that an IPv6 address in brackets maps, or the host unchanged."""
    try:
        mapped = ipaddress.IPv6Address(host[1:-1]).ipv4_mapped
    except ValueError:
        return host
    return host if mapped is None else str(mapped)


def _web_form(uri: str) -> str | None:
    """Return a URI of the web as WHATWG parsers write it, or None if they refuse it; any other unchanged."""
    flat = uri.translate(_TABS_AND_LINE_ENDS).strip(_AROUND)
    if _split(flat)[0] not in _DEFAULT_PORTS:
        return uri
    # Imported with the first such URI: most gateways never see one, and it takes 12 ms.
    from ada_url import normalize_url

    try:
        return normalize_url(flat)
    except ValueError:
        return None


def _with_either_slash(path: str) -> set[str]:
    return {path, path.replace("\\", "/")}


def _split(uri: str) -> tuple[str, str]:
    """Return the scheme in lower case and the rest; without a scheme, everything is the rest."""
    found = _SCHEME.fullmatch(uri)
    return (found[1].lower(), found[2]) if found else ("", uri)


def _cut(rest: str) -> tuple[str, str]:
    """Return the path (with the authority) and the query with its `?`, which is left out if it is empty."""
    path, mark, query = rest.partition("#")[0].partition("?")
    return path, mark + query if query else ""


def _authority(path: str) -> tuple[str, str]:
    """Return the authority with its slashes, and the path below it."""
    if not path.startswith("//"):
        return "", path
    authority, slash, below = path[2:].partition("/")
    return f"//{authority}", slash + below


def _host(scheme: str, authority: str) -> str:
    """Return the authority without an empty or default port; for the web also without a user, and in lower case."""
    host, colon, port = authority.rpartition(":")
    if colon and (not port or port == _DEFAULT_PORTS.get(scheme)):
        authority = host
    if not authority or scheme not in _DEFAULT_PORTS:
        return authority
    return _PERCENT.sub(lambda escape: escape[0].upper(), f"//{authority[2:].rpartition('@')[2]}".lower())


def _whatwg_path(rest: str) -> str:
    """Return the path of a `file:` URI as the WHATWG URL standard reads it, still encoded."""
    path = rest.replace("\\", "/")
    if path.startswith("//") and not _DRIVE.fullmatch(path[2:].partition("/")[0]):
        path = path[2:].partition("/")[2]
    elif path.startswith("//"):
        path = path[2:]
    else:
        path = path.removeprefix("/")
    segments: list[str] = []
    for segment in (each := path.split("/")):
        dots = segment.lower().replace("%2e", ".")
        if dots == "..":
            if segments and not (len(segments) == 1 and _DRIVE.fullmatch(segments[0])):
                segments.pop()
        elif dots != ".":
            segments.append(f"{segment[0]}:" if not segments and _DRIVE.fullmatch(segment) else segment)
    ends = each[-1].lower().replace("%2e", ".") in (".", "..")
    return "/" + "/".join([*segments, *([""] if ends else [])])


def _python_path(rest: str) -> str:
    """Return the path as `urllib.parse.urlparse` reads it: backslashes are ordinary characters, dot segments stay."""
    path = _authority(rest)[1]
    return path if path.startswith("/") else f"/{path}"


def _resolved(path: str) -> str:
    """Return a path as a file system resolves it: without dot segments and empty ones."""
    segments: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment)
    return "/" * path.startswith("/") + "/".join(segments)


def _without_dots(path: str) -> str:
    """Return a path without dot segments, removed as in RFC 3986."""
    segments: list[str] = []
    *_, last = given = path[1:].split("/")
    for segment in given:
        if segment == "..":
            del segments[-1:]
        elif segment != ".":
            segments.append(segment)
    return "/" + "/".join([*segments, *([""] if last in (".", "..") else [])])


def _escaped(text: str) -> str:
    """Write needed escapes in capitals, and remove unneeded ones."""
    return quote(_PERCENT.sub(_escape, text), safe=_ASCII, errors="surrogatepass")


def _escape(found: re.Match[str]) -> str:
    escape = found[0]
    if escape == "%":
        return "%25"
    character = chr(int(escape[1:], 16))
    return character if _UNRESERVED.fullmatch(character) else escape.upper()
