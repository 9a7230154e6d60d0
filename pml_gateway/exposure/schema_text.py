"""JSON schemas as text: a short type, a signature of one line, the fields of a result, or a TypeScript type.

Each of the four traverses a schema in its own way, because their limits differ. A short type is complete, or there is
none: if a part cannot be expressed, the whole is declared as a schema. A signature is always possible and leaves out
parts beyond its limits of nesting, choices and length. A result shows the names of its most telling fields, and is
empty if nothing is known. A TypeScript type is laid out on lines, with the descriptions. They share the resolution of
references, the required names and choices of a schema, and the names of plain types.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import field as field_of
from functools import lru_cache
from typing import Any

from pml_gateway.catalog.pointers import document_target
from pml_gateway.storage.single_flight_cache import ById
from pml_gateway.text import escaped_json, shortened
from pml_gateway.types import Effect, JsonObject

MAX_INLINE = 120
"""Maximum characters of a type in an action's line; a longer one is declared as a schema instead."""

MAX_INLINE_DEPTH = 4

INLINE_OPTIONAL = (None, 4, 0)
"""Optional fields of each object to try for a type in a line: the first text of at most `MAX_INLINE` characters is
used; None is all of them."""

MAX_LINE = 2000
"""Maximum characters of the parameters of one line."""

MAX_CHAIN = 32
"""Maximum length of a chain of references."""

MAX_PARAMETERS = 24
MAX_CHOICES = 8
MAX_SIGNATURE_DEPTH = 2
MAX_NAME = 80
MAX_LITERAL = 60
"""Limits of one signature: it says how much it leaves out, and `tool_schema` has the rest."""

RETURNED = ((2, 5), (2, 4), (1, 5), (1, 4), (1, 2), (0, 0))
MAX_RETURNED = 64
"""Depth and number of fields of each object to try for results: the first text of at most `MAX_RETURNED` characters
is used, which is 12 tokens on average over the bundled servers."""

MAX_TYPESCRIPT_DEPTH = 6

MAX_BRIEF_LOOKED_AT = 100
MAX_INLINE_LOOKED_AT = 200
MAX_LOOKED_AT = 2000
MAX_TYPESCRIPT_LOOKED_AT = 20_000
"""Maximum number of sub-schemas for one text: references and choices multiply at every depth."""

_PLAIN_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "null"}
_FORMATS = frozenset({"date", "date-time", "time", "duration", "email", "uri", "uuid"})
_RESERVED_WORDS = frozenset({*_PLAIN_TYPES.values(), *_FORMATS, "any", "object", "true", "false"})
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_PLAIN_NAME = re.compile(r"[\w$.@/~-]+")
UNION = "|"
_COMBINED = ("allOf", "not", "if", "prefixItems", "patternProperties", "dependentRequired", "dependentSchemas")
"""Keywords that change the admitted values in ways that a few words cannot express."""

_TELLING = re.compile(r"(?i)(.*_)?(id|name|title|key|number|url|uri|path|status|state)s?|.*[a-z]Ids?")


def required_names(schema: JsonObject) -> frozenset[str]:
    """Return the names that an object schema requires."""
    names = schema.get("required")
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()


def _is_reference(schema: object) -> bool:
    return isinstance(schema, dict) and "$ref" in schema


def resolve_reference(schema: object, root: JsonObject) -> object:
    """Return the schema at the end of a chain of local references; None if it is broken or circular."""
    seen: set[str] = set()
    while isinstance(schema, dict) and isinstance(reference := schema.get("$ref"), str):
        if reference in seen or len(seen) == MAX_CHAIN:
            return None
        seen.add(reference)
        schema = document_target(reference, root)
    return schema


def _choices(schema: JsonObject) -> list[Any] | None:
    """Return the values of a schema's enum or const; None if it has neither."""
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None


def _branches(schema: JsonObject) -> list[Any] | None:
    """Return the branches of a schema's anyOf or oneOf; None if it has neither."""
    return next((schema[keyword] for keyword in ("anyOf", "oneOf") if isinstance(schema.get(keyword), list)), None)


