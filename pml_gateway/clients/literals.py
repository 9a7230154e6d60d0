"""Credentials written out in a client's file, replaced by `${env:NAME}` references."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pml_gateway.clients.translate import is_placeholder
from pml_gateway.secrets.masking import (
    ENV_FLAGS,
    FLAG,
    HEADER_FLAGS,
    KNOWN_CREDENTIAL,
    LOGIN_FLAGS,
    RANDOM,
    SCHEME,
    is_secret_name,
)
from pml_gateway.secrets.references import references

_URL = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*://)(?:(?P<user>[^/?#\s:@]*):(?P<password>[^/?#\s@]+)@)?", re.IGNORECASE
)
_QUERY = re.compile(r"(?P<name>[?&][^=&#\s]+=)(?P<value>[^&#\s]+)")
_ASSIGNMENT = re.compile(r"(?P<name>--?[A-Za-z][\w.-]*|[A-Za-z_]\w*)=(?P<value>.*)", re.DOTALL)
_DEFAULT = re.compile(r"\$\{env:(?P<name>[^{}:]*):-(?P<value>[^{}]+)\}")

Name = Callable[[str, str], str]
"""A wish and a value become the name of a variable."""


@dataclass(frozen=True, slots=True)
class Literal:
    """One value that was written out: the variable it is kept under, and where it stood."""

    variable: str
    key: str
    value: str = field(repr=False)

    @property
    def is_missing(self) -> bool:
        """Whether nothing but a placeholder stood there."""
        return is_placeholder(self.value)


@dataclass(slots=True)
class VariableNames:
    """Gives every secret value one name that means nothing else.

    `taken` are the variables known so far: of the environment and of the gateway's secrets file.
    """

    taken: Mapping[str, str] = field(repr=False)
    given: dict[str, str] = field(default_factory=dict, repr=False)

    def name(self, server: str, wish: str, value: str) -> str:
        """A variable for `value`: as wished, with the server in front where another value has that name."""
        wish = _variable(wish)
        candidates = [wish, f"{_variable(server)}_{wish}"]
        candidates += [f"{candidates[1]}_{number}" for number in range(2, 1000)]
        for candidate in candidates:
            known = self.given.get(candidate, self.taken.get(candidate) or None)
            if known is None or known == value or is_placeholder(value):
                self.given.setdefault(candidate, value)
                return candidate
        raise AssertionError("a thousand servers share a name")


def without_literals(
    server: str, definition: Mapping[str, Any], names: VariableNames
) -> tuple[dict[str, Any], list[Literal]]:
    """`definition` with references in place of its credentials, and what they stand for."""
    extracted = _Extraction(server, names)
    changed = dict(definition)
    for key in ("env", "headers"):
        if key in definition:
            changed[key] = {name: extracted.member(key, name, text) for name, text in definition[key].items()}
    if "args" in definition:
        changed["args"] = list(extracted.arguments(definition["args"]))
    if "url" in definition:
        changed["url"] = extracted.url(definition["url"], "url")
    if "client_secret" in (definition.get("auth") or {}):
        secret = extracted.whole(definition["auth"]["client_secret"], f"{server}_client_secret", "auth.client_secret")
        changed["auth"] = {**definition["auth"], "client_secret": secret}
    return changed, extracted.found


@dataclass(slots=True)
class _Extraction:
    """Collects the credentials of one server."""

    server: str
    names: VariableNames
    found: list[Literal] = field(default_factory=list)

    def member(self, section: str, name: str, text: str) -> str:
        key = f"{section}.{name}"
        if is_secret_name(name):
            if section == "env":
                return self.whole(text, name, key)
            scheme = SCHEME.match(text)
            lead = scheme[0] if scheme else ""
            wish = "token" if lead or name.lower() == "authorization" else name.removeprefix("X-").removeprefix("x-")
            return lead + self.whole(text[len(lead) :], f"{self.server}_{wish}", key)
        return self.known(self.url(text, key, name) if "://" in text else text, name, key)

    def arguments(self, arguments: list[str]) -> Iterator[str]:
        before = ""
        for position, argument in enumerate(arguments):
            yield self.argument(argument, before, f"args[{position}]")
            before = argument

    def argument(self, argument: str, before: str, key: str) -> str:
        if before in HEADER_FLAGS and ":" in argument:
            name, _, value = argument.partition(":")
            gap = value[: len(value) - len(value.lstrip())]
            return f"{name}:{gap}{self.member('headers', name.strip(), value.strip())}"
        if before in ENV_FLAGS and "=" in argument:
            name, _, value = argument.partition("=")
            return f"{name}={self.member('env', name, value)}"
        if before in LOGIN_FLAGS and ":" in argument:
            user, _, password = argument.partition(":")
            return f"{user}:{self.whole(password, f'{self.server}_password', key)}"
        flag = before.lstrip("-")
        if FLAG.match(before) and is_secret_name(flag) and not argument.startswith("--"):
            return self.whole(argument, f"{self.server}_{flag}", key)
        pair = _ASSIGNMENT.fullmatch(argument)
        if pair is not None and is_secret_name(pair["name"].lstrip("-")):
            wish = pair["name"].lstrip("-")
            wish = wish if not pair["name"].startswith("-") else f"{self.server}_{wish}"
            return f"{pair['name']}={self.whole(pair['value'], wish, key)}"
        return self.known(self.url(argument, key) if "://" in argument else argument, f"{self.server}_key", key)

    def url(self, text: str, key: str, wish: str = "") -> str:
        """A URL without its password, secret parameters, and parts of its path that look like keys."""
        start = _URL.search(text)
        if start is None or references(text):
            return text
        head, rest = text[: start.end()], text[start.end() :]
        if start["password"]:
            password = self.whole(start["password"], f"{wish or self.server}_password", key)
            head = f"{text[: start.start('password')]}{password}@"

        def parameter(match: re.Match[str]) -> str:
            name = match["name"][1:-1]
            if not is_secret_name(name) and not self._is_key(match["value"]):
                return match[0]
            return match["name"] + self.whole(match["value"], f"{self.server}_{name}", key)

        rest = _QUERY.sub(parameter, rest)
        path, mark, query = rest.partition("?")
        path = self.known(path, f"{self.server}_key", key)
        if key == "url":
            host, slash, tail = path.partition("/")
            path = host + slash + self._replaced(RANDOM, tail, f"{self.server}_key", key)
        return head + path + mark + query

    def known(self, text: str, wish: str, key: str) -> str:
        """`text` without what begins like the keys of a known service."""
        return self._replaced(KNOWN_CREDENTIAL, text, wish, key)

    def whole(self, text: str, wish: str, key: str) -> str:
        default = _DEFAULT.fullmatch(text)
        if default is not None:
            return self._reference(default["name"], default["value"], key)
        if references(text) or "${" in text:
            return text
        return self._reference(wish, text, key)

    def _is_key(self, text: str) -> bool:
        return any(pattern.search(text) for pattern in (KNOWN_CREDENTIAL, RANDOM))

    def _replaced(self, pattern: re.Pattern[str], text: str, wish: str, key: str) -> str:
        if references(text):
            return text
        return pattern.sub(lambda match: self._reference(wish, match[0], key), text)

    def _reference(self, wish: str, value: str, key: str) -> str:
        variable = self.names.name(self.server, wish, value)
        self.found.append(Literal(variable, key, value))
        return f"${{env:{variable}}}"


def _variable(wish: str) -> str:
    name = re.sub(r"[^A-Za-z0-9]+", "_", wish).strip("_").upper() or "SECRET"
    return name if not name[0].isdigit() else f"_{name}"
