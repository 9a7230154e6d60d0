"""JMESPath expressions with `$step` roots, evaluated within fixed limits of time and size."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pml_gateway.errors import InvalidInputError
from pml_gateway.results.paths import BOUNDS, NothingThereError, TooMuchError, evaluate, shown
from pml_gateway.results.syntax import ExpressionError, Node, is_root, parse, root_names

MAX_LENGTH = 2000
"""Maximum number of characters of an expression; the longest useful ones in practice have a few hundred."""

_FROM_FIRST = frozenset({"subexpression", "index_expression", "pipe", "flatten", "slice"})
"""Nodes of which only the first child starts at the current value; projections do the same."""


_OPERATIONS = frozenset({"or_expression", "and_expression", "comparator", "pipe"})


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
                f"{shown(self.text)} cannot be evaluated: {error.reason}", hint="see https://jmespath.org"
            ) from None
        except NothingThereError as error:
            texts = [f"${name} is itself a text" for name in sorted(self.roots) if isinstance(roots.get(name), str)]
            raise InvalidInputError(
                f"{shown(self.text)}: {error.reason}",
                hint=", ".join(texts),
                details={"expression": self.text[:MAX_LENGTH]},
            ) from None

    @property
    def joins_values(self) -> bool:
        """Return True if operators combine its values; a pipe into a field name combines nothing."""
        pending = [self._node]
        while pending:
            node = pending.pop()
            if node["type"] == "pipe" and _first(node["children"][1])["type"] == "field":
                return False
            pending += _children(node)
        return self._node["type"] in _OPERATIONS

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


_SPELLINGS = "texts are written 'open', == compares, && and || join, ! negates, and $$ is a dollar sign"


def _first(node: Node) -> Node:
    """Return the node that an expression begins with."""
    while node["type"] in _FROM_FIRST or node["type"].endswith("projection"):
        node = node["children"][0]
    return node


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
