"""Schemas and expressions that are small, and take for ever or fill the memory where nothing bounds them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Schema = dict[str, Any]


def doubled(depth: int = 40, keyword: str = "allOf", *, mark: str = "", last: Any = True) -> Schema:
    """Each of `depth` definitions refers to the next one twice: 2 to the power of `depth` checks of one value.

    `mark` makes it a schema of its own. With `last` false, every one of them refuses.
    """
    definitions: dict[str, Any] = {
        f"a{at}": {keyword: [{"$ref": f"#/$defs/a{at + 1}"}, {"$ref": f"#/$defs/a{at + 1}"}]} for at in range(depth)
    }
    return {
        "type": "object",
        "title": mark,
        "properties": {"a": {"$ref": "#/$defs/a0"}, "n": {"type": "integer"}},
        "required": ["a"],
        "$defs": {**definitions, f"a{depth}": last},
    }


def doubled_inside(depth: int = 200) -> tuple[Schema, dict[str, Any]]:
    """A schema that goes through each child twice, and arguments whose children are `depth` levels deep."""
    twice = [{"$ref": "#/$defs/node"}, {"$ref": "#/$defs/node"}]
    schema = {
        "type": "object",
        "properties": {"child": {"$ref": "#/$defs/node"}},
        "$defs": {"node": {"type": "object", "properties": {"child": {"allOf": twice}}}},
    }
    arguments: dict[str, Any] = {}
    for _ in range(depth):
        arguments = {"child": arguments}
    return schema, arguments


def wide(width: int = 40, depth: int = 8) -> Schema:
    """Each definition has `width` properties of the next one: `width` to the power of the depth, written out."""
    definitions: dict[str, Any] = {
        f"d{at}": {"type": "object", "properties": {f"p{one}": {"$ref": f"#/$defs/d{at + 1}"} for one in range(width)}}
        for at in range(depth)
    }
    return {
        "type": "object",
        "properties": {f"p{one}": {"$ref": "#/$defs/d0"} for one in range(width)},
        "$defs": {**definitions, f"d{depth}": {"type": "string"}},
    }


def quoting(branches: int = 5000) -> Schema:
    """As many refusals of one value, each of which quotes it."""
    return {"type": "object", "properties": {"a": {"anyOf": [{"type": "integer", "title": "x"}] * branches}}}


def refusing(branches: int = 5000) -> Schema:
    """As `quoting`, where nothing is evaluated for a refusal."""
    return {"type": "object", "properties": {"a": {"anyOf": [False] * branches}}}


def self_quoting(branches: int = 400) -> Schema:
    """Refusals of which each quotes a large part of the schema."""
    choice = {"enum": ["x" * 200_000]}
    return {
        "type": "object",
        "properties": {"a": {"anyOf": [{"$ref": "#/$defs/x"}] * branches}},
        "$defs": {"x": choice},
    }


def anchored(references: int = 2000) -> Schema:
    """References by name, for each of which the whole schema is searched."""
    return {
        "type": "object",
        "properties": {"a": {"allOf": [{"$ref": "#here"}] * references}},
        "$defs": {"x": {"$anchor": "here"}, **{f"y{at}": {"type": "string"} for at in range(references)}},
    }


def heavy_branches(width: int = 2000) -> Schema:
    """Multiplying references whose every step goes through many properties."""
    schema = doubled(30, last={"type": "object", "properties": {f"p{at}": True for at in range(width)}})
    return {**schema, "additionalProperties": False}


HOSTILE_SCHEMAS: dict[str, Schema] = {
    "doubled by allOf": doubled(),
    "doubled by anyOf": doubled(keyword="anyOf", last=False),
    "doubled by oneOf": doubled(keyword="oneOf"),
    "twice at each level": doubled_inside()[0],
    "wide": wide(),
    "quoting": quoting(),
    "refusing": refusing(),
    "self-quoting": self_quoting(),
    "anchored": anchored(),
    "heavy branches": heavy_branches(),
    "unevaluated": {**doubled(), "unevaluatedProperties": False},
}
"""By what they do."""

HOSTILE_ARGUMENTS: dict[str, Any] = {
    "small": {"a": 1},
    "deep": doubled_inside()[1],
    "large text": {"a": "x" * 1_000_000},
    "large list": {"a": [{"n": at, "o": "x" * 20} for at in range(5000)]},
    "long name": {"a": {"x" * 500_000: 1}},
}

HOSTILE_TRANSFORMS = (
    "[@,@]|" * 40 + "@",
    "[@,@]|" * 40 + "to_string(@)",
    "[@,@][]|" * 40 + "@",
    "[@,@]|" * 30 + "[0] == [1]",
    "{a: @, b: @}|" * 40 + "@",
    "map(&map(&map(&to_string(@), @), @), [[[@,@],[@,@]],[[@,@],[@,@]]])",
    "map(&sort_by(@, &to_string(@)), [@,@,@,@,@,@])",
    "join('', map(&to_string(@), [@,@,@,@,@,@,@,@]))",
)
"""Over any value; each grows with every part of it."""


_NAMES = tuple(f"d{at}" for at in range(6))
_REFERENCE = st.sampled_from([*(f"#/$defs/{name}" for name in _NAMES), "#", "#/properties/a"]).map(
    lambda target: {"$ref": target}
)


def _combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    many = st.lists(inner, min_size=1, max_size=4)
    return st.one_of(
        *(st.fixed_dictionaries({key: many}) for key in ("allOf", "anyOf", "oneOf", "prefixItems")),
        *(st.fixed_dictionaries({key: inner}) for key in ("not", "items", "contains", "additionalProperties")),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(lambda named: {"properties": named}),
        st.tuples(inner, inner).map(lambda pair: {"if": pair[0], "then": pair[1], "unevaluatedProperties": False}),
    )


COMBINED = st.recursive(
    st.one_of(st.booleans(), _REFERENCE, st.sampled_from([{}, {"type": "integer"}, {"enum": [1, {}]}])),
    _combined,
    max_leaves=12,
)


def combined_schemas() -> st.SearchStrategy[Schema]:
    """Definitions that combine each other in any way, themselves included."""
    definitions = st.fixed_dictionaries(dict.fromkeys(_NAMES, COMBINED))
    return st.builds(lambda named, a: {"type": "object", "properties": {"a": a}, "$defs": named}, definitions, COMBINED)


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.text("ab", max_size=3)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=20,
)


_MULTIPLYING = (
    "[@,@]",
    "[@,@][]",
    "{a: @, b: @}",
    "to_string(@)",
    "*",
    "@[*]",
    "[@[0],@]",
    "length(to_string(@))",
    "map(&[@,@], [@,@])",
    "sort_by([@,@], &to_string(@))",
    "@ == [@]",
    "keys({a: @})",
    "join('', ['a'])",
)


@st.composite
def transforms(draw: st.DrawFn) -> str:
    """Expressions that multiply what they are given, over and over."""
    parts = draw(st.lists(st.sampled_from(_MULTIPLYING), min_size=1, max_size=60))
    return "|".join(parts)
