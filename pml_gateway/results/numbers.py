"""Numbers in JSON: whole numbers stay exact, and a number that JSON has no text for is refused."""

from __future__ import annotations

import math
import re

MAX_NUMBER = 10**308
"""Largest whole number that a calculation may give, about that of a float: products have no other end."""

MAX_EXACT = 2**53
"""Whole numbers from here on are not exact in floats, nor in most languages that read JSON."""

Number = int | float

_JSON_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)


def is_number(value: object) -> bool:
    """Return True for a number of JSON, which a boolean is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def checked_number(found: Number, named: str) -> Number:
    """Return a number that JSON can hold.

    Raises:
        ValueError: it is too large, infinite or no number; says so of what is named.
    """
    is_fit = math.isfinite(found) if isinstance(found, float) else abs(found) <= MAX_NUMBER
    if not is_fit:
        raise ValueError(f"{named} is too large a number")
    return found


def read_number(text: str) -> Number | None:
    """Return the number that a text is in JSON, with space around it or not; None if it is none.

    Raises:
        ValueError: it is too large a number.
    """
    plain = text.strip()
    found = _JSON_NUMBER.fullmatch(plain)
    if found is None:
        return None
    is_whole = found[1] is None and found[2] is None and len(plain) <= len(str(-MAX_NUMBER))
    return checked_number(int(plain) if is_whole else float(plain), "it")


def operated(operator: str, left: Number, right: Number) -> Number:
    """Return the sum, difference, product or quotient of two numbers; a whole result is a whole number.

    Raises:
        ValueError: the result is too large, or digits of a whole number would be lost.
        ZeroDivisionError: the divisor is 0.
    """
    left, right = _whole(left), _whole(right)
    try:
        match operator:
            case "+":
                found = left + right
            case "-":
                found = left - right
            case "*":
                found = left * right
            case _:
                is_whole = isinstance(left, int) and isinstance(right, int) and left % right == 0
                found = left // right if is_whole else left / right
    except OverflowError:
        found = math.inf
    checked_number(found, f"the result of {operator}")
    large = [each for each in (left, right) if isinstance(each, int) and abs(each) > MAX_EXACT]
    if large and isinstance(found, float):
        raise ValueError(
            f"the result of {operator} would lose digits: {large[0]} is beyond 2^53, from where on only whole results "
            "are exact"
        )
    return _whole(found)


def _whole(number: Number) -> Number:
    is_exact = isinstance(number, float) and abs(number) < MAX_EXACT and number.is_integer()
    return int(number) if is_exact else number
