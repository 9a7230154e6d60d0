"""JMESPath with `$step` roots becomes a value, within bounds that no expression and no data can exceed."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import anyio.to_thread
from jmespath.exceptions import JMESPathError
from jmespath.parser import Parser
from jmespath.visitor import TreeInterpreter

from pml_gateway.errors import InvalidInputError

MAX_LENGTH = 2000
"""Characters of one expression; the longest useful ones in practice have a few hundred."""

MAX_VISITS = 500_000
QUICK_VISITS = 5_000
"""Nodes evaluated at most, and how many of them on the event loop: more goes to a thread."""

MAX_PARTS = 1_000_000
QUICK_PARTS = 10_000
MAX_TEXT = 64 * 1024 * 1024
"""Parts and characters of a value that an expression may build: `[@, @]` and `join` double them each time."""

MAX_SECONDS = 2.0
"""The last bound, for functions that read all of a large value at every node."""

MAX_KEYS_NAMED = 12

ROOT = re.compile(r"\$(\d+|[A-Za-z_][A-Za-z0-9_-]*)")
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`(?:[^`\\]|\\.)*`|\$(?:\d+|[A-Za-z_][A-Za-z0-9_-]*)")

Node = dict[str, Any]


class Expression:
    """A compiled expression; `roots` are the steps it reads, as written and without their `$`."""

    __slots__ = ("_node", "roots", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.roots: frozenset[str]
        self._node, self.roots = _compiled(text)

    async def evaluate(
        self, roots: Mapping[str, Any], current: Any = None, *, optional: bool = False, known: bool = True
    ) -> Any:
        """The value of the expression.

        Args:
            roots: the value of every `$name`, by name.
            current: what a path without `$` starts at.
            optional: a path that leads nowhere is null instead of an error.
            known: whether the roots themselves have values (null ones lead nowhere on purpose otherwise).

        Raises:
            InvalidInputError: a path that leads nowhere, with the keys that exist; or a bound is exceeded.
        """
        try:
            value = self._run(roots, current, optional or not known, QUICK_VISITS, QUICK_PARTS)
        except _TooMuchError:
            try:
                value = await anyio.to_thread.run_sync(
                    self._run, roots, current, optional or not known, MAX_VISITS, MAX_PARTS
                )
            except _TooMuchError:
                raise InvalidInputError(
                    f"{_shown(self.text)} takes more than {MAX_VISITS} evaluations or builds too large a value",
                    hint="select less first, for example with a slice such as [0:100]",
                ) from None
        return value

    def _run(self, roots: Mapping[str, Any], current: Any, optional: bool, visits: int, parts: int) -> Any:
        interpreter = _Interpreter(roots, visits, parts)
        try:
            value = interpreter.visit(self._node, current)
            interpreter.check_size(value)
            fault = interpreter.fault(self._node, current) if value in (None, []) and not optional else None
        except (JMESPathError, RecursionError, TypeError, ValueError, AttributeError, OverflowError) as error:
            # The library's functions let Python's own errors through where types do not fit.
            raise InvalidInputError(
                f"{_shown(self.text)} cannot be evaluated: {_reason(error)}", hint="see https://jmespath.org"
            ) from None
        if fault is not None:
            raise InvalidInputError(f"{_shown(self.text)}: {fault}", details={"expression": self.text[:MAX_LENGTH]})
        return value


def is_true(value: Any) -> bool:
    """Truth as JMESPath has it: null, false and whatever is empty are false; 0 is not."""
    return not (value is None or value is False or value in ("", [], {}))


class _TooMuchError(Exception):
    """An evaluation took more than its bound."""


class _Interpreter(TreeInterpreter):  # type: ignore[misc]  # the library has no types
    def __init__(self, roots: Mapping[str, Any], visits: int, parts: int) -> None:
        super().__init__()
        self._parts = parts
        self._roots = roots
        self._left = visits
        self._deadline = time.monotonic() + MAX_SECONDS

    def visit(self, node: Node, *args: Any, **kwargs: Any) -> Any:
        self._left -= 1
        if self._left < 0 or time.monotonic() > self._deadline:
            raise _TooMuchError
        value = super().visit(node, *args, **kwargs)
        if (isinstance(value, str) and len(value) > MAX_TEXT) or (isinstance(value, list) and len(value) > self._parts):
            raise _TooMuchError
        return value

    def visit_field(self, node: Node, value: Any) -> Any:
        name = node["value"]
        if name.startswith("$") and name[1:] in self._roots:
            return self._roots[name[1:]]
        return value.get(name) if isinstance(value, dict) else None

    def visit_function_expression(self, node: Node, value: Any) -> Any:
        self._check_sizes([child for child in node["children"] if child["type"] != "expref"], value)
        return super().visit_function_expression(node, value)

    def visit_comparator(self, node: Node, value: Any) -> Any:
        self._check_sizes(node["children"], value)
        return super().visit_comparator(node, value)

    def _check_sizes(self, nodes: list[Node], value: Any) -> None:
        """Refuse values that hold themselves many times over, which take exponential time to compare or to write."""
        for node in nodes:
            if node["type"] not in ("field", "literal"):
                self.check_size(self.visit(node, value))

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
                raise _TooMuchError

    def fault(self, node: Node, value: Any) -> str | None:
        """Where a path of fields and indexes leaves the data, and what is there instead."""
        match node["type"]:
            case "field":
                return self._field_fault(node["value"], value)
            case "index":
                return _index_fault(node["value"], value)
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
            keys = [repr(_shortened(str(key))) for key in list(value)[:MAX_KEYS_NAMED]]
            more = f" and {len(value) - MAX_KEYS_NAMED} more" if len(value) > MAX_KEYS_NAMED else ""
            return f"no key {_shortened(name)!r}; the keys are {', '.join(keys) or 'none'}{more}"
        if isinstance(value, list):
            return f"{_shortened(name)!r} of a list of {len(value)}; take one item with [0] or all with [*]"
        return f"{_shortened(name)!r} of {_kind(value)}"

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


@lru_cache(maxsize=1024)
def _compiled(text: str) -> tuple[Node, frozenset[str]]:
    if len(text) > MAX_LENGTH:
        raise InvalidInputError(f"an expression of {len(text)} characters; at most {MAX_LENGTH} are read")
    roots: set[str] = set()

    def quote(match: re.Match[str]) -> str:
        if not match[0].startswith("$"):
            return match[0]
        roots.add(match[0][1:])
        return f'"{match[0]}"'

    try:
        node: Node = Parser().parse(_QUOTED.sub(quote, text)).parsed
    except (JMESPathError, RecursionError, ValueError) as error:
        raise InvalidInputError(
            f"{_shown(text)} is no JMESPath expression: {_reason(error)}",
            hint="write $$ for a dollar sign that is no reference; see https://jmespath.org",
        ) from None
    return node, frozenset(roots)


def _reason(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    lines = str(error).splitlines() or [type(error).__name__]
    return _shortened(lines[0], 200)


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


def _shown(text: str) -> str:
    return repr(_shortened(text, 120))


def _shortened(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