@dataclass(slots=True)
class _Reading:
    """The document in which references are resolved, and the number of sub-schemas that may still be read."""

    root: JsonObject
    left: int = MAX_LOOKED_AT
    optional: int | None = None
    """Maximum number of optional fields of each object that are written; None for all."""
    within: list[str] = field_of(default_factory=list)
    """The nested references that are being written."""

    def is_over(self) -> bool:
        """Count one more; return True if the limit is exceeded."""
        self.left -= 1
        return self.left < 0

    def names(self, properties: JsonObject, required: frozenset[str]) -> None:
        """Count the work to sort names: many names count as several sub-schemas."""
        self.left -= (len(properties) + len(required)) // 8

    def text(self, text: str) -> str:
        """Count the work to write a text as JSON; return the text."""
        self.left -= len(text) // 16
        return text


def inline_type(schema: object, root: JsonObject) -> str | None:
    """Return the type as text, with all names, types and choices; None if that needs a schema."""
    text = _inline(schema, _Reading(root, MAX_INLINE_LOOKED_AT), 0)
    return text if text is not None and len(text) <= MAX_INLINE else None


def short_signature(name: str, schema: JsonObject) -> str:
    """Return `name(owner, labels?: str[])`: required parameters first, strings not marked.

    Shorter than `signature`, and it has every required parameter, up to `MAX_LINE` characters.
    """
    return f"{name}({_taken_in_short(ById(schema))})"


def _short_type(schema: object, reading: _Reading, is_required: bool) -> str:
    """Return the type with as many optional fields of its objects as fit, or else in brief."""
    for optional in INLINE_OPTIONAL:
        allowed = min(MAX_INLINE_LOOKED_AT, max(reading.left, 0))
        one = _Reading(reading.root, allowed, optional)
        text = _inline(schema, one, 0)
        reading.left -= allowed - one.left
        if text is not None and len(text) <= MAX_INLINE:
            # Leaving out an optional parameter means the same as null.
            return text if is_required else text.removesuffix(f"{UNION}null")
    return _brief(schema, _Reading(reading.root, MAX_BRIEF_LOOKED_AT), 0)


def field(name: str, type_text: str | None, *, required: bool) -> str:
    """Return one field of a line, such as `limit?: int`; strings, the most common type, are not marked."""
    shown = f"{plain_name(name)}{'' if required else '?'}"
    return shown if type_text in (None, "str") else f"{shown}: {type_text}"


def plain_name(name: str) -> str:
    """Return a name as written in a line; quoted if it could be misread."""
    return name if _PLAIN_NAME.fullmatch(name.removesuffix("…")) else json.dumps(name)


def _inline(schema: object, reading: _Reading, depth: int) -> str | None:
    schema = resolve_reference(schema, reading.root)
    if schema is True:
        return "any"
    if reading.is_over() or not isinstance(schema, dict) or depth > MAX_INLINE_DEPTH:
        return None
    if any(keyword in schema for keyword in _COMBINED):
        return None
    if (choices := _choices(schema)) is not None:
        return reading.text(UNION.join(map(_inline_literal, choices))) or None
    if (branches := _branches(schema)) is not None:
        # A reference counts as a level: a union can refer to itself.
        return _inline_union([_inline(branch, reading, depth + _is_reference(branch)) for branch in branches])
    kind = schema.get("type")
    if isinstance(kind, list):
        return _inline_union([_inline_plain(one, schema, reading, depth) for one in kind])
    if kind is None:
        kind = "object" if "properties" in schema else "array" if "items" in schema else None
    return _inline_plain(kind, schema, reading, depth)


def _inline_plain(kind: object, schema: JsonObject, reading: _Reading, depth: int) -> str | None:
    match kind:
        case None:
            return "any"
        case "array":
            item = _inline(schema.get("items", True), reading, depth + 1)
            if item is None:
                return None
            return f"({item})[]" if "|" in item else f"{item}[]"
        case "object":
            return _inline_object(schema, reading, depth)
        case "string" if schema.get("format") in _FORMATS:
            return str(schema["format"])
        case str() if kind in _PLAIN_TYPES:
            return _PLAIN_TYPES[kind]
        case _:
            return None


