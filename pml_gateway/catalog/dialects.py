"""Translation of keywords and type names of OpenAPI, older drafts and programming languages to JSON Schema 2020-12."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from pml_gateway.catalog.keywords import SAYS_NOTHING_OF_VALUES, TYPES, with_subschemas
from pml_gateway.types import JsonObject

Note = Callable[[str, str], None]
"""A function that records a pointer and the change made there."""

_ANY = ""
_TYPE_NAMES: Mapping[str, str] = {
    name: kind
    for kind, names in {
        "integer": "int int8 int16 int32 int64 uint uint8 uint16 uint32 uint64 long short bigint",
        "number": "num float float32 float64 double decimal numeric real",
        "string": "str text varchar char date datetime date-time time uuid url uri email password file binary bytes",
        "boolean": "bool",
        "object": "obj dict dictionary map mapping record struct json",
        "array": "arr list tuple set sequence",
        "null": "none nil nonetype nulltype undefined void",
        _ANY: "any unknown mixed variant *",
    }.items()
    for name in names.split()
} | {kind: kind for kind in TYPES}
"""JSON types by their other names in lower case; the empty type admits any value."""

_OPTIONAL = re.compile(r"(?:optional|nullable)[\[<](.*)[\]>]|(.*)\?")
_UNION = re.compile(r"union[\[<](.*)[\]>]")
_PARAMETERS = re.compile(r"[\[<(][^\[<(\])>]*[\])>]")

_BOUNDS = (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
_NULLABLE = ("nullable", "x-nullable")
_COMBINES = frozenset({"$dynamicRef", "$recursiveRef", "$ref", "allOf", "anyOf", "const", "if", "not", "oneOf"})
_DEFINES = frozenset({"$defs", "definitions"})


def in_one_dialect(schema: JsonObject, note: Note, pointer: str = "", depth: int = 24) -> JsonObject:
    """Return an equivalent schema in keywords of 2020-12, down to some depth; the same object if nothing changes."""
    if depth > 0:
        schema = with_subschemas(
            schema,
            lambda part, below: (
                in_one_dialect(part, note, pointer + below, depth - 1) if isinstance(part, dict) else part
            ),
        )
    read = _with_known_types(schema)
    if read is not schema:
        note(f"{pointer}/type", f"{schema['type']!r} read as {read.get('type', 'any type')!r}")
    schema, read = read, _with_numeric_bounds(read)
    if read is not schema:
        note(pointer, "exclusive bounds as in draft 4; rewritten as numbers")
    schema, read = read, _with_null(read, is_root=not pointer)
    if read is not schema:
        note(f"{pointer}/nullable", "as in OpenAPI; rewritten")
    return read


def _with_known_types(schema: JsonObject) -> JsonObject:
    given = schema.get("type")
    if given is None or (isinstance(given, str) and given in TYPES):
        return schema
    names = given if isinstance(given, list) else [given]
    if all(isinstance(name, str) and name in TYPES for name in names):
        return schema
    kinds: list[str] = []
    for name in names:
        read = ["null"] if name is None and isinstance(given, list) else _types_of(name)
        if read is None:
            return schema
        kinds += read
    if _ANY in kinds or not kinds:
        return schema if not kinds else {key: value for key, value in schema.items() if key != "type"}
    distinct = list(dict.fromkeys(kinds))
    return {**schema, "type": distinct if len(distinct) > 1 else distinct[0]}


def _types_of(name: object) -> list[str] | None:
    """Return the JSON types for a type name such as `int`, `list[str]`, `Optional[float]` or `string|null`."""
    if not isinstance(name, str) or len(name) > 100:
        return None
    text = name.strip().lower()
    if found := _OPTIONAL.fullmatch(text):
        inner = _types_of(found[1] or found[2] or "")
        return None if inner is None else [*inner, "null"]
    if found := _UNION.fullmatch(text):
        text = found[1].replace(",", "|")
    if text.endswith("[]"):
        return ["array"]
    while (bare := _PARAMETERS.sub("", text)) != text:
        text = bare
    kinds = [_TYPE_NAMES.get(part.strip()) for part in text.split("|")]
    known = [kind for kind in kinds if kind is not None]
    return known if len(known) == len(kinds) else None


def _with_numeric_bounds(schema: JsonObject) -> JsonObject:
    flags = [pair for pair in _BOUNDS if isinstance(schema.get(pair[1]), bool)]
    if not flags:
        return schema
    changed = dict(schema)
    for inclusive, exclusive in flags:
        if changed.pop(exclusive) and inclusive in changed:
            changed[exclusive] = changed.pop(inclusive)
    return changed


def _with_null(schema: JsonObject, *, is_root: bool) -> JsonObject:
    """Return the schema with null as one of its values if it is nullable."""
    said = [schema[key] for key in _NULLABLE if key in schema]
    if not said:
        return schema
    rest = {key: value for key, value in schema.items() if key not in _NULLABLE}
    if is_root or True not in said:
        return rest
    combined = _COMBINES & rest.keys()
    if combined == {"anyOf"} and rest.keys() <= SAYS_NOTHING_OF_VALUES | combined and isinstance(rest["anyOf"], list):
        return {**rest, "anyOf": [*rest["anyOf"], {"type": "null"}]}
    if combined:
        outer = {key: value for key, value in rest.items() if key in SAYS_NOTHING_OF_VALUES | _DEFINES}
        inner = {key: value for key, value in rest.items() if key not in outer}
        return {**outer, "anyOf": [inner, {"type": "null"}]}
    kinds = rest.get("type")
    if isinstance(kinds, str) and kinds != "null":
        rest["type"] = [kinds, "null"]
    elif isinstance(kinds, list) and "null" not in kinds:
        rest["type"] = [*kinds, "null"]
    choices = rest.get("enum")
    if isinstance(choices, list) and None not in choices:
        rest["enum"] = [*choices, None]
    return rest
