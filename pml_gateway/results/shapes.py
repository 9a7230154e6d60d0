"""The shape of a value: types and field names, but no values, as JSON Schema and as one line of text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from typing import Any

from pml_gateway.catalog.pointers import escaped
from pml_gateway.results.content import WRAPPED
from pml_gateway.secrets.masking import mask_keys
from pml_gateway.types import JsonObject

MAX_DEPTH = 8
MAX_NODES = 3000
"""Maximum number of values visited in one inference, which takes 2 ms."""

MAX_SAMPLED = 24
"""Number of items of a list that are sampled, evenly spread."""

MAX_FIELDS = 60
"""Number of fields above which an object's keys are taken for data."""

MIN_ALIKE = 3
"""Minimum number of objects with the same fields under different keys for the keys to be taken for data."""

_FIELD_NAME = re.compile(r"[A-Za-z_$@#][A-Za-z0-9_$.:/-]{0,47}\Z")
_DATA_KEYS = re.compile(
    r"""(?ix)
    .*\d{4}-\d\d(-\d\d)?.*          # dates
    | [^@]+@.+                      # addresses
    | .*\d+\.\d+\.\d+.*            # addresses of machines, versions
    | .*[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}.*  # uuids, hashes
    | [a-z]+([-_]\d{3,}|\d{4,}).*   # user_1234, but sha256
    | (?=[a-z0-9_-]*\d)(?=[a-z0-9_-]*[a-z])[a-z0-9_-]{16,}   # keys and tokens
    | [a-z][a-z0-9+.-]*://.*        # addresses on the web
    | .*/.*\.\w+ | /.*              # paths
    | [\w-]+(\.[\w-]+)*\.(com|org|net|io|dev|ai|py|js|ts|json|md|txt|ya?ml|toml|csv|html?)  # hosts and files
    """
)
_CODE = re.compile(r"(?=(?:[A-Z]*\d){3})(?=\d*[A-Z])[A-Z0-9]{8,}\Z")
"""Account and order numbers."""

_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_ANY = {"items": "[]", "additionalProperties": "{}"}
_SHORT = {"string": "str", "boolean": "bool", "integer": "int", "number": "float", "null": "null"}


def unwrapped(output_schema: JsonObject, functions: Collection[str]) -> JsonObject | None:
    """Return the schema of the value in a Python server's `{"result": ...}`; None if the object is the server's own.

    FastMCP marks its wrappers; those of the SDK's own server have a single field, and a title made of the name of one
    of `functions` and `Output`.
    """
    properties = output_schema.get("properties")
    inner = properties.get(WRAPPED) if isinstance(properties, dict) and len(properties) == 1 else None
    if not isinstance(inner, dict):
        return None
    is_titled = any(output_schema.get("title") == f"{function}Output" for function in functions)
    is_made_up = is_titled and output_schema.get("required") == [WRAPPED]
    if not (output_schema.get("x-fastmcp-wrap-result") is True or is_made_up):
        return None
    return {**{key: output_schema[key] for key in ("$defs", "definitions") if key in output_schema}, **inner}


def infer(value: Any) -> JsonObject:
    """Return the JSON Schema of one value: names and types of its fields, without their values."""
    return _infer(value, 0, _Budget())


def merge(left: JsonObject, right: JsonObject) -> JsonObject:
    """Return the schema of values that fit either; a field is required if both require it."""
    if left == right or not right:
        return left
    if not left:
        return right
    types = sorted(_kinds(left) | _kinds(right))
    if "number" in types and "integer" in types:
        types.remove("integer")
    merged: JsonObject = {"type": types[0] if len(types) == 1 else types}
    if "items" in left or "items" in right:
        merged["items"] = merge(left.get("items", {}), right.get("items", {}))
    if "object" in types:
        merged |= _merge_objects(*(side for side in (left, right) if "object" in _kinds(side)))
    return merged


def fields(schema: JsonObject, at: str = "") -> Iterator[str]:
    """Yield the path of each field in a shape: `/items/[]/id`, with `[]` for any item and `{}` for any key."""
    for name, field in schema.get("properties", {}).items():
        path = f"{at}/{escaped(name)}"
        yield path
        yield from fields(field, path)
    for keyword, sign in _ANY.items():
        if keyword in schema:
            yield from fields(schema[keyword], f"{at}/{sign}")


def without(schema: JsonObject, hidden: Collection[str], at: str = "") -> JsonObject:
    """Return the shape without these fields and everything inside them."""
    kept = dict(schema)
    if "properties" in schema:
        named = {name: f"{at}/{escaped(name)}" for name in schema["properties"]}
        shown = {name: path for name, path in named.items() if path not in hidden}
        kept["properties"] = {name: without(schema["properties"][name], hidden, path) for name, path in shown.items()}
        kept["required"] = [name for name in schema["required"] if name in shown]
    for keyword, sign in _ANY.items():
        if keyword in schema:
            kept[keyword] = without(schema[keyword], hidden, f"{at}/{sign}")
    return kept


def sketch(value: Any, limit: int = 300) -> str:
    """Return the shape on one line of at most `limit` characters, with list lengths: `{items: {id: int}[120]}`."""
    for depth in (4, 3, 2, 1, 0):
        text = _render(infer(value), value, depth)
        if len(text) <= limit:
            return text
    return f"{text[: limit - 1]}…"


