"""Facts about a parameter from its type, its format and its description, and about a value from its look."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from pml_gateway.exposure import name_words
from pml_gateway.exposure.name_forms import GENERIC, KINDS, Words, forms_of
from pml_gateway.types import JsonObject

MAX_DESCRIPTION = 400
"""Characters of a description that are read."""

UNKNOWN: Any = object()
"""A value that is not known yet, which may be of any kind."""

_TIMES = frozenset({"date", "time", "timestamp", "datetime"})

_MOMENTS = frozenset(name_words.MOMENTS.split())

_FORMATS = {"uri": "url", "url": "url", "email": "email", "date": "date", "date-time": "date time timestamp datetime"}

_DATE = re.compile(r"\d{4}-\d{2}(-\d{2})?([T ]\d{2}:\d{2}.*)?$")

_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}")

_VALUES = {
    "url": re.compile(r"\w+://\S+"),
    "email": re.compile(r"\S+@\S+"),
    "date": _DATE,
    "time": re.compile(rf"\d{{1,2}}:\d{{2}}|{_MOMENT.pattern}"),
    "timestamp": _DATE,
    "datetime": _MOMENT,
    "code": re.compile(r"[A-Z]{2,3}$"),
    "path": re.compile(r"\S*[/\\.]\S*$"),
    "file": re.compile(r"\S*[/\\.]\S*$"),
    "name": re.compile(r"(?=.*[^\W\d])"),
    "text": re.compile(""),
}

SHOWN_KINDS = KINDS - {"path", "file", "name", "text"}
"""Kinds that no other value is of."""

EXAMPLES = re.compile(r"[(.;:]|\be\.g\b|\bsuch as\b|\blike\b")

_ARTICLES = r"(?:(?:the|an?|your|this|its|optional|required|exact|specific|full|new|list of|array of)[\s:.-]+)*"

HEAD = re.compile(
    rf"{_ARTICLES}((?:[a-z0-9_-]+\s?){{1,4}}?)(?=\s*(?:$|[^a-z0-9_\s-]|\b(?:{'|'.join(name_words.STOPS.split())})\b))"
)

ARTICLE = re.compile(rf"\s*{_ARTICLES}")

RELATION = re.compile(r"\b(?:of|for|to|in|into|on|from|with|by|at|as|that|which|where|when|whose|using|via|per)\b")
"""Words behind which a description says what the first noun is of."""

_OF = re.compile(rf"\s*(?:of|for)\s+{_ARTICLES}")


def looks_like_id(value: Any) -> bool:
    """Return True if a value may be an id: an integer, or a text with a digit that is no date, address or phrase."""
    if value is UNKNOWN:
        return True
    if isinstance(value, list):
        return bool(value) and all(looks_like_id(each) for each in value)
    if isinstance(value, int) and not isinstance(value, bool):
        return True
    text = value if isinstance(value, str) else ""
    return any(letter.isdigit() for letter in text) and not re.search(r"\s|@|://", text) and not _DATE.match(text)


def looks_like(kind: str, value: Any) -> bool:
    """Return True if a value may be of a kind, such as `email`."""
    if kind in ("id", "number"):
        return looks_like_id(value)
    if value is UNKNOWN:
        return True
    if isinstance(value, list):
        return bool(value) and all(looks_like(kind, each) for each in value)
    return isinstance(value, str) and _VALUES[kind].match(value) is not None


def is_of_kind(kind: str, declared: Words, schema: JsonObject, text: str, value: Any) -> bool:
    """Return True if a parameter takes values of this kind, by its type, format or description."""
    if kind in _FORMATS.get(str(schema.get("format")), "").split():
        return True
    if kind in ("id", "number"):
        return schema.get("type") in ("integer", "number") or mentions(text, "id") or mentions(text, "identifier")
    if kind in ("name", "text"):
        return schema.get("type") == "string" and not mentions(text, "id")
    if kind in _TIMES:
        is_moment = any(word in _MOMENTS for word in declared) or any(mentions(text, word) for word in _TIMES)
        return is_moment and looks_like(kind, value)
    return mentions(text, kind)


def mentions(text: str, word: str) -> bool:
    """Return True if a text has a word, also in the plural."""
    stem = re.escape(word[:MAX_DESCRIPTION])
    plural = rf"|{stem[:-1]}ies" if word.endswith("y") else ""
    return re.search(rf"\b(?:{stem}(?:e?s)?{plural})\b", text) is not None


def text_of(schema: Any) -> str:
    """Return the start of the title and the description of a schema, in lower case."""
    if not isinstance(schema, dict):
        return ""
    return f"{schema.get('title') or ''} {schema.get('description') or ''}"[:MAX_DESCRIPTION].casefold().strip()


def is_number(schema: Any) -> bool:
    """Return True if a schema admits numbers."""
    kinds = schema.get("type") if isinstance(schema, dict) else None
    return bool({"integer", "number"} & set(kinds if isinstance(kinds, list) else [kinds]))


@lru_cache(maxsize=4096)
def names_told_by(text: str, target: str) -> tuple[Words, ...]:
    """Return the names that a description begins with: `title` and `event title` for `Title of the event`.

    What it is of is left out where that is the name: `Number of replicas` says `number` of `replicas`.
    """
    head = HEAD.match(text)
    if head is None:
        return ()
    first = forms_of(head[1])[-1]
    more = _OF.match(text, head.end())
    owner = HEAD.match(text, more.end()) if more is not None else None
    if more is None:
        return (first,) if first else ()
    of = forms_of(owner[1])[-1] if owner is not None else ()
    first = ("count",) if first == ("number",) else first
    if first == ("count",) and set(of) <= set(forms_of(target)[0]):
        return (("count",),)
    whole = ((*of, *first),) if of else ()
    return whole if first[-1] in GENERIC or first[-1] in KINDS else (first, *whole)
