"""JMESPath evaluation on values and stored results, within bounds, with errors that name the keys that exist."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Any

import anyio.to_thread
from jmespath.exceptions import JMESPathError
from jmespath.visitor import TreeInterpreter

from pml_gateway.errors import InvalidInputError
from pml_gateway.json_text.pieces import exceeds
from pml_gateway.processes.budget import CHARACTERS_PER_PART, RequestBudget, current_budget
from pml_gateway.processes.workers import Limit, WorkerLimitError, out_of_turn
from pml_gateway.results.arithmetic import calculated, check_number, check_order, kind_of_value
from pml_gateway.results.content import Content, addressed
from pml_gateway.results.functions import ENDLESS, LanguageFunctions
from pml_gateway.results.shapes import sketch
from pml_gateway.results.syntax import ExpressionError, Node, is_root, nodes, parse, reason_of, root_names
from pml_gateway.text import shortened

MAX_TEXT = 64 * 1024 * 1024
"""Maximum characters of a value that an expression may build: `join` and `to_string` multiply them."""

MAX_KEYS_NAMED = 12
MAX_NAME = 60

NO_ROOTS: Mapping[str, Any] = {}

STEPS_PER_SECOND = 1_000_000
"""Steps charged to a request's budget per second of processor time in a thread or process."""

ENDING_SECONDS = 1.0
"""Seconds of processor time beyond its limit after which a process that did not stop itself is terminated."""

CHARACTERS_READ = 8
"""Characters of a function's input for each part that it may read: 80 kB on the event loop, 64 MB elsewhere."""

STEPS_BETWEEN_LOOKS = 64
"""Nodes evaluated between two checks of the clock; a check takes as long as one node."""

_GOING_THROUGH = frozenset(
    {
        "and_expression",
        "arithmetic",
        "comparator",
        "current",
        "field",
        "filter_projection",
        "flatten",
        "identity",
        "index",
        "index_expression",
        "literal",
        "negation",
        "not_expression",
        "or_expression",
        "pipe",
        "projection",
        "slice",
        "subexpression",
        "value_projection",
    }
)
"""Nodes that visit every part of the data a few times at most, and only build lists of existing parts."""

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
"""Nodes that build a value rather than find it."""

MAX_BEGIN = 120
"""Maximum characters of the shape that a message shows."""

MAX_EXPRESSION = 1000
MAX_SELECTED = 32 * 1024 * 1024
"""Maximum characters of JSON in one selection."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of one evaluation.

    Args:
        steps: nodes evaluated; None if only the time is limited.
        parts: items, members and values built beyond those in the data: `[@, @]` doubles them each time.
        seconds: processor time.
        reads: items, members and values in the input of one function or comparison.
    """

    steps: int | None
    parts: int
    seconds: float
    reads: int = 8_000_000


BOUNDS = Bounds(steps=None, parts=500_000, seconds=2.0)
"""Limits of one expression in a thread or process: enough for some conditions and functions over 100,000 rows."""

QUICK = Bounds(steps=5_000, parts=10_000, seconds=0.5, reads=10_000)
"""Limits of an evaluation on the event loop; anything larger runs in a thread or process."""


