"""JMESPath into values and stored results, within bounds, with errors that name what exists."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jmespath.exceptions import JMESPathError
from jmespath.parser import Parser
from jmespath.visitor import TreeInterpreter

from pml_gateway.errors import InvalidInputError
from pml_gateway.results.content import Content, addressed, exceeds
from pml_gateway.text import shortened

MAX_TEXT = 64 * 1024 * 1024
"""Characters of a value that an expression may build: `join` and `to_string` multiply them."""

MAX_KEYS_NAMED = 12
MAX_NAME = 60

Node = dict[str, Any]
NO_ROOTS: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one evaluation may take.

    Args:
        visits: nodes evaluated.
        parts: items, members and values in what it builds or compares: `[@, @]` doubles them each time.
        seconds: the last bound, for functions that read all of a large value at every node.
    """

    visits: int
    parts: int
    seconds: float


class EvaluationError(Exception):
    """No value; `reason` says why, for whoever wrote the expression."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ExpressionError(EvaluationError):
    """The text is no expression, or its functions do not take what they are given."""


class NothingThereError(EvaluationError):
    """The expression is a path that leaves the data."""


class TooMuchError(EvaluationError):
    """The expression takes more than its bounds."""


def parsed(text: str) -> Node:
    """The syntax tree of an expression.

    Raises:
        ExpressionError: it is none.
    """
    try:
        node: Node = Parser().parse(text).parsed
    except (JMESPathError, RecursionError, ValueError) as error:
        raise ExpressionError(_reason(error)) from None
    return node


def evaluate(
    node: Node, value: Any, bounds: Bounds, *, roots: Mapping[str, Any] = NO_ROOTS, optional: bool = False
) -> Any:
    """The part of `value` that a tree names. Takes time with the bounds: large ones belong into a thread.

    Args:
        node: what `parsed` made.
        value: decoded JSON; it is never changed.
        bounds: what the evaluation may take.
        roots: the values of fields that are called `$name`, by name, wherever they stand.
        optional: a path that leads nowhere is null instead of an error.

    Raises:
        ExpressionError: a function that does not take what it is given.
        NothingThereError: a path that leads nowhere, with the keys that exist.
        TooMuchError: a bound is exceeded.
    """
    interpreter = _Interpreter(roots, bounds)
    try:
        found = interpreter.visit(node, value)
        interpreter.check_size(found)
        fault = interpreter.fault(node, value) if found in (None, []) and not optional else None
    except (JMESPathError, RecursionError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        # The library's functions let Python's own errors through where types do not fit.
        raise ExpressionError(_reason(error)) from None
    if fault is not None:
        raise NothingThereError(fault)
    return found


class _Interpreter(TreeInterpreter):  # type: ignore[misc]  # the library has no types
    """Counts what it does, and looks at what would multiply before it does."""

    def __init__(self, roots: Mapping[str, Any], bounds: Bounds) -> None:
        super().__init__()
        self._parts = bounds.parts
        self._roots = roots
        self._left = bounds.visits
        self._deadline = time.monotonic() + bounds.seconds

    def visit(self, node: Node, *args: Any, **kwargs: Any) -> Any:
        self._left -= 1
        if self._left < 0 or time.monotonic() > self._deadline:
            raise TooMuchError("too many evaluations")
        value = super().visit(node, *args, **kwargs)
        if (isinstance(value, str) and len(value) > MAX_TEXT) or (isinstance(value, list) and len(value) > self._parts):
            raise TooMuchError("too large a value")
        return value

    def visit_field(self, node: Node, value: Any) -> Any:
        name = node["value"]
        if name.startswith("$") and name[1:] in self._roots:
            return self._roots[name[1:]]
        return value.get(name) if isinstance(value, dict) else None

    def visit_function_expression(self, node: Node, value: Any) -> Any:
        return super().visit_function_expression(self._with_values(node, value), value)

    def visit_comparator(self, node: Node, value: Any) -> Any:
        return super().visit_comparator(self._with_values(node, value), value)

    def _with_values(self, node: Node, value: Any) -> Node:
        """The node with its children evaluated, once each.

        Values that hold themselves many times over are refused: to compare or to write them takes exponential time.
        """
        children = []
        for child in node["children"]:
            if child["type"] == "expref":
                children.append(child)
                continue
            found = self.visit(child, value)
            if child["type"] not in ("field", "literal"):
                self.check_size(found)
            children.append({"type": "literal", "value": found, "children": []})
        return {**node, "children": children}

    def check_size(self, value: Any) -> None:
        """Refuse a value of too many parts, counted as often as they are shared."""
        pending, parts, characters = [value], 0, 0
        while pending:
            part = pending.pop()
            parts += 1
            if isinstance(part, str):
                characters += len(part)
            elif isinstance(part, dict):
                pending.extend(part.values())
            elif isinstance(part, list):
                pending.extend(part)
            if parts + len(pending) > self._parts or characters > MAX_TEXT:
                raise TooMuchError("too large a value")

    def fault(self, node: Node, value: Any) -> str | None:
        """Where a path of fields and indexes leaves the data, and what is there instead."""
        match node["type"]:
            case "field":
                return self._field_fault(node["value"], value)
            case "index":
                return _index_fault(node["value"], value)
            case "slice":
                return None if isinstance(value, list) else f"[:] of {_kind(value)}; it takes the items of a list"
            case "subexpression" | "index_expression" | "pipe":
                for child in node["children"]:
                    fault = self.fault(child, value)
                    if fault is not None:
                        return fault
                    value = self.visit(child, value)
                return None
            case "projection" | "filter_projection" | "value_projection" | "flatten":
                return self._projection_fault(node, value)
            case _:
                return None

    def _field_fault(self, name: str, value: Any) -> str | None:
        if name.startswith("$") and name[1:] in self._roots:
            return None
        if isinstance(value, dict):
            if name in value:
                return None
            keys = [repr(shortened(str(key), MAX_NAME)) for key in list(value)[:MAX_KEYS_NAMED]]
            more = f" and {len(value) - MAX_KEYS_NAMED} more" if len(value) > MAX_KEYS_NAMED else ""
            return f"no key {shortened(name, MAX_NAME)!r}; the keys are {', '.join(keys) or 'none'}{more}"
        if isinstance(value, list):
            return f"{shortened(name, MAX_NAME)!r} of a list of {len(value)}; take one item with [0] or all with [*]"
        return f"{shortened(name, MAX_NAME)!r} of {_kind(value)}"

    def _projection_fault(self, node: Node, value: Any) -> str | None:
        base, *rest = node["children"]
        fault = self.fault(base, value)
        if fault is not None:
            return fault
        items = self.visit(base, value)
        if node["type"] == "value_projection":
            return None if isinstance(items, dict) else f"* of {_kind(items)}; it takes the values of an object"
        if not isinstance(items, list):
            return f"[*] of {_kind(items)}; it takes the items of a list"
        if node["type"] != "projection" or not items:
            return None
        faults = [self.fault(rest[0], item) for item in items]
        return faults[0] if all(faults) else None


def _index_fault(index: int, value: Any) -> str | None:
    if not isinstance(value, list):
        return f"[{index}] of {_kind(value)}; it takes an item of a list"
    if -len(value) <= index < len(value):
        return None
    return f"no item [{index}] in a list of {len(value)}"


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case str():
            return "a text"
        case int() | float():
            return "a number"
        case list():
            return f"a list of {len(value)}"
        case _:
            return "an object"


def _reason(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    lines = str(error).splitlines() or [type(error).__name__]
    return shortened(lines[0].removesuffix(", for expression:"), 200)


def shown(text: str) -> str:
    """An expression as messages quote it."""
    return repr(shortened(text, 120))


MAX_EXPRESSION = 1000
MAX_SELECTED = 32 * 1024 * 1024
"""Characters of JSON in one selection."""

BOUNDS = Bounds(visits=1_000_000, parts=8_000_000, seconds=10.0)
"""A second of evaluation on an idle machine: `items[?a > `1`].b` takes five visits for each item."""


def select(expression: str, value: Any) -> Any:
    """The part of `value` that a JMESPath expression selects. Takes time with the size of `value`.

    Raises:
        InvalidInputError: no such expression, too much work, or nothing there; names the keys that exist.
    """
    if len(expression) > MAX_EXPRESSION:
        raise InvalidInputError(f"path: {len(expression)} characters; at most {MAX_EXPRESSION}")
    try:
        node = _compiled(expression)
    except ExpressionError as error:
        hint = "for example items[0].id or items[*].name"
        raise InvalidInputError(f"path {shown(expression)} is no JMESPath: {error.reason}", hint=hint) from None
    try:
        selected = evaluate(node, value, BOUNDS)
    except ExpressionError as error:
        raise InvalidInputError(f"path {shown(expression)} cannot be evaluated: {error.reason}") from None
    except NothingThereError as error:
        raise InvalidInputError(f"path {shown(expression)} finds nothing", hint=error.reason) from None
    except TooMuchError:
        raise _too_much(expression) from None
    if exceeds(selected, MAX_SELECTED):
        raise _too_much(expression)
    return selected


def value_at(content: Content, path: str | None) -> Any:
    """What a reference with this path stands for. Takes time with the size: call it in a thread.

    Raises:
        InvalidInputError: as `select`.
    """
    return content.value if path is None else select(path, addressed(content))


@lru_cache(maxsize=512)
def _compiled(expression: str) -> Node:
    return parsed(expression)


def _too_much(expression: str) -> InvalidInputError:
    return InvalidInputError(
        f"path {shown(expression)} selects or evaluates too much", hint="select less, or in several steps"
    )
