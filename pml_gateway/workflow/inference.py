"""What an expression yields, told from what is known of the steps it reads, and what is wrong with it for certain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pml_gateway.results.functions import LanguageFunctions, refusal
from pml_gateway.results.syntax import Node
from pml_gateway.text import did_you_mean, nearest, shortened
from pml_gateway.workflow.expressions import Expression
from pml_gateway.workflow.kinds import (
    ANYTHING,
    BOOLEAN,
    EVERY,
    INTEGER,
    NULL,
    NUMBER,
    NUMBERS,
    STRING,
    Kind,
    Presence,
    Type,
    either,
    list_of,
    record_of,
    type_of,
)

MAX_NAMED = 12
MAX_NAME = 60
"""Fields in a message, and characters of each."""

SIGNATURES: Mapping[str, Any] = LanguageFunctions.FUNCTION_TABLE
"""The functions there are, with the types that each of their arguments may have."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why an expression could only ever fail, or mean nothing."""

    reason: str
    hint: str = ""


@dataclass
class Inference:
    """Follows one expression through the types of what it reads.

    Args:
        roots: what each `$name` is.
        current: what a path without `$` starts at.
        optional: whether a path that leads nowhere is null, as in a condition.
    """

    roots: Mapping[str, Type]
    current: Type = ANYTHING
    optional: bool = False
    faults: list[Fault] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    _forgiven: int = 0

    def of(self, expression: Expression) -> Type:
        """The type of the value; with faults, it says nothing."""
        try:
            return self._visit(expression.node, self.current)
        except RecursionError:
            return ANYTHING

    @contextmanager
    def _null_is_fine(self) -> Iterator[None]:
        before, self.optional = self.optional, True
        yield
        self.optional = before

    @contextmanager
    def _absence_is_fine(self) -> Iterator[None]:
        """Where the author has thought of another value for what is not there."""
        self._forgiven += 1
        with self._null_is_fine():
            yield
        self._forgiven -= 1

    def _visit(self, node: Node, current: Type) -> Type:
        visit: Callable[[Node, Type], Type] = getattr(self, f"_{node['type']}", self._unknown)
        return visit(node, current)

    def _unknown(self, _: Node, __: Type) -> Type:
        return ANYTHING

    def _value(self, node: Node, current: Type) -> Type:
        """What a node yields that is read rather than gone through: null where nothing is there."""
        with self._null_is_fine():
            return self._visit(node, current)

    def _fault(self, reason: str, hint: str = "", *, is_certain: bool = True) -> None:
        if is_certain and not self._forgiven:
            self.faults.append(Fault(reason, hint))
        else:
            self._doubt(reason)

    def _doubt(self, reason: str) -> None:
        if reason not in self.doubts:
            self.doubts.append(reason)

    def _maybe(self, reason: str) -> None:
        """Note that a path may lead nowhere, where that matters."""
        if not self.optional:
            self._doubt(reason)

    def _field(self, node: Node, current: Type) -> Type:
        name = node["value"]
        if name.startswith("$"):
            return self.roots.get(name[1:], ANYTHING)
        shown = repr(shortened(name, MAX_NAME))
        if current.kinds == EVERY and not current.fields:
            self._maybe(f"whether there is a field {shown}: nothing says what it is read from")
            return ANYTHING
        if Kind.OBJECT not in current.kinds and name in current.beside:
            return current.beside[name]
        if Kind.OBJECT not in current.kinds:
            if current.kinds != {Kind.NULL}:
                hint = "take one item with [0] or all with [*]" if Kind.ARRAY in current.kinds else ""
                self._fault(f"{shown} of {current}", hint, is_certain=current.is_sure)
            return replace(NULL, is_sure=current.is_sure)
        found, presence = current.member(name)
        if presence is Presence.NEVER:
            hint = did_you_mean(nearest(name, current.fields)) or ""
            known = ", ".join(shortened(each, MAX_NAME) for each in list(current.fields)[:MAX_NAMED])
            self._fault(f"there is no field {shown}; the fields are {known}", hint, is_certain=current.is_sure)
            return NULL if current.is_sure else ANYTHING
        if not current.is_sure:
            self._maybe(f"field {shown} was there in results so far")
            found = replace(found, is_sure=False)
        elif presence is Presence.POSSIBLE:
            self._maybe(f"field {shown} may be missing")
        if current.kinds != {Kind.OBJECT}:
            self._maybe(f"what {shown} is read from may be {replace(current, kinds=current.kinds - {Kind.OBJECT})}")
        is_there = presence is Presence.CERTAIN and current.kinds == {Kind.OBJECT}
        return found if is_there else found.or_null()

    def _chain(self, node: Node, current: Type) -> Type:
        for child in node["children"]:
            current = self._visit(child, current)
        return current

    _subexpression = _index_expression = _pipe = _chain

    def _items_of(self, base: Type, sign: str) -> Type | None:
        """What the items are of something that has to be a list; None where it is none."""
        if Kind.ARRAY not in base.kinds:
            if base.kinds != {Kind.NULL}:
                hint = "name the list in it" if Kind.OBJECT in base.kinds else ""
                self._fault(f"{sign} of {base}; it takes the items of a list", hint, is_certain=base.is_sure)
            return None
        if base.kinds != {Kind.ARRAY}:
            self._maybe(f"{sign} of what may be no list")
        return base.item if base.is_sure else replace(base.item, is_sure=False)

    def _index(self, node: Node, current: Type) -> Type:
        at = node["value"]
        item = self._items_of(current, f"[{at}]")
        if item is None:
            return replace(NULL, is_sure=current.is_sure)
        if (at if at >= 0 else -at - 1) < current.least and current.kinds == {Kind.ARRAY}:
            return item
        self._maybe(f"whether the list has an item [{at}]")
        return item.or_null()

    def _slice(self, _: Node, current: Type) -> Type:
        item = self._items_of(current, "[:]")
        return replace(NULL, is_sure=current.is_sure) if item is None else _nullable(list_of(item), current, Kind.ARRAY)

    def _projection(self, node: Node, current: Type) -> Type:
        base, through = node["children"][:2]
        source = self._visit(base, current)
        item = self._items_of(source, "[*]")
        if item is None:
            return replace(NULL, is_sure=source.is_sure)
        return _nullable(self._through(through, item), source, Kind.ARRAY)

    def _through(self, node: Node, item: Type) -> Type:
        """A list of what is found in each item; what is null is left out."""
        found = self._visit(node, item)
        return list_of(found.without_null())

    def _filter_projection(self, node: Node, current: Type) -> Type:
        base, through, condition = node["children"]
        source = self._visit(base, current)
        item = self._items_of(source, "[?]")
        if item is None:
            return replace(NULL, is_sure=source.is_sure)
        self._value(condition, item)
        with self._null_is_fine():
            return _nullable(self._through(through, item), source, Kind.ARRAY)

    def _value_projection(self, node: Node, current: Type) -> Type:
        base, through = node["children"]
        source = self._visit(base, current)
        if Kind.OBJECT not in source.kinds:
            if source.kinds != {Kind.NULL}:
                self._fault(f"* of {source}; it takes the values of an object", is_certain=source.is_sure)
            return NULL
        if source.kinds != {Kind.OBJECT}:
            self._maybe("* of what may be no object")
        with self._null_is_fine():
            return _nullable(self._through(through, _values_of(source)), source, Kind.OBJECT)

    def _flatten(self, node: Node, current: Type) -> Type:
        source = self._visit(node["children"][0], current)
        item = self._items_of(source, "[]")
        if item is None:
            return replace(NULL, is_sure=source.is_sure)
        if Kind.ARRAY not in item.kinds:
            return _nullable(list_of(item), source, Kind.ARRAY)
        inner = item.item if item.kinds == {Kind.ARRAY} else ANYTHING
        return _nullable(list_of(inner), source, Kind.ARRAY)

    def _or_expression(self, node: Node, current: Type) -> Type:
        first, second = node["children"]
        with self._absence_is_fine():
            left = self._visit(first, current)
        right = self._value(second, current)
        return right if left.kinds == {Kind.NULL} else either((left.without_null(), right))

    def _and_expression(self, node: Node, current: Type) -> Type:
        return either([self._value(child, current) for child in node["children"]])

    def _not_expression(self, node: Node, current: Type) -> Type:
        self._value(node["children"][0], current)
        return BOOLEAN

    def _comparator(self, node: Node, current: Type) -> Type:
        left, right = (self._value(child, current) for child in node["children"])
        is_sure = left.is_sure and right.is_sure
        if node["value"] in ("eq", "ne"):
            kinds = _alike(left) & _alike(right)
            if not kinds and NULL.kinds not in (left.kinds, right.kinds):
                self._fault(f"{left} and {right} are compared, which are never equal", is_certain=is_sure)
            return BOOLEAN
        ordered = (NUMBERS, STRING.kinds)
        if not any(left.kinds & kinds and right.kinds & kinds for kinds in ordered):
            self._fault(
                f"{left} and {right} are put in order", "numbers are, and texts; see to_number()", is_certain=is_sure
            )
        elif not any((left.kinds | right.kinds) & (NUMBERS | STRING.kinds) <= kinds for kinds in ordered):
            self._doubt(f"{left} and {right} are put in order")
        return BOOLEAN.or_null()

    def _literal(self, node: Node, _: Type) -> Type:
        return type_of(node["value"])

    def _current(self, _: Node, current: Type) -> Type:
        return current

    _identity = _current

    def _multi_select_list(self, node: Node, current: Type) -> Type:
        if current.kinds == {Kind.NULL}:
            return NULL
        items = [self._value(child, current) for child in node["children"]]
        made = list_of(either(items), len(items))
        return made.or_null() if Kind.NULL in current.kinds else made

    def _multi_select_dict(self, node: Node, current: Type) -> Type:
        if current.kinds == {Kind.NULL}:
            return NULL
        made = record_of({each["value"]: self._value(each["children"][0], current) for each in node["children"]})
        return made.or_null() if Kind.NULL in current.kinds else made

    def _function_expression(self, node: Node, current: Type) -> Type:
        name, children = node["value"], node["children"]
        known = SIGNATURES.get(name)
        if known is None:
            hint = did_you_mean(f"{each}()" for each in nearest(name, SIGNATURES)) or f"known: {', '.join(SIGNATURES)}"
            self.faults.append(Fault(f"there is no function {shortened(name, MAX_NAME)}()", hint))
            return ANYTHING
        taken = known["signature"]
        is_open = bool(taken) and taken[-1].get("variadic", False)
        if len(children) < len(taken) or (len(children) > len(taken) and not is_open):
            self.faults.append(Fault(f"{name}() is given {len(children)} arguments, and takes {len(taken)}"))
            return ANYTHING
        arguments = self._arguments(name, children, current)
        for at, argument in enumerate(arguments):
            if argument is not None:
                self._check_argument(name, argument, taken[min(at, len(taken) - 1)]["types"])
        self._check_text(name, children)
        return _result_of(name, [each or ANYTHING for each in arguments])

    def _arguments(self, name: str, children: Sequence[Node], current: Type) -> list[Type | None]:
        """The types of a call's arguments; for an expression, what it yields of each item of the list beside it."""
        if name == "not_null":
            with self._absence_is_fine():
                return [self._visit(child, current) for child in children]
        plain = [None if child["type"] == "expref" else self._value(child, current) for child in children]
        item = next((each.item for each in plain if each is not None and Kind.ARRAY in each.kinds), ANYTHING)
        for at, child in enumerate(children):
            if child["type"] == "expref":
                found = self._value(child["children"][0], item)
                if name != "map":
                    self._check_key(name, found)
                    continue
                plain[at] = replace(found, beside={_IS_EXPRESSION: found})
        return plain

    def _check_key(self, name: str, found: Type) -> None:
        if not found.kinds & (NUMBERS | STRING.kinds):
            self._fault(f"{name}() goes by a number or a text, and not by {found}", is_certain=found.is_sure)
        elif not (found.kinds <= NUMBERS or found.kinds <= STRING.kinds):
            self._doubt(f"{name}() goes by {found}")

    def _check_text(self, name: str, children: Sequence[Node]) -> None:
        """What no type says: some functions do not take every text."""
        if name not in _TAKES_SOME_TEXTS:
            return
        is_known = name in ("match", "split") and children[-1]["type"] == "literal"
        if not is_known:
            self._doubt(f"{name}() takes {_TAKES_SOME_TEXTS[name]}")
        elif isinstance(text := children[-1]["value"], str) and (reason := refusal(name, text)):
            self.faults.append(Fault(reason))

    def _check_argument(self, name: str, argument: Type, types: Sequence[str]) -> None:
        if not types or "expref" in types:
            return
        kinds = frozenset[Kind]().union(*(_KINDS[each.split("-")[0]] for each in types))
        if not argument.kinds & kinds:
            inside = [each for each, held in argument.fields.items() if held.kinds & kinds][:MAX_NAMED]
            hint = f"take a field of it: {', '.join(shortened(each, MAX_NAME) for each in inside)}" if inside else ""
            self._fault(f"{name}() takes {' or '.join(types)}, and not {argument}", hint, is_certain=argument.is_sure)
            return
        if not argument.kinds <= kinds:
            self._doubt(f"{name}() takes {' or '.join(types)}, and is given {argument}")
        wanted = [_KINDS[each.split("-")[1]] for each in types if "-" in each]
        if not wanted or Kind.ARRAY not in argument.kinds:
            return
        items = argument.item
        if not any(items.kinds & each for each in wanted):
            is_certain = argument.is_sure and items.is_sure and argument.kinds == {Kind.ARRAY}
            self._fault(f"{name}() takes {' or '.join(types)}, and not {argument}", is_certain=is_certain)
        elif not any(items.kinds <= each for each in wanted):
            self._doubt(f"{name}() takes {' or '.join(types)}, and is given {argument}")


