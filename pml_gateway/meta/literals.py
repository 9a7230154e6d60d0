"""Values that a request names: quoted text, numbers, dates, addresses and paths, and the parameters they fit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pml_gateway.index.concepts import kind_of, properties_of, stems
from pml_gateway.types import JsonObject

Kind = Literal["email", "url", "date", "path", "number", "code", "text"]

WORDS_BEFORE = 3
"""Words before a value that may say what it is: `a length of 10`."""

CODE_DIGITS = 5
"""Digits from which a number may be the name of something, such as a phone."""

_LITERAL = re.compile(
    r"""
      (?P<text>"[^"\n]{1,400}"|(?<!\w)'(?:[^'\n]|'(?=\w)){1,400}'(?!\w)|“[^”\n]{1,400}”)
    | (?P<email>\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8})
    | (?P<url>https?://[^\s'"<>]{1,400}[^\s'"<>.,;)])
    | (?P<date>\b\d{4}-\d\d-\d\d(?:T[\d:]{1,8}Z?)?\b)
    | (?P<path>(?<!\w)(?:~|\.{1,2})?(?:/[\w.-]{1,80}){1,20}/?
        | \b[\w-]{1,80}(?:/[\w.-]{1,80}){0,20}\.[a-z]{1,5}\d?\b(?!\.))
    | (?P<code>\b(?!\d+[a-z]{1,3}\b)(?=[\w-]{0,39}\d)(?=[\w-]{0,39}[A-Za-z-])[\w-]{4,40}\b)
    | (?P<number>(?<![\w.])-?\d{1,3}(?:,\d{3}){1,4}(?:\.\d{1,9})?|(?<![\w.])-?\d{1,15}(?:\.\d{1,9})?(?!\w|\.\w))
    """,
    re.VERBOSE,
)
CONTENT = """
body caption comment content description keyword label message name note query subject summary task term text title
"""
_NAMED: dict[Kind, frozenset[str]] = {
    "email": frozenset({"email", "mail", "recipient", "to"}),
    "url": frozenset({"url", "uri", "link", "href", "website"}),
    "date": frozenset({"date", "day", "since", "until", "on"}),
    "path": frozenset({"path", "file", "filename", "directory", "folder", "dir"}),
    "code": frozenset({"id", "code", "number", "phone", "key", "symbol", "sku"}),
    "text": frozenset(CONTENT.split()),
}
"""Words in names of parameters that take such values."""


@dataclass(frozen=True, slots=True)
class Named:
    """A value that a request names, with the words before it."""

    kind: Kind
    value: Any
    before: frozenset[str]


def named_values(text: str) -> list[Named]:
    """The values that a text names, in its order."""
    found = []
    for match in _LITERAL.finditer(text):
        kind: Any = match.lastgroup
        raw = match.group()
        value: Any = raw[1:-1] if kind == "text" else _number(raw) if kind == "number" else raw
        before = stems(text[max(0, match.start() - 60) : match.start()])[-WORDS_BEFORE:]
        found.append(Named(kind, value, frozenset(before)))
    return found


def fitting(text: str, inputs: JsonObject) -> JsonObject:
    """Arguments that a text names: values for which one parameter fits, and choices of a parameter that it says."""
    known = properties_of(inputs)
    arguments: JsonObject = {name: choice for name, each in known.items() for choice in _choices(text, each)}
    wanted: dict[str, list[Any]] = {}
    for value in named_values(text):
        fits = [name for name, each in known.items() if name not in arguments and _takes(name, each, value)]
        close = [name for name in fits if value.before & set(stems(name))]
        by_kind = [name for name in fits if _NAMED.get(value.kind, frozenset()) & set(stems(name))]
        required = [name for name in fits if name in (inputs.get("required") or ())]
        last = [] if value.kind == "text" and len(known) > 1 else fits
        chosen = next((each[0] for each in (close, by_kind, required, last) if len(each) == 1), None)
        if chosen is not None:
            wanted.setdefault(chosen, []).append(value.value)
    for name, given in wanted.items():
        match kind_of(known[name]):
            case "array":
                arguments[name] = given
            case "string" if len(given) == 1:
                arguments[name] = str(given[0])
            case _ if len(given) == 1:
                arguments[name] = given[0]
    return arguments


def _choices(text: str, schema: JsonObject) -> Iterator[str]:
    """The only member of a parameter's choices that a text says."""
    choices = schema.get("enum")
    if isinstance(choices, list):
        said = [each for each in choices if isinstance(each, str) and re.search(rf"(?i)\b{re.escape(each)}\b", text)]
        if len(said) == 1:
            yield said[0]


def _takes(name: str, schema: JsonObject, value: Named) -> bool:
    kind = kind_of(schema)
    if value.kind == "text" and stems(name)[-1:] == ("id",):
        return False
    if kind == "array":
        items = schema.get("items")
        return isinstance(items, dict) and bool(kind_of(items)) and _takes(name, items, value)
    if "enum" in schema or kind in ("object", "boolean"):
        return False
    if value.kind == "number":
        is_named = len(str(value.value)) >= CODE_DIGITS and _NAMED["code"] & set(stems(name))
        return kind == "number" or (kind == "integer" and isinstance(value.value, int)) or bool(is_named)
    return kind in ("string", "")


def _number(raw: str) -> int | float:
    plain = raw.replace(",", "")
    return float(plain) if "." in plain else int(plain)