class EvaluationError(Exception):
    """An evaluation without a value; `reason` tells the author of the expression why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class PathNotFoundError(EvaluationError):
    """The expression is a path that does not exist in the data."""


class TooMuchError(EvaluationError):
    """The expression exceeds its bounds."""


_FAULTS = (ExpressionError, PathNotFoundError, TooMuchError)


async def evaluate(
    node: Node, value: Any, bounds: Bounds, *, roots: Mapping[str, Any] = NO_ROOTS, optional: bool = False
) -> Any:
    """Return the part of `value` that a syntax tree selects, within its bounds and the request's remaining budget.

    Small evaluations run on the event loop. Larger ones run in a thread if they only traverse data, which takes time
    proportional to its size, and in a process that can be terminated if they may multiply data.

    Args:
        node: the syntax tree that `parse` returned.
        value: decoded JSON; it is never changed.
        bounds: the limits of the evaluation.
        roots: the values of `$name` fields, by name, wherever they occur.
        optional: return null instead of an error if a path leads nowhere.

    Raises:
        ExpressionError: a function rejects its arguments.
        PathNotFoundError: a path leads nowhere; names the keys that exist.
        TooMuchError: a bound is exceeded.
        BudgetExceededError: the budget is used up.
        OverloadedError: no worker became free in time.
    """
    budget = current_budget()
    budget.require()
    quick = _evaluated(node, value, roots, optional, _least(QUICK, budget))
    budget.spend(quick.steps, quick.parts)
    if quick.fault != TooMuchError.__name__:
        return _value_of(quick)
    async with budget.turn:
        budget.require()
        least = _least(bounds, budget)
        done = await _evaluate_beside(node, value, roots, optional, least, budget)
        budget.spend(done.steps, done.parts)
        if done.fault == TooMuchError.__name__:
            # If the evaluation failed only because little of the budget was left, the rest of it is used up.
            is_late = done.steps >= int(least.seconds * STEPS_PER_SECOND)
            if is_late and least.seconds < bounds.seconds:
                budget.spend(budget.steps)
            elif not is_late and least.parts < bounds.parts:
                budget.spend(0, budget.parts)
            budget.require()
    return _value_of(done)


async def _evaluate_beside(
    node: Node, value: Any, roots: Mapping[str, Any], optional: bool, bounds: Bounds, budget: RequestBudget
) -> _Done:
    if budget.workers is None or _only_goes_through(node):
        return await budget.in_thread(_evaluated, node, value, roots, optional, bounds)
    given = {name: roots[name] for name in root_names(node) if name in roots}
    limits = astuple(bounds)
    try:
        answer = await budget.workers.in_process(
            evaluate_in_process,
            node,
            value,
            given,
            optional,
            limits,
            seconds=bounds.seconds + ENDING_SECONDS,
            quota_key=budget.quota_key,
        )
    except WorkerLimitError as error:
        if error.limit is Limit.MACHINE:
            raise out_of_turn("an expression was not evaluated") from None
        steps = int(bounds.seconds * STEPS_PER_SECOND) if error.limit is Limit.TIME else 0
        return _Done(None, steps, bounds.parts - bool(steps), TooMuchError.__name__, f"it was ended ({error.limit})")
    except RecursionError:
        return _Done(None, 0, 0, ExpressionError.__name__, "the data is nested too deeply")
    return _Done(*answer)


def evaluate_in_process(
    node: Node, value: Any, roots: Mapping[str, Any], optional: bool, limits: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Evaluate in a worker process; take and return plain values."""
    done = _evaluated(node, value, roots, optional, Bounds(*limits))
    return done.value, done.steps, done.parts, done.fault, done.reason


@dataclass(frozen=True, slots=True)
class _Done:
    """A finished evaluation: the value, or the fault and its reason; and the steps and parts used."""

    value: Any
    steps: int
    parts: int
    fault: str = ""
    reason: str = ""


def _value_of(done: _Done) -> Any:
    if not done.fault:
        return done.value
    raise next(kind for kind in _FAULTS if kind.__name__ == done.fault)(done.reason)


def _least(bounds: Bounds, budget: RequestBudget) -> Bounds:
    """Return the stricter of the bounds and the rest of a request's budget."""
    parts = min(bounds.parts, budget.parts)
    if bounds.steps is not None:
        is_enough = budget.steps >= bounds.steps and parts == bounds.parts
        return bounds if is_enough else Bounds(min(bounds.steps, budget.steps), parts, bounds.seconds, bounds.reads)
    return Bounds(None, parts, min(bounds.seconds, budget.steps / STEPS_PER_SECOND), bounds.reads)


