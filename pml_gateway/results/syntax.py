"""The syntax of paths and transforms: JMESPath with `$step` roots, arithmetic, and literals without backticks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from jmespath import ast
from jmespath.exceptions import JMESPathError, JMESPathTypeError
from jmespath.lexer import Lexer
from jmespath.parser import ParsedResult, Parser

from pml_gateway.results.functions import FUNCTIONS, arity_of
from pml_gateway.text import did_you_mean, nearest, shortened

Node = dict[str, Any]
Token = dict[str, Any]

ROOT = re.compile(r"\$(\d+|[A-Za-z_](?:[A-Za-z0-9_]|-(?!\$))*)")
"""A step or another root; a hyphen belongs to its name, unless the next root is subtracted."""

MAX_DEPTH = 200
"""Maximum depth of a syntax tree: a level of its evaluation takes two to four of Python's thousand nested calls."""

_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`(?:[^`\\]|\\.)*`|" + ROOT.pattern, re.DOTALL)
"""Anything quoted, or a root outside of quotes."""

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])")
_HYPHENATED = re.compile(r"[A-Za-z_]\w*(?:-\w+)*-[A-Za-z_]\w*", re.ASCII)
"""Words that hyphens join: one name, or a difference."""
_WORDS = {"true": True, "false": False, "null": None}
_TYPES = {"NoneType": "null", "bool": "boolean", "str": "string", "list": "array", "dict": "object"} | dict.fromkeys(
    ("int", "float"), "number"
)
"""The types of JSON by the names that the library has for those of items."""

_COMPARATORS = frozenset({"eq", "ne", "lt", "lte", "gt", "gte"})
_ORDERS = _COMPARATORS - {"eq", "ne"}
_ARITHMETIC = {"plus": "+", "minus": "-", "times": "*", "divide": "/"}
_LOGIC = {"and": "&&", "or": "||"}
_BEFORE_VALUES = _COMPARATORS | _ARITHMETIC.keys() | _LOGIC.keys() | {"not", "not_word", "colon"}
_BEHIND_VALUES = _COMPARATORS | _ARITHMETIC.keys() | _LOGIC.keys()
_OPENING = frozenset({"lparen", "lbracket", "lbrace", "filter"})
_CLOSING = frozenset({"rparen", "rbracket", "rbrace"})
_GOES_ON = frozenset({"dot", "lbracket", "flatten", "filter", "lparen", "colon"})
"""Tokens after a name that make it the beginning of a path, a call or a key."""

_NAMES = frozenset({"root", "unquoted_identifier", "quoted_identifier"})
_BEGINS_VALUE = _NAMES | {"number", "literal", "current", "lparen", "not"}
_ENDS_VALUE = _NAMES | _CLOSING | {"number", "literal", "current", "flatten", "star"}
"""Tokens of operands; only an operator can stand behind one of the latter."""


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
    _check_depth(node)
    for each in nodes(node):
        if each["type"] == "literal" and not _is_json(each["value"]):
            raise ExpressionError("a number in it is too large", "the largest number has 308 digits")
        if each["type"] == "function_expression":
            _check_call(each["value"], len(each["children"]))
    return node


def _check_depth(node: Node) -> None:
    level, depth = [node], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise ExpressionError("it is nested too deeply", "calculate in several steps")
        level = [child for each in level for child in each.get("children", ()) if isinstance(child, dict)]


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
    if isinstance(error, JMESPathTypeError):
        taken = " or ".join(each.replace("array-", "array of ") for each in error.expected_types)
        given = _TYPES.get(error.actual_type, error.actual_type)
        return f"{error.function_name}() takes {taken}, and is given {given}"
    lines = str(error).splitlines() or [type(error).__name__]
    return shortened(lines[0].removesuffix(", for expression:"), 200)


def _is_json(value: Any) -> bool:
    """Return True unless a value holds an infinite number, as JSON's `1e999` is read."""
    try:
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return False
    return True


def _check_call(name: str, given: int) -> None:
    known = FUNCTIONS.get(name)
    if known is None:
        shown = shortened(name, 60)
        hint = did_you_mean(f"{each}()" for each in nearest(name, FUNCTIONS)) or f"there are {', '.join(FUNCTIONS)}"
        raise ExpressionError(f"there is no function {shown}()", hint)
    least, is_open = arity_of(name)
    if given < least or (given > least and not is_open):
        raise ExpressionError(f"{name}() has {given} arguments", f"it is called as {known.call}")


class _Lexer(Lexer):  # type: ignore[misc]  # the library has no types
    SIMPLE_TOKENS = {**Lexer.SIMPLE_TOKENS, "+": "plus", "-": "minus", "/": "divide"}  # noqa: RUF012  # as the library has it


class _Parser(Parser):  # type: ignore[misc]  # the library has no types
    """The library's parser, over our own tokens; operators bind as in most languages, and all end a projection."""

    BINDING_POWER = {  # noqa: RUF012  # as the library has it
        **Parser.BINDING_POWER,
        "root": 0,
        "not_word": 0,
        "plus": 6,
        "minus": 6,
        "times": 7,
        "divide": 7,
    }
    _NOT_WORD = 4
    _SIGN = 8
    """The powers of `not`, below comparisons, and of `-` and `!` before a value, above arithmetic and below paths."""

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

    def _token_nud_unquoted_identifier(self, token: Token) -> Node:
        return {**ast.field(token["value"]), "start": token["start"]}

    def _token_nud_number(self, token: Token) -> Node:
        literal: Node = ast.literal(token["value"])
        return literal

    def _token_nud_minus(self, token: Token) -> Node:
        return {"type": "negation", "children": [self._expression(self._SIGN)]}

    def _token_nud_not(self, token: Token) -> Node:
        # The library reads `!a.b` as the field `b` of a boolean.
        negated: Node = ast.not_expression(self._expression(self._SIGN))
        return negated

    def _token_nud_not_word(self, token: Token) -> Node:
        negated: Node = ast.not_expression(self._expression(self._NOT_WORD))
        return negated

    def _token_nud_lbracket(self, token: Token) -> Node:
        is_list = self._current_token() == "number" and self._lookahead(1) not in ("rbracket", "colon")
        found: Node = self._parse_multi_select_list() if is_list else super()._token_nud_lbracket(token)
        return found

    def _token_led_plus(self, left: Node) -> Node:
        return self._arithmetic("plus", left)

    def _token_led_minus(self, left: Node) -> Node:
        return self._arithmetic("minus", left)

    def _token_led_times(self, left: Node) -> Node:
        return self._arithmetic("times", left)

    def _token_led_divide(self, left: Node) -> Node:
        return self._arithmetic("divide", left)

    def _token_led_and(self, left: Node) -> Node:
        return {"word": self._is_word(), **super()._token_led_and(left)}

    def _token_led_or(self, left: Node) -> Node:
        return {"word": self._is_word(), **super()._token_led_or(left)}

    def _is_word(self) -> bool:
        """Return True if the operator is a word, which prose has as well."""
        return str(self._lookahead_token(-1)["value"]).isalpha()

    def _arithmetic(self, kind: str, left: Node) -> Node:
        right = self._expression(self.BINDING_POWER[kind])
        return {"type": "arithmetic", "value": _ARITHMETIC[kind], "children": [left, right]}

    def _parse_comparator(self, left: Node, comparator: str) -> Node:
        found: Node = super()._parse_comparator(left, comparator)
        if comparator in _ORDERS and self._current_token() in _ORDERS:
            # JMESPath would compare a boolean with a number, which is never true.
            raise ExpressionError("two comparisons in a row", "join them with &&, as in a > 1 && a < 5")
        return found

    def _parse_dot_rhs(self, binding_power: int) -> Node:
        if self._current_token() != "lparen":
            found: Node = super()._parse_dot_rhs(binding_power)
            return found
        self._advance()
        inner: Node = self._token_nud_lparen(None)
        return inner


def _read(expression: str) -> list[Token]:
    """Return the tokens of an expression, with operators and bare literals recognized.

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
    return _with_values(_with_operators(_with_fields(tokens), expression))


def _between(expression: str, begin: int, end: int) -> list[Token]:
    text = expression[begin:end]
    if begin == end and expression:
        return []
    tokens: list[Token] = []
    behind = 0
    for token in _Lexer().tokenize(text):
        if token["type"] == "eof" or token["start"] < behind:
            continue
        number = _NUMBER.match(text, token["start"]) if token["type"] == "number" else None
        if number is not None and not number[0].isdigit():
            token = {**token, "type": "literal", "value": float(number[0])}
            behind = number.end()
        tokens.append({**token, "start": token["start"] + begin})
    return tokens


def _with_fields(tokens: list[Token]) -> list[Token]:
    """Turn a name in brackets behind a value, `$a['first name']`, into a field; JMESPath has no text in brackets."""
    read: list[Token] = []
    at = 0
    while at < len(tokens):
        kinds = [token["type"] for token in tokens[at : at + 3]]
        name = tokens[at + 1]["value"] if len(kinds) == 3 else None
        is_name = kinds in (["lbracket", "quoted_identifier", "rbracket"], ["lbracket", "literal", "rbracket"])
        if is_name and isinstance(name, str) and read and read[-1]["type"] in _ENDS_VALUE:
            dot, field = {**tokens[at], "type": "dot"}, {**tokens[at + 1], "type": "quoted_identifier"}
            read += [dot, field]
            at += 3
        else:
            read.append(tokens[at])
            at += 1
    return read


def _with_operators(tokens: list[Token], expression: str) -> list[Token]:
    """Turn `*`, `and` and `or` behind a value into operators, `not` before one, and join numbers with their sign.

    JMESPath has no name or `*` right behind a value, so that no expression of its own reads differently.
    """
    read: list[Token] = []
    for token, behind in zip(tokens, [*tokens[1:], tokens[-1]], strict=True):
        before: Token = read[-1] if read else {"type": "", "value": ""}
        kind, is_behind_value = token["type"], before["type"] in _ENDS_VALUE
        word = token["value"].lower() if kind == "unquoted_identifier" else ""
        if is_behind_value and (kind == "star" or word in _LOGIC):
            token = {**token, "type": word or "times"}
        elif word == "not" and before["type"] != "dot" and not is_behind_value and _begins_value(behind):
            token = {**token, "type": "not_word"}
        elif kind == "minus" and is_behind_value and before["type"] == behind["type"] == "unquoted_identifier":
            _check_hyphen(expression, before["start"], token["start"])
        elif _is_number(token) and _is_sign(read) and token["start"] == before["start"] + 1:
            token = {**token, "value": -token["value"]}
            read.pop()
        read.append(token)
    return read


def _begins_value(token: Token) -> bool:
    return token["type"] in _BEGINS_VALUE and str(token["value"]).lower() not in _LOGIC


def _is_number(token: Token) -> bool:
    return token["type"] == "number" or (token["type"] == "literal" and isinstance(token["value"], float))


def _is_sign(read: list[Token]) -> bool:
    """Return True if the last token is a minus that stands before its only operand."""
    is_minus = bool(read) and read[-1]["type"] == "minus"
    return is_minus and (len(read) == 1 or read[-2]["type"] not in _ENDS_VALUE)


def _check_hyphen(expression: str, name: int, hyphen: int) -> None:
    """Refuse a name with a hyphen: it could also be a difference."""
    found = _HYPHENATED.match(expression, name)
    if found is None or found.end() <= hyphen:
        return
    word = shortened(found[0], 60)
    hint = f"""write '"{word}"' instead of "{word}" for the name, and {word.replace("-", " - ")} for the difference"""
    raise ExpressionError(f"{word} could be a name or a difference", hint)


def _with_values(tokens: list[Token]) -> list[Token]:
    """Turn bare `true`, `false` and `null` into literals if they are operands, arguments or members of an object.

    Elsewhere they are fields, as in standard JMESPath.
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
        if kind == "unquoted_identifier" and token["value"] in _WORDS and is_operand:
            if before != "dot" and after not in _GOES_ON:
                token = {**token, "type": "literal", "value": _WORDS[token["value"]]}
        elif kind == "quoted_identifier" and before in _COMPARATORS and after not in _GOES_ON:
            name = shortened(str(token["value"]), 60)
            raise ExpressionError(
                f'"{name}" in double quotes is a field', f"a text is written '{name}', the field @.\"{name}\""
            )
        read.append(token)
    return read
