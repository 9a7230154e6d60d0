"""JMESPath into values and stored results, within bounds, with errors that name what exists."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from typing import Any

import anyio.to_thread
from jmespath.exceptions import JMESPathError
from jmespath.parser import Parser
from jmespath.visitor import TreeInterpreter

from pml_gateway.errors import InvalidInputError, OverloadedError
from pml_gateway.processes.budget import CHARACTERS_PER_PART, RequestBudget, current_budget
from pml_gateway.processes.workers import WAIT_SECONDS, Limit, WorkerLimitError
from pml_gateway.results.content import Content, addressed, exceeds
from pml_gateway.text import shortened

MAX_TEXT = 64 * 1024 * 1024
"""Characters of a value that an expression may build: `join` and `to_string` multiply them."""

MAX_KEYS_NAMED = 12
MAX_NAME = 60

Node = dict[str, Any]
NO_ROOTS: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one evaluation may take.

    Args:
        visits: nodes evaluated.
        parts: items, members and values that it builds, and in each that it compares: `[@, @]` doubles them each time.
        seconds: the last bound, for functions that read all of a large value at every node.
        reads: items, members and values in what one function is given of the data itself.
    """

    visits: int
    parts: int
    seconds: float
    reads: int = 8_000_000


BOUNDS = Bounds(visits=500_000, parts=500_000, seconds=2.0)
"""What one expression may take, half of what a request may: `items[?a > `1`].b` takes five visits for each item."""

QUICK = Bounds(visits=5_000, parts=10_000, seconds=0.5, reads=10_000)
"""What is evaluated on the event loop; more is beside it."""


