"""The syntax of paths and transforms: JMESPath with `$step` roots, and literals that need no backticks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from jmespath import ast
from jmespath.exceptions import JMESPathError
from jmespath.lexer import Lexer
from jmespath.parser import ParsedResult, Parser

from pml_gateway.results.functions import FUNCTIONS, arity_of
from pml_gateway.text import did_you_mean, nearest, shortened

Node = dict[str, Any]
Token = dict[str, Any]

ROOT = re.compile(r"\$(\d+|[A-Za-z_][A-Za-z0-9_-]*)")

_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`(?:[^`\\]|\\.)*`|" + ROOT.pattern, re.DOTALL)
"""Anything quoted, or a root outside of quotes."""

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])")
_WORDS = {"true": True, "false": False, "null": None}
_COMPARATORS = frozenset({"eq", "ne", "lt", "lte", "gt", "gte"})
_BEFORE_VALUES = _COMPARATORS | {"and", "or", "not"}
_BEHIND_VALUES = _COMPARATORS | {"and", "or"}
_OPENING = frozenset({"lparen", "lbracket", "lbrace", "filter"})
_CLOSING = frozenset({"rparen", "rbracket", "rbrace"})
_GOES_ON = frozenset({"dot", "lbracket", "flatten", "filter", "lparen", "colon"})
"""Tokens after a name that make it the beginning of a path, a call or a key."""


class ExpressionError(Exception):
    """The text is not an expression, or a function rejects its arguments; `hint` says what to write instead."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


def parse(text: str) -> Node:
    """Return the syntax tree of an expression; `$name` is a field node of that name with the key `root`.

    Raises:
        ExpressionError: the text is not an expression.
    """
    try:
        node: Node = _Parser().parse(text).parsed
    except (JMESPathError, RecursionError, ValueError) as error:
        # The library also raises Python's own errors, for numbers and texts.
        raise ExpressionError(reason_of(error)) from None
    for each in nodes(node):
        if each["type"] == "function_expression":
            _check_call(each["value"], len(each["children"]))
    return node


def nodes(node: Node) -> Iterator[Node]:
    """Yield the node and all nodes in it."""
    pending = [node]
    while pending:
        each = pending.pop()
        yield each
        pending += [child for child in each.get("children", ()) if isinstance(child, dict)]


def root_names(node: Node) -> list[str]:
    """Return the roots that an expression reads, without their `$`."""
    return [each["value"][1:] for each in nodes(node) if is_root(each)]


def is_root(node: Node) -> bool:
    """Return True if a node is a root `$name` rather than a field of a value."""
    return "root" in node


def reason_of(error: BaseException) -> str:
    """Describe an error of the library in one line."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    lines = str(error).splitlines() or [type(error).__name__]
    return shortened(lines[0].removesuffix(", for expression:"), 200)


def _check_call(name: str, given: int) -> None:
    known = FUNCTIONS.get(name)
    if known is None:
        shown = shortened(name, 60)
        hint = did_you_mean(f"{each}()" for each in nearest(name, FUNCTIONS)) or f"there are {', '.join(FUNCTIONS)}"
        raise ExpressionError(f"there is no function {shown}()", hint)
    least, is_open = arity_of(name)
    if given < least or (given > least and not is_open):
        raise ExpressionError(f"{name}() has {given} arguments", f"it is called as {known.call}")


class _Parser(Parser):  # type: ignore[misc]  # the library has no types
    """The library's parser, over our own tokens."""

    BINDING_POWER = {**Parser.BINDING_POWER, "root": 0}  # noqa: RUF012  # as the library has it
    _CACHE: dict[str, Any] = {}  # noqa: RUF012  # one of its own; what is parsed here differs

    def _parse(self, expression: str) -> ParsedResult:
        self._tokens = _read(expression)
        self._index = 0
        parsed = self._expression(binding_power=0)
        if self._current_token() != "eof":
            self._raise_parse_error_for_token(self._lookahead_token(0), "Unexpected token")
        return ParsedResult(expression, parsed)

    def _token_nud_root(self, token: Token) -> Node:
        if self._current_token() == "lparen":
            self._raise_parse_error_for_token(token, "No function")
        return {**ast.field(token["value"]), "root": True}


def _read(expression: str) -> list[Token]:
    """Return the tokens of an expression, with bare literals recognized.

    The library's lexer reads the text between the roots, which it does not support.
    """
    tokens: list[Token] = []
    at = 0
    for quoted_or_root in _QUOTED.finditer(expression):
        if quoted_or_root[0][0] == "$":
            tokens += _between(expression, at, quoted_or_root.start())
            start, at = quoted_or_root.span()
            tokens.append({"type": "root", "value": quoted_or_root[0], "start": start, "end": at})
    if at < len(expression) or not tokens:
        tokens += _between(expression, at, len(expression))
    tokens.append({"type": "eof", "value": "", "start": len(expression), "end": len(expression)})
    return _with_values(tokens)


def _between(expression: str, begin: int, end: int) -> list[Token]:
    text = expression[begin:end]
    if begin == end and expression:
        return []
    tokens: list[Token] = []
    behind = 0
    for token in Lexer().tokenize(text):
        if token["type"] == "eof" or token["start"] < behind:
            continue
        number = _NUMBER.match(text, token["start"]) if token["type"] == "number" else None
        if number is not None and not number[0].lstrip("-").isdigit():
            token = {**token, "type": "literal", "value": float(number[0])}
            behind = number.end()
        tokens.append({**token, "start": token["start"] + begin})
    return tokens


def _with_values(tokens: list[Token]) -> list[Token]:
    """Turn bare numbers, `true`, `false` and `null` into literals if they are compared or passed to a function.

    Elsewhere a number is an index and a word a field, as in standard JMESPath.
    """
    read: list[Token] = []
    in_calls: list[bool] = []
    for at, token in enumerate(tokens):
        kind = token["type"]
        before = tokens[at - 1]["type"] if at else ""
        after = tokens[at + 1]["type"] if at + 1 < len(tokens) else ""
        if kind in _OPENING:
            in_calls.append(kind == "lparen" and before == "unquoted_identifier")
        elif kind in _CLOSING and in_calls:
            in_calls.pop()
        is_argument = bool(in_calls) and in_calls[-1] and before in ("lparen", "comma") and after in ("comma", "rparen")
        is_operand = before in _BEFORE_VALUES or after in _BEHIND_VALUES or is_argument
        if kind == "number" and is_operand and before != "dot":
            token = {**token, "type": "literal"}
        elif kind == "unquoted_identifier" and token["value"] in _WORDS and is_operand:
            if before != "dot" and after not in _GOES_ON:
                token = {**token, "type": "literal", "value": _WORDS[token["value"]]}
        elif kind == "quoted_identifier" and before in _COMPARATORS and after not in _GOES_ON:
            name = shortened(str(token["value"]), 60)
            raise ExpressionError(
                f'"{name}" in double quotes is a field', f"a text is written '{name}', the field @.\"{name}\""
            )
        read.append(token)
    return read
