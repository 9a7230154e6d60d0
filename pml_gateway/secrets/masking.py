"""Masks credentials in text that others wrote, as log lines, and in trees of values; references stay as they are.

Here more is masked than `secrets/judgement.py` would: of foreign text nobody knows what stands where.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from typing import Any

from pml_gateway.secrets.judgement import KNOWN_CREDENTIAL, MASK, RANDOM, SCHEME, Keys
from pml_gateway.secrets.names import is_secret_name

_REFERENCE = re.compile(r"\$\{(?:env|file):[^{}]*\}")
_DEFAULT = re.compile(r"(\$\{env:[^{}:]*):-(?!default\})[^{}]*\}")
PLACEHOLDER = "..."
"""What a remedy writes where a value belongs; it writes `default` where a default does."""

_URL = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]{0,30}://)(?P<user>[^/?#\s]*@)?(?P<rest>[^?#\s]*)"
    r"(?P<query>\?[^#\s]*)?(?P<fragment>#\S*)?",
    re.IGNORECASE,
)
_ASSIGNMENT = re.compile(
    # Not where the value is an object with names of its own.
    r"(?<![A-Za-z0-9_.-])(?P<name>[A-Za-z0-9_.-]+)(?P<sign>[\"']?\s*[=:]\s*)(?![\[{]+[\"']?[\w.-]+[\"']?\s*[=:])(?P<value>\"[^\"]*\"|'[^']*'|[^\s,;&\"']+)"
)

_FILE_PATH = re.compile(
    # Requests over HTTP have paths as well, which may hold keys.
    r"(?:(?<=file://)|(?<![\w.~/\\-]))(?<!GET )(?<!PUT )(?<!POST )(?<!HEAD )(?<!PATCH )(?<!DELETE )"
    r"(?:(?:/(?:home|root|Users|private|Volumes|Library|tmp|var|opt|usr|nix|mnt|srv)|~\w*|[A-Za-z]:)(?=[/\\])"
    r"|(?:[\w.@+-]+[/\\])*(?:_npx|\.npm|node_modules|\.pnpm|\.cache|archive-v\d+|site-packages)(?=[/\\]))"
    r"(?:[/\\]+[^/\\\s\"'`<>|:*?&=#;,()]+)*"
)
"""A file of this machine by its path: package managers name folders by hashes, which look like keys and are none."""

_AS_IT_IS = re.compile(f"{_REFERENCE.pattern}|{_FILE_PATH.pattern}")

Judge = Callable[[Any, Keys], Any]
"""What of a value may be shown: a text or the texts of a list masked, anything else as it is or a mask for it."""


def mask_secret(text: str) -> str:
    """`text` where it is a reference (after `Bearer ` or the like too), else the mask."""
    scheme = SCHEME.match(text)
    start = scheme.end() if scheme else 0
    if _REFERENCE.fullmatch(text, start):
        return text[:start] + without_defaults(text[start:])
    return MASK if text else text


def mask_text(text: str, plain: Container[str] = ()) -> str:
    """`text` without URL credentials, assigned secrets and anything with the look of a key.

    What one of the `plain` names, or a tool of it, is said to do (`secrets: cannot connect`) is no assigned secret.
    """
    text = without_defaults(text)
    text = _URL.sub(_masked_url, text)
    text = _ASSIGNMENT.sub(lambda found: found[0] if _is_prose(found, plain) else _masked_assignment(found), text)
    return mask_keys(text)


def by_name(value: Any, at: Keys) -> Any:
    """A text is masked whole where its key names a secret, else where it looks like one."""
    match value:
        case str():
            return mask_secret(value) if at and is_secret_name(at[-1]) else mask_text(value)
        case list() | tuple():
            return [mask_text(item) if isinstance(item, str) else item for item in value]
        case _:
            return value


def mask_tree(value: Any, judge: Judge = by_name, at: Keys = ()) -> Any:
    """The same tree as it may be shown: `judge` is asked for every value in it."""
    match judge(value, at):
        case Mapping() as members:
            return {key: mask_tree(item, judge, (*at, str(key))) for key, item in members.items()}
        case list() | tuple() as items:
            return [item if isinstance(item, str) else mask_tree(item, judge, at) for item in items]
        case shown:
            return shown


def _masked_url(match: re.Match[str]) -> str:
    query = match["query"] or ""
    if query:
        pairs = (pair.partition("=") for pair in query[1:].split("&"))
        query = "?" + "&".join(
            f"{name}={mask_secret(value)}" if sign else mask_secret(name) for name, sign, value in pairs
        )
    user = f"{MASK}@" if match["user"] else ""
    rest = mask_keys(match["rest"]) if match["scheme"].lower() == "file://" else _without_keys(match["rest"])
    return f"{match['scheme']}{user}{rest}{query}{'#' + MASK if match['fragment'] else ''}"


def _is_prose(match: re.Match[str], plain: Container[str]) -> bool:
    name, sign = match["name"], match["sign"]
    is_sentence = ":" in sign and sign[-1].isspace() and match["value"][0] not in "\"'"
    return is_sentence and (name in plain or name.partition("__")[0] in plain)


def _masked_assignment(match: re.Match[str]) -> str:
    if _is_secret(match):
        return _assigned(match)
    # `error: token=abc`, where what is said of one name is an assignment to another
    value = _ASSIGNMENT.sub(lambda found: _assigned(found) if _is_secret(found) else found[0], match["value"])
    return f"{match['name']}{match['sign']}{value}"


def _assigned(match: re.Match[str]) -> str:
    return f"{match['name']}{match['sign']}{mask_secret(match['value'])}"


def _is_secret(match: re.Match[str]) -> bool:
    value = match["value"]
    return is_secret_name(match["name"]) and not value.startswith("//") and value != PLACEHOLDER


def mask_keys(text: str) -> str:
    """`text` without anything that has the look of a key, whatever it is called; references and paths of files stay."""
    parts: list[str] = []
    end = 0
    for match in _AS_IT_IS.finditer(text):
        parts += [_without_keys(text[end : match.start()]), KNOWN_CREDENTIAL.sub(MASK, match[0])]
        end = match.end()
    return "".join([*parts, _without_keys(text[end:])])


def _without_keys(text: str) -> str:
    return RANDOM.sub(MASK, KNOWN_CREDENTIAL.sub(MASK, text))


def without_defaults(text: str) -> str:
    """The text with its references as they are written, but for their defaults, which may be secret."""
    return _DEFAULT.sub(rf"\1:-{MASK}}}", text)