class EvaluationError(Exception):
    """No value; `reason` says why, for whoever wrote the expression."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ExpressionError(EvaluationError):
    """The text is no expression, or its functions do not take what they are given."""


class NothingThereError(EvaluationError):
    """The expression is a path that leaves the data."""


class TooMuchError(EvaluationError):
    """The expression takes more than its bounds."""


_FAULTS = (ExpressionError, NothingThereError, TooMuchError)


def parsed(text: str) -> Node:
    """The syntax tree of an expression.

    Raises:
        ExpressionError: it is none.
    """
    try:
        node: Node = Parser().parse(text).parsed
    except (JMESPathError, RecursionError, ValueError) as error:
        raise ExpressionError(_reason(error)) from None
    return node


async def evaluate(
    node: Node, value: Any, bounds: Bounds, *, roots: Mapping[str, Any] = NO_ROOTS, optional: bool = False
) -> Any:
    """The part of `value` that a tree names, within its own bounds and what is left of the request's budget.

    Little is done at once, and more beside the event loop: in a thread where only data is gone through, which takes
    time with its size, and in a process that can be ended where data may be multiplied.

    Args:
        node: what `parsed` made.
        value: decoded JSON; it is never changed.
        bounds: what the evaluation may take.
        roots: the values of fields that are called `$name`, by name, wherever they stand.
        optional: a path that leads nowhere is null instead of an error.

    Raises:
        ExpressionError: a function that does not take what it is given.
        NothingThereError: a path that leads nowhere, with the keys that exist.
        TooMuchError: a bound is exceeded.
        BudgetExceededError: nothing is left of the budget.
        OverloadedError: it did not get its turn.
    """
    budget = current_budget()
    budget.require()
    quick = _evaluated(node, value, roots, optional, _least(QUICK, budget))
    budget.spend(quick.visits, quick.parts)
    if quick.fault != TooMuchError.__name__:
        return _value_of(quick)
    async with budget.turn:
        budget.require()
        least = _least(bounds, budget)
        done = await _evaluate_beside(node, value, roots, optional, least, budget)
        budget.spend(done.visits, done.parts)
        if done.fault == TooMuchError.__name__ and least != bounds:
            # What was left of the budget is what it was too much for.
            takes_steps = done.visits > least.visits
            budget.spend(budget.steps if takes_steps else 0, 0 if takes_steps else budget.parts)
            budget.require()
    return _value_of(done)


async def _evaluate_beside(
    node: Node, value: Any, roots: Mapping[str, Any], optional: bool, bounds: Bounds, budget: RequestBudget
) -> _Done:
    if budget.workers is None or _only_goes_through(node):
        return await budget.in_thread(_evaluated, node, value, roots, optional, bounds)
    given = {name: roots[name] for name in _root_names(node) if name in roots}
    limits = astuple(bounds)
    try:
        answer = await budget.workers.in_process(
            evaluate_in_process, node, value, given, optional, limits, seconds=bounds.seconds, share=budget.share
        )
    except WorkerLimitError as error:
        if error.limit is Limit.MACHINE:
            raise OverloadedError(
                f"an expression was not evaluated within {WAIT_SECONDS:g} s, for the machine has too much to do",
                hint="try again in a moment",
            ) from None
        return _Done(None, bounds.visits, bounds.parts, TooMuchError.__name__, f"it was ended ({error.limit})")
    except RecursionError:
        return _Done(None, 0, 0, ExpressionError.__name__, "the data is nested too deeply")
    return _Done(*answer)


def evaluate_in_process(
    node: Node, value: Any, roots: Mapping[str, Any], optional: bool, limits: tuple[Any, ...]
) -> tuple[Any, ...]:
    """An evaluation in a worker process, as plain values."""
    done = _evaluated(node, value, roots, optional, Bounds(*limits))
    return done.value, done.visits, done.parts, done.fault, done.reason


@dataclass(frozen=True, slots=True)
class _Done:
    """An evaluation that ended: the value, or which fault and why; and what it took."""

    value: Any
    visits: int
    parts: int
    fault: str = ""
    reason: str = ""


def _value_of(done: _Done) -> Any:
    if not done.fault:
        return done.value
    raise next(kind for kind in _FAULTS if kind.__name__ == done.fault)(done.reason)


def _least(bounds: Bounds, budget: RequestBudget) -> Bounds:
    return replace(bounds, visits=min(bounds.visits, budget.steps), parts=min(bounds.parts, budget.parts))


def _evaluated(node: Node, value: Any, roots: Mapping[str, Any], optional: bool, bounds: Bounds) -> _Done:
    interpreter = _Interpreter(roots, bounds)
    found: Any = None
    fault, reason = "", ""
    try:
        found = interpreter.visit(node, value)
        if _only_goes_through(node):
            interpreter.check_size(found, bounds.reads)
        else:
            # Where it holds itself many times over, it is written as often.
            interpreter.take(interpreter.check_size(found))
        missing = interpreter.fault(node, value) if found in (None, []) and not optional else None
        if missing is not None:
            fault, reason = NothingThereError.__name__, missing
    except TooMuchError as error:
        fault, reason = TooMuchError.__name__, error.reason
    except (JMESPathError, RecursionError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        # The library's functions let Python's own errors through where types do not fit.
        fault, reason = ExpressionError.__name__, _reason(error)
    return _Done(None if fault else found, interpreter.visits, interpreter.parts, fault, reason)


_GOING_THROUGH = frozenset(
    {
        "and_expression",
        "comparator",
        "current",
        "field",
        "filter_projection",
        "flatten",
        "identity",
        "index",
        "index_expression",
        "literal",
        "not_expression",
        "or_expression",
        "pipe",
        "projection",
        "slice",
        "subexpression",
        "value_projection",
    }
)
"""Nodes that come by every part of the data a few times at most, and build lists of what is there already."""


def _only_goes_through(node: Node) -> bool:
    """Whether an expression takes time with the size of its data, and not more."""
    return all(each["type"] in _GOING_THROUGH for each in _nodes(node)) and len(_root_names(node)) <= 1


def _root_names(node: Node) -> list[str]:
    fields = (each["value"] for each in _nodes(node) if each["type"] == "field")
    return [name[1:] for name in fields if name.startswith("$")]


def _nodes(node: Node) -> Iterator[Node]:
    pending = [node]
    while pending:
        each = pending.pop()
        yield each
        pending += [child for child in each.get("children", ()) if isinstance(child, dict)]


class _Interpreter(TreeInterpreter):  # type: ignore[misc]  # the library has no types
    """Counts what it does, and looks at what would multiply before it does."""

    def __init__(self, roots: Mapping[str, Any], bounds: Bounds) -> None:
        super().__init__()
        self._bounds = bounds
        self._roots = roots
        self._deadline = time.monotonic() + bounds.seconds
        self.visits = 0
        self.parts = 0

    def visit(self, node: Node, *args: Any, **kwargs: Any) -> Any:
        self.visits += 1
        if self.visits > self._bounds.visits or time.monotonic() > self._deadline:
            raise TooMuchError("too many evaluations")
        value = super().visit(node, *args, **kwargs)
        if node["type"] in _BUILDING:
            if isinstance(value, str):
                self.take(len(value) // CHARACTERS_PER_PART)
            elif isinstance(value, list | dict):
                self.take(len(value))
        return value

    def take(self, parts: int) -> None:
        """Count what is built."""
        self.parts += parts
        if self.parts > self._bounds.parts:
            raise TooMuchError("too large a value")

    def visit_flatten(self, node: Node, value: Any) -> Any:
        base = self.visit(node["children"][0], value)
        if isinstance(base, list):
            # Looked at first: it is done at once, however long the lists are.
            self.check_length(len(base))
            self.check_length(sum(len(each) for each in base if isinstance(each, list)))
        return super().visit_flatten({**node, "children": [_literal(base)]}, value)

    def check_length(self, parts: int) -> None:
        """Refuse what would be too long."""
        if parts > self._bounds.parts:
            raise TooMuchError("too large a value")

    def visit_field(self, node: Node, value: Any) -> Any:
        name = node["value"]
        if name.startswith("$") and name[1:] in self._roots:
            return self._roots[name[1:]]
        return value.get(name) if isinstance(value, dict) else None

    def visit_function_expression(self, node: Node, value: Any) -> Any:
        return super().visit_function_expression(self._with_values(node, value), value)

    def visit_comparator(self, node: Node, value: Any) -> Any:
        return super().visit_comparator(self._with_values(node, value), value)

    def _with_values(self, node: Node, value: Any) -> Node:
        """The node with its children evaluated, once each.

        Values that hold themselves many times over are refused: to compare or to write them takes exponential time.
        """
        children = []
        for child in node["children"]:
            if child["type"] == "expref":
                children.append(child)
                continue
            found = self.visit(child, value)
            if child["type"] == "field":
                self.check_size(found, self._bounds.reads)
            elif child["type"] != "literal":
                self.check_size(found)
            children.append(_literal(found))
        return {**node, "children": children}

    def check_size(self, value: Any, most: int | None = None) -> int:
        """Refuse a value of too many parts, counted as often as they are shared; how many they are."""
        most = self._bounds.parts if most is None else most
        longest = min(MAX_TEXT, self._bounds.reads * CHARACTERS_PER_PART)
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
            if parts + len(pending) > most or characters > longest:
                raise TooMuchError("too large a value")
        return parts + characters // CHARACTERS_PER_PART

    def fault(self, node: Node, value: Any) -> str | None:
        """Where a path of fields and indexes leaves the data, and what is there instead."""
        match node["type"]:
            case "field":
                return self._field_fault(node["value"], value)
            case "index":
                return _index_fault(node["value"], value)
            case "slice":
                return None if isinstance(value, list) else f"[:] of {_kind(value)}; it takes the items of a list"
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
            keys = [repr(shortened(str(key), MAX_NAME)) for key in list(value)[:MAX_KEYS_NAMED]]
            more = f" and {len(value) - MAX_KEYS_NAMED} more" if len(value) > MAX_KEYS_NAMED else ""
            return f"no key {shortened(name, MAX_NAME)!r}; the keys are {', '.join(keys) or 'none'}{more}"
        if isinstance(value, list):
            return f"{shortened(name, MAX_NAME)!r} of a list of {len(value)}; take one item with [0] or all with [*]"
        return f"{shortened(name, MAX_NAME)!r} of {_kind(value)}"

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


_BUILDING = frozenset(
    {
        "filter_projection",
        "flatten",
        "function_expression",
        "multi_select_dict",
        "multi_select_list",
        "projection",
        "slice",
        "value_projection",
    }
)
"""Nodes whose value is made rather than found."""


def _literal(value: Any) -> Node:
    return {"type": "literal", "value": value, "children": []}


def _index_fault(index: int, value: Any) -> str | None:
    if not isinstance(value, list):
        return f"[{index}] of {_kind(value)}; it takes an item of a list"
    if -len(value) <= index < len(value):
        return None
    return f"no item [{index}] in a list of {len(value)}"


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


def _reason(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    lines = str(error).splitlines() or [type(error).__name__]
    return shortened(lines[0].removesuffix(", for expression:"), 200)


def shown(text: str) -> str:
    """An expression as messages quote it."""
    return repr(shortened(text, 120))


MAX_EXPRESSION = 1000
MAX_SELECTED = 32 * 1024 * 1024
"""Characters of JSON in one selection."""


async def select(expression: str, value: Any) -> Any:
    """The part of `value` that a JMESPath expression selects.

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
        selected = await evaluate(node, value, BOUNDS)
    except ExpressionError as error:
        raise InvalidInputError(f"path {shown(expression)} cannot be evaluated: {error.reason}") from None
    except NothingThereError as error:
        raise InvalidInputError(f"path {shown(expression)} finds nothing", hint=error.reason) from None
    except TooMuchError:
        raise _too_much(expression) from None
    if await current_budget().in_thread(exceeds, selected, MAX_SELECTED):
        raise _too_much(expression)
    return selected


async def value_at(content: Content, path: str | None) -> Any:
    """What a reference with this path stands for.

    Raises:
        InvalidInputError: as `select`.
    """
    if path is None:
        return content.value
    if content.kind != "text":
        return await select(path, content.value)
    return await select(path, await anyio.to_thread.run_sync(addressed, content))


@lru_cache(maxsize=512)
def _compiled(expression: str) -> Node:
    return parsed(expression)


def _too_much(expression: str) -> InvalidInputError:
    return InvalidInputError(
        f"path {shown(expression)} selects or evaluates too much", hint="select less, or in several steps"
    )