def is_data_key(key: str) -> bool:
    """Return True if an object's key looks like data (an id, a date, an address) rather than a field name."""
    return not _FIELD_NAME.match(key) or _looks_like_data(key)


@lru_cache(maxsize=8192)
def _looks_like_data(name: str) -> bool:
    return bool(_DATA_KEYS.match(name) or _CODE.match(name)) or mask_keys(name) != name


class _Budget:
    """A countdown of visited values; once it is used up, the rest becomes `any`."""

    __slots__ = ("remaining",)

    def __init__(self) -> None:
        self.remaining = MAX_NODES

    def spend(self) -> bool:
        self.remaining -= 1
        return self.remaining >= 0


def _infer(value: Any, depth: int, budget: _Budget) -> JsonObject:
    if depth > MAX_DEPTH or not budget.spend():
        return {}
    if isinstance(value, list):
        items: JsonObject = {}
        for item in _sample(value):
            items = merge(items, _infer(item, depth + 1, budget))
        return {"type": "array", "items": items}
    if isinstance(value, dict):
        return _infer_object(value, depth, budget)
    return {"type": _TYPES.get(type(value), "string")}


def _infer_object(value: JsonObject, depth: int, budget: _Budget) -> JsonObject:
    if len(value) > MAX_FIELDS or any(is_data_key(key) for key in value):
        return _map(_infer(value[key], depth + 1, budget) for key in _sample(list(value)))
    fields = {key: _infer(member, depth + 1, budget) for key, member in value.items()}
    if _are_alike(list(fields.values())):
        return _map(fields.values())
    return {"type": "object", "properties": fields, "required": sorted(fields)}


def _are_alike(members: list[JsonObject]) -> bool:
    """Return True if the members are records of one kind, so that their keys are data."""
    if len(members) < MIN_ALIKE:
        return False
    names = [member.get("required") for member in members]
    return names[0] is not None and len(names[0]) > 1 and all(each == names[0] for each in names)


def _map(members: Iterable[JsonObject]) -> JsonObject:
    merged: JsonObject = {}
    for member in members:
        merged = merge(merged, member)
    return {"type": "object", "additionalProperties": merged}


def _merge_objects(left: JsonObject, right: JsonObject | None = None) -> JsonObject:
    if right is None:
        return {key: left[key] for key in ("properties", "required", "additionalProperties") if key in left}
    own, other = left.get("properties", {}), right.get("properties", {})
    is_map = "additionalProperties" in left or "additionalProperties" in right or _vary(own, other)
    if is_map or len(own.keys() | other.keys()) > MAX_FIELDS:
        parts = [side["additionalProperties"] for side in (left, right) if "additionalProperties" in side]
        return {"additionalProperties": _map([*parts, *own.values(), *other.values()])["additionalProperties"]}
    fields = {key: merge(own.get(key, {}), other.get(key, {})) for key in own | other}
    required = sorted(set(left.get("required", ())) & set(right.get("required", ())))
    return {"properties": fields, "required": required}


def _vary(own: JsonObject, other: JsonObject) -> bool:
    """Return True if the two objects share no key but hold values of one kind, so that their keys are data."""
    kinds = [*own.values(), *other.values()]
    is_other = bool(own) and bool(other) and own.keys().isdisjoint(other)
    return is_other and len(kinds) >= MIN_ALIKE and all(kind == kinds[0] for kind in kinds)


def _kinds(schema: JsonObject) -> set[str]:
    kinds = schema.get("type", [])
    return {kinds} if isinstance(kinds, str) else set(kinds)


def _sample(items: list[Any]) -> list[Any]:
    if len(items) <= MAX_SAMPLED:
        return items
    step = len(items) / MAX_SAMPLED
    return [items[int(position * step)] for position in range(MAX_SAMPLED)]


def _render(schema: JsonObject, value: Any, depth: int) -> str:
    """Render one line for a schema; if `value` is given, lists and texts show their length."""
    if isinstance(value, str):
        return f"str({len(value)})" if len(value) > 200 else "str"
    kinds = sorted(_kinds(schema))
    if len(kinds) == 2 and "null" in kinds:
        return f"{_render({**schema, 'type': next(kind for kind in kinds if kind != 'null')}, value, depth)} | null"
    if len(kinds) != 1:
        return " | ".join(_SHORT.get(kind, kind) for kind in kinds) or "any"
    if kinds[0] == "array":
        length = str(len(value)) if isinstance(value, list) else ""
        item = _render(schema.get("items", {}), None, depth) if depth else "…"
        return f"({item})[{length}]" if " | " in item else f"{item}[{length}]"
    if kinds[0] != "object":
        return _SHORT.get(kinds[0], "any")
    members = value if isinstance(value, dict) else {}
    if "additionalProperties" in schema:
        length = f"({len(members)})" if members else ""
        return f"{{[key]: {_render(schema['additionalProperties'], None, depth - 1) if depth else '…'}}}{length}"
    if not depth:
        return "{…}"
    required = set(schema.get("required", ()))
    fields = (
        f"{key}{'' if key in required else '?'}: {_render(field, members.get(key), depth - 1)}"
        for key, field in schema.get("properties", {}).items()
    )
    return f"{{{', '.join(fields)}}}"