def _inline_object(schema: JsonObject, reading: _Reading, depth: int) -> str | None:
    properties, others = schema.get("properties"), schema.get("additionalProperties")
    if not properties:
        if not isinstance(others, dict) or not others:
            return "object"
        value = _inline(others, reading, depth + 1)
        return None if value is None else f"{{[key]: {value}}}"
    if not isinstance(properties, dict) or (isinstance(others, dict) and others):
        return None
    required = required_names(schema)
    reading.names(properties, required)
    fields: list[str] = []
    left = reading.optional
    for name in properties if left is None else sorted(properties, key=lambda name: name not in required):
        if name not in required and left is not None:
            if not left:
                return f"{{{', '.join([*fields, '…'])}}}"
            left -= 1
        text = _inline(properties[name], reading, depth + 1)
        if text is None:
            return None
        fields.append(field(name, text, required=name in required))
    return f"{{{', '.join(fields)}}}"


def _inline_union(branches: list[str | None]) -> str | None:
    known = list(dict.fromkeys(branch for branch in branches if branch is not None))
    return UNION.join(known) if known and None not in branches else None


def _inline_literal(value: object) -> str:
    """Return a choice as text; plain words are not quoted, as quotes take two tokens each inside JSON."""
    if isinstance(value, str) and _WORD.fullmatch(value) and value not in _RESERVED_WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)


def signature(name: str, schema: JsonObject) -> str:
    """Return `name(owner: str, labels?: str[])`; required parameters first, optional ones marked with `?`."""
    return f"{name}({_taken(ById(schema))})"


def _parameters(schema: JsonObject, reading: _Reading, depth: int) -> list[str]:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return []
    required = required_names(schema)
    reading.names(properties, required)
    names = sorted(properties, key=lambda name: name not in required)
    parts = []
    for name in names[:MAX_PARAMETERS]:
        shown = plain_name(shortened(name, MAX_NAME))
        parts.append(f"{shown}{'' if name in required else '?'}: {_brief(properties[name], reading, depth)}")
    if len(names) > MAX_PARAMETERS:
        parts.append(f"… {len(names) - MAX_PARAMETERS} more")
    return parts


def _brief(schema: object, reading: _Reading, depth: int) -> str:
    if not isinstance(schema, dict):
        return "any"
    if depth > MAX_SIGNATURE_DEPTH or reading.is_over():
        return "…"
    if isinstance(schema.get("$ref"), str):
        target = document_target(schema["$ref"], reading.root)
        return "object" if target is None else _brief(target, reading, depth + 1)
    if (choices := _choices(schema)) is not None:
        return _brief_union(choices, _brief_literal)
    if (branches := _branches(schema)) is not None:
        return _brief_union(branches, lambda branch: _brief(branch, reading, depth + 1))
    if isinstance(schema.get("allOf"), list):
        return _brief(_merged(schema["allOf"], reading), reading, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, list):
        return _brief_union(kind, lambda one: _brief_plain(one, schema, reading, depth))
    return _brief_plain(kind, schema, reading, depth)


def _merged(branches: list[Any], reading: _Reading) -> JsonObject:
    """Merge the schemas of an allOf; for a repeated keyword, the last one wins."""
    merged: dict[str, Any] = {}
    reading.left -= len(branches) // 8
    for branch in branches:
        merged |= branch if isinstance(branch, dict) else {}
    return merged


def _brief_plain(kind: object, schema: Mapping[str, Any], reading: _Reading, depth: int) -> str:
    if kind == "array":
        items = schema.get("items", {})
        # Lists of plain values stay readable at any depth; lists of lists count as nesting.
        item = _brief(items, reading, depth + (isinstance(items, dict) and "items" in items))
        return f"({item})[]" if " | " in item else f"{item}[]"
    if kind == "object" or (kind is None and "properties" in schema):
        fields = _parameters(dict(schema), reading, depth + 1)
        return f"{{{', '.join(fields)}}}" if fields and depth < MAX_SIGNATURE_DEPTH else "object"
    return _PLAIN_TYPES.get(kind, "any") if isinstance(kind, str) else "any"


def _brief_union(branches: list[Any], render: Callable[[Any], str]) -> str:
    shown = list(dict.fromkeys(render(branch) for branch in branches[:MAX_CHOICES]))
    more = [f"… {len(branches) - MAX_CHOICES} more"] if len(branches) > MAX_CHOICES else []
    return " | ".join(shown + more) or "any"