_IS_EXPRESSION = "&"

_TAKES_SOME_TEXTS: Mapping[str, str] = {
    "from_csv": "a text that is a table",
    "from_json": "a text that is JSON",
    "match": "a pattern that is a regular expression",
    "split": "a separator that is not empty",
}
"""Functions that fail on some texts, and those that they take; the text is the last of their arguments."""

_KINDS: Mapping[str, frozenset[Kind]] = {
    "array": frozenset({Kind.ARRAY}),
    "boolean": frozenset({Kind.BOOLEAN}),
    "null": frozenset({Kind.NULL}),
    "number": NUMBERS,
    "object": frozenset({Kind.OBJECT}),
    "string": frozenset({Kind.STRING}),
}
"""Kinds by the names that signatures use."""


def _nullable(made: Type, source: Type, kind: Kind) -> Type:
    """What was made of a value; null where that may have been of another kind."""
    made = made if source.is_sure else replace(made, is_sure=False)
    return made if source.kinds == {kind} else made.or_null()


def _values_of(value: Type) -> Type:
    """What the fields of an object hold."""
    return either([*value.fields.values(), *([value.others] if value.others is not None else [])])


def _alike(value: Type) -> frozenset[Kind]:
    return value.kinds | NUMBERS if value.kinds & NUMBERS else value.kinds


