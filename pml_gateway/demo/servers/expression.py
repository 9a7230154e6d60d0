"""Evaluates an arithmetic expression without running code: a walk over the syntax tree with bounded numbers."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType

from pml_gateway.demo.servers.launch import RefusedError

Number = int | float

MAX_CHARACTERS = 500
MAX_BITS = 1000
"""Largest whole number: about 300 digits, still a finite float, and a power is never slow to compute."""

MAX_DIGITS = 300
"""More digits than any accepted number has."""

MAX_FACTORIAL = 170
"""170! is the last factorial that fits a float."""

_CONSTANTS: Mapping[str, float] = MappingProxyType({"pi": math.pi, "e": math.e, "tau": math.tau})

_OPERATORS: Mapping[type[ast.operator], Callable[[Number, Number], Number]] = MappingProxyType(
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.truediv,
        ast.FloorDiv: operator.floordiv,
        ast.Mod: operator.mod,
    }
)


def _factorial(number: Number) -> int:
    if not isinstance(number, int) or not 0 <= number <= MAX_FACTORIAL:
        raise RefusedError(f"factorial needs a whole number from 0 to {MAX_FACTORIAL}, got {number}")
    return math.factorial(number)


def _round(number: Number, digits: Number = 0) -> Number:
    # Python computes 10 ** -digits for whole numbers, which for a large value takes forever.
    if not isinstance(digits, int) or abs(digits) > MAX_DIGITS:
        raise RefusedError(f"round takes -{MAX_DIGITS} to {MAX_DIGITS} digits, got {digits}")
    return round(number, digits) if digits else round(number)


_FUNCTIONS: Mapping[str, Callable[..., Number]] = MappingProxyType(
    {
        "abs": abs,
        "acos": math.acos,
        "asin": math.asin,
        "atan": math.atan,
        "ceil": math.ceil,
        "cos": math.cos,
        "degrees": math.degrees,
        "exp": math.exp,
        "factorial": _factorial,
        "floor": math.floor,
        "hypot": math.hypot,
        "log": math.log,
        "log10": math.log10,
        "log2": math.log2,
        "max": max,
        "min": min,
        "radians": math.radians,
        "round": _round,
        "sin": math.sin,
        "sqrt": math.sqrt,
        "tan": math.tan,
    }
)


def evaluate(expression: str) -> Number:
    """The value of an expression such as `2 * (3 + sqrt(16)) ** 2`. `^` is read as a power."""
    if len(expression) > MAX_CHARACTERS:
        raise RefusedError(f"the expression has {len(expression)} characters, more than {MAX_CHARACTERS}")
    try:
        tree = ast.parse(expression.strip().replace("^", "**"), mode="eval")
        return _bounded(_value(tree.body))
    except (SyntaxError, RecursionError, MemoryError) as exc:
        raise RefusedError(f"cannot read {expression!r} as arithmetic: {exc}") from exc
    except ZeroDivisionError as exc:
        raise RefusedError(f"division by zero in {expression!r}") from exc
    except (ArithmeticError, TypeError, ValueError) as exc:
        raise RefusedError(f"cannot compute {expression!r}: {exc}") from exc


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _bounded(value)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=symbol, right=right) if type(symbol) in _OPERATORS:
            return _bounded(_OPERATORS[type(symbol)](_value(left), _value(right)))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _bounded(_FUNCTIONS[name](*(_value(argument) for argument in arguments)))
        case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)):
            known = ", ".join([*_CONSTANTS, *_FUNCTIONS])
            raise RefusedError(f"{name!r} is not known here; known are {known}")
        case _:
            raise RefusedError(f"only numbers, + - * / // % ** and functions are allowed, not {ast.unparse(node)!r}")


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and exponent > 0:
        bits = base.bit_length() * exponent
        # The product bounds the size of the result from above by less than a factor of two.
        if bits > 2 * MAX_BITS and abs(base) > 1:
            raise RefusedError(f"{base} ** {exponent} is too large; numbers may have {MAX_BITS} bits")
    result: object = base**exponent
    if not isinstance(result, int | float):
        raise RefusedError(f"{base} ** {exponent} is not a real number")
    return _bounded(result)


def _bounded(number: Number) -> Number:
    if isinstance(number, int):
        if number.bit_length() > MAX_BITS:
            raise RefusedError(f"a number became too large; numbers may have {MAX_BITS} bits")
    elif not math.isfinite(number):
        raise RefusedError("a number became infinite or undefined")
    return number
