"""Repair of tool schemas so that every client accepts them, with the reason for each repair."""

from __future__ import annotations

import json
import marshal
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from pml_gateway.catalog.dialects import in_one_dialect
from pml_gateway.catalog.hidden_characters import TEXT_LISTS, TEXTS, visible
from pml_gateway.catalog.keywords import (
    FORMAT_LIMITS,
    LISTS,
    MAPS,
    ORDERED_FORMATS,
    SAYS_NOTHING_OF_VALUES,
    SINGLE,
    STRINGS,
    TYPES,
    fault,
    kind_of,
)
from pml_gateway.catalog.patterns import portable
from pml_gateway.catalog.pointers import escaped, local_target
from pml_gateway.catalog.references import ANCHORS, NAMES, PLAIN_FORMAT, with_pointers, without_lost_references
from pml_gateway.types import JsonObject

MAX_DEPTH = 24
"""Maximum nesting of subschemas; model APIs refuse depths that recursive validators still survive."""

MAX_BYTES = 256 * 1024
"""Maximum JSON size of an input schema; a larger one keeps only its top-level parameters."""

MAX_REASONS = 20
MAX_POINTER = 200
MAX_REASON = 200

MAX_MERGED = 500
MAX_MERGE_DEPTH = 8
"""Limits on subschemas visited while merging a root, in number and depth: references can multiply exponentially."""

MAX_MERGED_PROPERTIES = 20_000
"""Maximum number of properties seen while merging a root, counted once per merge."""

_ROOT_ALTERNATIVES = ("allOf", "anyOf", "oneOf")
_REPLACED_AT_ROOT = frozenset({*_ROOT_ALTERNATIVES, "$ref"})
LOOKED_AT_CLOSELY = (TEXTS - STRINGS | TEXT_LISTS | NAMES | FORMAT_LIMITS) | {
    "$async",
    "dependencies",
    "nullable",
    "patternProperties",
    "x-nullable",
}

JSON_PER_BYTE = 8
"""Maximum number of JSON characters per byte of the marshal format (`false, ` comes from one byte)."""

_COMPILED_DIALECT = re.compile(r"https?://json-schema\.org/(?:draft/20(?:20-12|19-09)|draft-0[67])/schema#?")
"""Values of `$schema` for which clients have a validator; they refuse a whole list for any other value."""

_OLD_DIALECT = re.compile(r"https?://json-schema\.org/draft-0[34]/(?:hyper-)?schema#?")
_TUPLE_DIALECTS = ("draft-03", "draft-04", "draft-06", "draft-07", "2019-09")

_ABOUT_VALIDATORS: Mapping[str, Callable[[str], bool]] = {
    "$dynamicRef": lambda _: False,
    "$recursiveRef": lambda _: False,
    "format": lambda name: not fault("format", name),
    "$schema": lambda dialect: _COMPILED_DIALECT.fullmatch(dialect) is not None,
    "pattern": lambda pattern: portable(pattern) == pattern,
}

_Shape = tuple[JsonObject, list[str]]
"""The properties of an object schema, and the names it requires."""


@dataclass(slots=True)
class _Repairs:
    keeps_tuples: bool = False
    reasons: list[str] = field(default_factory=list)
    tuples_rewritten: bool = False
    admits_other_values: bool = False

    def note(self, pointer: str, reason: str) -> None:
        """Record a change after which the schema may admit other values."""
        self.admits_other_values = True
        self.note_same(pointer, reason)

    def note_same(self, pointer: str, reason: str) -> None:
        """Record a change after which the schema admits the same values."""
        if len(self.reasons) < MAX_REASONS:
            place = pointer if len(pointer) <= MAX_POINTER else f"/…{pointer[-MAX_POINTER:]}"
            self.reasons.append(f"{place or '/'}: {reason[:MAX_REASON]}")


