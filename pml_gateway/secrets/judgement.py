"""The judgement of what is secret in a server's definition, shared by masking and by moving secrets out of files.

A value is judged by its name and its form, depending on its place: a variable, a header, an argument, an address.
References (`${env:NAME}`) and variables of clients are not secret; their literal defaults are judged like values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from pml_gateway.secrets.names import WEBHOOK, NameMeaning, is_secret_name, meaning_of

MASK = "***"

Keys = tuple[str, ...]
"""The keys that lead to a value in a tree; items of a list share the list's keys."""

HEADER_FLAGS = frozenset({"-H", "--header", "--headers"})
ENV_FLAGS = frozenset({"-e", "--env"})
LOGIN_FLAGS = frozenset({"-u", "--user"})
_HEADER_SECTIONS = frozenset({"headers", "http_headers"})
_NAMES_OF_VARIABLES = frozenset({"env_http_headers", "env_vars"})
"""Members of Codex entries that contain only names of variables, no values."""
_LOGIN_SECTIONS = frozenset({"auth", "oauth"})
"""Sections about logging in, in which only the secret is replaced: everything else must stay as it is."""

KNOWN_CREDENTIAL = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"(?:gh[pousr]_|github_pat_|glpat-|sk[-_]|rk_(?:live|test)_|xox[a-z]-|xapp-|AKIA|ASIA|AIza|ya29\.|hf_|npm_|pypi-|"
    r"dop_v1_|lin_(?:api|oauth)_|ntn_|figd_|tvly-|gsk_|r8_|SG\.|eyJ|shp(?:at|ss)_|sntry[su]_|dckr_pat_|ATATT|"
    r"atlasv1\.|EAA|sbp_|glsa_|GOCSPX-|hvs\.|pplx-|whsec_)(?=[A-Za-z_\-./+=]*\d)[A-Za-z0-9_\-./+=]{8,}|"
    r"pml_[A-Za-z0-9_\-]{43}(?![A-Za-z0-9_\-])|"
    # These also begin other words: the rest must look like a key.
    r"(?:fc-|key-|secret_|pat-|pat_)(?=[A-Za-z_\-./+=]*\d)(?=[A-Za-z0-9_\-]{0,8}[A-Za-z0-9]{16})[A-Za-z0-9_\-./+=]{8,})"
)
RANDOM = re.compile(
    r"(?<![A-Za-z0-9])(?:(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{16,}|"
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})(?![A-Za-z0-9])"
)
"""Words in package and tool names are shorter or have no digits; keys and identifiers in URLs have this form."""

SCHEME = re.compile(r"(?:Bearer|Basic|Token|ApiKey)\s+", re.IGNORECASE)
FLAG = re.compile(r"--?[A-Za-z][\w.-]*\Z")

_REFERENCE = re.compile(r"(?<!\$)\$\{(?:(?:env|file):[^{}]*|[A-Z_][A-Z0-9_]*)\}")
"""A reference, or a variable that the program itself expands."""

_DEFAULT = re.compile(r"(?<!\$)\$\{(?:env:)?(?P<name>[A-Za-z_]\w*):-(?P<value>[^{}]+)\}")
_VARIABLE = re.compile(r"\$\{[^{}]*\}|\$[A-Z_][A-Z0-9_]*|%[A-Z_][A-Z0-9_]*%|\$\(.*\)?|`.*`?", re.DOTALL)
"""Variables and substitutions that a client or a shell expands."""

_ESCAPED = re.compile(r"\$(?=\$\{(?:env|file):)")
_BLANK = "\ufffc"
"""A placeholder for references while a text is examined; no credential pattern contains it."""

_SWITCH = re.compile(r"true|false|yes|no|on|off|none|null|enabled?|disabled?", re.IGNORECASE)
_NUMBER = re.compile(r"-?\d{1,9}(?:\.\d+)?")
_WORD = re.compile(r"[A-Za-z]+(?:[-_ ,.][A-Za-z]+)*")
MAX_WORD = 24
_PATH = re.compile(r"(?:~|\.{1,2})?(?:/[\w.@ +,()=-]+){2,}/?|(?:~|\.{1,2})/[\w.@ +,()=-]+|[A-Za-z]:[\\/][^\n]*")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE)
_LOGIN = re.compile(r"[^\s:/]+:(?P<password>[^\s:/]+)")

