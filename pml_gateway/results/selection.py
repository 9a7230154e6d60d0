"""A JMESPath expression and a value become the part it names, within bounds, or an error that names what exists."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pml_gateway.errors import InvalidInputError
from pml_gateway.results.content import Content, addressed, exceeds

if TYPE_CHECKING:
    from jmespath.parser import ParsedResult

MAX_EXPRESSION = 1000
MAX_STEPS = 1_000_000
"""Nodes evaluated in one expression, a second; `items[?a > `1`].b` takes five for each item."""

MAX_SELECTED = 32 * 1024 * 1024
"""Characters of JSON in one selection: `[@, @]` repeated doubles a value with every step."""

MAX_NAMED_KEYS = 12

_OVER_LISTS = ("projection", "filter_projection", "flatten", "slice")
_MAKES_LISTS = (*_OVER_LISTS, "value_projection", "function_expression")
_PROJECTIONS = ("projection", "filter_projection", "flatten", "value_projection")


def select(expression: str, value: Any, what: str = "path") -> Any:
    """The part of `value` that a JMESPath expression selects. Takes time with the size of `value`.

    Args:
        expression: JMESPath.
        value: decoded JSON; it is never changed.
        what: names the expression in error messages.

    Raises:
        InvalidInputError: no such expression, too much work, or nothing there; names the keys that exist.
    """
    from jmespath.exceptions import JMESPathError

    parsed = compile_expression(expression, what)
    try:
        selected = _interpreter().visit(parsed.parsed, value)
        if exceeds(selected, MAX_SELECTED):
            raise _TooMuchError
    except _TooMuchError:
        raise InvalidInputError(
            f"{what} {_shown(expression)} selects or evaluates too much", hint="select less, or in several steps"
        ) from None
    except (JMESPathError, RecursionError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InvalidInputError(f"{what} {_shown(expression)} cannot be evaluated: {reason}") from None
    if selected is None and not _leads_to_null(parsed.parsed, value):
        raise InvalidInputError(f"{what} {_shown(expression)} finds nothing", hint=_what_exists(parsed.parsed, value))
    return selected


def value_at(content: Content, path: str | None) -> Any:
    """What a reference with this path stands for. Takes time with the size: call it in a thread.

    Raises:
        InvalidInputError: as `select`.
    """
    return content.value if path is None else select(path, addressed(content))


def compile_expression(expression: str, what: str = "path") -> ParsedResult:
    """The parsed expression.

    Raises:
        InvalidInputError: it is no JMESPath, or a hostile one; says where.
    """
    if len(expression) > MAX_EXPRESSION:
        raise InvalidInputError(f"{what}: {len(expression)} characters; at most {MAX_EXPRESSION}")
    try:
        return _compiled(expression)
    except (ValueError, RecursionError) as error:
        reason = str(error).split("\n", 1)[0][:200] or type(error).__name__
        raise InvalidInputError(
            f"{what} {_shown(expression)} is no JMESPath: {reason}", hint="for example items[0].id or items[*].name"
        ) from None


@lru_cache(maxsize=512)
def _compiled(expression: str) -> ParsedResult:
    # Imported on first use: most calls carry no path.
    from jmespath import parser

    return parser.Parser().parse(expression)


class _TooMuchError(Exception):
    """An expression takes more work than an honest one."""


def _interpreter() -> Any:
    from jmespath.visitor import TreeInterpreter

    class Bounded(TreeInterpreter):  # type: ignore[misc]  # jmespath carries no types
        """Counts its steps, and looks at what would multiply before it does."""

        def __init__(self) -> None:
            super().__init__()
            self._steps = 0

        def visit(self, node: Any, *arguments: Any, **named: Any) -> Any:
            self._steps += 1
            if self._steps > MAX_STEPS:
                raise _TooMuchError
            result = super().visit(node, *arguments, **named)
            if isinstance(result, list) and node["type"] in _MAKES_LISTS:
                self._steps += len(result)
            return result

        def visit_function_expression(self, node: Any, value: Any) -> Any:
            children = [child if child["type"] == "expref" else self._once(child, value) for child in node["children"]]
            return super().visit_function_expression({**node, "children": children}, value)

        def visit_comparator(self, node: Any, value: Any) -> Any:
            children = [self._once(child, value) for child in node["children"]]
            return super().visit_comparator({**node, "children": children}, value)

        def _once(self, child: Any, value: Any) -> Any:
            """The child's value, where writing or comparing it will not take exponential time."""
            result = self.visit(child, value)
            if isinstance(result, list | dict) and exceeds(result, MAX_SELECTED):
                raise _TooMuchError
            return {"type": "literal", "value": result, "children": []}

    return Bounded()


def _leads_to_null(node: Any, value: Any) -> bool:
    """Whether the expression is a plain chain of names and positions that all exist, or one that may yield null."""
    missing, _ = _first_missing(node, value)
    return missing is None


def _first_missing(node: Any, value: Any) -> tuple[str | None, Any]:
    """The first name or position of a plain chain that does not exist, with the value it is missing from."""
    current = value
    for step in _chain(node):
        if step["type"] == "field":
            if not isinstance(current, dict) or step["value"] not in current:
                return repr(step["value"]), current
            current = current[step["value"]]
        elif step["type"] == "index":
            if not isinstance(current, list) or not -len(current) <= step["value"] < len(current):
                return f"[{step['value']}]", current
            current = current[step["value"]]
        elif step["type"] in _OVER_LISTS and not isinstance(current, list):
            return "a list", current
        elif step["type"] == "value_projection" and not isinstance(current, dict):
            return "an object", current
        else:
            return None, current
    return None, current


def _chain(node: Any) -> list[Any]:
    """The steps of an expression up to the first that branches."""
    if node["type"] in ("subexpression", "index_expression", "pipe"):
        return [step for child in node["children"] for step in _chain(child)]
    if node["type"] in _PROJECTIONS:
        return [*_chain(node["children"][0]), {"type": node["type"]}]
    return [] if node["type"] in ("identity", "current") else [node]


def _what_exists(node: Any, value: Any) -> str:
    missing, holder = _first_missing(node, value)
    if isinstance(holder, dict):
        keys = list(holder)
        named = ", ".join(_shown(key) for key in keys[:MAX_NAMED_KEYS])
        more = f" and {len(keys) - MAX_NAMED_KEYS} more" if len(keys) > MAX_NAMED_KEYS else ""
        return f"{missing} is missing; the keys there are {named}{more}" if keys else f"{missing}: the object is empty"
    if isinstance(holder, list):
        return f"{missing} is missing; there is a list of {len(holder)} items, for example [0] or [*]"
    kind = {str: "text", bool: "a boolean", type(None): "null"}.get(type(holder), "a number")
    return f"{missing} is missing; there is {kind} there, which has no parts"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:79]}…")
