"""Masks credentials in text, command lines and trees of values; references to secrets stay as they are."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any

MASK = "***"

_SECRET_NAME = re.compile(
    # Not in longer words that mean something else: secretive, secretary, tokenizer, author, authentic, cookiecutter.
    r"token(?!i[sz])|secret(?!iv|ar)|passw(or)?d|passphrase|api[-_]?key|(access|private|auth|signing)[-_]?key|credential|"
    r"auth(?!or(?!i)|entic(?!at))|bearer|cookie(?!cutter)|session|dsn|pwd|connection[-_]?string|(^|[-_])(key|pat)s?$",
    re.IGNORECASE,
)
KNOWN_CREDENTIAL = re.compile(
    r"(?<![A-Za-z0-9])(?:gh[pousr]_|github_pat_|glpat-|sk[-_]|[rp]k_(?:live|test)_|xox[a-z]-|xapp-|AKIA|ASIA|AIza|"
    r"ya29\.|hf_|npm_|pypi-|dop_v1_|lin_(?:api|oauth)_|ntn_|secret_|figd_|tvly-|fc-|gsk_|r8_|SG\.|eyJ|shp(?:at|ss)_|"
    r"sntry[su]_|dckr_pat_|ATATT|atlasv1\.|EAA|key-|pat[-_])(?=[A-Za-z_\-./+=]*\d)[A-Za-z0-9_\-./+=]{8,}"
)
RANDOM = re.compile(
    r"(?<![A-Za-z0-9])(?:(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{16,}|"
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})(?![A-Za-z0-9])"
)
"""Words of package and tool names are shorter or have no digits; keys and identifiers in URLs look like this."""

_REFERENCE = re.compile(r"\$\{(?:env|file):[^{}]*\}")
_DEFAULT = re.compile(r"(\$\{env:[^{}:]*):-(?!default\})[^{}]*\}")
PLACEHOLDER = "..."
"""What a remedy writes where a value belongs; it writes `default` where a default does."""

SCHEME = re.compile(r"(?:Bearer|Basic|Token|ApiKey)\s+", re.IGNORECASE)
_URL = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*://)(?P<user>[^/?#\s]*@)?(?P<rest>[^?#\s]*)"
    r"(?P<query>\?[^#\s]*)?(?P<fragment>#\S*)?",
    re.IGNORECASE,
)
_ASSIGNMENT = re.compile(
    r"(?P<name>[A-Za-z0-9_.-]+)(?P<sign>[\"']?\s*[=:]\s*)(?P<value>\"[^\"]*\"|'[^']*'|[^\s,;&\"']+)"
)
_NAME = re.compile(r"[\w.-]+")
FLAG = re.compile(r"--?[A-Za-z][\w.-]*\Z")

HEADER_FLAGS = frozenset({"-H", "--header", "--headers"})
ENV_FLAGS = frozenset({"-e", "--env"})
LOGIN_FLAGS = frozenset({"-u", "--user"})
_SECRET_SECTIONS = frozenset({"env", "environment", "headers", "http_headers"})

Keys = tuple[str, ...]
"""The keys under which a value of a tree stands; the items of a list stand under its keys."""

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


def mask_arguments(arguments: Iterable[str]) -> list[str]:
    """Command line arguments without the values of secret options, headers and variables."""
    shown: list[str] = []
    before = ""
    for argument in arguments:
        shown.append(_argument(argument, before))
        before = argument
    return shown


def by_name(value: Any, at: Keys) -> Any:
    """A text is masked whole where its key names a secret, else where it looks like one."""
    match value:
        case str():
            return mask_secret(value) if at and is_secret_name(at[-1]) else mask_text(value)
        case list() | tuple():
            return [mask_text(item) if isinstance(item, str) else item for item in value]
        case _:
            return value


def as_of_a_server(value: Any, at: Keys) -> Any:
    """As `by_name`, but variables and headers are masked whole whatever they are called, and lists as command lines."""
    match value:
        case str() if not _SECRET_SECTIONS.isdisjoint(at[-2:-1]):
            return mask_secret(value)
        case list():
            masked = mask_arguments(item if isinstance(item, str) else "" for item in value)
            return [shown if isinstance(item, str) else item for item, shown in zip(value, masked, strict=True)]
        case _:
            return by_name(value, at)


def mask_tree(value: Any, judge: Judge = by_name, at: Keys = ()) -> Any:
    """The same tree as it may be shown: `judge` is asked for every value in it."""
    match judge(value, at):
        case Mapping() as members:
            return {key: mask_tree(item, judge, (*at, str(key))) for key, item in members.items()}
        case list() | tuple() as items:
            return [item if isinstance(item, str) else mask_tree(item, judge, at) for item in items]
        case shown:
            return shown


def masked_texts(tree: Any, judge: Judge) -> Iterator[tuple[str, str]]:
    """Each text of a tree that may not be shown as it is, and what may."""
    return _differences(tree, mask_tree(tree, judge))


def _differences(value: Any, shown: Any) -> Iterator[tuple[str, str]]:
    match value:
        case str() if value != shown:
            yield value, shown
        case Mapping():
            for key, item in value.items():
                yield from _differences(item, shown[key])
        case list():
            for item, mask in zip(value, shown, strict=True):
                yield from _differences(item, mask)


def is_secret_name(name: str) -> bool:
    """Whether a variable, header, option or key of this name usually holds a credential."""
    return _SECRET_NAME.search(name) is not None


def _argument(argument: str, before: str) -> str:
    if before in HEADER_FLAGS:
        name, colon, value = argument.partition(":")
        gap = value[: len(value) - len(value.lstrip())]
        return f"{name}{colon}{gap}{mask_secret(value.strip())}" if colon else mask_secret(argument)
    if before in ENV_FLAGS:
        name, sign, value = argument.partition("=")
        return f"{name}{sign}{mask_secret(value)}"
    if before in LOGIN_FLAGS and ":" in argument:
        return mask_secret(argument)
    if FLAG.match(before) and is_secret_name(before.lstrip("-")) and not argument.startswith("--"):
        return mask_secret(argument)
    if argument.lstrip().startswith("{") and _SECRET_NAME.search(argument):
        return mask_secret(argument)
    name, sign, value = argument.partition("=")
    if sign and _NAME.fullmatch(name) and is_secret_name(name):
        return f"{name}={mask_secret(value)}"
    return mask_text(argument)


def _masked_url(match: re.Match[str]) -> str:
    query = match["query"] or ""
    if query:
        pairs = (pair.partition("=") for pair in query[1:].split("&"))
        query = "?" + "&".join(
            f"{name}={mask_secret(value)}" if sign else mask_secret(name) for name, sign, value in pairs
        )
    user = f"{MASK}@" if match["user"] else ""
    return f"{match['scheme']}{user}{mask_keys(match['rest'])}{query}{'#' + MASK if match['fragment'] else ''}"


def _is_prose(match: re.Match[str], plain: Container[str]) -> bool:
    name, sign = match["name"], match["sign"]
    is_sentence = ":" in sign and sign[-1].isspace() and match["value"][0] not in "\"'"
    return is_sentence and (name in plain or name.partition("__")[0] in plain)


def _masked_assignment(match: re.Match[str]) -> str:
    value = match["value"]
    if not is_secret_name(match["name"]) or value.startswith("//") or value == PLACEHOLDER:
        return match[0]
    return f"{match['name']}{match['sign']}{mask_secret(value)}"


def mask_keys(text: str) -> str:
    """`text` without anything that has the look of a key, whatever it is called; references stay."""
    parts: list[str] = []
    end = 0
    for match in _REFERENCE.finditer(text):
        parts += [_without_keys(text[end : match.start()]), match[0]]
        end = match.end()
    return "".join([*parts, _without_keys(text[end:])])


def _without_keys(text: str) -> str:
    return RANDOM.sub(MASK, KNOWN_CREDENTIAL.sub(MASK, text))


def without_defaults(text: str) -> str:
    """The text with its references as they are written, but for their defaults, which may be secret."""
    return _DEFAULT.sub(rf"\1:-{MASK}}}", text)