_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----(?:\\n|\n)?|\Z)", re.DOTALL
)
_URL = re.compile(
    r"(?<![a-z0-9+.-])(?P<scheme>[a-z][a-z0-9+.-]*)://"
    r"(?:(?P<user>[^/?#\s:@\"']*)(?::(?P<password>[^/?#\s\"']*))?@)?"
    r"(?P<host>[^/?#\s\"']*)(?P<path>/[^?#\s\"']*)?(?P<query>[?#][^\s\"']*)?",
    re.IGNORECASE,
)
_LOOSE_LOGIN = re.compile(r"(?P<user>[^/?#\s:@\"']*):(?P<password>[^\s\"']+)@")
_PARAMETER = re.compile(r"[?&#](?:(?P<name>[^=&#\s]+)=)?(?P<value>[^&#\s]*)")
_SEGMENT = re.compile(r"[^/]+")
_ASSIGNMENT = re.compile(
    r"(?<![A-Za-z0-9_.-])(?P<name>[A-Za-z0-9_.-]+)[\"']?\s*(?P<sign>[=:])\s*"
    r"(?:\"(?P<double>(?:[^\"\\]|\\.)*)\"|'(?P<single>[^']*)'|(?P<plain>[^\s,;&\"'{}\[\]]+))"
)
_CODE = re.compile(r"[A-Za-z_]+(?:\.[A-Za-z_]+)+|lambda\b|None\b")
"""Code contains assignments too: `token = os.environ["TOKEN"]`."""
_OPTION = re.compile(r"(?P<name>--?[A-Za-z][\w.-]*|[A-Za-z_]\w*)=(?P<value>(?!=*\Z).*)", re.DOTALL)
"""Requires a value, since base64 also ends with `=`."""
_WITH_SCHEME = re.compile(r"(?:Bearer|Basic|ApiKey|Token)\s+(?P<value>[^\s\"',;]{8,})", re.IGNORECASE)
_TOKEN = re.compile(r"[A-Za-z0-9_\-+/=.~%]{20,}")
_KIND = re.compile(r"(?P<lower>[a-z])|(?P<upper>[A-Z])|(?P<digit>\d)")
MIN_JUMBLED, CHANGES = 24, 0.3
"""Base64 changes between lower case, upper case, digits and signs at more than half of its characters."""

Change = Callable[[str, Callable[[], tuple["Secret", ...]], Keys], str]
"""Returns the replacement for a text, given a finder of its secrets and its keys; a list item's index comes last."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret part of a text.

    `variable_name` is a name for the variable that takes it; unless `is_variable`, the server's name goes before it.
    `shown` replaces the part in a preview. For a reference with a secret default, the part is the whole reference.
    """

    start: int
    end: int
    value: str = field(repr=False)
    variable_name: str = "key"
    is_variable: bool = False
    shown: str = MASK

    @property
    def is_default(self) -> bool:
        """Return True if it is the default of a reference."""
        return self.shown != MASK


def secrets_of(text: str, at: Keys) -> tuple[Secret, ...]:
    """Return the secret parts of the text under the keys `at` of a server's definition, in order."""
    name = at[-1] if at else ""
    section = at[-2] if len(at) > 1 else ""
    if section in _NAMES_OF_VARIABLES or (section in _LOGIN_SECTIONS and not is_secret_name(name)):
        return ()
    if section in _HEADER_SECTIONS:
        return _settled(text, _of_header(name, text))
    naming = (
        _VariableNaming(name, is_variable=True)
        if section in ("env", "environment")
        else _VariableNaming(is_variable=False)
    )
    return _settled(text, _of_named(name, text, naming))


def secrets_of_argument(argument: str, before: str = "") -> tuple[Secret, ...]:
    """Return the secret parts of a command-line argument, which follows the argument `before`."""
    return _settled(argument, _of_argument(argument, before))


