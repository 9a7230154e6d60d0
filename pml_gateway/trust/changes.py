"""Changes: what of an accepted definition became more dangerous in its schema, its hints and its links."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pml_gateway.index.text import split_words
from pml_gateway.trust.passages import passages_of
from pml_gateway.trust.verdict import Reason, RiskClass
from pml_gateway.types import JsonObject

_ASKS = re.compile(
    r"\b(?:conversations?|chat|transcript|history|messages|context|notes?|sidenote|memory|prompt|"
    r"reasoning|thoughts?|passwords?|"
    r"passphrase|credentials?|secrets?|tokens?|keys?|api key|env|environment|cookies?|"
    r"sessions?|auth|login|pin|otp|ssn|card|cvv|seed|mnemonic|"
    r"files?|contents?|path|directory|clipboard|screenshot|home|ssh|debug|diagnostics?|metadata|feedback|sidecar|extra|trace)\b"
)
"""What a new parameter that has to be filled in is not to ask for unseen."""

_OPENS = re.compile(
    r"\b(?:url|uri|callback|webhook|endpoint|host|proxy|commands?|cmd|shell|script|exec|code|eval|path|"
    r"recipient|bcc|cc|forward|destination)\b"
)
"""What a new parameter, even one that may be left out, gives a way to."""

_SENSITIVE = re.compile(
    r"\b(?:conversations?|transcript|chat history|passwords?|passphrase|credentials?|secrets?|private key|api key|"
    r"access token|environment|env|cookies?|ssn|cvv|seed phrase|mnemonic|system prompt|sidenote|messages so far|"
    r"ssh|bcc)\b"
)
_LIMITS = ("pattern", "maxLength", "maxItems", "maximum", "const", "format", "enum", "not")
"""Keywords that keep values within something."""

_LINK = re.compile(r"https?://([\w.-]{3,100})")
MAX_DEPTH = 12
"""Levels of a schema that are compared; what lies deeper counts as text only."""


def risky_changes(before: JsonObject, after: JsonObject) -> Iterator[Reason]:
    """What changed for the worse, apart from words."""
    yield from _hints(_mapping(before.get("annotations")), _mapping(after.get("annotations")))
    yield from _schema(_mapping(before.get("inputSchema")), _mapping(after.get("inputSchema")), "inputSchema", 0)
    yield from _links(before, after)


def _hints(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Reason]:
    # What is not said counts as the specification says: not read-only, destructive, open to the world.
    for hint, safe in (("readOnlyHint", True), ("destructiveHint", False)):
        said, says = before.get(hint), after.get(hint)
        if said is safe and says is not safe:
            yield _reason(f"annotations.{hint}", f"{hint} was {said} and is {'left out' if says is None else says} now")
        elif hint == "destructiveHint" and said is not True and says is True and before.get("readOnlyHint") is True:
            yield _reason(f"annotations.{hint}", f"{hint} is {says} now")
        elif said is not None and says is safe and said is not safe:
            yield _reason(f"annotations.{hint}", f"{hint} was {said} and claims {says} now")


def _schema(before: Mapping[str, Any], after: Mapping[str, Any], where: str, depth: int) -> Iterator[Reason]:
    if depth > MAX_DEPTH or not after:
        return
    if before.get("additionalProperties") is False and after.get("additionalProperties") is not False:
        yield _reason(f"{where}.additionalProperties", "any further parameter is accepted now")
    for keyword in _LIMITS:
        if keyword in before and keyword not in after:
            yield _reason(f"{where}.{keyword}", f"the limit {keyword} is gone")
    for keyword in ("maxLength", "maxItems", "maximum"):
        was, now = before.get(keyword), after.get(keyword)
        if isinstance(was, int | float) and isinstance(now, int | float) and now >= WIDER * was > 0:
            yield _reason(f"{where}.{keyword}", f"{keyword} was {was} and is {now} now")
    was_fields, fields = _mapping(before.get("properties")), _mapping(after.get("properties"))
    was_required = _names(before.get("required"))
    for name in fields.keys() - was_fields.keys():
        words = split_words(name).lower()
        is_required = name in _names(after.get("required"))
        described = f"{words} {_mapping(fields[name]).get('description', '')}".lower()[:MAX_DESCRIBED]
        if (
            _SENSITIVE.search(described)
            or (is_required and _ASKS.search(words))
            or (_OPENS.search(words) and _is_free(fields[name]))
            or _SINK.search(_preset(fields[name]))
        ):
            yield _reason(f"{where}.properties.{name}", f"new parameter {name}")
    for name in fields.keys() & was_fields.keys():
        if name in _names(after.get("required")) - was_required and _ASKS.search(split_words(name).lower()):
            yield _reason(f"{where}.properties.{name}", f"{name} has to be given now")
        yield from _schema(_mapping(was_fields[name]), _mapping(fields[name]), f"{where}.properties.{name}", depth + 1)
    if "items" in after:
        yield from _schema(_mapping(before.get("items")), _mapping(after.get("items")), f"{where}.items", depth + 1)


WIDER = 10
"""Times a limit may grow before it counts as one that was taken away."""

MAX_DESCRIBED = 2_000


_SINK = re.compile(
    r"\b(?:https?|ftp|wss?|s3)://|[\w.+-]{1,64}@[\w-]{1,64}\.[a-z]{2}|\b\d{1,3}(?:\.\d{1,3}){3}\b", re.IGNORECASE
)
"""Where a new parameter sends to unless it is told otherwise."""


def _preset(schema: Any) -> str:
    schema = _mapping(schema)
    return " ".join(str(schema[key])[:MAX_DESCRIBED] for key in ("default", "const") if key in schema)


def _is_free(schema: Any) -> bool:
    schema = _mapping(schema)
    return schema.get("type", "string") in ("string", "object", "array") and not schema.keys() & {"enum", "const"}


def _links(before: JsonObject, after: JsonObject) -> Iterator[Reason]:
    known = {_site(found[1]) for passage in passages_of(before)[0] for found in _LINK.finditer(passage.text)}
    if not known:
        return
    for passage in passages_of(after)[0]:
        for found in _LINK.finditer(passage.text):
            if passage.is_data and _site(found[1]) not in known:
                yield _reason(passage.where, found[0])
                return


def _site(host: str) -> str:
    return ".".join(host.lower().rstrip(".").split(".")[-2:])


def _reason(where: str, text: str) -> Reason:
    return Reason(RiskClass.RUG_PULL, where, text)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _names(value: Any) -> set[str]:
    return {name for name in value if isinstance(name, str)} if isinstance(value, list | tuple) else set()
