"""Arithmetic of paths and transforms: whole numbers stay exact, and anything but numbers is refused by name."""

from __future__ import annotations

import json
from typing import Any

from pml_gateway.results.numbers import Number, is_number, operated
from pml_gateway.results.syntax import Node
from pml_gateway.text import as_field, shortened

MAX_NAMED = 60
"""Maximum characters of an operand in a message."""


def calculated(operator: str, left: Any, right: Any, operands: list[Node]) -> Number:
    """Return the sum, difference, product or quotient of two numbers; a whole result is a whole number.

    Raises:
        ValueError: an operand is not a number, the divisor is 0, or the result is too large or not exact; says what
            to write.
    """
    for node, value in zip(operands, (left, right), strict=True):
        check_number(operator, value, node)
    try:
        return operated(operator, left, right)
    except ZeroDivisionError:
        named = "" if operands[1]["type"] == "literal" else written(operands[1])
        raise ValueError(f"{named or 'the divisor'} is 0, and nothing can be divided by 0") from None


def check_number(operator: str, value: Any, node: Node) -> None:
    """Refuse an operand that is not a number, with the remedy for its type.

    Raises:
        ValueError: it is none.
    """
    if is_number(value):
        return
    name = shortened(written(node), MAX_NAMED)
    named = name or "items"
    match value:
        case None:
            remedy = f"not_null({named}, 0) puts a number in its place; a name with a hyphen stands in double quotes"
        case str():
            remedy = f"to_number({named}) reads the number in a text"
            remedy += ", and join('', [a, b]) puts texts together" if operator == "+" else ""
        case list():
            remedy = f"map(&@ {operator} 2, {named}) calculates for each item, sum({named}) adds them up"
        case _:
            remedy = "name a number in it"
    raise ValueError(f"{name or 'a value'} is {kind_of_value(value)}, and {operator} takes numbers; {remedy}")


def check_order(left: Any, right: Any, operands: list[Node]) -> None:
    """Refuse to order a number and a text.

    Raises:
        ValueError: one is a number and the other a text.
    """
    if isinstance(left, str) != isinstance(right, str):
        text = operands[0] if isinstance(left, str) else operands[1]
        name = shortened(written(text), MAX_NAMED) or "one side"
        raise ValueError(f"{name} is a text and is compared with a number; to_number() reads the number in a text")


def kind_of_value(value: Any) -> str:
    """Return the kind of a JSON value with its article, as messages name it."""
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


def written(node: Node) -> str:
    """Return a path of fields and items as it is written; empty for any other expression."""
    match node["type"]:
        case "field":
            return str(node["value"]) if "root" in node else as_field(str(node["value"]))
        case "literal":
            return "" if isinstance(node["value"], str) else json.dumps(node["value"])
        case "index":
            return f"[{node['value']}]"
        case "subexpression" | "index_expression":
            parts = [written(child) for child in node["children"]]
            return "" if not all(parts) else "".join(parts[:1] + [f".{each}".replace(".[", "[") for each in parts[1:]])
        case _:
            return ""