def mapped(value: Any, change: Change, at: Keys = ()) -> Any:
    """Return the tree with every text in it changed."""
    match value:
        case str():
            return change(value, lambda: secrets_of(value, at), at)
        case Mapping():
            return {key: mapped(item, change, (*at, str(key))) for key, item in value.items()}
        case list() | tuple():
            is_of_names = not _NAMES_OF_VARIABLES.isdisjoint(at[-1:])
            changed: list[Any] = []
            before = ""
            for position, item in enumerate(value):
                if isinstance(item, str):
                    find = partial(secrets_of_argument, item, before) if not is_of_names else tuple
                    changed.append(change(item, find, (*at, str(position))))
                else:
                    changed.append(mapped(item, change, at))
                before = item if isinstance(item, str) else ""
            return changed
        case _:
            return value


def keys_of_secrets(tree: Any) -> list[str]:
    """Return the keys of all secrets in a tree, in the form `env.NAME` and `args[0]`."""
    keys: list[str] = []

    def note(text: str, find: Callable[[], tuple[Secret, ...]], at: Keys) -> str:
        keys.extend([written_key(at)] if find() else [])
        return text

    mapped(tree, note)
    return keys


def written_key(at: Keys) -> str:
    """Format the keys of a value for display."""
    return "".join(f"[{key}]" if key.isdecimal() else f".{key}" for key in at).lstrip(".")


def masked(value: Any, at: Keys = ()) -> Any:
    """Return the tree with its secrets masked."""
    return mapped(value, lambda text, find, _: shown(text, find()), at)


def shown(text: str, secrets: Sequence[Secret]) -> str:
    """Return `text` with its secrets masked."""
    return with_secrets(text, secrets, lambda secret: secret.shown)


def with_secrets(text: str, secrets: Sequence[Secret], put: Callable[[Secret], str]) -> str:
    """Return `text` with each of its `secrets` replaced by the result of `put`."""
    parts: list[str] = []
    end = 0
    for secret in secrets:
        parts += [text[end : secret.start], put(secret)]
        end = secret.end
    return "".join([*parts, text[end:]])


