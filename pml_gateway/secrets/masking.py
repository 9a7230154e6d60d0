"""Masking of credentials in foreign text, such as log lines, and in trees of values; references are kept.

More is masked than in `secrets/judgement.py`, because the structure of foreign text is unknown.
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
"""The placeholder for a value in remedies; they use `default` for defaults."""

_URL = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]{0,30}://)(?P<user>[^/?#\s]*@)?(?P<rest>[^?#\s]*)"
    r"(?P<query>\?[^#\s]*)?(?P<fragment>#\S*)?",
    re.IGNORECASE,
)
_ASSIGNMENT = re.compile(
    # Not if the value is an object with names of its own.
    r"(?<![A-Za-z0-9_.-])(?P<name>[A-Za-z0-9_.-]+)(?P<sign>[\"']?\s*[=:]\s*)(?![\[{]+[\"']?[\w.-]+[\"']?\s*[=:])(?P<value>\"[^\"]*\"|'[^']*'|[^\s,;&\"']+)"
)

_FILE_PATH = re.compile(
    # HTTP requests have paths too, which may contain keys.
    r"(?:(?<=file://)|(?<![\w.~/\\-]))(?<!GET )(?<!PUT )(?<!POST )(?<!HEAD )(?<!PATCH )(?<!DELETE )"
    r"(?:(?:/(?:home|root|Users|private|Volumes|Library|tmp|var|opt|usr|nix|mnt|srv)|~\w*|[A-Za-z]:)(?=[/\\])"
    r"|(?:[\w.@+-]+[/\\])*(?:_npx|\.npm|node_modules|\.pnpm|\.cache|archive-v\d+|site-packages)(?=[/\\]))"
    r"(?:[/\\]+[^/\\\s\"'`<>|:*?&=#;,()]+)*"
)
"""A path of a local file: package managers name folders by hashes, which look like keys but are not."""

_AS_IT_IS = re.compile(f"{_REFERENCE.pattern}|{_FILE_PATH.pattern}")

Judge = Callable[[Any, Keys], Any]
"""Returns the displayable form of a value: a text or a list's texts masked, anything else unchanged or masked."""


def mask_secret(text: str) -> str:
    """Return `text` if it is a reference (also after `Bearer ` or the like), else the mask."""
    scheme = SCHEME.match(text)
    start = scheme.end() if scheme else 0
    if _REFERENCE.fullmatch(text, start):
        return text[:start] + without_defaults(text[start:])
    return MASK if text else text


def mask_text(text: str, plain: Container[str] = ()) -> str:
    """Return `text` with URL credentials, assigned secrets and anything that looks like a key masked.

    A sentence about one of the `plain` names, or one of its tools, is not an assignment (`secrets: cannot connect`).
    """
    text = without_defaults(text)
    text = _URL.sub(_masked_url, text)
    text = _ASSIGNMENT.sub(lambda found: found[0] if _is_prose(found, plain) else _masked_assignment(found), text)
    return mask_keys(text)


def by_name(value: Any, at: Keys) -> Any:
    """Mask a text completely if its key names a secret, else the parts that look like one."""
    match value:
        case str():
            return mask_secret(value) if at and is_secret_name(at[-1]) else mask_text(value)
        case list() | tuple():
            return [mask_text(item) if isinstance(item, str) else item for item in value]
        case _:
            return value


def mask_tree(value: Any, judge: Judge = by_name, at: Keys = ()) -> Any:
    """Return the tree for display: `judge` is called for every value in it."""
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
    # `error: token=abc`: the text after one name is an assignment to another
    value = _ASSIGNMENT.sub(lambda found: _assigned(found) if _is_secret(found) else found[0], match["value"])
    return f"{match['name']}{match['sign']}{value}"


def _assigned(match: re.Match[str]) -> str:
    return f"{match['name']}{match['sign']}{mask_secret(match['value'])}"


def _is_secret(match: re.Match[str]) -> bool:
    value = match["value"]
    return is_secret_name(match["name"]) and not value.startswith("//") and value != PLACEHOLDER


def mask_keys(text: str) -> str:
    """Return `text` with anything that looks like a key masked; references and file paths are kept."""
    parts: list[str] = []
    end = 0
    for match in _AS_IT_IS.finditer(text):
        parts += [_without_keys(text[end : match.start()]), KNOWN_CREDENTIAL.sub(MASK, match[0])]
        end = match.end()
    return "".join([*parts, _without_keys(text[end:])])


def _without_keys(text: str) -> str:
    return RANDOM.sub(MASK, KNOWN_CREDENTIAL.sub(MASK, text))


def without_defaults(text: str) -> str:
    """Return the text with the defaults of its references masked, since they may be secret."""
    return _DEFAULT.sub(rf"\1:-{MASK}}}", text)
