"""Schemas that validators of clients refuse to compile, or never come to a verdict about."""

from __future__ import annotations

from random import Random
from typing import Any

from pml_gateway.catalog.keywords import subschemas
from pml_gateway.types import JsonObject

REFERENCES = (
    *("#/$defs/Missing", "#/components/schemas/Pet", "#/definitions/X", "other.json", "other.json#/a", "#anchor"),
    *("https://example.com/pet.json", "http://json-schema.org/draft-04/schema#", "urn:x:y", "file:///etc/schema.json"),
    *("#/properties", "#/required", "#/title", "#/properties/a/enum/0", "#/%E0%A4%A", "#/__proto__", "#/constructor"),
    *("", "##", "#/", "//", "http://[", "#/$defs/%zz", "schema", "../x", "#/$defs/a/../b", "#/prefixItems/0", "?x"),
)
PATTERNS = (
    *(
        "(?P<y>[0-9]{4})",
        "(?P<y>a)(?P=y)",
        "(?i)abc",
        r"\A[a-z]+\Z",
        r"\Aabc\z",
        "a++",
        "(?>a)b",
        "(?x) a # b",
        "(?s).",
    ),
    *(
        "(?<!a)b",
        "(?i:abc)",
        "(?#comment)a",
        "[[:alpha:]]+",
        r"\h+",
        r"\pL",
        r"\p{IsGreek}",
        r"[\w-.]+",
        r"\-\_\@",
        "{",
    ),
    *(
        "a{,3}",
        "]",
        "(",
        "[a",
        "*",
        "a**",
        r"\\\ ",
        r"\07",
        r"\8",
        "(?1)",
        "(?|a|b)",
        r"\Q.\E",
        r"\e",
        "[z-a]",
        r"\u12",
    ),
    *("(?<a>x)|(?<a>y)", r"\k<b>", "a{2,1}", r"[\d-x]", r"\R", r"\X", "(?R)", "(?(1)a|b)", "[]a]", "\\"),
)
_LISTS, _SCHEMAS, _NAMES = (
    ("allOf", "anyOf", "oneOf", "prefixItems"),
    ("not", "if", "contains"),
    ("$defs", "definitions"),
)
_INHERITED = ("__proto__", "constructor", "toString", "hasOwnProperty")
_VALUES: dict[str | tuple[str, ...], list[Any]] = {
    "type": ["foo", "String", "int", [], ["string", "foo"], [None], 5, None, {}, "any", "str|null"],
    "required": ["x", ["a", "a"], [1], {}, True, None, ["__proto__"], [""]],
    "enum": [[], "a", {}, None, [1, 1]],
    "properties": [[], "x", None, {"a": "string"}, {"a": True}, {"a": False}, {"a": None}],
    "items": [[], [{"type": "string"}], "string", None, 5, True],
    ("minimum", "maxLength", "multipleOf", "minItems"): ["1", None, True, -1, {}, 0],
    "exclusiveMinimum": [True, False, "1", None],
    ("additionalProperties", "additionalItems"): ["false", None, [], 0, False],
    "patternProperties": [{each: {}} for each in ("(?P<y>a)", "(", "^x-", r"\-", "(?i)a")],
    _LISTS: [[], {}, "x", [5], [None], [{}], None],
    (*_SCHEMAS, "then", "propertyNames"): ["x", 5, None, [], True],
    "format": ["unknown", 5, None, "date", "regex", "", *_INHERITED],
    ("formatMinimum", "formatMaximum"): [5, "2020-01-01", {}, None],
    ("nullable", "x-nullable"): [True, False, "true", None],
    "$id": ["https://example.com/shared", "shared", "#x", "", 5, "a b", "http://[", "urn:x"],
    "id": ["https://example.com/old", "x", "", 5, {"type": "string"}, None],
    ("$anchor", "$dynamicAnchor"): ["node", "1 2", 5, ""],
    "$recursiveAnchor": [True, "x"],
    ("$dynamicRef", "$recursiveRef"): ["#", "#node", "#missing", "other", 5],
    "$ref": [5, None, {}, [], *REFERENCES],
    "$async": [True, "x"],
    "$schema": ["http://json-schema.org/draft-04/schema#", "https://example.com/x", "", 5],
    "dependencies": [{"a": 5}, {"a": ["b"]}, {"a": "b"}, [], {"__proto__": ["a"]}],
    "dependentRequired": [{"a": "b"}, [], {"a": [1]}],
    _NAMES: [[], {"X": 5}, {"X": {"$ref": "#/$defs/X"}}, "x"],
    "x-vendor": [{"$id": "shared", "type": "x"}, {"a": {"anyOf": [{"$anchor": "1 2"}]}}],
    (*_INHERITED, "example", "discriminator"): ["x"],
    "uniqueItems": ["true", 1],
    "pattern": [5, None, *PATTERNS],
    "const": [{"$ref": "#/missing"}, {"$id": "shared"}, None],
    ("$comment", "title", "description", "default", "examples", "deprecated", "contentMediaType"): [5, None],
}
VALUES = [
    (key, value)
    for keys, values in _VALUES.items()
    for key in ([keys] if isinstance(keys, str) else keys)
    for value in values
] + [("properties", {name: {"type": "string"}}) for name in (*_INHERITED, "$ref", "a/b", "")]
"""A keyword and a value of it, beside which a schema may not compile."""


def circle(schema: JsonObject, random: Random) -> None:
    """References that lead back to themselves."""
    names = [f"C{index}" for index in range(random.randint(1, 3))]
    for name, following in zip(names, [*names[1:], names[0]], strict=True):
        reference = {"$ref": f"#/$defs/{following}"}
        forms: list[JsonObject] = [
            reference,
            {"allOf": [reference]},
            {"anyOf": [{"type": "string"}, reference]},
            {"not": reference},
            {"if": reference, "then": {}},
            {"$ref": "#/$defs/" + following, "description": "around"},
            {"dependentSchemas": {"a": reference}},
        ]
        schema.setdefault("$defs", {})[name] = random.choice(forms)
    schema["properties"]["around"] = {"$ref": "#/$defs/C0"}


def faulty_schema(random: Random, faults: int = 3) -> JsonObject:
    """A usual schema of an object with up to so many faults, anywhere in it."""
    schema: JsonObject = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "pattern": "^[a-z]+$"},
            "b": {"type": "array", "items": {"type": "object", "properties": {"c": {"type": "number"}}}},
            "d": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
        },
        "required": ["a"],
        "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}},
    }
    for _ in range(random.randint(1, faults)):
        if random.random() < 0.1:
            circle(schema, random)
            continue
        place = random.choice(_places(schema))
        key, value = random.choice(VALUES)
        place[key] = value
        if not isinstance(schema.get("$defs"), dict):
            schema["$defs"] = {}
        if not isinstance(schema.get("properties"), dict):
            break
    return schema


def _places(schema: JsonObject) -> list[JsonObject]:
    found = [schema]
    for place in found:
        found += [part for _, _, part in subschemas(place) if isinstance(part, dict)]
    return found