@dataclass(frozen=True, slots=True)
class _VariableNaming:
    """Rule for the names of the variables that take the secrets of one value."""

    name: str = ""
    is_variable: bool = False

    def of(self, part: str = "") -> tuple[str, bool]:
        """Return the name for a part of the value, or for all of it."""
        if self.is_variable and self.name:
            return (f"{self.name}_{part}" if part else self.name), True
        return part or self.name or "key", False

    def at(self, span: tuple[int, int], text: str, part: str = "key") -> tuple[str, bool]:
        """Return the name for the secret at `span`; a variable's own name is only used for its whole value."""
        return self.of(part if self.is_variable and span != (0, len(text)) else "")


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a text that may be secret, before references are removed from it."""

    start: int
    end: int
    naming: tuple[str, bool]


def _settled(text: str, parts: Iterator[_Part]) -> tuple[Secret, ...]:
    """Return the parts in order, without overlaps and references, and with secret defaults of references."""
    found: list[Secret] = [*_defaults(text)]
    for part in sorted(parts, key=lambda part: (part.start, -part.end)):
        end = part.start
        for reference in [*_REFERENCE.finditer(text, part.start, part.end), None]:
            stop = reference.start() if reference else part.end
            found.append(_secret(text, end, stop, part.naming))
            end = reference.end() if reference else stop
    settled: list[Secret] = []
    for secret in sorted(found, key=lambda secret: (secret.start, -secret.end)):
        is_free = not settled or secret.start >= settled[-1].end
        if is_free and _says_something(text[secret.start : secret.end]):
            settled.append(secret)
    return tuple(settled)


def _says_something(text: str) -> bool:
    is_default = _DEFAULT.fullmatch(text) is not None
    return any(map(str.isalnum, text)) and (is_default or _VARIABLE.fullmatch(text) is None)


def _secret(text: str, start: int, end: int, naming: tuple[str, bool]) -> Secret:
    # A `$` before a reference would make it a literal.
    while start > 0 and end > start and text[start - 1] == "$":
        start -= 1
    return Secret(start, end, _ESCAPED.sub("", text[start:end]), *naming)


def _defaults(text: str) -> Iterator[Secret]:
    for match in _DEFAULT.finditer(text):
        name, value = match["name"], match["value"]
        # A user who writes a reference usually means a secret.
        is_unsaid = meaning_of(name) is NameMeaning.NOTHING and not _is_harmless(value)
        if is_unsaid or any(_of_named(name, value, _VariableNaming())):
            shown = f"{text[match.start() : match.start('value')]}{MASK}}}"
            yield Secret(match.start(), match.end(), value, name, True, shown)


def _of_header(name: str, text: str) -> Iterator[_Part]:
    is_token = name.lower().endswith("authorization") or SCHEME.match(text)
    bare = name.removeprefix("X-").removeprefix("x-")
    return _of_named(name, text, _VariableNaming("token" if is_token else bare))


def _of_argument(argument: str, before: str) -> Iterator[_Part]:
    is_value = FLAG.match(before) is not None and FLAG.match(argument) is None
    option = None if is_value and is_secret_name(before.lstrip("-")) else _OPTION.fullmatch(argument)
    if option and (before == "-c" or option["value"][:1] in ("'", '"')):
        # A shell command line, which contains more than this assignment.
        option = None
    flag = option["name"] if option else before
    start = option.start("value") if option else 0
    rest = argument[start:]
    if flag in HEADER_FLAGS and ":" in rest:
        name, _, value = rest.partition(":")
        lead = start + len(name) + 1 + len(value) - len(value.lstrip())
        return _moved(_of_header(name.strip(), argument[lead:]), lead)
    if flag in ENV_FLAGS and "=" in rest:
        name = rest.partition("=")[0]
        lead = start + len(name) + 1
        return _moved(_of_named(name, argument[lead:], _VariableNaming(name, is_variable=True)), lead)
    if flag in LOGIN_FLAGS and ":" in rest and not rest.replace(":", "").isdecimal():
        return iter([_Part(start + rest.index(":") + 1, len(argument), ("password", False))])
    if option is not None:
        name = flag.lstrip("-")
        return _moved(_of_named(name, rest, _VariableNaming(name, is_variable=name == flag)), start)
    if is_value:
        name = before.lstrip("-")
        return _of_named(name, argument, _VariableNaming(name if is_secret_name(name) else ""))
    return _of_text(argument, NameMeaning.NOTHING, _VariableNaming(), has_name=False)


def _moved(parts: Iterator[_Part], by: int) -> Iterator[_Part]:
    return (_Part(part.start + by, part.end + by, part.naming) for part in parts)


def _of_named(name: str, text: str, naming: _VariableNaming) -> Iterator[_Part]:
    """Yield the secret parts of a value by its name, or else by its form."""
    meaning = meaning_of(name)
    scheme = SCHEME.match(text)
    start = scheme.end() if scheme else 0
    value = text[start:]
    if is_plain(value, name) or meaning in (NameMeaning.PLAIN, NameMeaning.NOTHING):
        yield from _of_text(text, meaning, naming, has_name=bool(name))
        return
    if _ADDRESS.fullmatch(value) and not WEBHOOK.search(name):
        yield from _of_text(text, meaning, naming, has_name=True)
        return
    login = _LOGIN.fullmatch(value) if meaning is NameMeaning.PERHAPS and not scheme else None
    start += login.start("password") if login else 0
    yield _Part(start, len(text), naming.at((start, len(text)), text, "password" if login else "token"))


def is_plain(value: str, name: str) -> bool:
    """Return True if a value is not secret despite its name."""
    if not value.strip() or _SWITCH.fullmatch(value) or _VARIABLE.fullmatch(value):
        return True
    if meaning_of(name) is NameMeaning.PERHAPS and _is_harmless(value):
        return True
    if name.lower().endswith(("tokens", "seed")) and _NUMBER.fullmatch(value):
        return True
    return _is_path(value) and "pass" not in name.lower()


def _is_harmless(value: str) -> bool:
    """Return True if a value looks like a word, a number, a path or a site's address."""
    is_site = _ADDRESS.fullmatch(value) is not None and "/" not in value.partition("://")[2].rstrip("/")
    is_word = len(value) <= MAX_WORD and _WORD.fullmatch(value) is not None
    return is_site or is_word or _NUMBER.fullmatch(value) is not None or _is_path(value)