def repair_input_schema(schema: object) -> tuple[JsonObject, tuple[str, ...]]:
    """Return a root object schema that describes the same arguments, and the reason for each change.

    A schema without faults is returned as the same object, so that it reaches clients byte for byte.
    """
    return read_input_schema(schema)[1:]


def read_input_schema(schema: object) -> tuple[JsonObject | None, JsonObject, tuple[str, ...]]:
    """Return the schema in keywords of 2020-12, faults included, and the result of `repair_input_schema`."""
    repairs = _Repairs()
    if not isinstance(schema, dict):
        repairs.note("", f"inputSchema is {kind_of(schema)}, not an object; any arguments are accepted")
        return None, {"type": "object"}, tuple(repairs.reasons)
    understood = _understood(schema, repairs)
    cleaned = _clean_object(understood, "", 0, repairs)
    if repairs.tuples_rewritten:
        cleaned.pop("$schema", None)
    result = _compilable(_repair_root(_too_large(cleaned, repairs), repairs), repairs)
    return understood, (result if repairs.reasons else schema), tuple(repairs.reasons)


def _understood(schema: JsonObject, repairs: _Repairs) -> JsonObject:
    pointing = with_pointers(schema)
    if pointing is not schema:
        repairs.note_same("", "names of schemas left out, references written as pointers")
    return in_one_dialect(pointing, repairs.note_same)


def _compilable(schema: JsonObject, repairs: _Repairs) -> JsonObject:
    """Return a cleaned schema in a form that the validators of clients compile, or the same object."""
    schema, lost = without_lost_references(schema)
    for reference in lost:
        repairs.note("", f"reference {reference!r} leads to no schema in the document or back to itself; dropped")
    properties = schema.get("properties")
    if isinstance(properties, dict) and not all(isinstance(each, dict) for each in properties.values()):
        # A widely used client accepts no booleans here, and refuses the whole list for one.
        repairs.note_same("/properties", "booleans written as schemas")
        written = {
            name: each if isinstance(each, dict) else {} if each else {"not": {}} for name, each in properties.items()
        }
        schema = {**schema, "properties": written}
    return schema


def is_flawless(schema: object) -> TypeGuard[JsonObject]:
    """Return True if an input schema certainly needs no change, as most do; this check is fast."""
    return (
        isinstance(schema, dict)
        and schema.get("type") == "object"
        and not _REPLACED_AT_ROOT & schema.keys()
        and _compiles_as_it_is(schema)
    )


def _compiles_as_it_is(schema: JsonObject) -> bool:
    references: list[str] = []
    return (
        _is_sound(schema, 0, references)
        and _is_small(schema, MAX_BYTES)
        and (not references or (with_pointers(schema) is schema and without_lost_references(schema)[0] is schema))
    )


def _is_sound(schema: JsonObject, depth: int, references: list[str]) -> bool:
    """Return True if the parts of a schema need no repair; its references are added to the list."""
    if depth > MAX_DEPTH:
        return False
    for key, value in schema.items():
        below: Iterable[object] = ()
        if key == "type" and isinstance(value, str):
            if value not in TYPES:
                return False
        elif key in STRINGS:
            if not isinstance(value, str) or not ((value.isascii() and value.isprintable()) or visible(value) is value):
                return False
            if key == "$ref":
                references.append(value)
            elif key in _ABOUT_VALIDATORS and not _ABOUT_VALIDATORS[key](value):
                return False
        elif key in LOOKED_AT_CLOSELY or fault(key, value) or _names_schemas(key, value):
            return False
        elif key in MAPS:
            below = value.values()
        elif key in LISTS:
            below = value
        elif key in SINGLE:
            below = (value,)
        for each in below:
            if isinstance(each, dict):
                if not _is_sound(each, depth + 1, references):
                    return False
            elif not isinstance(each, bool) or (key == "properties" and not depth):
                return False
    return True


def _names_schemas(key: str, value: object) -> bool:
    """Return True for a vendor's keyword in which clients nevertheless find names of schemas."""
    is_known = key in MAPS or key in SINGLE or key in ("const", "default", "dependencies")
    return isinstance(value, dict) and not is_known and _has_names(value)