def _brief_literal(value: object) -> str:
    if isinstance(value, dict | list):
        return "object" if isinstance(value, dict) else "any[]"
    # Longer values are cut, and need not be written in full.
    text = escaped_json(value[: MAX_LITERAL + 1] if isinstance(value, str) else value)
    return text if len(text) <= MAX_LITERAL else f'{text[: MAX_LITERAL - 2]}…"'


def outcome(effect: Effect, output: JsonObject | None, *, is_learned: bool = False, marks_unknown: bool = False) -> str:
    """Return the text after a signature: ` -> {issues: [{number, title, …}]} [read]`.

    Args:
        effect: the effect of the tool's calls.
        output: the schema of the result, if anything is known of it.
        is_learned: True if it was inferred from results, which `~` marks, rather than declared.
        marks_unknown: True to show an unknown effect as well.
    """
    returned = None if output is None else _returned(ById(output))
    arrow = "" if not returned else f" -> {'~' if is_learned else ''}{returned}"
    return arrow if effect is Effect.UNKNOWN and not marks_unknown else f"{arrow} [{effect}]"


@lru_cache(maxsize=4096)
def _taken(key: ById[JsonObject]) -> str:
    """Return the parameters of a signature; cached like `_returned`."""
    return ", ".join(_parameters(key.value, _Reading(key.value), 0))


@lru_cache(maxsize=4096)
def _taken_in_short(key: ById[JsonObject]) -> str:
    """Return the parameters of a short signature; cached like `_returned`."""
    schema = key.value
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return ""
    required, reading = required_names(schema), _Reading(schema)
    fields: list[str] = []
    written = 0
    for name in sorted(properties, key=lambda name: name not in required):
        is_required = name in required
        if written > MAX_LINE or (len(fields) >= MAX_PARAMETERS and not is_required):
            fields.append(f"… {len(properties) - len(fields)} more")
            break
        fields.append(
            field(shortened(name, MAX_NAME), _short_type(properties[name], reading, is_required), required=is_required)
        )
        written += len(fields[-1])
    return ", ".join(fields)


@lru_cache(maxsize=4096)
def _returned(key: ById[JsonObject]) -> str:
    """Return the result's fields in as much detail as the limits allow; cached, as hits show the same tools again."""
    text = ""
    for depth, fields in RETURNED:
        text = _result(key.value, _Reading(key.value), depth, fields)
        if len(text) <= MAX_RETURNED:
            break
    return "" if text == "any" else shortened(text, MAX_RETURNED)


def _result(schema: object, reading: _Reading, depth: int, fields: int) -> str:
    schema = resolve_reference(schema, reading.root)
    if not isinstance(schema, dict) or reading.is_over():
        return "any"
    if (choices := _choices(schema)) is not None:
        return _brief_union(choices, _brief_literal)
    if (branches := _branches(schema)) is not None:
        # A reference counts as a level: a union can refer to itself.
        return _brief_union(
            branches, lambda branch: _result(branch, reading, depth - _is_reference(branch), fields) if depth else "…"
        )
    if isinstance(schema.get("allOf"), list):
        return _result(_merged(schema["allOf"], reading), reading, depth - 1, fields) if depth else "{…}"
    kind = schema.get("type")
    if isinstance(kind, list):
        return _brief_union(kind, lambda one: _result({**schema, "type": one}, reading, depth, fields))
    if kind == "array":
        return f"[{_result(schema.get('items', {}), reading, depth, fields)}]" if depth else "[…]"
    if kind == "object" or (kind is None and "properties" in schema):
        return _result_object(schema, reading, depth, fields)
    return _PLAIN_TYPES.get(kind, "any") if isinstance(kind, str) else "any"


