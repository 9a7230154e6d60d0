"""Changes: what of an accepted definition became more dangerous in its schema, its hints and its links."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

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
_TELLING = re.compile(
    r"\b(?:(?:whole|entire|full|complete|this) conversation|conversation so far|transcript|chat history|"
    r"private key|seed phrase|mnemonic|passphrase|system prompt|messages so far)\b"
)
"""What a description that changed says of what no honest parameter turns into; longer ones speak of secrets often."""

_LIMITS = ("pattern", "maxLength", "maxItems", "maximum", "const", "format", "enum", "not")
"""Keywords that keep values within something."""

_LINK = re.compile(r"https?://([\w.-]{3,100})")
MAX_DEPTH = 12
"""Levels of a schema that are compared; what lies deeper counts as text only."""


def risky_changes(before: JsonObject, after: JsonObject) -> Iterator[Reason]:
    """What changed for the worse, apart from words."""
    yield from _hints(_mapping(before.get("annotations")), _mapping(after.get("annotations")))
    was, now = _mapping(before.get("inputSchema")), _mapping(after.get("inputSchema"))
    comparison = _Comparison(was, now)
    yield from comparison.reasons(was, now, "inputSchema")
    if comparison.is_cut and was != now:
        yield _reason("inputSchema", f"composed of more than {MAX_PARTS:,} parts, which were not all compared")
    was, now = _as_schema(before.get("arguments")), _as_schema(after.get("arguments"))
    yield from _Comparison(was, now).reasons(was, now, "arguments")
    yield from _links(before, after)


def _as_schema(arguments: Any) -> Mapping[str, Any]:
    """The arguments of a prompt as a schema has them."""
    known = [_mapping(each) for each in arguments] if isinstance(arguments, list | tuple) else []
    named = {str(each.get("name")): each for each in known if "name" in each}
    return {"properties": named, "required": [name for name, each in named.items() if each.get("required") is True]}


def _hints(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Reason]:
    # What is not said counts as the specification says: not read-only, destructive, open to the world.
    for hint, safe in (("readOnlyHint", True), ("destructiveHint", False)):
        said, says = before.get(hint), after.get(hint)
        if said is safe and says is not safe:
            yield _reason(f"annotations.{hint}", f"{hint} was {_said(said)} and is {_said(says)} now")
        elif hint == "destructiveHint" and said is not True and says is True and before.get("readOnlyHint") is True:
            yield _reason(f"annotations.{hint}", f"{hint} is {_said(says)} now")
        elif said is not None and says is safe and said is not safe:
            yield _reason(f"annotations.{hint}", f"{hint} was {_said(said)} and claims {_said(says)} now")


def _said(hint: object) -> str:
    return "left out" if hint is None else json.dumps(hint)


class _Comparison:
    """Compares two schemas, each with what it is composed of: a parameter may stand in any part of one."""

    def __init__(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        self._roots = {True: before, False: after}
        self._seen: set[tuple[int, int]] = set()
        self._parts_left = MAX_PARTS

    @property
    def is_cut(self) -> bool:
        """Whether there was more to compare than is compared."""
        return self._parts_left <= 0

    def reasons(
        self, before: Mapping[str, Any], after: Mapping[str, Any], where: str, depth: int = 0
    ) -> Iterator[Reason]:
        """What is wider in the schema of now, at any depth."""
        if depth > MAX_DEPTH or not after or (id(before), id(after)) in self._seen:
            return
        self._seen.add((id(before), id(after)))
        old, new = self._parts(before, is_before=True), self._parts(after, is_before=False)
        yield from _limits(before, after, where)
        was_fields, fields = _fields(old), _fields(new)
        was_required, required = _required(old), _required(new)
        for name in sorted((fields.keys() | required) - was_fields.keys() - was_required):
            words, inner = split_words(name).lower(), f"{where}.properties.{name}"
            for field in fields.get(name, [{}]):
                described = f"{words} {_description(field)}"
                if (
                    _SENSITIVE.search(described)
                    or (name in required and _ASKS.search(words))
                    or (_OPENS.search(words) and _is_free(field))
                    or _SINK.search(_preset(field))
                ):
                    yield _reason(inner, f"new parameter {name}")
                    break
                yield from self.reasons({}, _mapping(field), inner, depth + 1)
        for name in sorted(fields.keys() & was_fields.keys()):
            if name in required - was_required and _ASKS.search(split_words(name).lower()):
                yield _reason(f"{where}.properties.{name}", f"{name} has to be given now")
            inner = f"{where}.properties.{name}"
            said = {_description(field) for field in was_fields[name]}
            for field in fields[name]:
                asks = _TELLING.search(_description(field))
                if asks and not any(asks[0] in each for each in (*said, split_words(name).lower())):
                    yield _reason(f"{inner}.description", f"{name} asks for more now: {asks[0]}")
                was = field if field in was_fields[name] else was_fields[name][0]
                yield from self.reasons(_mapping(was), _mapping(field), inner, depth + 1)
        was_items = next((_mapping(part["items"]) for part in old if "items" in part), {})
        for part in new:
            if "items" in part:
                yield from self.reasons(was_items, _mapping(part["items"]), f"{where}.items", depth + 1)

    def _parts(self, schema: Mapping[str, Any], *, is_before: bool) -> list[Mapping[str, Any]]:
        """A schema and every schema that says something about the same value."""
        found: dict[int, Mapping[str, Any]] = {}
        waiting = [schema]
        while waiting and self._parts_left > 0:
            part = waiting.pop()
            if id(part) in found:
                continue
            found[id(part)] = part
            self._parts_left -= 1
            for keyword in ("allOf", "anyOf", "oneOf"):
                listed = part.get(keyword)
                waiting += map(_mapping, listed if isinstance(listed, list | tuple) else ())
            waiting += [_mapping(part[keyword]) for keyword in ("if", "then", "else") if keyword in part]
            waiting += map(_mapping, _mapping(part.get("dependentSchemas")).values())
            waiting += [_target(self._roots[is_before], part[keyword]) for keyword in _REFERENCES if keyword in part]
        return list(found.values())


_REFERENCES = ("$ref", "$dynamicRef")

MAX_PARTS = 4_000
"""Parts of two schemas that are compared; a change of what has more is risky."""


def _description(field: Any) -> str:
    return str(_mapping(field).get("description", "")).lower()[:MAX_DESCRIBED]


def _limits(before: Mapping[str, Any], after: Mapping[str, Any], where: str) -> Iterator[Reason]:
    if before.get("additionalProperties") is False and after.get("additionalProperties") is not False:
        yield _reason(f"{where}.additionalProperties", "any further parameter is accepted now")
    for keyword in _LIMITS:
        if keyword in before and keyword not in after:
            yield _reason(f"{where}.{keyword}", f"the limit {keyword} is gone")
    if "pattern" in before and after.get("pattern") in _ANYTHING and before["pattern"] not in _ANYTHING:
        yield _reason(f"{where}.pattern", "the pattern fits everything now")
    for keyword in ("maxLength", "maxItems", "maximum"):
        was, now = before.get(keyword), after.get(keyword)
        if isinstance(was, int | float) and isinstance(now, int | float) and now >= WIDER * was > 0:
            yield _reason(f"{where}.{keyword}", f"{keyword} was {was} and is {now} now")


_ANYTHING = ("", "^", "$", ".", ".*", ".+", "^.*$", "^.+$", "^.*", ".*$", "[\\s\\S]*", "^[\\s\\S]*$")


def _fields(parts: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """What is said of each parameter, by its name or pattern."""
    fields: dict[str, list[Any]] = {}
    for part in parts:
        for keyword in ("properties", "patternProperties"):
            for name, field in _mapping(part.get(keyword)).items():
                fields.setdefault(name, []).append(field)
    return fields


def _required(parts: Iterable[Mapping[str, Any]]) -> set[str]:
    found: set[str] = set()
    for part in parts:
        found |= _names(part.get("required"))
        for names in _mapping(part.get("dependentRequired")).values():
            found |= _names(names)
    return found


def _target(root: Mapping[str, Any], reference: Any) -> Mapping[str, Any]:
    """What a reference inside a schema leads to; nothing where it leads out of it."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return {}
    if len(reference) > 1 and not reference.startswith("#/"):
        defined = (
            _mapping(each) for keyword in ("$defs", "definitions") for each in _mapping(root.get(keyword)).values()
        )
        anchors = ("$anchor", "$dynamicAnchor")
        return next((each for each in defined if any(each.get(key) == reference[1:] for key in anchors)), {})
    target: Any = root
    for step in filter(None, reference[1:].split("/")):
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(target, list | tuple):
            target = target[int(name)] if name.isdecimal() and int(name) < len(target) else None
        else:
            target = _mapping(target).get(name)
    return _mapping(target)


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