def _has_names(value: object) -> bool:
    if isinstance(value, list):
        return any(map(_has_names, value))
    if not isinstance(value, dict):
        return False
    return any(isinstance(value.get(name), str) for name in ("$id", *ANCHORS)) or any(map(_has_names, value.values()))


def _is_small(schema: JsonObject, limit: int) -> bool:
    """Return True if the JSON is certainly short enough; four times as fast as writing it."""
    try:
        return JSON_PER_BYTE * len(marshal.dumps(schema, PLAIN_FORMAT)) <= limit
    except ValueError:
        return False  # nested deep, or no plain values


def combines_only_at_root(schema: object) -> bool:
    """Return True if only combinations at the root are wrong, which the protocol allows and model APIs refuse."""
    if not isinstance(schema, dict) or schema.get("type") != "object" or "$ref" in schema:
        return False
    repairs = _Repairs()
    _too_large(_clean_object(schema, "", 0, repairs), repairs)
    return not repairs.reasons and any(key in schema for key in _ROOT_ALTERNATIVES)


def check_output_schema(schema: object) -> tuple[JsonObject | None, tuple[str, ...]]:
    """Return the output schema, or one that admits the same values and compiles, or None; and the reasons.

    Clients compile it as soon as it is listed, and lose the whole list if that fails.
    """
    if schema is None:
        return None, ()
    if not isinstance(schema, dict):
        return None, (f"outputSchema dropped: /: outputSchema is {kind_of(schema)}, not an object",)
    if _compiles_as_it_is(schema):
        return schema, ()
    dialect = schema.get("$schema")
    repairs = _Repairs(keeps_tuples=isinstance(dialect, str) and any(name in dialect for name in _TUPLE_DIALECTS))
    result = _compilable(_clean_object(_understood(schema, repairs), "", 0, repairs), repairs)
    if not repairs.admits_other_values and _exceeds(result, MAX_BYTES):
        repairs.note("", f"outputSchema is larger than {MAX_BYTES} bytes")
    if repairs.admits_other_values:
        return None, tuple(f"outputSchema dropped: {reason}" for reason in repairs.reasons)
    return (result if repairs.reasons else schema), tuple(f"outputSchema: {reason}" for reason in repairs.reasons)


def _too_large(schema: JsonObject, repairs: _Repairs) -> JsonObject:
    if not _exceeds(schema, MAX_BYTES):
        return schema
    repairs.note("", f"inputSchema is larger than {MAX_BYTES} bytes; only top-level parameter names are kept")
    names = list(schema.get("properties", ()))[:500]
    known = frozenset(names)
    kept = [name for name in schema.get("required", ()) if name in known]
    names_only: JsonObject = {"type": "object", "properties": {name: {} for name in names}}
    if kept:
        names_only["required"] = kept
    return {"type": "object"} if _exceeds(names_only, MAX_BYTES) else names_only


def _exceeds(schema: JsonObject, limit: int) -> bool:
    return len(json.dumps(schema, ensure_ascii=False)) > limit