def _evaluated(node: Node, value: Any, roots: Mapping[str, Any], optional: bool, bounds: Bounds) -> _Done:
    interpreter = _Interpreter(node, value, roots, bounds)
    found: Any = None
    fault, reason = "", ""
    try:
        found = interpreter.visit(node, value)
        if not _is_small(found) and not _only_goes_through(node):
            interpreter.take(interpreter.surplus(found))
        missing = interpreter.fault(node, value) if found in (None, []) and not optional else None
        if missing is not None:
            fault, reason = PathNotFoundError.__name__, missing
    except TooMuchError as error:
        fault, reason = TooMuchError.__name__, error.reason
    except (JMESPathError, RecursionError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        # The library's functions let Python's own errors through if types do not fit.
        fault, reason = ExpressionError.__name__, reason_of(error)
    return _Done(None if fault else found, interpreter.taken, interpreter.parts, fault, reason)


def _only_goes_through(node: Node) -> bool:
    """Return True if an expression takes time proportional to the size of its data, and not more."""
    return all(each["type"] in _GOING_THROUGH for each in nodes(node)) and len(root_names(node)) <= 1


class _Interpreter(TreeInterpreter):  # type: ignore[misc]  # the library has no types
    """An interpreter that counts steps and parts, and checks sizes before anything is multiplied."""

    def __init__(self, node: Node, value: Any, roots: Mapping[str, Any], bounds: Bounds) -> None:
        super().__init__()
        self._node = node
        self._value = value
        self._roots = roots
        self._bounds = bounds
        self._given_size: int | None = None
        self._began: float | None = None
        self._most_steps = bounds.steps
        self._next_look = STEPS_BETWEEN_LOOKS if bounds.steps is None else min(STEPS_BETWEEN_LOOKS, bounds.steps)
        self.visits = 0
        self.parts = 0

    @property
    def taken(self) -> int:
        """Return the steps used of a request's budget: nodes if they are bounded, else processor time."""
        if self._most_steps is not None or self._began is None:
            return self.visits
        return int(min(time.thread_time() - self._began, self._bounds.seconds) * STEPS_PER_SECOND)

    def visit(self, node: Node, *args: Any, **kwargs: Any) -> Any:
        self.visits += 1
        if self.visits >= self._next_look:
            self._look()
        kind = node["type"]
        value = _VISITORS[kind](self, node, *args, **kwargs)
        if kind in _BUILDING:
            if isinstance(value, str):
                self.take(len(value) // CHARACTERS_PER_PART)
            elif isinstance(value, list | dict):
                self.take(len(value))
        return value

    def _look(self) -> None:
        self._next_look = self.visits + STEPS_BETWEEN_LOOKS
        if self._most_steps is not None:
            self._next_look = min(self._next_look, self._most_steps)
            if self.visits >= self._most_steps:
                raise TooMuchError("too many evaluations")
        now = time.thread_time()
        if self._began is None:
            self._began = now
        if now - self._began > self._bounds.seconds:
            raise TooMuchError("it takes too long")

    def take(self, parts: int) -> None:
        """Count the parts that are built."""
        self.parts += parts
        if self.parts > self._bounds.parts:
            raise TooMuchError("too large a value")

    def visit_flatten(self, node: Node, value: Any) -> Any:
        base = self.visit(node["children"][0], value)
        if isinstance(base, list):
            # Checked first: flattening is one uninterrupted operation, however long the lists are.
            self._look()
            self.check_length(len(base))
            self.check_length(sum(len(each) for each in base if isinstance(each, list)))
        return super().visit_flatten({**node, "children": [_literal(base)]}, value)

    def check_length(self, parts: int) -> None:
        """Refuse to build too many parts."""
        if parts > self._bounds.parts:
            raise TooMuchError("too large a value")

    def visit_field(self, node: Node, value: Any) -> Any:
        name = node["value"]
        if is_root(node) and name[1:] in self._roots:
            return self._roots[name[1:]]
        return value.get(name) if isinstance(value, dict) else None

    def visit_function_expression(self, node: Node, value: Any) -> Any:
        name = node["value"]
        if name in ENDLESS and self._most_steps is not None:
            raise TooMuchError("it may take for ever, and nothing else goes on meanwhile")
        arguments = [self.visit(child, value) for child in node["children"]]
        self._look()
        for child, argument in zip(node["children"], arguments, strict=True):
            self._check_read(child, argument)
        return LanguageFunctions(self.check_length).call_function(name, arguments)

    def visit_comparator(self, node: Node, value: Any) -> Any:
        first, second = node["children"]
        left, right = self.visit(first, value), self.visit(second, value)
        self._check_read(first, left)
        self._check_read(second, right)
        operator = node["value"]
        if operator not in self._EQUALITY_OPS:
            if not (_has_order(left) and _has_order(right)):
                return None
            check_order(left, right, node["children"])
        return self.COMPARATOR_FUNC[operator](left, right)

    def visit_arithmetic(self, node: Node, value: Any) -> Any:
        first, second = node["children"]
        return calculated(node["value"], self.visit(first, value), self.visit(second, value), node["children"])

    def visit_negation(self, node: Node, value: Any) -> Any:
        [operand] = node["children"]
        negated = self.visit(operand, value)
        check_number("-", negated, operand)
        return -negated

    def _check_read(self, node: Node, value: Any) -> None:
        """Refuse a value that contains itself many times over: comparing or serializing it takes exponential time."""
        if not _is_small(value) and (self._most_steps is not None or not _is_path_from_root(node)):
            self.surplus(value)

    def surplus(self, value: Any) -> int:
        """Return how many more parts a value has than the data, counting shared parts every time; refuse too many."""
        size = self._size(value, self._bounds.parts)
        if size <= self._bounds.parts:
            return size
        if self._given_size is None:
            given = [self._value, *(self._roots[name] for name in root_names(self._node) if name in self._roots)]
            self._given_size = self._size(given, self._bounds.reads)
        most = min(self._given_size, self._bounds.reads) + self._bounds.parts
        size = self._size(value, most)
        if size > most:
            raise TooMuchError("too large a value")
        return max(size - self._given_size, 0)

    def _size(self, value: Any, most: int) -> int:
        """Count the parts of a value; stop once there are more than `most`."""
        longest = min(MAX_TEXT, self._bounds.reads * CHARACTERS_READ)
        pending, parts, characters = [value], 0, 0
        while pending:
            part = pending.pop()
            parts += 1
            if isinstance(part, str):
                characters += len(part)
                if characters > longest:
                    raise TooMuchError("too large a value")
            elif isinstance(part, dict):
                pending.extend(part.values())
            elif isinstance(part, list):
                pending.extend(part)
            if parts + len(pending) > most:
                return most + 1
        return parts + characters // CHARACTERS_PER_PART

    def fault(self, node: Node, value: Any) -> str | None:
        """Return where a path of fields and indexes leaves the data and what is there instead; None if it does not."""
        match node["type"]:
            case "field":
                is_known = is_root(node) and node["value"][1:] in self._roots
                return None if is_known else self._field_fault(node["value"], value)
            case "index":
                return _index_fault(node["value"], value)
            case "slice":
                return (
                    None if isinstance(value, list) else f"[:] of {kind_of_value(value)}; it takes the items of a list"
                )
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
        if isinstance(value, dict):
            if name in value:
                return None
            keys = [repr(shortened(str(key), MAX_NAME)) for key in list(value)[:MAX_KEYS_NAMED]]
            more = f" and {len(value) - MAX_KEYS_NAMED} more" if len(value) > MAX_KEYS_NAMED else ""
            return f"no key {shortened(name, MAX_NAME)!r}; the keys are {', '.join(keys) or 'none'}{more}"
        if isinstance(value, list):
            return f"{shortened(name, MAX_NAME)!r} of a list of {len(value)}; take one item with [0] or all with [*]"
        return f"{shortened(name, MAX_NAME)!r} of {kind_of_value(value)}"

    def _projection_fault(self, node: Node, value: Any) -> str | None:
        base, *rest = node["children"]
        fault = self.fault(base, value)
        if fault is not None:
            return fault
        items = self.visit(base, value)
        if node["type"] == "value_projection":
            return None if isinstance(items, dict) else f"* of {kind_of_value(items)}; it takes the values of an object"
        if not isinstance(items, list):
            return f"[*] of {kind_of_value(items)}; it takes the items of a list"
        if node["type"] != "projection" or not items:
            return None
        faults = [self.fault(rest[0], item) for item in items]
        return faults[0] if all(faults) else None


_VISITORS = {
    name: getattr(_Interpreter, f"visit_{name}") for name in (*_GOING_THROUGH, *_BUILDING, "expref", "key_val_pair")
}
"""The visitor method of each kind of node."""


def _is_path_from_root(node: Node) -> bool:
    """Return True if a node selects a part of the input data."""
    while node["type"] in ("subexpression", "index_expression"):
        first, *rest = node["children"]
        if any(each["type"] not in ("field", "index") for each in rest):
            return False
        node = first
    return is_root(node)


def _is_small(value: Any) -> bool:
    """Return True if a value counts as one part."""
    if isinstance(value, str):
        return len(value) < CHARACTERS_PER_PART
    return not isinstance(value, list | dict)


def _has_order(value: Any) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool)


def _literal(value: Any) -> Node:
    return {"type": "literal", "value": value, "children": []}


def _index_fault(index: int, value: Any) -> str | None:
    if not isinstance(value, list):
        return f"[{index}] of {kind_of_value(value)}; it takes an item of a list"
    if -len(value) <= index < len(value):
        return None
    return f"no item [{index}] in a list of {len(value)}"


def shown(text: str) -> str:
    """Quote an expression for messages."""
    return repr(shortened(text, 120))


async def select(expression: str, value: Any) -> Any:
    """Return the part of `value` that a JMESPath expression selects.

    Raises:
        InvalidInputError: the expression is invalid, takes too much work, or finds nothing; names the keys that exist.
    """
    if len(expression) > MAX_EXPRESSION:
        raise InvalidInputError(f"path: {len(expression)} characters; at most {MAX_EXPRESSION}")
    try:
        node = _compiled(expression)
    except ExpressionError as error:
        hint = error.hint or "for example items[0].id or items[*].name"
        raise InvalidInputError(f"path {shown(expression)} is no JMESPath: {error.reason}", hint=hint) from None
    try:
        selected = await evaluate(node, value, BOUNDS)
    except ExpressionError as error:
        begin = await anyio.to_thread.run_sync(sketch, value, MAX_BEGIN)
        raise InvalidInputError(
            f"path {shown(expression)} cannot be evaluated: {error.reason}", hint=f"the path begins at {begin}"
        ) from None
    except PathNotFoundError as error:
        raise InvalidInputError(f"path {shown(expression)} finds nothing", hint=error.reason) from None
    except TooMuchError:
        raise _too_much(expression) from None
    if await current_budget().in_thread(exceeds, selected, MAX_SELECTED):
        raise _too_much(expression)
    return selected


async def value_at(content: Content, path: str | None) -> Any:
    """Return the value that a reference with this path resolves to.

    Raises:
        InvalidInputError: see `select`.
    """
    if path is None:
        return content.value
    if content.kind != "text":
        return await select(path, content.value)
    return await select(path, await anyio.to_thread.run_sync(addressed, content))


@lru_cache(maxsize=512)
def _compiled(expression: str) -> Node:
    node = parse(expression)
    if names := root_names(node):
        raise ExpressionError(
            f"${names[0]} is no part of a value", "a path begins inside the value, as items[0].id does"
        )
    return node


def _too_much(expression: str) -> InvalidInputError:
    return InvalidInputError(
        f"path {shown(expression)} selects or evaluates too much", hint="select less, or in several steps"
    )