def _result_object(schema: JsonObject, reading: _Reading, depth: int, fields: int) -> str:
    properties, others = schema.get("properties"), schema.get("additionalProperties")
    if not isinstance(properties, dict) or not properties:
        is_map = isinstance(others, dict) and others
        return f"{{[key]: {_result(others, reading, depth - 1, fields)}}}" if is_map and depth else "object"
    if not depth:
        return "{…}"
    required = required_names(schema)
    reading.names(properties, required)
    names = sorted(properties, key=lambda name: _place(name, properties[name], required))
    parts = []
    for name in names[:fields]:
        inner = _result(properties[name], reading, depth - 1, fields)
        shown = plain_name(shortened(name, MAX_NAME))
        parts.append(f"{shown}: {inner}" if inner[:1] in "{[" else shown)
    return f"{{{', '.join([*parts, *(['…'] if len(names) > fields else [])])}}}"


def _place(name: str, schema: object, required: frozenset[str]) -> int:
    """Return the rank of a field: lists, and values that other calls need, come first."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind == "array" or _TELLING.fullmatch(name[:MAX_NAME]):
        return 0 if name in required else 1
    return 2 if name in required else 3


def typescript_type(schema: object, depth: int = 0, root: JsonObject | None = None) -> str:
    """Return the TypeScript type, with its lines indented for `depth` levels.

    Args:
        schema: the schema to write.
        depth: levels of nesting.
        root: the document in which references are resolved; by default, the schema itself.
    """
    within = root if root is not None else schema if isinstance(schema, dict) else {}
    return _typescript(schema, _Reading(within, MAX_TYPESCRIPT_LOOKED_AT), depth)


def _typescript(schema: object, reading: _Reading, depth: int) -> str:
    if reading.is_over() or not isinstance(schema, dict) or depth > MAX_TYPESCRIPT_DEPTH:
        return "unknown"
    if isinstance(reference := schema.get("$ref"), str):
        return _typescript_reference(reference, reading, depth)
    if isinstance(schema.get("enum"), list):
        values = (json.dumps(value, ensure_ascii=False) for value in schema["enum"])
        return reading.text(" | ".join(values)) or "never"
    if "const" in schema:
        return reading.text(json.dumps(schema["const"], ensure_ascii=False))
    if (branches := _branches(schema)) is not None:
        return " | ".join(dict.fromkeys(_typescript(branch, reading, depth + 1) for branch in branches))
    if isinstance(schema.get("allOf"), list):
        parts = (_typescript(branch, reading, depth + 1) for branch in schema["allOf"])
        return " & ".join(dict.fromkeys(part for part in parts if part != "unknown")) or "unknown"
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_typescript({**schema, "type": one}, reading, depth + 1) for one in kind)
    match kind:
        case "string" | "boolean" | "null":
            return str(kind)
        case "integer" | "number":
            return "number"
        case "array":
            item = _typescript(schema.get("items", {}), reading, depth + 1)
            return f"({item})[]" if " " in item and not item.startswith("{") else f"{item}[]"
        case "object":
            return _typescript_object(schema, reading, depth)
        case _:
            return _typescript_object(schema, reading, depth) if "properties" in schema else "unknown"


def _typescript_reference(reference: str, reading: _Reading, depth: int) -> str:
    """Return the type of a reference's target; `unknown` for a recursive one, which has no name."""
    if reference in reading.within:
        return "unknown"
    reading.within.append(reference)
    try:
        return _typescript(document_target(reference, reading.root), reading, depth)
    finally:
        reading.within.pop()


def _typescript_object(schema: JsonObject, reading: _Reading, depth: int) -> str:
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        others = schema.get("additionalProperties")
        return f"Record<string, {_typescript(others, reading, depth + 1) if isinstance(others, dict) else 'unknown'}>"
    required = required_names(schema)
    indent = "  " * (depth + 1)
    fields = []
    for name, parameter in properties.items():
        if reading.left < 0:
            fields.append(f"{indent}// …")
            break
        description = parameter.get("description") if isinstance(parameter, dict) else None
        words = " ".join(reading.text(str(description or "")).replace("*/", "* /").split())
        note = f"{indent}/** {words} */\n" if description else ""
        key = name if name.isidentifier() else json.dumps(name, ensure_ascii=False)
        kind = _typescript(parameter, reading, depth + 1)
        fields.append(f"{note}{indent}{key}{'' if name in required else '?'}: {kind};")
    return "{\n" + "\n".join(fields) + "\n" + "  " * depth + "}"