def _repair_root(schema: JsonObject, repairs: _Repairs) -> JsonObject:
    """Return a cleaned schema whose root is one plain object."""
    root = schema
    if "$ref" in schema:
        repairs.note("/$ref", f"root reference {schema['$ref']!r} replaced by what it refers to")
        root = _follow_root_reference(schema)
    has_alternatives = any(key in root for key in _ROOT_ALTERNATIVES)
    if has_alternatives:
        repairs.note("", "root oneOf/anyOf/allOf merged into one object")
    if "$ref" in schema or has_alternatives:
        # Merged properties would no longer count as evaluated.
        dropped = {*_ROOT_ALTERNATIVES, "$ref", "properties", "required", "unevaluatedProperties"}
        properties, required = _Merging(schema).visit(schema)
        root = {key: value for key, value in root.items() if key not in dropped}
        root |= {"properties": properties} if properties or has_alternatives else {}
        root |= {"required": required} if required else {}
        if has_alternatives and "type" not in root:
            return {"type": "object", **root}
    kind = root.get("type")
    if kind is None:
        repairs.note("/type", "missing; set to object")
        return {"type": "object", **root}
    if kind == "object":
        return root
    if isinstance(kind, list) and "object" in kind:
        repairs.note("/type", f"{kind!r} narrowed to object")
    elif "properties" in root:
        repairs.note("/type", f"root is {kind!r} but has properties; set to object")
    else:
        repairs.note("/type", f"root is {kind!r}, not object; any arguments are accepted")
        return {"type": "object"}
    return {**root, "type": "object"}


def _follow_root_reference(schema: JsonObject) -> JsonObject:
    root, seen = schema, set[str]()
    while isinstance(reference := root.get("$ref"), str):
        siblings = {key: value for key, value in root.items() if key != "$ref"}
        target = local_target(reference, schema)
        if reference in seen or not isinstance(target, dict):
            return siblings
        seen.add(reference)
        root = {**target, **siblings}
    return root


@dataclass(slots=True)
class _Merging:
    """A collector of what a root admits through its local references and combinations."""

    root: JsonObject
    remaining: int = MAX_MERGED
    properties_left: int = MAX_MERGED_PROPERTIES

    def visit(self, schema: JsonObject, depth: int = 0) -> _Shape:
        self.remaining -= 1
        if self.remaining < 0 or depth > MAX_MERGE_DEPTH:
            return {}, []
        required = _names(schema.get("required"))
        parts = [self.visit(branch, depth + 1) for branch in _branches(schema.get("allOf"))]
        reference = schema.get("$ref")
        target = local_target(reference, self.root) if isinstance(reference, str) else None
        if isinstance(target, dict):
            parts.append(self.visit(target, depth + 1))
        for keyword in ("anyOf", "oneOf"):
            branches = [self.visit(branch, depth + 1) for branch in _branches(schema.get(keyword))]
            if branches:
                parts.append(_either(branches))
                self.properties_left -= sum(len(properties) for properties, _ in branches)
        maps = [_object(schema.get("properties")), *(part for part, _ in parts)]
        self.properties_left -= sum(map(len, maps))
        if self.properties_left < 0:
            return {}, []
        properties = _combined("allOf", maps)
        names = [*required, *(name for _, needed in parts for name in needed)]
        return properties, list(dict.fromkeys(names))


def _either(shapes: Sequence[_Shape]) -> _Shape:
    common = set(shapes[0][1]).intersection(*(required for _, required in shapes[1:]))
    return _combined("anyOf", [properties for properties, _ in shapes]), [
        name for name in shapes[0][1] if name in common
    ]


def _combined(keyword: str, maps: Sequence[JsonObject]) -> JsonObject:
    """Merge maps of properties; a name with several schemas gets all of them under `keyword`."""
    variants: dict[str, list[object]] = {}
    for properties in maps:
        for name, schema in properties.items():
            known = variants.setdefault(name, [])
            if schema not in known:
                known.append(schema)
    return {name: schemas[0] if len(schemas) == 1 else {keyword: schemas} for name, schemas in variants.items()}


def _clean(schema: object, pointer: str, depth: int, repairs: _Repairs) -> object:
    """Drop what is not JSON Schema at any depth; booleans are schemas too."""
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        repairs.note(pointer, f"{kind_of(schema)} is no schema; anything is accepted")
        return {}
    if depth > MAX_DEPTH:
        repairs.note(pointer, f"nested deeper than {MAX_DEPTH} levels; anything is accepted below")
        return {}
    return _clean_object(schema, pointer, depth, repairs)