_GIVES: Mapping[str, Type] = {
    "avg": NUMBER.or_null(),
    "ceil": INTEGER,
    "contains": BOOLEAN,
    "ends_with": BOOLEAN,
    "floor": INTEGER,
    "from_csv": list_of(Type(frozenset({Kind.OBJECT}), others=STRING.or_null())),
    "join": STRING,
    "keys": list_of(STRING),
    "length": INTEGER,
    "lines": list_of(STRING),
    "match": list_of(STRING.or_null(), 1).or_null(),
    "split": list_of(STRING, 1),
    "starts_with": BOOLEAN,
    "to_json": STRING,
    "to_number": NUMBER.or_null(),
    "to_string": STRING,
    "trim": STRING,
    "type": STRING,
}
"""What functions yield whatever they are given; of those that are neither here nor below, nothing is known."""


def _result_of(name: str, arguments: Sequence[Type]) -> Type:
    if name in _GIVES:
        return _GIVES[name]
    first = arguments[0] if arguments else ANYTHING
    match name:
        case "abs" | "sum":
            numbers = first.item if name == "sum" else first
            return INTEGER if numbers.kinds == {Kind.INTEGER} else NUMBER
        case "reverse" | "sort" | "sort_by":
            return replace(first, kinds=first.kinds & {Kind.ARRAY, Kind.STRING} or EVERY)
        case "max" | "min" | "max_by" | "min_by":
            return first.item if first.least else first.item.or_null()
        case "map":
            return list_of(first.beside.get(_IS_EXPRESSION, ANYTHING))
        case "values":
            return list_of(_values_of(first))
        case "to_array":
            return first if first.kinds == {Kind.ARRAY} else list_of(ANYTHING)
        case "not_null":
            together = either(each.without_null() for each in arguments if each.kinds != {Kind.NULL})
            return together.or_null() if all(Kind.NULL in each.kinds for each in arguments) else together
        case "merge":
            return _merged(arguments)
        case _:
            return ANYTHING


def _merged(objects: Sequence[Type]) -> Type:
    if any(each.others is not None or not each.fields for each in objects):
        return Type(frozenset({Kind.OBJECT}))
    fields: dict[str, Type] = {}
    for each in objects:
        for name, held in each.fields.items():
            is_kept = name in fields and name not in each.required
            fields[name] = either((fields[name], held)) if is_kept else held
    required = frozenset[str]().union(*(each.required for each in objects))
    return Type(frozenset({Kind.OBJECT}), fields, required, is_sure=all(each.is_sure for each in objects))