def _is_path(value: str) -> bool:
    return _PATH.fullmatch(value) is not None and not is_jumbled(value)


def _of_text(text: str, meaning: NameMeaning, naming: _VariableNaming, *, has_name: bool) -> Iterator[_Part]:
    """Yield the secret parts of a value by its form."""
    shadow = _REFERENCE.sub(lambda match: _BLANK * len(match[0]), text)
    yield from (_Part(*match.span(), naming.at(match.span(), text)) for match in _PRIVATE_KEY.finditer(shadow))
    for match in _URL.finditer(shadow):
        yield from _of_url(match, shadow, naming)
    yield from _assigned(shadow, naming)
    elsewhere = _URL.sub(lambda match: _BLANK * len(match[0]), shadow)
    yield from (_Part(*match.span(), naming.at(match.span(), text)) for match in KNOWN_CREDENTIAL.finditer(elsewhere))
    if (scheme := _WITH_SCHEME.fullmatch(shadow)) and not scheme["value"].isalpha():
        yield _Part(*scheme.span("value"), naming.at(scheme.span("value"), text, "token"))
    if meaning is NameMeaning.NOTHING and _TOKEN.fullmatch(shadow) and _PATH.fullmatch(shadow) is None:
        key = RANDOM.search(shadow)
        # A UUID with a name is just as likely to be an id.
        if (key and not (has_name and "-" in key[0])) or is_jumbled(shadow):
            yield _Part(0, len(text), naming.of())


def _of_url(match: re.Match[str], text: str, naming: _VariableNaming) -> Iterator[_Part]:
    scheme, is_web = match["scheme"].lower(), match["scheme"].lower() in ("http", "https")
    login: re.Match[str] | None = match
    if match["user"] is None and not is_web and "@" in text[match.start("host") :]:
        # A database password may contain characters that would end an address.
        login = _LOOSE_LOGIN.match(text, match.start("host"))
    if login is not None and login["password"]:
        yield _Part(*login.span("password"), naming.of("password"))
    elif login is not None and login["user"] and (is_web or RANDOM.search(login["user"])):
        yield _Part(*login.span("user"), naming.of("key"))
    if match["path"] and scheme != "file" and not scheme.startswith("git+"):
        for segment in _SEGMENT.finditer(text, *match.span("path")):
            if looks_like_a_key(segment[0]):
                yield _Part(*segment.span(), naming.of("key"))
    if match["query"]:
        for parameter in _PARAMETER.finditer(text, *match.span("query")):
            name, value = parameter["name"] or "", parameter["value"]
            is_secret = is_secret_name(name) and not is_plain(value, name)
            if value and (is_secret or looks_like_a_key(value)):
                yield _Part(*parameter.span("value"), (name or "key", False))


def _assigned(text: str, naming: _VariableNaming) -> Iterator[_Part]:
    at = 0
    while match := _ASSIGNMENT.search(text, at):
        group = next(group for group in ("double", "single", "plain") if match[group] is not None)
        value, name = match[group], match["name"].lstrip("-")
        is_said = group != "plain" or match["sign"] == "=" or not value.isalpha()
        is_code = group == "plain" and _CODE.match(value) is not None
        if is_secret_name(name) and is_said and not is_code and not value.startswith("//"):
            parts = [*_of_named(name, value, _VariableNaming(naming.of(name)[0], naming.is_variable))]
            yield from _moved(iter(parts), match.start(group))
            at = max(match.end(group), match.start() + 1)
        else:
            at = match.start(group) if match.start(group) > match.start() else match.end()


def looks_like_a_key(text: str) -> bool:
    """Return True if a part of an address looks impossible to guess."""
    return (
        KNOWN_CREDENTIAL.search(text) is not None
        or RANDOM.search(text) is not None
        or (_TOKEN.fullmatch(text) is not None and is_jumbled(text))
    )


def is_jumbled(text: str) -> bool:
    """Return True if lower case, upper case and digits alternate as in no word."""
    kinds = [match.lastgroup for match in _KIND.finditer(text)]
    if len(kinds) < MIN_JUMBLED or len(set(kinds)) < len(_KIND.groupindex):
        return False
    return sum(first != second for first, second in pairwise(kinds)) > CHANGES * len(kinds)
