"""A reader of signatures: the call that a line of a menu leads to, by what it states and nothing else."""

from __future__ import annotations

import json
import re
from typing import Any

_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|…[^,)}\]|\[]*|\d+\.\.\d*|[^\s,:|(){}\[\]?"]+|[,:|(){}\[\]?])')
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
VALUES: dict[str, Any] = {
    "str": "text",
    "int": 1,
    "float": 1.5,
    "bool": True,
    "null": None,
    "object": {},
    "any": "text",
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "P1D",
    "email": "ada@example.org",
    "uri": "https://example.org/a",
    "uuid": "123e4567-e89b-42d3-a456-426614174000",
}
"""A value of each type that a signature names."""

MISSING = "?"
"""The value where the line does not say what to write."""


def arguments_of(signature: str, *, optional: bool) -> dict[str, Any]:
    """Return arguments with a value for each parameter of `name(parameters)`; the optional ones only if asked for."""
    reader = _Reader(_TOKEN.findall(signature[signature.index("(") :]), optional)
    reader.take()
    return reader.fields(")")


class _Reader:
    def __init__(self, tokens: list[str], optional: bool) -> None:
        self._tokens, self._at, self._optional = tokens, 0, optional

    def take(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]

    def _takes(self, *tokens: str) -> bool:
        found = tuple(self._tokens[self._at : self._at + len(tokens)]) == tokens
        self._at += len(tokens) if found else 0
        return found

    def fields(self, end: str) -> dict[str, Any]:
        """Read fields up to `end`: a name, perhaps `?`, perhaps a type."""
        read: dict[str, Any] = {}
        while not self._takes(end):
            if self._takes(","):
                continue
            name = self.take()
            if name == "[":  # a map: `[key]: type`
                name = f"a {self.take()}"
                self.take()
            is_optional = self._takes("?")
            value = self._type() if self._takes(":") else "text"
            if not name.startswith("…") and (self._optional or not is_optional):
                read[json.loads(name) if name.startswith('"') else name] = value
        return read

    def _type(self) -> Any:
        choices = [self._one()]
        while self._takes("|"):
            choices.append(self._one())
        return next((choice for choice in choices if choice is not None), None)

    def _one(self) -> Any:
        token = self.take()
        match token:
            case "(":
                value = self._type()
                self.take()
            case "{":
                value = self.fields("}")
            case _:
                value = _value(token)
        while self._takes("[", "]"):
            value = [value]
        return value


def _value(token: str) -> Any:
    if token.startswith("…"):
        return MISSING
    if token.startswith('"') or _NUMBER.fullmatch(token) or token in ("true", "false"):
        return json.loads(token)
    return VALUES.get(token, token)
