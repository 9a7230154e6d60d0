"""A path and a stored value become the part it names, or an error that names what exists."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pml_gateway.errors import InvalidInputError
from pml_gateway.results.content import Content, addressed, exceeds
from pml_gateway.results.evaluation import (
    Bounds,
    ExpressionError,
    Node,
    NothingThereError,
    TooMuchError,
    evaluate,
    parsed,
    shown,
)

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
