"""Expressions of JMESPath and arithmetic with `$step` roots, evaluated within fixed limits of time and size."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from functools import lru_cache
from typing import Any

from pml_gateway.errors import InvalidInputError
from pml_gateway.results.functions import LanguageFunctions
from pml_gateway.results.paths import BOUNDS, PathNotFoundError, TooMuchError, evaluate, shown
from pml_gateway.results.syntax import ExpressionError, Node, is_root, nodes, parse, root_names

MAX_LENGTH = 2000
"""Maximum number of characters of an expression; the longest useful ones in practice have a few hundred."""

_FROM_FIRST = frozenset({"subexpression", "index_expression", "pipe", "flatten", "slice"})
"""Nodes of which only the first child starts at the current value; projections do the same."""

_OPERATIONS = frozenset({"or_expression", "and_expression", "comparator", "pipe"})
_CALCULATIONS = frozenset({"arithmetic", "negation"})
_HYPHENATED = re.compile(r"(?<![\w.$'\"-])[A-Za-z_]\w*(?:-\w+)+(?![\w-])", re.ASCII)

_SPELLINGS = "texts are written 'open', == compares, && and || join, ! negates, and $$ is a dollar sign"


class Expression:
    """A compiled expression.

    `roots` are the steps that it reads, as written but without `$`; `needed` are those without which it has no value;
    `fields` are the names that it reads from the current value.
    """

    __slots__ = ("_node", "fields", "needed", "roots", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.roots: frozenset[str]
        self._node, self.roots = _compiled(text)
        self.fields = frozenset(_fields(self._node))
        self.needed = frozenset(_needed(self._node))

    async def evaluate(
        self, roots: Mapping[str, Any], current: Any = None, *, optional: bool = False, known: bool = True
    ) -> Any:
        """Return the value of the expression.

        Args:
            roots: the value of every `$name`, by name.
            current: the value at which a path without `$` starts.
            optional: True to return null for a path that leads nowhere instead of raising an error.
            known: False if a root has no result; a path that leads nowhere is then null as well.

        Raises:
            InvalidInputError: a path that leads nowhere, with the keys that exist; or a bound is exceeded.
        """
        try:
            return await evaluate(self._node, current, BOUNDS, roots=roots, optional=optional or not known)
        except TooMuchError:
            raise InvalidInputError(
                f"{shown(self.text)} takes over {BOUNDS.seconds:g} s of processor time, or builds too large a value",
                hint="select less first, for example with a slice such as [0:100]",
            ) from None
        except ExpressionError as error:
            raise InvalidInputError(
                f"{shown(self.text)} cannot be evaluated: {error.reason}",
                hint="to_number(), to_string() and not_null() give the value that is wanted; see https://jmespath.org",
            ) from None
        except PathNotFoundError as error:
            texts = [f"${name} is itself a text" for name in sorted(self.roots) if isinstance(roots.get(name), str)]
            raise InvalidInputError(
                f"{shown(self.text)}: {error.reason}",
                hint=", ".join(texts),
                details={"expression": self.text[:MAX_LENGTH]},
            ) from None

    @property
    def joins_values(self) -> bool:
        """Return True if operators combine its values.

        A pipe into a field name combines nothing, and `and` between values may be prose.
        """
        every = list(nodes(self._node))
        if any(node["type"] == "pipe" and _leftmost(node["children"][1])["type"] == "field" for node in every):
            return False
        is_prose = self._node.get("word") and all(node["type"] != "comparator" for node in every)
        return self._node["type"] in _OPERATIONS and not is_prose

    @property
    def calculates(self) -> bool:
        """Return True if its value is the result of arithmetic."""
        return self._node["type"] in _CALCULATIONS

    @property
    def operators(self) -> frozenset[str]:
        """Return the operators of its arithmetic."""
        return frozenset(node["value"] for node in nodes(self._node) if node["type"] == "arithmetic")

    def members(self, root: str, *, is_needed: bool = False) -> frozenset[str]:
        """Return the members of `$root` that the expression names: `x` of `$root.x[0].y`.

        With `is_needed`, return only those without an alternative, unlike the `x` of `$root.x || 'none'`.
        """
        found, pending = set(), [self._node]
        while pending:
            node = pending.pop()
            pending += _read_children(node) if is_needed else _children(node)
            if node["type"] == "subexpression":
                first, second = node["children"][0], _first(node["children"][1])
                if is_root(first) and first["value"] == f"${root}" and second["type"] == "field":
                    found.add(second["value"])
        return frozenset(found)


def with_dollars(text: str, names: Container[str]) -> str:
    """Return an expression with `$` before each step that it names without; unchanged if it is no expression.

    Args:
        text: the expression.
        names: the steps, and other roots, that a name can mean where a path begins.

    Raises:
        InvalidInputError: a name could be the step or a text without quotes.
    """
    if len(text) > MAX_LENGTH:
        return text
    # A name with hyphens is a difference otherwise; the same number of letters keeps all positions.
    plain = _HYPHENATED.sub(lambda name: name[0].replace("-", "_") if name[0] in names else name[0], text)
    try:
        begun = list(_begun(parse(plain)))
    except ExpressionError:
        return text
    marked = text
    for start, length, is_text in sorted(begun, reverse=True):
        name = text[start : start + length]
        if name not in names:
            continue
        if is_text:
            raise InvalidInputError(
                f"{name} in {shown(text)} could be the step or a text",
                hint=f"write the step as ${name}, and the text as '{name}'",
            )
        behind = marked[start + length :]
        # Another step could be called `a-1`.
        marked = f"{marked[:start]}${name}{' ' * behind.startswith('-')}{behind}"
    return marked


def is_true(value: Any) -> bool:
    """Return the truth of a value in JMESPath: null, false and empty values are false; 0 is not."""
    return not (value is None or value is False or value in ("", [], {}))


@lru_cache(maxsize=1024)
def _compiled(text: str) -> tuple[Node, frozenset[str]]:
    if len(text) > MAX_LENGTH:
        raise InvalidInputError(f"an expression of {len(text)} characters; at most {MAX_LENGTH} are read")
    try:
        node = parse(text)
    except ExpressionError as error:
        raise InvalidInputError(
            f"{shown(text)} is no JMESPath expression: {error.reason}", hint=error.hint or _SPELLINGS
        ) from None
    return node, frozenset(root_names(node))


def _first(node: Node) -> Node:
    """Return the node that an expression begins with."""
    while node["type"] in _FROM_FIRST or node["type"].endswith("projection"):
        node = node["children"][0]
    return node


def _leftmost(node: Node) -> Node:
    """Return the node that an expression begins with, also as an operand."""
    while (first := _first(node))["type"] in _OPERATIONS | _CALCULATIONS:
        node = first["children"][0]
    return first


def _children(node: Node) -> list[Node]:
    return [child for child in node.get("children", ()) if isinstance(child, dict)]


def _read_children(node: Node) -> list[Node]:
    """Return the children without those that have an alternative if they are null."""
    if node["type"] == "function_expression" and node["value"] == "not_null":
        return []
    return _children(node)[1:] if node["type"] == "or_expression" else _children(node)


def _needed(node: Node) -> list[str]:
    """Return the roots that are not one of several alternatives."""
    pending, names = [node], []
    while pending:
        node = pending.pop()
        if is_root(node):
            names.append(node["value"][1:])
        is_choice = node["type"] == "or_expression" or (
            node["type"] == "function_expression" and node["value"] == "not_null"
        )
        if not is_choice:
            pending += _children(node)
    return names


def _begun(node: Node, is_text: bool = False) -> Iterator[tuple[int, int, bool]]:
    """Yield the position and length of each name that begins a path, and True if it may be a text without quotes."""
    match node["type"]:
        case "field":
            if "start" in node:
                yield node["start"], len(node["value"]), is_text
        case "comparator":
            for child, other in zip(node["children"], reversed(node["children"]), strict=True):
                yield from _begun(child, node["value"] in ("eq", "ne") and other["type"] != "literal")
        case "function_expression":
            takes = LanguageFunctions.FUNCTION_TABLE[node["value"]]["signature"]
            for at, child in enumerate(node["children"]):
                kinds = takes[min(at, len(takes) - 1)]["types"]
                yield from _begun(child, (at > 0 or node["value"] == "join") and (not kinds or "string" in kinds))
        case "expref" | "literal":
            return
        case kind if kind in _FROM_FIRST or kind.endswith("projection"):
            yield from _begun(node["children"][0])
        case _:
            for child in _children(node):
                yield from _begun(child)


def _fields(node: Node) -> list[str]:
    """Return the names that an expression reads from the value that it starts at."""
    pending, names = [node], []
    while pending:
        node = pending.pop()
        if node["type"] == "field":
            names += [] if is_root(node) else [node["value"]]
        elif node["type"] in _FROM_FIRST or node["type"].endswith("projection"):
            pending.append(node["children"][0])
        elif node["type"] != "expref":
            pending += node["children"]
    return names