def _clean_object(schema: JsonObject, pointer: str, depth: int, repairs: _Repairs) -> JsonObject:
    cleaned: JsonObject = {}
    for key, value in schema.items():
        if reason := fault(key, value):
            note = repairs.note_same if key in SAYS_NOTHING_OF_VALUES else repairs.note
            note(f"{pointer}/{escaped(key)}", f"{reason}; dropped")
        elif _names_schemas(key, value):
            repairs.note_same(f"{pointer}/{escaped(key)}", "has names of schemas; dropped")
        else:
            cleaned[key] = value
    if FORMAT_LIMITS & cleaned.keys() and cleaned.get("format") not in ORDERED_FORMATS:
        repairs.note_same(pointer, "limits of a format without an order; dropped")
        cleaned = {key: value for key, value in cleaned.items() if key not in FORMAT_LIMITS}
    if not pointer and "$schema" in cleaned and not _COMPILED_DIALECT.fullmatch(cleaned["$schema"]):
        repairs.note_same("/$schema", f"{cleaned['$schema']!r} is unknown to clients; read as a dialect that they know")
        is_old = _OLD_DIALECT.fullmatch(cleaned.pop("$schema")) is not None
        cleaned |= {"$schema": "http://json-schema.org/draft-07/schema#"} if is_old else {}
    _clean_patterns(cleaned, pointer, repairs)
    if isinstance(cleaned.get("items"), list) and not repairs.keeps_tuples:
        repairs.note(f"{pointer}/items", "a list, as in older dialects; rewritten as prefixItems")
        repairs.tuples_rewritten = True
        _rewrite_tuple(cleaned)
    for key, value in cleaned.items():
        below = f"{pointer}/{key}"
        if key in LISTS or (key == "items" and isinstance(value, list)):
            cleaned[key] = [_clean(item, f"{below}/{index}", depth + 1, repairs) for index, item in enumerate(value)]
        elif key in SINGLE:
            cleaned[key] = _clean(value, below, depth + 1, repairs)
        elif key in MAPS or key == "dependencies":
            cleaned[key] = {
                name: item
                if key == "dependencies" and isinstance(item, list)
                else _clean(item, f"{below}/{escaped(name)}", depth + 1, repairs)
                for name, item in value.items()
            }
    return cleaned


def _clean_patterns(schema: JsonObject, pointer: str, repairs: _Repairs) -> None:
    """Rewrite or drop regular expressions of a schema that clients cannot compile."""
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and (written := portable(pattern)) != pattern:
        if written is None:
            repairs.note(f"{pointer}/pattern", f"{pattern[:40]!r} is not a regular expression of ECMA-262; dropped")
            del schema["pattern"]
        else:
            repairs.note_same(f"{pointer}/pattern", f"{pattern[:40]!r} written as {written[:40]!r}")
            schema["pattern"] = written
    named = schema.get("patternProperties")
    if not isinstance(named, dict) or all(portable(each) == each for each in named):
        return
    rewritten = {portable(each): part for each, part in named.items()}
    if None in rewritten or len(rewritten) < len(named):
        repairs.note(f"{pointer}/patternProperties", "regular expressions that are not of ECMA-262; dropped")
        rewritten.pop(None, None)
        # They would refuse names that only the dropped patterns admitted.
        for key in ("additionalProperties", "unevaluatedProperties"):
            schema.pop(key, None)
    else:
        repairs.note_same(f"{pointer}/patternProperties", "regular expressions written as ECMA-262 has them")
    schema["patternProperties"] = rewritten


def _rewrite_tuple(schema: JsonObject) -> None:
    positions = schema.pop("items")
    rest = schema.pop("additionalItems", None)
    if positions:
        schema.setdefault("prefixItems", positions)
    if isinstance(rest, dict | bool):
        schema["items"] = rest


def _branches(value: object) -> list[JsonObject]:
    # `true` admits anything, `false` nothing.
    kept = [item for item in value if item is not False] if isinstance(value, list) else []
    return [_object(item) for item in kept]


def _object(value: object) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _names(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
